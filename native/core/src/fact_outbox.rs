//! Outbox of lobby facts for the control plane, in order of LSN, until a reader acknowledges them.
//!
//! A full outbox drops its oldest facts and counts them.

use std::collections::VecDeque;

use crate::command::{EndReason, Id, Lsn, Ms};

/// Maximum number of stored facts.
pub const MAX_STORED_FACTS: usize = 100_000;

/// One change of a lobby.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// LSN that identifies the fact.
    pub lsn: Lsn,
    /// Service time of the change; 0 for `Created`, which has `create_ts_ms`.
    pub at: Ms,
    /// Lobby id.
    pub lobby: Id,
    /// Namespace id.
    pub namespace: Id,
    /// The reported change.
    pub kind: LobbyFactKind,
}

/// The change that a fact reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LobbyFactKind {
    /// The lobby was created and is starting.
    Created(Box<LobbyDetails>),
    /// The lobby is ready for players.
    Ready,
    /// The lobby server closed (true) or opened the lobby.
    Closed(bool),
    /// The lobby is stopping.
    Stopping,
    /// The lobby ended.
    Ended(Box<LobbyEnd>),
}

/// Attributes of a lobby that never change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyDetails {
    /// Version id.
    pub version: Id,
    /// Game mode name.
    pub mode: Box<str>,
    /// Region name.
    pub region: Box<str>,
    /// True if find and list show the lobby.
    pub is_public: bool,
    /// True if the lobby only proves that its game server starts.
    pub is_trial: bool,
    /// Player limits: `find, join, join of a party`.
    pub max_players: [u32; 3],
    /// Milliseconds since the Unix epoch.
    pub create_ts_ms: u64,
}

/// End of a lobby. The attributes are repeated in case `Created` was lost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyEnd {
    /// Attributes of the lobby.
    pub details: LobbyDetails,
    /// Reason of the end.
    pub reason: EndReason,
    /// Exit code of the process, if known.
    pub exit_code: Option<i32>,
    /// Player totals.
    pub attendance: LobbyAttendance,
    /// Numbers of slots just before the end: `reserved, connected, kept`.
    pub players: [u32; 3],
}

/// Player totals of a lobby.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LobbyAttendance {
    /// Total connected time of the players that left.
    pub player_ms: u64,
    /// Maximum number of players connected at once.
    pub peak_players: u32,
    /// Number of times that a player connected.
    pub connections: u32,
}

impl LobbyAttendance {
    #[inline]
    pub(crate) fn player_connected(&mut self, connected: u32) {
        self.peak_players = self.peak_players.max(connected);
        self.connections = self.connections.saturating_add(1);
    }

    /// Adds the time from `since` to `at` to the connected time. Adds nothing if `at` is 0, which means an unknown
    /// time.
    #[inline]
    pub(crate) fn player_left(&mut self, since: Ms, at: Ms) {
        self.player_ms = self.player_ms.saturating_add(at.saturating_sub(since));
    }
}

/// One page of facts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Facts in order of LSN.
    pub facts: Vec<Fact>,
    /// LSN of the oldest durable fact in the outbox; 0 for none.
    pub oldest: Lsn,
    /// Upper bound for the number of facts that were dropped unread.
    pub lost: u64,
}

#[derive(Default)]
pub(crate) struct FactOutbox {
    facts: VecDeque<Fact>,
    /// Number of facts that were dropped unread. Becomes 0 when the facts up to `lost_up_to` are acknowledged.
    pub(crate) lost: u64,
    pub(crate) lost_up_to: Lsn,
}

impl FactOutbox {
    pub(crate) fn push(&mut self, fact: Fact) {
        if self.facts.len() >= MAX_STORED_FACTS
            && let Some(dropped) = self.facts.pop_front()
        {
            self.lost += 1;
            self.lost_up_to = dropped.lsn;
        }
        self.facts.push_back(fact);
    }

