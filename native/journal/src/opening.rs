//! Opening of a journal folder: recovery, durability of the recovered events, and the first batch of the run.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::batch_queue::BatchQueue;
use crate::durable_signal::DurablePosition;
use crate::error::OpenError;
use crate::files::{Access, DEVICE_READ_ALIGNMENT, Files, read_exact_at, write_all_at};
use crate::folder::{Folder, Listing};
use crate::journal::Journal;
use crate::journal_core::{Counters, JournalCore, Shared, WriterState};
use crate::lsn::Lsn;
use crate::mutex::lock;
use crate::options::{Options, RecoverableState};
use crate::recovery::{self, LastBatch, LogCursor, LogTail, Replay};
use crate::segment_format;
use crate::segment_pool::{NewSegments, SegmentPool};
use crate::service_clock::{ServiceClock, read_boot_id};
use crate::time_and_random::{RealTimeAndRandom, TimeAndRandom};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverySummary {
    /// Last event of the log. All events up to this one are applied and durable.
    pub last_lsn: Lsn,
    pub image_lsn: Lsn,
    pub batches: u64,
    pub events: u64,
    /// Length of the last batch if a crash cut it short, else 0. The segment's alignment if its header is damaged. Its events
    /// were never acknowledged.
    pub torn_bytes: u64,
    pub epoch: u64,
    pub service_ms: u64,
    /// Batches of new segments begin on multiples of this number of bytes.
    pub alignment: u64,
    /// Physical block of the device, if it is larger than the largest alignment. Two batches can then share a block.
    pub uncovered_block: Option<u64>,
}

/// Opens a journal: loads the newest image, applies the batches after the image, and starts the threads.
///
/// On success, all recovered events and the new epoch are durable. On an error, no acknowledged event is lost, and the
/// caller can retry.
pub fn open(
    options: Options,
    files: Arc<dyn Files>,
    state: &mut dyn RecoverableState,
) -> Result<(Journal, RecoverySummary), OpenError> {
    let (journal, recovered) = open_stepped(options, files, Arc::new(RealTimeAndRandom), state)?;
    journal.start_threads()?;
    Ok((journal, recovered))
}

/// Opens a journal without threads, for tests that control time and scheduling.
///
/// Only [`Journal::step_commit`] writes batches, and only [`Journal::step_prepare`] prepares segments.
pub fn open_stepped(
    options: Options,
    files: Arc<dyn Files>,
    time_and_random: Arc<dyn TimeAndRandom>,
    state: &mut dyn RecoverableState,
) -> Result<(Journal, RecoverySummary), OpenError> {
    segment_format::check_options(&options)?;
    let boot_id = read_boot_id(&options.boot_id_path)?;
    let folder = Folder { files, path: options.dir.clone() };
    folder.files.create_folder(&folder.path).map_err(|error| OpenError::io("create", &folder.path, error))?;
    folder.sync_parent()?;
    let folder_lock = folder.lock("lock")?;
    let listing = folder.list()?;
    let log = read_log(&folder, &options, &listing, state)?;
    let (epoch, first_epoch) = (log.cursor.epoch, options.first_epoch);
    if epoch != 0 && epoch < first_epoch {
        return Err(OpenError::BeforeRestore { path: folder.path, epoch, first_epoch });
    }
    settle(&folder, log.last_batch)?;
    let physical_block = folder.files.physical_block(&folder.path);
    let alignment = segment_format::batch_alignment(physical_block);
    let mut queue = BatchQueue::new(options.segment_bytes, alignment);
    let new_segments = NewSegments { options: &options, alignment };
    let pool = SegmentPool::restore(&folder, &new_segments, &listing, log.first_segment, log.tail, &mut queue)?;
    let clock = ServiceClock::resume(Arc::clone(&time_and_random), boot_id, log.cursor.clock.as_ref());
    let core = JournalCore {
        epoch: (log.cursor.epoch + 1).max(options.first_epoch),
        shared: Mutex::new(Shared::new(queue, pool, Counters::new(), time_and_random.boot_ms())),
        writer_wake: Condvar::new(),
        pool_wake: Condvar::new(),
        compaction_wake: Condvar::new(),
        writing: Mutex::new(WriterState { sequence: log.cursor.sequence }),
        preparing: Mutex::new(()),
        recycling: Mutex::new(()),
        position: DurablePosition::new(log.cursor.lsn),
        last: AtomicU64::new(log.cursor.lsn),
        credit_total: AtomicU64::new(0),
        is_closing: AtomicBool::new(false),
        clock: Arc::new(clock),
        options,
        alignment,
        folder,
        time_and_random,
        folder_lock: Mutex::new(Some(folder_lock)),
    };
    core.begin_run()?;
    let recovered = log.recovered(&core, physical_block);
    Ok((Journal::new(core), recovered))
}

