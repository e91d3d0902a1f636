//! State of a journal, which its handle and its threads share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use crate::batch_queue::{BatchQueue, Credit};
use crate::durable_signal::DurablePosition;
use crate::folder::Folder;
use crate::options::Options;
use crate::segment_pool::SegmentPool;
use crate::service_clock::ServiceClock;
use crate::stats::{BATCH_EVENT_BOUNDS, CompactionFailure, Histogram, LastCompaction, SYNC_NS_BOUNDS};
use crate::time_and_random::TimeAndRandom;

pub(crate) struct JournalCore {
    pub options: Options,
    /// Alignment of batches in new segments.
    pub alignment: u64,
    pub folder: Folder,
    pub time_and_random: Arc<dyn TimeAndRandom>,
    pub clock: Arc<ServiceClock>,
    pub epoch: u64,
    pub shared: Mutex<Shared>,
    pub writer_wake: Condvar,
    pub pool_wake: Condvar,
    pub compaction_wake: Condvar,
    /// Locked during the write and sync of a batch, so that at most one batch is in flight.
    pub writing: Mutex<WriterState>,
    pub preparing: Mutex<()>,
    pub recycling: Mutex<()>,
    pub position: Arc<DurablePosition>,
    // Copies of values in `shared` that are read without its lock.
    pub last: AtomicU64,
    pub credit_total: AtomicU64,
    pub is_closing: AtomicBool,
    pub folder_lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

pub(crate) struct Shared {
    pub queue: BatchQueue,
    pub pool: SegmentPool,
    pub counters: Counters,
    pub in_flight_since_ns: Option<u64>,
    pub recorded_boot_ms: u64,
    pub is_writer_idle: bool,
    pub is_closing: bool,
    /// True after a failed write or sync. The journal then writes no more batches.
    pub has_failed: bool,
    pub preparation_error: Option<String>,
    /// Reason of the failure, if the last image was not written because the disk was full.
    pub image_stall: Option<String>,
    pub last_compaction: Option<LastCompaction>,
    pub compactions: u64,
    pub failed_compactions: u64,
    pub last_compaction_failure: Option<CompactionFailure>,
}

impl Shared {
    pub fn new(queue: BatchQueue, pool: SegmentPool, counters: Counters, boot_ms: u64) -> Self {
        Self {
            queue,
            pool,
            counters,
            in_flight_since_ns: None,
            recorded_boot_ms: boot_ms,
            is_writer_idle: false,
            is_closing: false,
            has_failed: false,
            preparation_error: None,
            image_stall: None,
            last_compaction: None,
            compactions: 0,
            failed_compactions: 0,
            last_compaction_failure: None,
        }
    }

    /// Returns the credit of the next submission. While the disk is full, at most [`Credit::reserve`] is left.
    pub fn credit(&self) -> Credit {
        let mut credit = self.queue.credit();
        if self.preparation_error.is_some() || self.image_stall.is_some() {
            credit.total = credit.total.min(credit.reserve);
        }
        credit
    }
}

impl JournalCore {
    pub fn refresh_credit(&self, shared: &Shared) {
        self.credit_total.store(shared.credit().total, Ordering::Release);
    }
}

pub(crate) struct WriterState {
    pub sequence: u64,
}

pub(crate) struct Counters {
    pub batches: u64,
    pub events: u64,
    pub bytes: u64,
    pub batch_events: Histogram,
    pub sync_ns: Histogram,
}

impl Counters {
    pub fn new() -> Self {
        Self {
            batches: 0,
            events: 0,
            bytes: 0,
            batch_events: Histogram::new(&BATCH_EVENT_BOUNDS),
            sync_ns: Histogram::new(&SYNC_NS_BOUNDS),
        }
    }
}
