//! Facts for the control plane: what became of lobbies, in order of LSN, until a reader says that it has them. Part of
//! the durable state: derived from events by `engine::apply`, kept in images. Knows no lobby and no clock.
//!
//! A reader that is missing holds nothing else up: of more facts than are kept the oldest go, and are counted.

use std::collections::VecDeque;

use crate::command::{EndReason, Id, Lsn, Ms};

/// How many facts wait for their reader.
pub const MAX_STORED_FACTS: usize = 100_000;

/// What happened to one lobby, by the event of this LSN.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// LSN of its event: its name. An event is one fact at most.
    pub lsn: Lsn,
    /// Service time; 0 when the event does not tell it (`Made` does by `create_ts_ms`).
    pub at: Ms,
    /// Which lobby.
    pub lobby: Id,
    /// Its namespace.
    pub namespace: Id,
    /// What happened.
    pub what: LobbyFactKind,
}

/// What happened to a lobby.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LobbyFactKind {
    /// It is there, and starting.
    Created(Box<LobbyDetails>),
    /// It takes players.
    Ready,
    /// Its server closed or opened it.
    Closed(bool),
    /// It is drained, and ends soon.
    Stopping,
    /// It is over.
    Ended(Box<Ended>),
}

/// What does not change about a lobby, as its records need it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LobbyDetails {
    /// Version that it was made with.
    pub version: Id,
    /// Game mode name.
    pub mode: Box<str>,
    /// Region name id.
    pub region: Box<str>,
    /// Found, listed and joined; else joined by id only.
    pub is_public: bool,
    /// Limits of find, join and party.
    pub max_players: [u32; 3],
    /// ms since the Unix epoch.
    pub create_ts_ms: u64,
}

/// How a lobby ended. It tells all about the lobby again, so that a lost `Made` does no harm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// What it was.
    pub about: LobbyDetails,
    /// Why.
    pub reason: EndReason,
    /// What its process exited with, when that is known.
    pub exit_code: Option<i32>,
    /// Who was in it while it lasted.
    pub attendance: LobbyAttendance,
    /// Places at its end: reserved, connected, kept.
    pub players: [u32; 3],
}

/// Who was connected to a lobby.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LobbyAttendance {
    /// Sum of the times that players were connected; of a live lobby without those who still are.
    pub player_ms: u64,
    /// Most players connected at one time.
    pub peak_players: u32,
    /// How often somebody connected.
    pub connections: u32,
}

impl LobbyAttendance {
    /// One connected; `connected` are there now.
    #[inline]
    pub(crate) fn player_connected(&mut self, connected: u32) {
        self.peak_players = self.peak_players.max(connected);
        self.connections = self.connections.saturating_add(1);
    }

    /// One who was connected since `since` is not any more; `at` 0: nobody told until when.
    #[inline]
    pub(crate) fn player_left(&mut self, since: Ms, at: Ms) {
        self.player_ms = self.player_ms.saturating_add(at.saturating_sub(since));
    }
}

/// A part of the facts that a reader does not have yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// In order of LSN.
    pub facts: Vec<Fact>,
    /// LSN of the oldest fact that is there and durable, acknowledged or not; 0 when there is none.
    pub oldest: Lsn,
    /// At most so many facts after those that the reader has are gone for good; all were older than `oldest`.
    pub lost: u64,
}

/// Facts that wait.
#[derive(Default)]
pub(crate) struct FactOutbox {
    facts: VecDeque<Fact>,
    /// How many were dropped unread since the reader was past the last such.
    pub(crate) lost: u64,
    /// LSN of the last one of them.
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

    /// Whether acknowledging up to this LSN changes anything.
    pub(crate) fn has_up_to(&self, up_to: Lsn) -> bool {
        self.facts.front().is_some_and(|oldest| oldest.lsn <= up_to) || self.lost > 0 && self.lost_up_to <= up_to
    }

    /// The reader has everything up to this LSN, and knows what was lost before it.
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

    /// At most `limit` facts after an LSN and not after another.
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

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Fact> {
        self.facts.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(lsn: Lsn) -> Fact {
        Fact { lsn, at: lsn, lobby: Id([1; 16]), namespace: Id([2; 16]), what: LobbyFactKind::Ready }
    }

    fn lsns(facts: &Facts) -> Vec<Lsn> {
        facts.facts.iter().map(|fact| fact.lsn).collect()
    }

    #[test]
    fn only_what_is_durable_and_not_read_yet_is_shown() {
        let mut outbox = FactOutbox::default();
        [2, 5, 7, 11].into_iter().for_each(|lsn| outbox.push(fact(lsn)));
        assert_eq!(lsns(&outbox.read(0, 10, 100)), [2, 5, 7]);
        assert_eq!(lsns(&outbox.read(3, 10, 1)), [5]);
        assert_eq!(lsns(&outbox.read(7, 10, 100)), [0; 0]);
        assert_eq!((outbox.read(0, 1, 9).oldest, outbox.read(5, 2, 9).oldest), (0, 2));
    }

    #[test]
    fn of_too_many_facts_the_oldest_go_and_the_gap_is_told_until_the_reader_is_past_it() {
        let mut outbox = FactOutbox::default();
        let more = 7;
        (1..=MAX_STORED_FACTS as u64 + more).for_each(|lsn| outbox.push(fact(lsn)));
        let read = outbox.read(0, Lsn::MAX, 3);
        assert_eq!((lsns(&read), read.oldest, read.lost), (vec![8, 9, 10], 8, 7));
        assert_eq!(outbox.read(6, Lsn::MAX, 1).lost, 7, "at most: who has read some of them lost fewer");
        assert_eq!(outbox.read(7, Lsn::MAX, 1).lost, 0, "who has read them lost none");
        assert!(!outbox.has_up_to(6), "nothing of that is there");
        assert!(outbox.has_up_to(7), "the gap is");
        outbox.acknowledge(8);
        let read = outbox.read(0, Lsn::MAX, 1);
        assert_eq!((lsns(&read), read.lost), (vec![9], 0));
        assert_eq!(outbox.iter().len(), MAX_STORED_FACTS - 1);
    }

    #[test]
    fn a_fact_is_small() {
        assert!(size_of::<Fact>() <= 64 && size_of::<Ended>() <= 144, "100,000 of them wait for a missing reader");
    }
}
