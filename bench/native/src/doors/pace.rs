//! When a worker may send: at once in a closed loop, at its turn in an open one.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Notify};

/// Shared by all workers of a run.
pub struct Pace {
    interval: Option<Duration>,
    /// How many turns were given away. One worker at a time waits for its turn under this lock.
    turns: Mutex<u32>,
    began: OnceLock<Instant>,
    start: Notify,
}

impl Pace {
    /// A rate of 0 is a closed loop.
    pub fn new(rate_per_s: f64) -> Pace {
        let interval = (rate_per_s > 0.0).then(|| Duration::from_secs_f64(1.0 / rate_per_s));
        Pace { interval, turns: Mutex::new(0), began: OnceLock::new(), start: Notify::new() }
    }

    /// Lets everybody go who waits in [`Pace::started`].
    pub fn begin(&self) {
        self.began.get_or_init(Instant::now);
        self.start.notify_waiters();
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        *self.began.get_or_init(Instant::now)
    }

    /// Waits for the beginning.
    pub async fn started(&self) {
        let notified = self.start.notified();
        if self.began.get().is_none() {
            notified.await;
        }
    }

    /// Waits until a request may be sent; the time from which its answer is counted.
    pub async fn turn(&self) -> Instant {
        let Some(interval) = self.interval else { return Instant::now() };
        let mut turns = self.turns.lock().await;
        let intended = self.began() + interval * *turns;
        *turns += 1;
        // The runtime's timer is exact to a millisecond only: the last stretch is spent looking at the clock.
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