    /// Returns the LSN of the newest stored fact, or 0.
    pub(crate) fn newest(&self) -> Lsn {
        self.facts.back().map_or(0, |fact| fact.lsn)
    }

    pub(crate) fn has_up_to(&self, up_to: Lsn) -> bool {
        self.facts.front().is_some_and(|oldest| oldest.lsn <= up_to) || self.lost > 0 && self.lost_up_to <= up_to
    }

    pub(crate) fn acknowledge(&mut self, up_to: Lsn) {
        let read = self.facts.partition_point(|fact| fact.lsn <= up_to);
        self.facts.drain(..read);
        if self.facts.is_empty() {
            self.facts.shrink_to(0);
        }
        if self.lost_up_to <= up_to {
            (self.lost, self.lost_up_to) = (0, 0);
        }
    }

    pub(crate) fn read(&self, after: Lsn, durable: Lsn, limit: usize) -> Facts {
        let first = self.facts.partition_point(|fact| fact.lsn <= after);
        let waiting = self.facts.iter().skip(first).take(limit).take_while(|fact| fact.lsn <= durable);
        let oldest = self.facts.front().map_or(0, |fact| fact.lsn);
        Facts {
            facts: waiting.cloned().collect(),
            oldest: if oldest <= durable { oldest } else { 0 },
            lost: if after < self.lost_up_to { self.lost } else { 0 },
        }
    }

    pub(crate) fn has_trials(&self) -> bool {
        self.facts.iter().any(|fact| match &fact.kind {
            LobbyFactKind::Created(details) => details.is_trial,
            LobbyFactKind::Ended(ended) => ended.details.is_trial,
            LobbyFactKind::Ready | LobbyFactKind::Closed(_) | LobbyFactKind::Stopping => false,
        })
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Fact> {
        self.facts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(lsn: Lsn) -> Fact {
        Fact { lsn, at: lsn, lobby: Id([1; 16]), namespace: Id([2; 16]), kind: LobbyFactKind::Ready }
    }

    fn lsns(facts: &Facts) -> Vec<Lsn> {
        facts.facts.iter().map(|fact| fact.lsn).collect()
    }

    #[test]
    fn read_returns_durable_unread_facts() {
        let mut outbox = FactOutbox::default();
        [2, 5, 7, 11].into_iter().for_each(|lsn| outbox.push(fact(lsn)));
        assert_eq!(lsns(&outbox.read(0, 10, 100)), [2, 5, 7]);
        assert_eq!(lsns(&outbox.read(3, 10, 1)), [5]);
        assert_eq!(lsns(&outbox.read(7, 10, 100)), [0; 0]);
        assert_eq!((outbox.read(0, 1, 9).oldest, outbox.read(5, 2, 9).oldest), (0, 2));
    }

    #[test]
    fn full_outbox_reports_the_gap_until_acknowledged() {
        let mut outbox = FactOutbox::default();
        let more = 7;
        (1..=MAX_STORED_FACTS as u64 + more).for_each(|lsn| outbox.push(fact(lsn)));
        let read = outbox.read(0, Lsn::MAX, 3);
        assert_eq!((lsns(&read), read.oldest, read.lost), (vec![8, 9, 10], 8, 7));
        assert_eq!(outbox.read(6, Lsn::MAX, 1).lost, 7, "an upper bound: a reader of some lost fewer");
        assert_eq!(outbox.read(7, Lsn::MAX, 1).lost, 0, "a reader of all of them lost none");
        assert!(!outbox.has_up_to(6), "facts before the gap are lost");
        assert!(outbox.has_up_to(7), "the gap is included");
        outbox.acknowledge(8);
        let read = outbox.read(0, Lsn::MAX, 1);
        assert_eq!((lsns(&read), read.lost), (vec![9], 0));
        assert_eq!(outbox.iter().len(), MAX_STORED_FACTS - 1);
    }

    #[test]
    fn fact_is_small() {
        assert!(size_of::<Fact>() <= 64 && size_of::<LobbyEnd>() <= 144, "100,000 of them wait for a missing reader");
    }
}
