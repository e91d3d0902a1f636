//! A slow reader of facts and presence, compared with the model.

use std::collections::BTreeMap;

use hosting_core::{EndReason, Fact, Id, LobbyAttendance, LobbyDetails, LobbyFactKind, Lsn, Ms, PresenceChanges};

use super::model_state::{Lobby, Model};
use super::sequence_runner::SequenceRunner;
use crate::random::Random;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedFact {
    Created,
    Ready,
    Closed(bool),
    Stopping,
    Ended(EndReason, u32),
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub expected_facts: Vec<(Ms, ExpectedFact)>,
    pub attendance: LobbyAttendance,
}

#[derive(Default)]
pub struct Reader {
    generation: u64,
    presence: BTreeMap<Id, (u64, u64)>,
}

impl Reader {
    fn read(&mut self, presence: PresenceChanges) {
        self.generation = presence.generation;
        if presence.is_all {
            self.presence.clear();
        }
        self.presence.extend(presence.namespaces.into_iter().map(|(id, players, lobbies)| (id, (players, lobbies))));
    }
}

impl SequenceRunner {
    pub fn check_facts(&mut self, random: &mut Random) -> Result<(), String> {
        let facts = self.driver.engine.read_facts(0, Lsn::MAX, usize::MAX);
        let is_ordered = facts.facts.windows(2).all(|pair| pair[0].lsn < pair[1].lsn);
        if facts.lost > 0 || !is_ordered {
            return Err(format!("facts out of order, or lost: {facts:?}"));
        }
        let mut waiting: BTreeMap<Id, Vec<&Fact>> = BTreeMap::new();
        facts.facts.iter().for_each(|fact| waiting.entry(fact.lobby).or_default().push(fact));
        for lobby in &self.model.lobbies {
            let presence = waiting.remove(&lobby.id).unwrap_or_default();
            let expected_facts = &lobby.history.expected_facts;
            if presence.len() != expected_facts.len()
                || !presence.iter().zip(expected_facts).all(|(fact, expected)| matches_event(lobby, fact, expected))
            {
                return Err(format!("presence of {:?}: {presence:?}, expected {:?}", lobby.id, lobby.history));
            }
        }
        if !waiting.is_empty() {
            return Err(format!("facts of unknown lobbies: {waiting:?}"));
        }
        if let Some(last) = random.pick(&facts.facts) {
            self.driver.acknowledge(last.lsn, self.now);
            let acknowledged = facts.facts.iter().take_while(|fact| fact.lsn <= last.lsn);
            for fact in acknowledged {
                let lobby = self.model.lobby_index(fact.lobby).unwrap_or_default();
                self.model.lobbies[lobby].history.expected_facts.remove(0);
            }
            self.model.last_lsn = self.driver.engine.last_lsn();
            self.coverage.count("facts", if last.lsn == self.model.last_lsn - 1 { "all read" } else { "some read" });
        }
        Ok(())
    }

    pub fn check_presence(&mut self) -> Result<(), String> {
        let engine = &mut self.driver.engine;
        // A namespace with unread idle groups would keep its number.
        engine.take_changed_idle_groups();
        self.reader.read(engine.presence_since(self.reader.generation));
        let mut anew = Reader::default();
        anew.read(engine.presence_since(0));
        let expected = presence(&self.model);
        let is_empty = |presence: &&(u64, u64)| **presence != (0, 0);
        let same = |presence: &BTreeMap<Id, (u64, u64)>| {
            presence.values().filter(is_empty).count() == expected.len()
                && expected.iter().all(|(id, counts)| presence.get(id) == Some(counts))
        };
        if same(&self.reader.presence) && same(&anew.presence) {
            return Ok(());
        }
        Err(format!("presence is {:?} and {:?}, expected {expected:?}", self.reader.presence, anew.presence))
    }
}

fn presence(model: &Model) -> BTreeMap<Id, (u64, u64)> {
    let mut all: BTreeMap<Id, (u64, u64)> = BTreeMap::new();
    for (index, lobby) in model.lobbies.iter().enumerate().filter(|(_, lobby)| lobby.is_live()) {
        let counts = all.entry(lobby.namespace).or_default();
        counts.0 += u64::from(model.players_by_stage(index)[2]);
        counts.1 += 1;
    }
    all
}

fn matches_event(lobby: &Lobby, fact: &Fact, (at, expected): &(Ms, ExpectedFact)) -> bool {
    let is_same_kind = match (&fact.kind, expected) {
        (LobbyFactKind::Created(details), ExpectedFact::Created) => fact.at == 0 && has_details(lobby, details),
        (LobbyFactKind::Ready, ExpectedFact::Ready) | (LobbyFactKind::Stopping, ExpectedFact::Stopping) => {
            fact.at == *at
        }
        (LobbyFactKind::Closed(presence), ExpectedFact::Closed(is_closed)) => presence == is_closed && fact.at == *at,
        (LobbyFactKind::Ended(ended), ExpectedFact::Ended(reason, connected)) => {
            // The engine may end a lobby after its deadline, and players count as connected until then.
            let expected = LobbyAttendance {
                player_ms: lobby.history.attendance.player_ms + u64::from(*connected) * (fact.at - at),
                ..lobby.history.attendance
            };
            ended.reason == *reason
                && ended.players[1] == *connected
                && ended.attendance == expected
                && ended.exit_code.is_none()
                && has_details(lobby, &ended.details)
        }
        _ => false,
    };
    is_same_kind && fact.namespace == lobby.namespace
}

fn has_details(lobby: &Lobby, details: &LobbyDetails) -> bool {
    *details.mode == *lobby.mode
        && *details.region == *lobby.region
        && (details.version, details.max_players) == (lobby.version, lobby.limits)
        && (details.create_ts_ms, details.is_public) == (lobby.create_ts_ms, lobby.is_public)
}
