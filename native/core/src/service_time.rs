//! Service time of the engine, which never runs back.

use crate::command::Ms;

/// Maximum number of expired records that an event drops for each record that it adds to the same table.
///
/// With 2, a table of expired records shrinks, and no event has to drop a whole table. Only events drop records, so that
/// the stored state depends on events alone. Readers check the time themselves.
pub(crate) const EXPIRED_DROPPED_PER_ADDED: usize = 2;

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
