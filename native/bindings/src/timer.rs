//! Timer thread: expires due deadlines within 10 ms and records the clock each second.
//! The `Engine` stops this thread and waits for its end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::shard::Shard;

/// Interval of clock records.
const HEARTBEAT_MS: u64 = 1_000;
/// Wait granularity, which leaves time for the scheduler within the 10 ms.
const GRAIN_MS: u64 = 4;
/// Retry interval of expiry while the journal has no credit.
const PUT_OFF_MS: u64 = 100;

pub fn start(shard: Arc<Shard>) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("expiry".into()).spawn(move || run(&shard))
}

pub fn stop(shard: &Shard) {
    shard.timer.lock().is_stopped = true;
    shard.timer_wake.notify_one();
}

fn run(shard: &Shard) {
    let mut heartbeat_at = 0;
    loop {
        // From here on, every command with a deadline wakes this thread, so that it misses no deadline before the wait.
        shard.timer_target.store(u64::MAX, Ordering::Release);
        let now = shard.now();
        if now >= heartbeat_at {
            if let Some(journal) = &shard.journal {
                journal.heartbeat();
            }
            heartbeat_at = now + HEARTBEAT_MS;
        }
        let expired = shard.run(|engine, context| engine.expire_due(context));
        let next = shard.read().engine.next_deadline();
        if expired > 0 && next.is_some_and(|deadline| deadline <= now) {
            continue; // One step was not enough. Other threads could take the lock between the steps.
        }
        let target = match next {
            Some(deadline) if deadline <= now => now + PUT_OFF_MS,
            Some(deadline) => deadline.max(now + GRAIN_MS).min(heartbeat_at),
            None => heartbeat_at,
        };
        if !sleep_until(shard, target) {
            return;
        }
    }
}

/// Waits for the target time or a notification. Returns false at shutdown.
fn sleep_until(shard: &Shard, target: u64) -> bool {
    shard.timer_target.store(target, Ordering::Release);
    let mut orders = shard.timer.lock();
    if !orders.is_poked && !orders.is_stopped {
        let pause = target.saturating_sub(shard.now());
        shard.timer_wake.wait_for(&mut orders, Duration::from_millis(pause));
    }
    orders.is_poked = false;
    !orders.is_stopped
}
