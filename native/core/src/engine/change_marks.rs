//! Marks of the changes that readers follow between commands.

use super::Engine;
use crate::command::Lsn;

/// Newest changes that a reader has to fetch: resolved holds, notified channels, facts, routes, counts and idle groups.
///
/// Players change counts and idle groups all the time, so these count as changed once until their next read.
#[derive(Clone, Copy, Debug)]
pub struct ChangeMarks {
    resolved_holds: usize,
    notified_channels: Lsn,
    facts: Lsn,
    routes: Lsn,
    is_presence_changed: bool,
    are_idle_groups_changed: bool,
}

impl ChangeMarks {
    /// Returns true if a reader of the `earlier` state has something new to fetch.
    pub fn is_newer(self, earlier: ChangeMarks) -> bool {
        self.resolved_holds > earlier.resolved_holds
            || self.notified_channels > earlier.notified_channels
            || self.facts > earlier.facts
            || self.routes > earlier.routes
            || self.is_presence_changed && !earlier.is_presence_changed
            || self.are_idle_groups_changed && !earlier.are_idle_groups_changed
    }
}

impl Engine {
    /// Returns the marks of the changes that readers have to fetch.
    pub fn change_marks(&self) -> ChangeMarks {
        ChangeMarks {
            resolved_holds: self.resolved_holds.len(),
            notified_channels: self.notified_channels.back().map_or(0, |(lsn, _)| *lsn),
            facts: self.outbox.newest(),
            routes: self.leases.newest_change(),
            is_presence_changed: self.ledger.is_presence_changed(),
            are_idle_groups_changed: self.idle_lobbies.are_groups_changed(),
        }
    }
}
