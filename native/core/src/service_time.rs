//! Service time as the engine sees it: given from outside, never running back. Durations that are part of the rules.

use crate::command::Ms;

/// The longest that `players.disconnected` keeps a place (decisions 5.2).
pub(crate) const MAX_KEPT_MS: u64 = 600_000;

/// A lobby ends after this many times its heartbeat timeout (decisions 5.6).
pub(crate) const SILENT_TIMEOUTS_UNTIL_END: u64 = 3;

/// The longest that a passed captcha can be good for: `verification_ttl` is at most this (decisions 4).
pub(crate) const MAX_CAPTCHA_PASS_AGE_MS: u64 = 43_200_000;

/// How long lapsed entries and tombstones may pile up before one event drops them together.
pub(crate) const FORGET_DELAY_MS: u64 = 1_000;

/// The latest service time that was seen.
#[derive(Debug, Default)]
pub(crate) struct ServiceTime {
    now: Ms,
}

impl ServiceTime {
    /// Takes a reading; an earlier one than before changes nothing.
    pub(crate) fn observe(&mut self, now: Ms) {
        self.now = self.now.max(now);
    }

    pub(crate) fn now(&self) -> Ms {
        self.now
    }
}
