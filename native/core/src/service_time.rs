//! Service time of the engine, and fixed durations.

use crate::command::Ms;

pub(crate) const MAX_KEPT_MS: u64 = 600_000;

/// A silent lobby ends after this many heartbeat timeouts.
pub(crate) const SILENT_TIMEOUTS_UNTIL_END: u64 = 3;

/// Upper bound of the setting `verification_ttl`.
pub(crate) const MAX_CAPTCHA_PASS_AGE_MS: u64 = 43_200_000;

/// Delay before expired records are dropped, so that one event drops many of them.
pub(crate) const FORGET_DELAY_MS: u64 = 1_000;

#[derive(Debug, Default)]
pub(crate) struct ServiceTime {
    now: Ms,
}

impl ServiceTime {
    pub(crate) fn observe(&mut self, now: Ms) {
        self.now = self.now.max(now);
    }

    pub(crate) fn now(&self) -> Ms {
        self.now
    }
}
