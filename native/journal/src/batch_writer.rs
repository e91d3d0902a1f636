//! Batch writer: one `pwrite` and one `fdatasync` for each batch, then publication of the durable position.
//! A failed write or sync ends the process. A sync is never retried.

use std::io;
use std::path::PathBuf;

use crate::batch_format::{self, BatchHeader, HEADER};
use crate::batch_queue::PendingBatch;
use crate::error::OpenError;
use crate::files::write_all_at;
use crate::journal_core::JournalCore;
use crate::mutex::lock;

/// After a batch with more events than this, the writer lets other threads run before the next one.
const SMALL_BATCH: u32 = 64;
/// Number of time slices that it then gives up: enough for the answers of a large batch on the same core.
const GIVEN_SLICES: u32 = 16;

pub(crate) struct WriteFailure {
    operation: &'static str,
    path: PathBuf,
    offset: u64,
    source: io::Error,
}

impl WriteFailure {
    pub fn into_open_error(self) -> OpenError {
        OpenError::io_at(self.operation, &self.path, self.offset, self.source)
    }
}

impl JournalCore {
    /// Makes the next batch durable and publishes it. Returns its number of events, or None if no batch was ready.
    ///
    /// After a failure the journal writes no more batches.
    pub fn commit(&self) -> Result<Option<u32>, WriteFailure> {
        let mut writing = lock(&self.writing);
        let Some(mut batch) = self.take_batch() else { return Ok(None) };
        let Some((segment, offset)) = batch.position.take() else { return Ok(None) };
        let started_ns = self.time_and_random.elapsed_ns();
        let header = BatchHeader {
            epoch: self.epoch,
            sequence: writing.sequence + 1,
            first_lsn: batch.first_lsn,
            count: batch.count,
            length: (batch.bytes.len() - HEADER) as u32,
            clock: self.clock.record(),
        };
        batch_format::seal(&mut batch.bytes, &segment.identity, segment.alignment, &header);
        let written = write_all_at(segment.file.as_ref(), &batch.bytes, offset).map_err(|error| ("write", error));
        let synced = written.and_then(|()| segment.file.sync_data().map_err(|error| ("sync", error)));
        if let Err((operation, source)) = synced {
            lock(&self.shared).has_failed = true;
            return Err(WriteFailure {
                operation,
                path: self.folder.segment(segment.identity.segment),
                offset,
                source,
            });
        }
        writing.sequence += 1;
        self.publish(batch, &header, self.time_and_random.elapsed_ns().saturating_sub(started_ns));
        Ok(Some(header.count))
    }

    fn take_batch(&self) -> Option<PendingBatch> {
        let mut shared = lock(&self.shared);
        if shared.has_failed {
            return None;
        }
        let batch = shared.queue.take()?;
        shared.in_flight_since_ns = Some(batch.since_ns);
        if let Some((segment, _)) = &batch.position
            && shared.pool.set_active(segment.identity.segment)
        {
            self.pool_wake.notify_one();
            if shared.pool.is_compaction_due() {
                self.compaction_wake.notify_one();
            }
        }
        Some(batch)
    }

    fn publish(&self, batch: PendingBatch, header: &BatchHeader, took_ns: u64) {
        let mut shared = lock(&self.shared);
        let counters = &mut shared.counters;
        counters.batches += 1;
        counters.events += u64::from(header.count);
        counters.bytes += batch.bytes.len() as u64;
        counters.sync_ns.observe(took_ns);
        if header.count > 0 {
            counters.batch_events.observe(u64::from(header.count));
        }
        shared.in_flight_since_ns = None;
        shared.recorded_boot_ms = header.clock.boot_ms;
        shared.queue.recycle_buffer(batch.bytes);
        self.position.set(header.first_lsn + u64::from(header.count) - 1);
        drop(shared);
        if header.count > 0 {
            self.position.signal_consumers();
        }
    }

    pub fn commit_or_abort(&self) -> Option<u32> {
        match self.commit() {
            Ok(count) => count,
            Err(failure) => (self.options.on_fatal)(&failure.into_open_error().to_string()),
        }
    }

    pub fn run_writer(&self) {
        let mut last_count = 0;
        loop {
            let mut shared = lock(&self.shared);
            while !shared.queue.can_take() && !shared.is_closing && !shared.has_failed {
                shared.is_writer_idle = true;
                shared = self.writer_wake.wait(shared).unwrap_or_else(std::sync::PoisonError::into_inner);
                shared.is_writer_idle = false;
            }
            if shared.has_failed || (shared.is_closing && !shared.queue.can_take()) {
                return;
            }
            drop(shared);
            // On a busy core, other threads add events to this batch. On an idle core the calls return at once.
            if last_count > SMALL_BATCH {
                (0..GIVEN_SLICES).for_each(|_| std::thread::yield_now());
            }
            last_count = self.commit_or_abort().unwrap_or(0);
        }
    }
}
