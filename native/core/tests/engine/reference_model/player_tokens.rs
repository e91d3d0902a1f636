//! The model's answers to connect, disconnect and heartbeat lists.

use hosting_core::{Id, Refusal};

use super::decisions::{Decision, TokenReading, Verdict, Wait, refuse};
use super::engine_driver::key_id_of;
use super::model_state::{Ending, Model, REMEMBERED_USES, Stage, Use};

impl Model {
    pub fn see(&self, lobby: usize, token: &str) -> TokenReading {
        if key_id_of(token).is_some_and(|id| self.dropped_keys.contains(&id)) {
            return TokenReading::Forged;
        }
        if let Some(index) = self.use_of(token) {
            return if self.uses[index].lobby == lobby {
                TokenReading::OwnUse(index)
            } else {
                TokenReading::OtherLobby
            };
        }
        match self.never_given.iter().find(|(known, _)| known == token) {
            None => TokenReading::Forged,
            Some((_, of)) if *of != lobby => TokenReading::OtherLobby,
            Some(_) => TokenReading::NeverIssued,
        }
    }

    pub fn decide_connected(&self, lobby: Id, token: &str) -> Decision {
        let asking = self.lobby_index(lobby).unwrap_or_default();
        let index = match self.see(asking, token) {
            TokenReading::Forged => return refuse(Refusal::PlayerTokenInvalid, Wait::Any),
            TokenReading::OtherLobby => return refuse(Refusal::PlayerTokenWrongLobby, Wait::Any),
            TokenReading::NeverIssued if self.lobbies[asking].is_live() => {
                return refuse(Refusal::PlayerTokenInvalid, Wait::Lobby(asking));
            }
            TokenReading::NeverIssued => return refuse(Refusal::PlayerRemoved, Wait::Lobby(asking)),
            TokenReading::OwnUse(index) => index,
        };
        if !self.lobbies[asking].is_live() {
            return refuse(Refusal::PlayerRemoved, Wait::Lobby(asking));
        }
        match self.uses[index].stage {
            Stage::Reserved { .. } => Decision::new(Verdict::Done, Wait::Lobby(asking), "connected"),
            Stage::Connected { .. } | Stage::Kept { .. } => refuse(Refusal::PlayerTokenConsumed, Wait::Lobby(asking)),
            Stage::Ended(ending) => self.decide_ended(index, ending),
        }
    }

    fn later_ends(&self, index: usize) -> usize {
        let one = &self.uses[index];
        let slot = &self.lobbies[one.lobby].slots[one.slot];
        slot.uses.iter().filter(|other| **other > index && !self.uses[**other].stage.is_live()).count()
    }

    pub fn is_beyond_memory(&self, index: usize) -> bool {
        self.later_ends(index) >= REMEMBERED_USES
    }

    fn decide_ended(&self, index: usize, ending: Ending) -> Decision {
        let truth = match ending {
            Ending::Expired => Refusal::PlayerTokenExpired,
            Ending::Consumed => Refusal::PlayerTokenConsumed,
            Ending::Released | Ending::LobbyRemoved => Refusal::PlayerRemoved,
        };
        let one = &self.uses[index];
        let wait = Wait::Lobby(one.lobby);
        if !self.is_beyond_memory(index) {
            return refuse(truth, wait);
        }
        // The engine may not have expired the latest use of the slot yet.
        let is_last_in = self.later_ends(index) == REMEMBERED_USES;
        let has_overdue = self.lobbies[one.lobby].slots[one.slot].is_overdue();
        let removed = refuse(Refusal::PlayerRemoved, wait);
        if is_last_in && has_overdue { removed.or(truth) } else { removed }
    }

    pub fn decide_disconnected(&self, lobby: Id, token: &str, hold_ms: Option<u64>) -> Decision {
        let asking = self.lobby_index(lobby).unwrap_or_default();
        let index = match self.see(asking, token) {
            TokenReading::Forged => return refuse(Refusal::PlayerTokenInvalid, Wait::Any),
            TokenReading::OtherLobby => return refuse(Refusal::PlayerTokenWrongLobby, Wait::Any),
            // The documentation allows success and PLAYER_TOKEN_INVALID for a slot use that was never issued.
            TokenReading::NeverIssued => {
                let done = Decision::new(Verdict::Done, Wait::Any, "repeated").repeat();
                return done.or(Refusal::PlayerTokenInvalid);
            }
            TokenReading::OwnUse(index) => index,
        };
        let done = |label| Decision::new(Verdict::Done, Wait::Lobby(asking), label);
        match (self.uses[index].stage, hold_ms) {
            (Stage::Reserved { .. }, _) => done("released"),
            (Stage::Connected { .. }, Some(_)) => done("kept"),
            (Stage::Connected { .. }, None) => done("freed"),
            (Stage::Kept { .. }, None) => done("kept freed"),
            (Stage::Kept { .. }, Some(_)) | (Stage::Ended(_), _) => done("repeated").repeat(),
        }
    }

    pub fn decide_heartbeat(&self, lobby: Id, tokens: Option<&[String]>) -> Decision {
        let index = self.lobby_index(lobby).unwrap_or_default();
        let Some(list) = tokens else {
            return Decision::new(Verdict::Done, Wait::Lobby(index), "spoken").repeat();
        };
        let is_bad = |token: &String| !matches!(self.see(index, token), TokenReading::OwnUse(_));
        let bad: Vec<u32> = (0..).zip(list).filter(|(_, token)| is_bad(token)).map(|(at, _)| at).collect();
        if !bad.is_empty() {
            let mut invalid = refuse(Refusal::TokenInListInvalid(bad.as_slice().into()), Wait::Any);
            if bad.len() > 1 {
                invalid.label = "BODY_INVALID for several tokens";
            }
            return invalid;
        }
        if self.missing_in(index, list).is_empty() {
            Decision::new(Verdict::Done, Wait::Lobby(index), "listed").repeat()
        } else {
            Decision::new(Verdict::Done, Wait::Lobby(index), "listed and freed")
        }
    }

    pub fn missing_in(&self, lobby: usize, list: &[String]) -> Vec<usize> {
        let Some(previous) = self.lobbies[lobby].listed_by else { return Vec::new() };
        let grace = self.lobbies[lobby].heartbeat_grace_ms;
        let is_missing = |one: &Use| match one.stage {
            Stage::Connected { since, order } => {
                order < previous && self.now - since >= grace && !list.contains(&one.token)
            }
            _ => false,
        };
        (0..self.uses.len()).filter(|i| self.uses[*i].lobby == lobby && is_missing(&self.uses[*i])).collect()
    }
}