struct ReplayedLog {
    cursor: LogCursor,
    first_segment: u64,
    tail: Option<LogTail>,
    last_batch: Option<LastBatch>,
    image_lsn: Lsn,
    batches: u64,
    events: u64,
}

impl ReplayedLog {
    fn recovered(&self, core: &JournalCore, physical_block: Option<u64>) -> RecoverySummary {
        RecoverySummary {
            last_lsn: self.cursor.lsn,
            image_lsn: self.image_lsn,
            batches: self.batches,
            events: self.events,
            torn_bytes: self.tail.map_or(0, |tail| tail.torn_bytes),
            epoch: core.epoch,
            service_ms: core.clock.service_ms(),
            alignment: core.alignment,
            uncovered_block: segment_format::uncovered_block(physical_block),
        }
    }
}

fn read_log(
    folder: &Folder,
    options: &Options,
    listing: &Listing,
    state: &mut dyn RecoverableState,
) -> Result<ReplayedLog, OpenError> {
    let base = recovery::load_base(folder, options, listing, state)?;
    let mut replay = Replay::new(folder, options, state, base.cursor);
    let tail = match listing.segments.last_key_value() {
        Some((&last, _)) if last >= base.first_segment => Some(replay.run_to_end(base.first_segment, last)?),
        _ => None,
    };
    recovery::check_end(folder, listing, replay.cursor.lsn)?;
    Ok(ReplayedLog {
        cursor: replay.cursor,
        first_segment: base.first_segment,
        tail,
        last_batch: replay.last_batch,
        image_lsn: base.image_lsn,
        batches: replay.batches,
        events: replay.events,
    })
}

/// Makes the recovered file names and the last batch durable.
///
/// An earlier failed sync may have marked unwritten pages of the last batch as clean, so a sync alone proves nothing. If the
/// device has other bytes than the page cache, the batch was never acknowledged, and it is written again. An acknowledged
/// batch is not written again, because a power failure could damage it.
fn settle(folder: &Folder, last_batch: Option<LastBatch>) -> Result<(), OpenError> {
    folder.sync()?;
    let Some(LastBatch { segment, start, end }) = last_batch else { return Ok(()) };
    let path = folder.segment(segment);
    let file = folder.open(&path, Access::Write)?;
    let sync = || file.sync_data().map_err(|error| OpenError::io("sync", &path, error));
    sync()?;
    // Batches of segment format 1 begin on multiples of 512 bytes.
    let first = start / DEVICE_READ_ALIGNMENT * DEVICE_READ_ALIGNMENT;
    let length = (end - first).next_multiple_of(DEVICE_READ_ALIGNMENT) as usize;
    let read_error = |error| OpenError::io_at("read", &path, first, error);
    let mut cached = vec![0; length];
    read_exact_at(file.as_ref(), &mut cached, first).map_err(read_error)?;
    let on_device = folder.files.read_device(&path, first, length).map_err(read_error)?;
    if on_device.is_some_and(|on_device| on_device == cached) {
        return Ok(());
    }
    let batch = &cached[(start - first) as usize..(end - first) as usize];
    write_all_at(file.as_ref(), batch, start).map_err(|error| OpenError::io_at("write", &path, start, error))?;
    sync()
}

impl JournalCore {
    /// Writes the first batch of the new epoch, and prepares segments until half a segment more than
    /// [`crate::Credit::reserve`] can be submitted. Clients have waited for the start, and the next segment may take time.
    ///
    /// This batch makes the epoch and the end of the recovered log durable. In a new segment, its number proves that the
    /// segment before is complete.
    fn begin_run(&self) -> Result<(), OpenError> {
        if !lock(&self.shared).queue.has_segment() {
            self.prepare_or_stall()?;
        }
        let next_lsn = self.last.load(Ordering::Relaxed) + 1;
        lock(&self.shared).queue.begin(next_lsn, 0, &[], self.time_and_random.elapsed_ns());
        if lock(&self.shared).queue.is_blocked() {
            self.prepare_or_stall()?;
        }
        self.commit().map_err(|failure| failure.into_open_error())?;
        let has_credit = || {
            let credit = lock(&self.shared).queue.credit();
            credit.total > credit.reserve + credit.largest / 2
        };
        while !has_credit() && self.prepare_or_stall()? {}
        self.refresh_credit(&lock(&self.shared));
        Ok(())
    }

    /// Prepares one segment. Returns false if none was needed, or if the disk is full.
    ///
    /// The journal can start with a full disk. It then accepts at most [`crate::Credit::reserve`] bytes.
    fn prepare_or_stall(&self) -> Result<bool, OpenError> {
        match self.prepare_segment() {
            Err(error) if !error.is_no_space() => Err(error),
            result => Ok(result.unwrap_or(false)),
        }
    }
}
