//! Send schedule of the workers: no delay in a closed loop, a planned time for each request in an open loop.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

pub struct SendSchedule {
    interval: Option<Duration>,
    /// Whether latency begins when a request is sent, also in an open loop.
    is_from_sent: bool,
    /// Number of scheduled requests. One worker at a time waits for its planned time under this lock.
    scheduled_count: Mutex<u32>,
    started_at: OnceLock<Instant>,
    start_signal: Notify,
}

impl SendSchedule {
    /// Creates a schedule. Rate 0 means a closed loop.
    pub fn new(rate_per_s: f64, is_from_sent: bool) -> SendSchedule {
        let interval = (rate_per_s > 0.0).then(|| Duration::from_secs_f64(1.0 / rate_per_s));
        SendSchedule {
            interval,
            is_from_sent,
            scheduled_count: Mutex::new(0),
            started_at: OnceLock::new(),
            start_signal: Notify::new(),
        }
    }

    pub fn start(&self) {
        self.started_at.get_or_init(Instant::now);
        self.start_signal.notify_waiters();
    }

    pub fn started_at(&self) -> Instant {
        *self.started_at.get_or_init(Instant::now)
    }

    pub async fn wait_for_start(&self) {
        let notified = self.start_signal.notified();
        if self.started_at.get().is_none() {
            notified.await;
        }
    }

    /// Waits for the next planned time, and returns it as the start of the latency.
    pub async fn wait_for_next_start(&self) -> Instant {
        let Some(interval) = self.interval else { return Instant::now() };
        let mut scheduled_count = self.scheduled_count.lock().await;
        let planned_start = self.started_at() + interval * *scheduled_count;
        *scheduled_count += 1;
        // Spins for the last part, because the timer of the runtime has a resolution of one millisecond.
        while let Some(remaining) = planned_start.checked_duration_since(Instant::now()) {
            if remaining > Duration::from_millis(2) {
                tokio::time::sleep(remaining - Duration::from_millis(2)).await;
            } else if remaining.is_zero() {
                break;
            } else {
                tokio::task::yield_now().await;
            }
        }
        if self.is_from_sent { Instant::now() } else { planned_start }
    }
}
