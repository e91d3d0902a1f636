//! Service time of the engine, which never runs back.

use crate::command::Ms;

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
