//! Shard of the service without its expiry thread. Opening it measures the parts of the recovery.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_core::{CommandOutcome, Context, Engine, Lsn};
use hosting_journal::{DurableSignal, Journal, Options, RealFiles, RecoverableState, RecoverySummary};
use hosting_shard::{ReplayedEngine, Shard};

use crate::engine_fixture::new_engine;
use crate::{Failure, failure};

pub struct MeasuredShard {
    pub shard: Arc<Shard>,
    durable_signal: DurableSignal,
    /// Signal for Python's event loop, which the service has as well.
    _change_signal: Option<DurableSignal>,
}

/// Time of an open by its parts, in milliseconds.
#[derive(Clone, Copy, Default)]
pub struct RecoveryTimes {
    pub image_read_ms: f64,
    pub image_load_ms: f64,
    pub log_read_ms: f64,
    pub apply_ms: f64,
    pub derive_ms: f64,
    pub total_ms: f64,
}

struct TimedReplay<'a> {
    state: ReplayedEngine<&'a mut Engine>,
    started: Instant,
    times: RecoveryTimes,
}

impl RecoverableState for TimedReplay<'_> {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.times.image_read_ms = elapsed_ms(self.started);
        let started = Instant::now();
        let result = self.state.load_image(bytes);
        self.times.image_load_ms = elapsed_ms(started);
        result
    }

    fn apply(&mut self, first_lsn: u64, count: u32, bytes: &[u8], service_ms: u64) -> Result<(), String> {
        let started = Instant::now();
        let result = self.state.apply(first_lsn, count, bytes, service_ms);
        self.times.apply_ms += elapsed_ms(started);
        result
    }

    fn write_image(&self, out: &mut dyn Write) -> std::io::Result<()> {
        self.state.write_image(out)
    }
}

fn elapsed_ms(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e3
}

fn options(folder: &Path) -> Options {
    Options::new(folder, 1, Engine::EVENT_KINDS)
}

impl MeasuredShard {
    pub fn open(folder: &Path) -> Result<(MeasuredShard, RecoverySummary, RecoveryTimes), Failure> {
        let mut engine = new_engine()?;
        let started = Instant::now();
        let mut replay =
            TimedReplay { state: ReplayedEngine::new(&mut engine), started, times: RecoveryTimes::default() };
        let (journal, recovered) = hosting_journal::open(options(folder), Arc::new(RealFiles), &mut replay)?;
        let mut times = replay.times;
        let opened_ms = elapsed_ms(started);
        let derivation_started = Instant::now();
        engine.finish_recovery(journal.clock().service_ms());
        times.derive_ms = elapsed_ms(derivation_started);
        times.log_read_ms = opened_ms - times.image_read_ms - times.image_load_ms - times.apply_ms;
        times.total_ms = elapsed_ms(started);
        let durable_signal = journal.subscribe()?;
        let shard = Shard::new(engine, Some(journal));
        let change_signal = shard.subscribe_changes()?;
        Ok((MeasuredShard { shard, durable_signal, _change_signal: change_signal }, recovered, times))
    }

    pub fn journal(&self) -> &Journal {
        self.shard.journal().expect("opened with a journal")
    }

    /// Waits until the journal has prepared its next segments.
    pub fn wait_for_segments(&self) {
        while self.journal().stats().segments_ready < 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Runs one command that must succeed. Returns its value and its LSN.
    pub fn execute<T>(
        &self,
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>,
    ) -> Result<(T, Lsn), Failure> {
        let outcome = self.shard.run(command);
        outcome.result.map(|value| (value, outcome.wait)).map_err(|refusal| failure(format!("refused: {refusal:?}")))
    }

    /// Waits until the first pending event is durable, at most 100 ms.
    pub fn wait(&self) {
        if !self.durable_signal.request(self.journal().durable() + 1) {
            return;
        }
        let mut poll = libc::pollfd { fd: self.durable_signal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut counter = [0_u8; 8];
        // SAFETY: both calls get pointers to live values with their lengths.
        unsafe {
            if libc::poll(&mut poll, 1, 100) > 0 {
                libc::read(poll.fd, counter.as_mut_ptr().cast(), counter.len());
            }
        }
    }

    pub fn flush(&self) {
        while self.journal().durable() < self.journal().last() {
            self.wait();
        }
    }
}

/// Returns the LSN of the new image.
pub fn compact(folder: &Path) -> Result<Lsn, Failure> {
    Ok(hosting_shard::write_compacted_image(new_engine()?, options(folder))?.lsn)
}
