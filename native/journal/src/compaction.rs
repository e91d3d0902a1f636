//! Compaction: writes an image of the closed segments, and recycles the segments. A thread of the journal does this each
//! time that enough segments are closed.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hosting_scheduling::lower_priority;

use crate::error::OpenError;
use crate::files::Files;
use crate::folder::Folder;
use crate::image::{self, ImagePosition};
use crate::journal_core::JournalCore;
use crate::lsn::Lsn;
use crate::mutex::lock;
use crate::options::{Options, RecoverableState};
use crate::recovery::{Replay, load_base};
use crate::segment_format;
use crate::segment_reader::{SegmentEntry, SegmentReader};
use crate::stats::{CompactionFailure, LastCompaction};

/// Number of closed segments from which a compaction has the priority of other threads. Otherwise a busy machine could
/// delay it until the disk is full.
const CLOSED_SEGMENTS_UNTIL_URGENT: usize = 12;
/// Pause after a failed compaction, in seconds.
const RETRY_S: u64 = 30;
/// The same while the disk is full, because new slots are refused meanwhile.
const RETRY_ON_FULL_DISK_S: u64 = 1;

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
    write_image(&folder, &options, state)
}

fn write_image(
    folder: &Folder,
    options: &Options,
    state: &mut dyn RecoverableState,
) -> Result<CompactionResult, OpenError> {
    // An earlier version compacted in another process, which can still be running.
    let _folder_lock = folder.lock("compact.lock")?;
    let listing = folder.list()?;
    let base = load_base(folder, options, &listing, state)?;
    let last = listing.segments.last_key_value().map_or(0, |(&number, _)| number);
    let mut replay = Replay::new(folder, options, state, base.cursor);
    let mut last_closed = base.first_segment - 1;
    let mut log_end = None;
    while last_closed + 1 < last && has_batch(folder, options, last_closed + 2)? {
        let mut reader = SegmentReader::open(folder, options, last_closed + 1)?;
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
        let (path, bytes) = image::write(folder, options, &position, state)?;
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

impl JournalCore {
    /// Compacts the journal each time that enough segments are closed. Returns when the journal closes.
    ///
    /// `new_state` returns an empty state.
    pub fn run_compactions<S: RecoverableState>(&self, new_state: &(impl Fn() -> S + Sync)) {
        let mut pause = Duration::ZERO;
        while let Some(closed) = self.wait_for_compaction(pause) {
            let compact = || {
                if closed < CLOSED_SEGMENTS_UNTIL_URGENT {
                    let _ = lower_priority();
                }
                write_image(&self.folder, &self.options, &mut Closeable { state: new_state(), core: self })
            };
            // A thread of its own, because a lower priority of a thread is for ever.
            let spawned = thread::scope(|scope| {
                let thread = thread::Builder::new().name("compaction".to_owned()).spawn_scoped(scope, compact)?;
                Ok(thread.join())
            });
            let written = match spawned {
                Err(error) => Err(OpenError::io("start a thread for", &self.folder.path, error)),
                Ok(Err(_)) => Err(OpenError::io("compact", &self.folder.path, io::Error::other("the thread panicked"))),
                Ok(Ok(result)) => result,
            };
            if lock(&self.shared).is_closing {
                return;
            }
            pause = match written.and_then(|_| self.recycle_and_record()) {
                Ok(_) => Duration::ZERO,
                Err(error) => self.record_failed_compaction(&error.to_string(), error.is_no_space()),
            };
        }
    }

    /// Returns the pause until the next attempt.
    pub fn record_failed_compaction(&self, reason: &str, is_no_space: bool) -> Duration {
        let retry_s = if is_no_space { RETRY_ON_FULL_DISK_S } else { RETRY_S };
        let mut shared = lock(&self.shared);
        shared.last_compaction = Some(LastCompaction::Failed);
        shared.last_compaction_failure = Some(CompactionFailure { reason: reason.to_owned(), retry_s });
        shared.failed_compactions += 1;
        shared.image_stall = is_no_space.then(|| format!("image: {reason}"));
        self.refresh_credit(&shared);
        Duration::from_secs(retry_s)
    }

    /// Waits for at least `pause` until a compaction is due, and returns the number of closed segments. Returns None when
    /// the journal closes.
    fn wait_for_compaction(&self, pause: Duration) -> Option<usize> {
        let not_before = Instant::now() + pause;
        let mut shared = lock(&self.shared);
        while !shared.is_closing {
            let left = not_before.saturating_duration_since(Instant::now());
            shared = if !left.is_zero() {
                self.compaction_wake.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0
            } else if shared.pool.is_compaction_due() {
                return Some(shared.pool.closed.len());
            } else {
                self.compaction_wake.wait(shared).unwrap_or_else(PoisonError::into_inner)
            };
        }
        None
    }
}

/// State of a compaction that fails when the journal closes, so that the end of the process does not wait for it.
struct Closeable<'a, S> {
    state: S,
    core: &'a JournalCore,
}

impl<S> Closeable<'_, S> {
    fn check_open(&self) -> Result<(), String> {
        if self.core.is_closing.load(Ordering::Relaxed) {
            return Err("the journal is closing".to_owned());
        }
        Ok(())
    }
}

