//! Heartbeats of lobby servers, with or without the list of their players (decisions 5.6). Class: existing place.

use super::{Answer, Class, Engine, has_credit, refuse};
use crate::command::{Context, Id, Lsn};
use crate::error::Refusal;
use crate::event::{Event, Place, cost};
use crate::lobby::Lobby;
use crate::slot::{End, SlotState, Standing};

/// How many bad tokens of one list are told.
const TOLD_AT_ONCE: usize = 256;

impl Engine {
    /// The server lives. With a list, a connected place ends when its token is missing, it was connected before the
    /// lobby's previous list arrived, and for at least the grace time. A heartbeat without effect writes no event.
    ///
    /// Refusals: `LobbyStopped`, `LobbyTokenExpired`, `TokenInListInvalid`, `StorageFull`; none of them ends a place.
    pub fn heartbeat(&mut self, cx: &mut Context<'_>, lobby: Id, player_tokens: Option<&[&str]>) -> Answer<()> {
        let number = match self.meet_speaking(cx, lobby) {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        if let Some(tokens) = player_tokens {
            let present = match self.read_list(number, lobby, tokens) {
                Ok(present) => present,
                Err((indexes, wait)) => return refuse(Refusal::TokenInListInvalid(indexes), wait),
            };
            let missing = self.missing(number, &present);
            if !has_credit(cx, Class::ExistingPlace, missing.len() as u64 * cost::PLACE_LEFT) {
                return refuse(Refusal::StorageFull, 0);
            }
            let at = self.time.now();
            for place in missing {
                self.emit(cx, &Event::PlaceEnded { place, at, end: End::Consumed, stamp: None });
            }
            self.mark_listed(number);
            self.audit(number);
        }
        self.heard(number)
    }

    /// For each slot whether the list has its current use; or the indexes of the tokens that are none of this lobby's,
    /// and the LSN that this depends on.
    fn read_list(&self, number: u32, id: Id, tokens: &[&str]) -> Result<Vec<bool>, (Box<[u32]>, Lsn)> {
        let Some(lobby) = self.lobbies.live(number) else { return Ok(Vec::new()) };
        let mut present = vec![false; lobby.slots.used as usize];
        let (mut invalid, mut wait) = (Vec::new(), 0);
        for (index, text) in (0u32..).zip(tokens) {
            match self.read_listed(lobby, id, text) {
                Ok(Some(slot)) => present[slot] = true,
                Ok(None) => {}
                Err(lsn) => {
                    invalid.push(index);
                    wait = wait.max(lsn);
                    if invalid.len() == TOLD_AT_ONCE {
                        break;
                    }
                }
            }
        }
        if invalid.is_empty() { Ok(present) } else { Err((invalid.into(), wait)) }
    }

    /// The slot whose current use a token is, None when its use has ended; or the LSN that "none of this lobby's"
    /// depends on.
    fn read_listed(&self, lobby: &Lobby, id: Id, text: &str) -> Result<Option<usize>, Lsn> {
        let token = self.config.keys.verify_player(text).filter(|token| token.lobby == id).ok_or(0_u64)?;
        let at = lobby.slots.locate(token.slot).ok_or(lobby.lsn)?;
        match self.slots.get(at).standing(token.generation) {
            Standing::NeverGiven => Err(lobby.lsn),
            Standing::Live(_) => Ok(Some(token.slot as usize)),
            Standing::Ended(_) | Standing::TooOld => Ok(None),
        }
    }

    /// Connected places that the list ends.
    fn missing(&self, number: u32, present: &[bool]) -> Vec<Place> {
        let Some(lobby) = self.lobbies.live(number) else { return Vec::new() };
        let now = self.time.now();
        let is_missing = |slot: u32| {
            let slot = self.slots.get(lobby.slots.locate(slot)?);
            let is_over = slot.state == SlotState::Connected
                && slot.was_listed
                && now >= slot.time.saturating_add(lobby.heartbeat_grace_ms)
                && !present[usize::from(slot.number)];
            is_over.then_some(Place { lobby: number, slot: slot.number, generation: slot.generation })
        };
        (0..lobby.slots.used).filter_map(is_missing).collect()
    }

    /// Everybody who is connected now was so before the next list.
    fn mark_listed(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live(number) else { return };
        for slot in 0..lobby.slots.used {
            if let Some(at) = lobby.slots.locate(slot) {
                self.slots.get_mut(at).was_listed = true;
            }
        }
    }
}
