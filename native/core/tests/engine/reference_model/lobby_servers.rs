//! The model's answers to ready, close, state, stop, detach and end.

use hosting_core::{Id, Refusal};

use super::decisions::{Decision, Verdict, Wait, refuse};
use super::model_state::{Lobby, Model};

impl Model {
    pub fn decide_ready(&self, lobby: Id) -> Decision {
        let index = self.lobby_index(lobby).unwrap_or_default();
        if self.lobbies[index].is_ready {
            Decision::new(Verdict::Done, Wait::Lobby(index), "repeated").repeat()
        } else {
            Decision::new(Verdict::Done, Wait::Lobby(index), "ready")
        }
    }

    pub fn decide_setting(&self, lobby: Id, is_same: impl Fn(&Lobby) -> bool) -> Decision {
        let index = self.lobby_index(lobby).unwrap_or_default();
        let decision = |label| Decision::new(Verdict::Done, Wait::Lobby(index), label);
        if is_same(&self.lobbies[index]) { decision("repeated").repeat() } else { decision("set") }
    }

    pub fn decide_state(&self, namespace: Id, lobby: Id, caller: Option<Id>) -> Decision {
        match self.lobby_index(lobby).filter(|index| self.lobbies[*index].namespace == namespace) {
            None => refuse(Refusal::LobbyNotFound, Wait::Any),
            Some(index) if self.is_forgotten(index) => {
                let unknown = refuse(Refusal::LobbyNotFound, Wait::Any);
                if self.is_perhaps_known(index) { unknown.or(Refusal::LobbyStopped) } else { unknown }
            }
            Some(index) if !self.lobbies[index].is_live() => refuse(Refusal::LobbyStopped, Wait::Lobby(index)),
            Some(index) => {
                let state = &self.lobbies[index].state;
                let value = (!state.is_empty()).then(|| state.clone());
                let label = match (&value, caller) {
                    (_, Some(_)) => "returned to a server",
                    (None, None) => "none",
                    (Some(_), None) => "value",
                };
                Decision::new(Verdict::State(value), Wait::Lobby(index), label).repeat()
            }
        }
    }

    pub fn decide_detach(&self, namespace: Id, lobby: Id) -> Decision {
        self.decide_end(self.lobby_index(lobby).filter(|index| self.lobbies[*index].namespace == namespace))
    }

    pub fn decide_end(&self, lobby: Option<usize>) -> Decision {
        match lobby {
            None => refuse(Refusal::LobbyNotFound, Wait::Any),
            Some(index) if self.is_forgotten(index) && !self.is_perhaps_known(index) => {
                refuse(Refusal::LobbyNotFound, Wait::Any)
            }
            Some(index) if !self.lobbies[index].is_live() => {
                let before = Decision::new(Verdict::Removed(false), Wait::Any, "removed before").repeat();
                if self.is_forgotten(index) { before.or(Refusal::LobbyNotFound) } else { before }
            }
            Some(index) => Decision::new(Verdict::Removed(true), Wait::Lobby(index), "removed"),
        }
    }

    pub fn decide_stop(&self, lobby: Id, only_if_idle: bool) -> Decision {
        match self.lobby_index(lobby) {
            None => refuse(Refusal::LobbyNotFound, Wait::Any),
            Some(index) if self.is_forgotten(index) => {
                let unknown = refuse(Refusal::LobbyNotFound, Wait::Any);
                if self.is_perhaps_known(index) { unknown.or(Refusal::LobbyStopped) } else { unknown }
            }
            Some(index) if !self.lobbies[index].is_live() => refuse(Refusal::LobbyStopped, Wait::Lobby(index)),
            Some(index) if self.lobbies[index].is_stopping => {
                Decision::new(Verdict::Removed(true), Wait::Lobby(index), "marked before").repeat()
            }
            Some(index) if only_if_idle && self.players(index) > 0 => {
                Decision::new(Verdict::Removed(false), Wait::Lobby(index), "not idle").repeat()
            }
            Some(index) => Decision::new(Verdict::Removed(true), Wait::Lobby(index), "marked"),
        }
    }
}
