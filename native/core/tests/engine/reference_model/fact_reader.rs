//! A slow reader of facts and presence, compared with the model.

use std::collections::BTreeMap;

use hosting_core::{EndReason, Fact, Id, LobbyAttendance, LobbyDetails, LobbyFactKind, Lsn, Ms, PresenceChanges};

use super::model_state::{Lobby, Model};
use super::sequence_runner::SequenceRunner;
use crate::random::Random;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Made,
    Ready,
    Closed(bool),
    Stopping,
    Ended(EndReason, u32),
}

#[derive(Clone, Debug, Default)]
pub struct History {
    pub seen: Vec<(Ms, Seen)>,
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
            let seen = &lobby.history.seen;
            if presence.len() != seen.len() || !presence.iter().zip(seen).all(|(fact, seen)| is_told(lobby, fact, seen))
            {
                return Err(format!("presence of {:?}: {presence:?}, expected {:?}", lobby.id, lobby.history));
            }
        }
        if !waiting.is_empty() {
            return Err(format!("facts of unknown lobbies: {waiting:?}"));
        }
        if let Some(last) = random.pick(&facts.facts) {
            self.driver.acknowledge(last.lsn, self.now);
            let gone = facts.facts.iter().take_while(|fact| fact.lsn <= last.lsn);
            for fact in gone {
                let lobby = self.model.lobby_index(fact.lobby).unwrap_or_default();
                self.model.lobbies[lobby].history.seen.remove(0);
            }
            self.model.last_lsn = self.driver.engine.last_lsn();
            self.coverage.count("facts", if last.lsn == self.model.last_lsn - 1 { "all read" } else { "some read" });
        }
        Ok(())
    }

    pub fn check_presence(&mut self) -> Result<(), String> {
        let engine = &mut self.driver.engine;
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

fn is_told(lobby: &Lobby, fact: &Fact, (at, seen): &(Ms, Seen)) -> bool {
    let is_then = match (&fact.kind, seen) {
        (LobbyFactKind::Created(details), Seen::Made) => fact.at == 0 && has_details(lobby, details),
        (LobbyFactKind::Ready, Seen::Ready) | (LobbyFactKind::Stopping, Seen::Stopping) => fact.at == *at,
        (LobbyFactKind::Closed(presence), Seen::Closed(is_closed)) => presence == is_closed && fact.at == *at,
        (LobbyFactKind::Ended(ended), Seen::Ended(reason, connected)) => {
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
    is_then && fact.namespace == lobby.namespace
}

fn has_details(lobby: &Lobby, details: &LobbyDetails) -> bool {
    *details.mode == *lobby.mode
        && *details.region == *lobby.region
        && (details.version, details.max_players) == (lobby.version, lobby.limits)
        && (details.create_ts_ms, details.is_public) == (lobby.create_ts_ms, lobby.is_public)
}
