//! Journal handle: submission of events, the durable position, statistics and shutdown.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use hosting_scheduling::raise_priority;

use crate::batch_queue::Credit;
use crate::durable_signal::DurableSignal;
use crate::error::OpenError;
use crate::journal_core::{JournalCore, Shared};
use crate::lsn::Lsn;
use crate::mutex::lock;
use crate::options::RecoverableState;
use crate::service_clock::ServiceClock;
use crate::stats::Stats;

const HEARTBEAT_MS: u64 = 1_000;

/// An open journal. All methods are thread-safe, and they do no file operations unless their documentation says so.
pub struct Journal {
    core: Arc<JournalCore>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Journal {
    pub(crate) fn new(core: JournalCore) -> Self {
        Self { core: Arc::new(core), threads: Mutex::new(Vec::new()) }
    }

    pub(crate) fn start_threads(&self) -> Result<(), OpenError> {
        // Every answer waits for these threads. Without the privilege they have a short time slice only.
        let raise_priority = || raise_priority(hosting_scheduling::NICE);
        self.start_thread("journal-writer", move |core| {
            let _ = raise_priority();
            core.run_writer();
        })?;
        self.start_thread("journal-segments", move |core| {
            let _ = raise_priority();
            core.prepare_segments();
        })
    }

    /// Starts the thread that compacts the journal. `new_state` returns an empty state, which is in memory during a
    /// compaction.
    pub fn start_compaction<S: RecoverableState>(
        &self,
        new_state: impl Fn() -> S + Send + Sync + 'static,
    ) -> Result<(), OpenError> {
        self.start_thread("journal-compact", move |core| core.run_compactions(&new_state))
    }

    fn start_thread(
        &self,
        name: &'static str,
        body: impl FnOnce(&JournalCore) + Send + 'static,
    ) -> Result<(), OpenError> {
        let core = Arc::clone(&self.core);
        let run = move || {
            // Without its threads, submitted events would never become durable, and their callers would wait forever.
            if catch_unwind(AssertUnwindSafe(|| body(&core))).is_err() {
                (core.options.on_fatal)(&format!("the thread {name} panicked"));
            }
        };
        let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        let thread = spawned.map_err(|error| OpenError::io("start a thread for", &self.core.folder.path, error))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    pub fn credit(&self) -> Credit {
        let largest = crate::segment_format::payload_capacity(self.core.options.segment_bytes, self.core.alignment);
        Credit { total: self.core.credit_total.load(Ordering::Acquire), reserve: largest, largest }
    }

    /// Appends events to the batch that is written next. `first_lsn` must be `last() + 1`.
    ///
    /// The caller checks [`Self::credit`] and submits under one lock. Events beyond the credit stay in memory until the
    /// disk has room. Events that are out of order or larger than [`Credit::largest`] end the process.
    pub fn submit(&self, first_lsn: Lsn, count: u32, bytes: &[u8]) {
        let core = &*self.core;
        let expected = core.last.load(Ordering::Relaxed) + 1;
        if first_lsn != expected || count == 0 {
            (core.options.on_fatal)(&format!("{count} events from {first_lsn} submitted, expected {expected}"));
        }
        if bytes.len() as u64 > self.credit().largest {
            (core.options.on_fatal)(&format!("{} bytes submitted at once, more than a segment holds", bytes.len()));
        }
        let mut shared = lock(&core.shared);
        if shared.has_failed {
            return;
        }
        shared.queue.push(first_lsn, count, bytes, || core.time_and_random.elapsed_ns());
        core.last.store(first_lsn + u64::from(count) - 1, Ordering::Release);
        core.refresh_credit(&shared);
        self.wake_writer(&shared);
    }

    fn wake_writer(&self, shared: &Shared) {
        if shared.is_writer_idle && shared.queue.can_take() {
            self.core.writer_wake.notify_one();
        }
    }

    /// Returns the last event that is on disk. Responses that depend on later events must wait.
    pub fn durable(&self) -> Lsn {
        self.core.position.get()
    }

    pub fn last(&self) -> Lsn {
        self.core.last.load(Ordering::Acquire)
    }

    /// Returns a new eventfd, which the writer signals after each durable batch with a requested event.
    pub fn subscribe(&self) -> io::Result<DurableSignal> {
        self.core.position.subscribe()
    }

    pub fn epoch(&self) -> u64 {
        self.core.epoch
    }

    pub fn clock(&self) -> &ServiceClock {
        &self.core.clock
    }

    /// Records the clocks in an empty batch if no batch was written for one second.
    ///
    /// Skips the batch when half of [`Credit::reserve`] is used. A missing record only makes service time less exact
    /// after a reboot.
    pub fn heartbeat(&self) {
        let core = &*self.core;
        let boot_ms = core.time_and_random.boot_ms();
        let mut shared = lock(&core.shared);
        let is_due = boot_ms.saturating_sub(shared.recorded_boot_ms) >= HEARTBEAT_MS;
        let is_busy = !shared.queue.is_empty() || shared.in_flight_since_ns.is_some();
        let credit = shared.credit();
        if !is_due || is_busy || shared.has_failed || credit.total <= credit.reserve / 2 {
            return;
        }
        shared.recorded_boot_ms = boot_ms;
        let next_lsn = core.last.load(Ordering::Relaxed) + 1;
        shared.queue.begin(next_lsn, 0, &[], core.time_and_random.elapsed_ns());
        core.refresh_credit(&shared);
        self.wake_writer(&shared);
    }

    pub fn stats(&self) -> Stats {
        let core = &*self.core;
        let now_ns = core.time_and_random.elapsed_ns();
        let shared = lock(&core.shared);
        let oldest = shared.in_flight_since_ns.or(shared.queue.oldest_since_ns());
        let stall = shared.preparation_error.as_ref().or(shared.image_stall.as_ref());
        let counters = &shared.counters;
        Stats {
            batches: counters.batches,
            events: counters.events,
            bytes: counters.bytes,
            syncs: counters.batches,
            batch_events: counters.batch_events.clone(),
            sync_ns: counters.sync_ns.clone(),
            oldest_pending_ns: oldest.map_or(0, |since| now_ns.saturating_sub(since)),
            last_lsn: core.last.load(Ordering::Relaxed),
            durable_lsn: core.position.get(),
            epoch: core.epoch,
            segments_ready: shared.queue.ready_count() as u64,
            segments_free: shared.pool.free.len() as u64,
            segments_closed: shared.pool.closed.len() as u64,
            credit: shared.credit(),
            is_stalled: stall.is_some(),
            stall_reason: stall.cloned(),
            last_compaction: shared.last_compaction.clone(),
            compactions: shared.compactions,
            failed_compactions: shared.failed_compactions,
            last_compaction_failure: shared.last_compaction_failure.clone(),
        }
    }

    /// Returns true if enough segments are closed. Only for journals without [`Self::start_compaction`].
    pub fn compaction_due(&self) -> bool {
        lock(&self.core.shared).pool.is_compaction_due()
    }

    /// Recycles the segments that the newest image covers, and returns their number. Also removes older images.
    ///
    /// Call this after [`crate::write_compacted_image`]. The call blocks on file operations. Only for journals without
    /// [`Self::start_compaction`].
    pub fn image_written(&self) -> Result<u64, OpenError> {
        self.core.recycle_and_record()
    }

    /// Records the reason of a failed compaction. Only for journals without [`Self::start_compaction`].
    ///
    /// `is_no_space` means that the disk was full. Then at most [`Credit::reserve`] can be submitted until a compaction
    /// succeeds.
    pub fn image_failed(&self, reason: &str, is_no_space: bool) {
        self.core.record_failed_compaction(reason, is_no_space);
    }

    /// Writes and syncs the next batch. Returns false if no batch was pending. Only for [`crate::open_stepped`].
    pub fn step_commit(&self) -> bool {
        self.core.commit_or_abort().is_some()
    }

    /// Prepares a segment. Returns false if enough segments are ready. Only for [`crate::open_stepped`].
    pub fn step_prepare(&self) -> Result<bool, OpenError> {
        self.core.prepare_segment()
    }

    /// Ends the threads, then writes the pending batches for which the disk has space.
    ///
    /// Do not submit events after this call. A second call does nothing.
    pub fn shutdown(&self) {
        self.stop_threads();
        let is_blocked = || lock(&self.core.shared).queue.is_blocked();
        loop {
            while self.core.commit_or_abort().is_some() {}
            if !is_blocked() || !matches!(self.core.prepare_segment(), Ok(true)) {
                break;
            }
        }
        self.core.discard_new_files();
        lock(&self.core.folder_lock).take();
    }

    pub fn close(self) {
        self.shutdown();
    }

    pub(crate) fn begin_close(&self) {
        lock(&self.core.shared).is_closing = true;
        self.core.is_closing.store(true, Ordering::Relaxed);
        self.core.writer_wake.notify_all();
        self.core.pool_wake.notify_all();
        self.core.compaction_wake.notify_all();
    }

    fn stop_threads(&self) {
        self.begin_close();
        for thread in lock(&self.threads).drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.stop_threads();
    }
}
