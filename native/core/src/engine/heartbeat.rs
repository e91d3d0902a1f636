//! Heartbeats of lobby servers, with or without a list of connected players.

use super::{CommandOutcome, CreditClass, Engine, has_credit, refuse};
use crate::command::{Context, Id, Lsn};
use crate::journal_event::Event;
use crate::lobby::Lobby;
use crate::refusal::Refusal;
use crate::slot::{SlotState, SlotUseEnd, SlotUseStatus};
use crate::slot_use::SlotUse;
use crate::token::{KeyRing, PlayerToken};

const MAX_REPORTED_TOKENS: usize = 256;

/// Maximum number of slots that one heartbeat frees. The next heartbeat frees the rest.
const MAX_FREED_SLOTS: usize = 1_024;

/// List of player tokens in a heartbeat, verified before the engine is locked.
///
/// A list has up to 15,000 tokens. Their MACs would keep all other commands waiting for several milliseconds.
#[derive(Debug)]
pub struct PlayerList {
    /// None for a token that no key of the ring signed.
    tokens: Vec<Option<PlayerToken>>,
}

impl PlayerList {
    /// Verifies the signature of each token.
    pub fn verify(keys: &KeyRing, tokens: &[&str]) -> PlayerList {
        PlayerList { tokens: tokens.iter().map(|token| keys.verify_player(token)).collect() }
    }
}

#[derive(Default)]
struct MarkedSlots {
    /// Connected slots that the list does not name, although their players were connected before the previous list.
    missing: Vec<SlotUse>,
    first_listed: Vec<u32>,
}

impl Engine {
    /// Records a heartbeat, and frees connected slots that are missing in the list of player tokens.
    ///
    /// A slot is freed only if its player connected before the previous list and its grace time is over. One call frees at
    /// most 1,024 slots.
    ///
    /// Refusals, which free no slot: `LobbyStopped`, `LobbyTokenExpired`, `TokenInListInvalid`, `StorageFull`.
    pub fn heartbeat(&mut self, cx: &mut Context<'_>, lobby: Id, players: Option<&PlayerList>) -> CommandOutcome<()> {
        let number = match self.resolve_calling_lobby(cx, lobby) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        if let Some(players) = players {
            let present = match self.read_player_list(number, lobby, players) {
                Ok(present) => present,
                Err((indexes, wait)) => return refuse(Refusal::TokenInListInvalid(indexes), wait),
            };
            let MarkedSlots { missing, first_listed } = self.mark_listed(number, &present);
            if !has_credit(cx, CreditClass::ExistingSlot, missing.len() as u64 * Event::PLAYER_LEFT_LEN) {
                first_listed.into_iter().for_each(|at| self.slots.get_mut(at).was_listed = false);
                return refuse(Refusal::StorageFull, 0);
            }
            let at = self.time.now();
            for slot_use in missing {
                self.emit(cx, &Event::PlayerLeft { slot_use, at, end: SlotUseEnd::Consumed, stamp: None });
            }
            self.check_ledger(number);
        }
        self.accept_lobby_call(number)
    }

    /// Returns for each slot of the lobby whether the list of player tokens names the slot.
    ///
    /// If tokens are invalid for this lobby, the error contains their indexes. The error also contains the LSN that
    /// must be durable before the refusal is sent.
    fn read_player_list(&self, number: u32, id: Id, players: &PlayerList) -> Result<Vec<bool>, (Box<[u32]>, Lsn)> {
        let Some(lobby) = self.lobbies.live(number) else { return Ok(Vec::new()) };
        let mut present = vec![false; lobby.slots.used as usize];
        let (mut invalid, mut wait) = (Vec::new(), 0);
        for (index, token) in (0u32..).zip(&players.tokens) {
            match self.read_listed_token(lobby, id, token.as_ref()) {
                Ok(Some(slot)) => present[slot] = true,
                Ok(None) => {}
                Err(lsn) => {
                    invalid.push(index);
                    wait = wait.max(lsn);
                    if invalid.len() == MAX_REPORTED_TOKENS {
                        break;
                    }
                }
            }
        }
        if invalid.is_empty() { Ok(present) } else { Err((invalid.into(), wait)) }
    }

    /// Returns the slot number of a player token, or None if the token's slot use has ended.
    ///
    /// For an invalid token, the error is the LSN that must be durable before the refusal is sent.
    fn read_listed_token(&self, lobby: &Lobby, id: Id, token: Option<&PlayerToken>) -> Result<Option<usize>, Lsn> {
        let token = token.filter(|token| token.lobby == id).ok_or(0_u64)?;
        let at = lobby.slots.locate(token.slot).ok_or(lobby.lsn)?;
        match self.slots.get(at).use_status(token.generation) {
            SlotUseStatus::NeverIssued => Err(lobby.lsn),
            SlotUseStatus::Live(_) => Ok(Some(token.slot as usize)),
            SlotUseStatus::Ended(_) | SlotUseStatus::Forgotten => Ok(None),
        }
    }

    /// Marks all slots as listed. One pass, because the engine is locked meanwhile.
    fn mark_listed(&mut self, number: u32, present: &[bool]) -> MarkedSlots {
        let mut marked = MarkedSlots::default();
        let Some(lobby) = self.lobbies.live(number) else { return marked };
        let now = self.time.now();
        for at in (0..lobby.slots.used).filter_map(|slot| lobby.slots.locate(slot)) {
            let slot = self.slots.get_mut(at);
            let was_listed = core::mem::replace(&mut slot.was_listed, true);
            if !was_listed {
                marked.first_listed.push(at);
            }
            let is_over = slot.state == SlotState::Connected
                && was_listed
                && now >= slot.time.saturating_add(lobby.heartbeat_grace_ms)
                && !present[usize::from(slot.number)];
            if is_over && marked.missing.len() < MAX_FREED_SLOTS {
                marked.missing.push(SlotUse { lobby: number, slot: slot.number, generation: slot.generation });
            }
        }
        marked
    }
}
