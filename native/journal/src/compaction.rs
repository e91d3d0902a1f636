//! Makes an image from the one before and the closed segments after it. Runs in a child process of its own, reads
//! only what no longer changes, and is told nothing: the files say which segments are closed.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::Lsn;
use crate::error::OpenError;
use crate::files::Files;
use crate::folder::Folder;
use crate::image::{self, Covered};
use crate::options::{Options, State};
use crate::reader::{Found, SegmentReader};
use crate::recovery::{Replay, load_base};

/// What a compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// Last event in the image, or in the one before if nothing was to be done.
    pub lsn: Lsn,
    /// Closed segments that were applied; without any no image was written.
    pub segments: u64,
    /// Batches that were applied.
    pub batches: u64,
    /// Events that were applied.
    pub events: u64,
    /// The image, if one was written.
    pub image: Option<PathBuf>,
    /// Its length in bytes.
    pub image_bytes: u64,
}

/// Loads the newest image into a fresh state, applies the closed segments after it, and writes, syncs and names a new
/// image. The segment in use is not touched. One at a time: another compaction of the folder is [`OpenError::Locked`].
pub fn compact(options: Options, files: Arc<dyn Files>, state: &mut dyn State) -> Result<Compacted, OpenError> {
    options.check()?;
    let folder = Folder { files, path: options.dir.clone() };
    let _held = folder.lock("compact.lock")?;
    let listing = folder.list()?;
    let base = load_base(&folder, &options, &listing, state)?;
    let last = listing.segments.last_key_value().map_or(0, |(&number, _)| number);
    let mut replay = Replay::new(&folder, &options, state, base.cursor);
    let mut covered = base.first_segment - 1;
    let mut hole = None;
    while covered + 1 < last && is_begun(&folder, &options, covered + 2)? {
        let mut reader = SegmentReader::open(&folder, &options, covered + 1)?;
        hole = Some(replay.apply_whole_batches(&mut reader, hole)?);
        covered += 1;
    }
    if let Some(hole) = hole {
        // What follows must follow what was read, or the end of the last segment is missing.
        replay.check_begins_after(covered + 1, hole)?;
    }
    let (cursor, segments) = (replay.cursor, covered + 1 - base.first_segment);
    let (batches, events) = (replay.batches, replay.events);
    let mut done = Compacted { lsn: cursor.lsn, segments, batches, events, image: None, image_bytes: 0 };
    if segments > 0 {
        let covered = Covered {
            lsn: cursor.lsn,
            sequence: cursor.sequence,
            segment: covered,
            epoch: cursor.epoch,
            clock: cursor.clock.unwrap_or_default(),
        };
        let (path, bytes) = image::write(&folder, &options, &covered, state)?;
        done.image = Some(path);
        done.image_bytes = bytes;
    }
    Ok(done)
}

/// Whether a segment has a whole first batch. Then the segment before it is closed and durable: its last sync came
/// before that batch was written.
fn is_begun(folder: &Folder, options: &Options, number: u64) -> Result<bool, OpenError> {
    let mut reader = SegmentReader::open(folder, options, number)?;
    Ok(matches!(reader.next()?, Found::Batch(..)))
}

/// Lets this process end with its parent, whose process id is given: by signal when the parent ends, at once with an
/// error when it already has.
///
/// The kernel watches the parent's *thread* that made this process: it must not end before.
pub fn end_with_parent(parent: u32) -> io::Result<()> {
    // SAFETY: plain call; the signal is delivered to this process only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // After the call above, so that a parent that ends in between is seen by one of the two.
    // SAFETY: plain call.
    if unsafe { libc::getppid() } as u32 != parent {
        return Err(io::Error::other("the parent has ended"));
    }
    Ok(())
}
