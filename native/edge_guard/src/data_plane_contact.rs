//! Contact with the data plane. On a node of a cluster, new sessions are refused after a long silence.
//!
//! Without the data plane, this process does not learn that a lobby has ended, and the lobbies of a silent node have.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub struct DataPlaneContact {
    /// Longest silence in ms. 0: any.
    silence_max_ms: u64,
    started: Instant,
    /// Time of the last response, in ms since the start.
    last_ms: AtomicU64,
}

impl DataPlaneContact {
    #[must_use]
    pub fn new(silence_max: Duration) -> Self {
        let silence_max_ms = u64::try_from(silence_max.as_millis()).unwrap_or(u64::MAX);
        Self { silence_max_ms, started: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    /// Returns the wait of a long poll: `usual_ms`, or less if responses would be too rare.
    #[must_use]
    pub fn wait_ms(&self, usual_ms: u32) -> u32 {
        let third_ms = u32::try_from(self.silence_max_ms / 3).unwrap_or(u32::MAX);
        if self.silence_max_ms > 0 { usual_ms.min(third_ms) } else { usual_ms }
    }

    pub fn record_response(&self) {
        self.last_ms.store(self.now_ms(), Relaxed);
    }

    /// Reports whether new sessions are refused.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // Another thread may record a response between both reads.
        self.silence_max_ms > 0 && self.now_ms().saturating_sub(self.last_ms.load(Relaxed)) > self.silence_max_ms
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for DataPlaneContact {
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}
