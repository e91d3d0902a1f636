//! Compaction: writes an image of the closed segments. Runs in a child process and needs only the journal folder.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::OpenError;
use crate::files::Files;
use crate::folder::Folder;
use crate::image::{self, ImagePosition};
use crate::lsn::Lsn;
use crate::options::{Options, RecoverableState};
use crate::recovery::{Replay, load_base};
use crate::segment_format;
use crate::segment_reader::{SegmentEntry, SegmentReader};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionResult {
    /// Last event of the new image. Without a new image, the last event of the existing image.
    pub lsn: Lsn,
    pub segments: u64,
    pub batches: u64,
    pub events: u64,
    pub image: Option<PathBuf>,
    pub image_bytes: u64,
}

/// Writes a new durable image, which combines the newest image with all closed segments after it.
///
/// The state must be empty. Does not touch the current segment. Returns [`OpenError::Locked`] if another compaction of
/// the folder is running.
pub fn write_compacted_image(
    options: Options,
    files: Arc<dyn Files>,
    state: &mut dyn RecoverableState,
) -> Result<CompactionResult, OpenError> {
    segment_format::check_options(&options)?;
    let folder = Folder { files, path: options.dir.clone() };
    let _folder_lock = folder.lock("compact.lock")?;
    let listing = folder.list()?;
    let base = load_base(&folder, &options, &listing, state)?;
    let last = listing.segments.last_key_value().map_or(0, |(&number, _)| number);
    let mut replay = Replay::new(&folder, &options, state, base.cursor);
    let mut last_closed = base.first_segment - 1;
    let mut log_end = None;
    while last_closed + 1 < last && has_batch(&folder, &options, last_closed + 2)? {
        let mut reader = SegmentReader::open(&folder, &options, last_closed + 1)?;
        log_end = Some(replay.apply_whole_batches(&mut reader, log_end)?);
        last_closed += 1;
    }
    if let Some(log_end) = log_end {
        // The next segment must continue the log. Otherwise the end of the last closed segment is missing.
        replay.check_begins_after(last_closed + 1, log_end)?;
    }
    let (cursor, segments) = (replay.cursor, last_closed + 1 - base.first_segment);
    let (batches, events) = (replay.batches, replay.events);
    let mut result = CompactionResult { lsn: cursor.lsn, segments, batches, events, image: None, image_bytes: 0 };
    if segments > 0 {
        let position = ImagePosition {
            lsn: cursor.lsn,
            sequence: cursor.sequence,
            segment: last_closed,
            epoch: cursor.epoch,
            clock: cursor.clock.unwrap_or_default(),
        };
        let (path, bytes) = image::write(&folder, &options, &position, state)?;
        result.image = Some(path);
        result.image_bytes = bytes;
    }
    Ok(result)
}

/// Reports whether the first batch of a segment is valid. The writer closes and syncs a segment before it begins the
/// next one, so a valid batch proves that the previous segment is complete.
fn has_batch(folder: &Folder, options: &Options, number: u64) -> Result<bool, OpenError> {
    let mut reader = SegmentReader::open(folder, options, number)?;
    Ok(matches!(reader.next()?, SegmentEntry::Batch(..)))
}

/// Makes the kernel kill this process when its parent process ends. Fails if `parent` is no longer the parent.
///
/// The kernel watches the *thread* that created this process, so that thread must not end earlier.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: plain call; the signal is delivered to this process only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Runs after `prctl`, so that no end of the parent is missed.
    // SAFETY: plain call.
    if unsafe { libc::getppid() } as u32 != parent {
        return Err(io::Error::other("the parent has ended"));
    }
    Ok(())
}