impl<S: RecoverableState> RecoverableState for Closeable<'_, S> {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.check_open()?;
        self.state.load_image(bytes)
    }

    fn apply(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8], service_ms: u64) -> Result<(), String> {
        self.check_open()?;
        self.state.apply(first_lsn, count, bytes, service_ms)
    }

    fn write_image(&self, out: &mut dyn Write) -> io::Result<()> {
        self.state.write_image(&mut CloseableWriter { out, is_open: &|| self.check_open() })
    }

    fn unknown_kind(&self) -> Option<u8> {
        self.state.unknown_kind()
    }
}

struct CloseableWriter<'a> {
    out: &'a mut dyn Write,
    is_open: &'a dyn Fn() -> Result<(), String>,
}

impl Write for CloseableWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.is_open)().map_err(io::Error::other)?;
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    use crate::files::RealFiles;
    use crate::opening::open;

    #[derive(Default)]
    struct Gate {
        /// Whether the first batch has arrived, and whether it may pass.
        state: Mutex<(bool, bool)>,
        changed: Condvar,
    }

    struct GatedState(Option<Arc<Gate>>);

    impl RecoverableState for GatedState {
        fn load_image(&mut self, _bytes: &[u8]) -> Result<(), String> {
            Ok(())
        }

        fn apply(&mut self, _first_lsn: Lsn, _count: u32, _bytes: &[u8], _service_ms: u64) -> Result<(), String> {
            if let Some(gate) = self.0.take() {
                gate.state.lock().unwrap().0 = true;
                gate.changed.notify_all();
                drop(gate.changed.wait_while(gate.state.lock().unwrap(), |(_, is_open)| !*is_open).unwrap());
            }
            Ok(())
        }

        fn write_image(&self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(b"state")
        }
    }

    /// Runs a compaction, during which the journal begins to close. The end then waits for no further batch.
    #[test]
    fn close_ends_a_compaction_and_leaves_no_image() {
        let folder = tempfile::tempdir().unwrap();
        let options = || Options { segment_bytes: 256 * 1024, ..Options::new(folder.path(), 1, &[(1, "Event")]) };
        let (journal, _) = open(options(), Arc::new(RealFiles), &mut GatedState(None)).unwrap();
        while !journal.compaction_due() {
            let credit = journal.credit();
            if credit.total - credit.reserve > 20_000 {
                journal.submit(journal.last() + 1, 1, &[1; 20_000]);
            }
            // Each event is a batch.
            while journal.durable() < journal.last() {
                thread::yield_now();
            }
        }
        let gate = Arc::new(Gate::default());
        let of_state = Arc::clone(&gate);
        journal.start_compaction(move || GatedState(Some(Arc::clone(&of_state)))).unwrap();
        let arrived = gate.changed.wait_while(gate.state.lock().unwrap(), |(has_arrived, _)| !*has_arrived);
        drop(arrived.unwrap());
        journal.begin_close();
        gate.state.lock().unwrap().1 = true;
        gate.changed.notify_all();
        journal.shutdown();
        let stats = journal.stats();
        assert_eq!((stats.compactions, stats.failed_compactions), (0, 0));
        let entries = RealFiles.list(folder.path()).unwrap();
        assert!(!entries.iter().any(|entry| entry.name.starts_with("image")), "{entries:?}");
        drop(journal);
        let (journal, recovered) = open(options(), Arc::new(RealFiles), &mut GatedState(None)).unwrap();
        assert_eq!(recovered.image_lsn, 0);
        journal.close();
    }
}
