//! Expiry thread: expires due deadlines within 10 ms and records the clock each second.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hosting_core::Ms;
use parking_lot::{Condvar, Mutex};

use crate::shard::Shard;

/// Interval in which the expiry thread asks the journal to record the clock.
const CLOCK_RECORD_MS: u64 = 1_000;
/// Minimum wait between two expiry steps. It leaves time for the scheduler, because deadlines must expire within 10 ms.
const WAIT_MIN_MS: u64 = 4;
/// Delay before expiry is retried while the journal has no space for its events.
const RETRY_MS: u64 = 100;

#[derive(Default)]
pub struct ExpiryThread {
    /// Time until which the thread sleeps. A command with an earlier deadline wakes the thread.
    target: AtomicU64,
    thread_wake: Condvar,
    requests: Mutex<Requests>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Requests to the expiry thread. A caller sets a request before it wakes the thread, so that no request is lost.
#[derive(Default)]
struct Requests {
    has_earlier_deadline: bool,
    is_stopped: bool,
}

impl ExpiryThread {
    pub fn start(&self, shard: Arc<Shard>) -> io::Result<()> {
        let run = move || run(&shard, &shard.expiry_thread);
        *self.thread.lock() = Some(Builder::new().name("expiry".into()).spawn(run)?);
        Ok(())
    }

    pub fn stop(&self) {
        if let Some(thread) = self.thread.lock().take() {
            self.requests.lock().is_stopped = true;
            self.thread_wake.notify_one();
            let _ = thread.join();
        }
    }

    pub fn wake_before(&self, deadline: Option<Ms>) {
        if deadline.is_some_and(|deadline| deadline < self.target.load(Ordering::Acquire)) {
            self.requests.lock().has_earlier_deadline = true;
            self.thread_wake.notify_one();
        }
    }

    /// Waits until `target` or a wake-up. Returns false if the thread must stop.
    fn sleep_until(&self, target: Ms, now: impl Fn() -> Ms) -> bool {
        self.target.store(target, Ordering::Release);
        let mut requests = self.requests.lock();
        if !requests.has_earlier_deadline && !requests.is_stopped {
            let pause = Duration::from_millis(target.saturating_sub(now()));
            self.thread_wake.wait_for(&mut requests, pause);
        }
        requests.has_earlier_deadline = false;
        !requests.is_stopped
    }
}

fn run(shard: &Shard, expiry_thread: &ExpiryThread) {
    let mut record_clock_at = 0;
    loop {
        // From here on, every command with a deadline wakes this thread, so that it misses no deadline before the wait.
        expiry_thread.target.store(Ms::MAX, Ordering::Release);
        let now = shard.now();
        if now >= record_clock_at {
            if let Some(journal) = shard.journal() {
                journal.heartbeat();
            }
            record_clock_at = now + CLOCK_RECORD_MS;
        }
        let expired = shard.run(|engine, context| engine.expire_due(context));
        let next = shard.engine().next_deadline();
        if expired > 0 && next.is_some_and(|deadline| deadline <= now) {
            continue; // One step was not enough. Other threads could take the lock between the steps.
        }
        let target = match next {
            Some(deadline) if deadline <= now => now + RETRY_MS,
            Some(deadline) => deadline.max(now + WAIT_MIN_MS).min(record_clock_at),
            None => record_clock_at,
        };
        if !expiry_thread.sleep_until(target, || shard.now()) {
            return;
        }
    }
}
