//! Expiry of due deadlines within 10 ms. Records the clock each second.

use std::io;
use std::sync::Arc;

use crate::shard::Shard;

/// Interval in which the expiry thread asks the journal to record the clock.
const CLOCK_RECORD_MS: u64 = 1_000;
/// Minimum wait between two expiry steps. It leaves time for the scheduler, because deadlines must expire within 10 ms.
const WAIT_MIN_MS: u64 = 4;
/// Delay before expiry is retried while the journal has no space for its events.
const RETRY_MS: u64 = 100;

impl Shard {
    /// Starts the thread that expires due deadlines. [`Shard::close`] stops the thread.
    pub fn start_expiry_thread(self: &Arc<Shard>) -> io::Result<()> {
        let shard = self.clone();
        self.expiry_thread.start(move || run(&shard))
    }
}

fn run(shard: &Shard) {
    let mut record_clock_at = 0;
    loop {
        shard.expiry_thread.stay_awake();
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
        if !shard.expiry_thread.sleep_until(target, || shard.now()) {
            return;
        }
    }
}
