//! Deadline of a connection.

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// A deadline that is cheap to move into the future: the timer fires at the earlier time, and then waits on.
pub struct Deadline {
    at: Instant,
    timer: Pin<Box<Sleep>>,
}

impl Deadline {
    pub fn after(wait: Duration) -> Deadline {
        let at = Instant::now() + wait;
        Deadline { at, timer: Box::pin(sleep_until(at)) }
    }

    pub fn set(&mut self, at: Instant) {
        self.at = at;
        if self.at < self.timer.deadline() {
            self.timer.as_mut().reset(self.at);
        }
    }

    pub async fn elapsed(&mut self) {
        loop {
            self.timer.as_mut().await;
            if self.at <= self.timer.deadline() {
                return;
            }
            self.timer.as_mut().reset(self.at);
        }
    }
}
