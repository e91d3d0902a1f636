//! Pacing of the workers: no delay in a closed loop, a planned time for each request in an open loop.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

pub struct Pace {
    interval: Option<Duration>,
    /// Number of scheduled requests. One worker at a time waits for its planned time under this lock.
    turns: Mutex<u32>,
    began: OnceLock<Instant>,
    start: Notify,
}

impl Pace {
    /// Creates a schedule. Rate 0 means a closed loop.
    pub fn new(rate_per_s: f64) -> Pace {
        let interval = (rate_per_s > 0.0).then(|| Duration::from_secs_f64(1.0 / rate_per_s));
        Pace { interval, turns: Mutex::new(0), began: OnceLock::new(), start: Notify::new() }
    }

    pub fn begin(&self) {
        self.began.get_or_init(Instant::now);
        self.start.notify_waiters();
    }

    pub fn began(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    pub async fn started(&self) {
        let notified = self.start.notified();
        if self.began.get().is_none() {
            notified.await;
        }
    }

    /// Waits for the next planned time, and returns it as the start of the latency.
    pub async fn turn(&self) -> Instant {
        let Some(interval) = self.interval else { return Instant::now() };
        let mut turns = self.turns.lock().await;
        let intended = self.began() + interval * *turns;
        *turns += 1;
        // Spins for the last part, because the timer of the runtime has a resolution of one millisecond.
        while let Some(left) = intended.checked_duration_since(Instant::now()) {
            if left > Duration::from_millis(2) {
                tokio::time::sleep(left - Duration::from_millis(2)).await;
            } else if left.is_zero() {
                break;
            } else {
                tokio::task::yield_now().await;
            }
        }
        intended
    }
}
