//! Commands `players.connected` and `players.disconnected`.

use super::idempotent_requests::KeyLookup;
use super::{CreditClass, Engine, LobbyRef, accept, has_credit, refuse};
use crate::command::{CommandOutcome, Connect, Context, Disconnect, Id, Lsn, Ms};
use crate::idempotency_table::KeyPurpose;
use crate::journal_event::Event;
use crate::refusal::Refusal;
use crate::slot::{SlotState, SlotUseEnd, SlotUseStatus};
use crate::slot_ledger::TokenOutcome;
use crate::slot_use::SlotUse;
use crate::token::PlayerToken;

const MAX_KEPT_SLOT_MS: Ms = 600_000;

struct TokenUse {
    slot_use: SlotUse,
    status: SlotUseStatus,
}

impl Engine {
    /// Marks the slot of a player token connected.
    ///
    /// Refusals: `IdempotencyKeyReused`, `PlayerTokenInvalid`, `PlayerTokenWrongLobby`, `PlayerTokenConsumed`,
    /// `PlayerTokenExpired`, `PlayerRemoved`, `LobbyTokenExpired`, `StorageFull`.
    pub fn connected(&mut self, cx: &mut Context<'_>, c: &Connect) -> CommandOutcome<()> {
        self.begin_command(cx);
        let number = match self.resolve_lobby(cx, c.lobby) {
            LobbyRef::Unknown => return refuse(Refusal::LobbyTokenExpired, self.forgotten_lsn),
            LobbyRef::Live(number) | LobbyRef::Ended(number) => number,
        };
        match self.look_up_key(c.idempotency.as_ref()) {
            KeyLookup::Reused(wait) => return refuse(Refusal::IdempotencyKeyReused, wait),
            KeyLookup::IdempotencyEntry(entry) if self.is_still_connected(entry) => {
                self.record_heartbeat(number);
                return accept((), self.lobbies.lsn(number));
            }
            KeyLookup::IdempotencyEntry(_) | KeyLookup::Fresh | KeyLookup::Hold(_) => {}
        }
        let token_use = match self.read_token(number, c.lobby, c.player) {
            Ok(token_use) => token_use,
            Err((refusal, wait)) => return self.refuse_token(number, refusal, wait),
        };
        let Some(TokenUse { slot_use, status }) = token_use else {
            return self.refuse_token(number, Refusal::PlayerRemoved, self.lobbies.lsn(number));
        };
        let refusal = match self.expire_if_due(cx, slot_use, status) {
            SlotUseStatus::Live(SlotState::Reserved) => return self.connect(cx, slot_use, c),
            SlotUseStatus::Live(_) | SlotUseStatus::Ended(SlotUseEnd::Consumed) => Refusal::PlayerTokenConsumed,
            SlotUseStatus::Ended(SlotUseEnd::Expired) => Refusal::PlayerTokenExpired,
            SlotUseStatus::Ended(SlotUseEnd::Released | SlotUseEnd::LobbyGone) | SlotUseStatus::Forgotten => {
                Refusal::PlayerRemoved
            }
            SlotUseStatus::NeverIssued => Refusal::PlayerTokenInvalid,
        };
        self.refuse_token(number, refusal, self.lobbies.lsn(number))
    }

    /// Frees the slot of a player token, or keeps a connected slot for `hold_ms`. Never changes a later use of the slot.
    ///
    /// A call without effect does not store its idempotency key. Its repetition has no effect either, because a slot use
    /// that has ended or is kept never becomes connected again.
    ///
    /// Refusals: `IdempotencyKeyReused`, `PlayerTokenInvalid`, `PlayerTokenWrongLobby`, `LobbyTokenExpired`,
    /// `StorageFull`.
    pub fn disconnected(&mut self, cx: &mut Context<'_>, c: &Disconnect) -> CommandOutcome<()> {
        self.begin_command(cx);
        let number = match self.resolve_lobby(cx, c.lobby) {
            LobbyRef::Unknown => return refuse(Refusal::LobbyTokenExpired, self.forgotten_lsn),
            LobbyRef::Live(number) | LobbyRef::Ended(number) => number,
        };
        match self.look_up_key(c.idempotency.as_ref()) {
            KeyLookup::Reused(wait) => return refuse(Refusal::IdempotencyKeyReused, wait),
            KeyLookup::IdempotencyEntry(_) => {
                self.record_heartbeat(number);
                return accept((), self.lobbies.lsn(number));
            }
            KeyLookup::Fresh | KeyLookup::Hold(_) => {}
        }
        let token_use = match self.read_token(number, c.lobby, c.player) {
            Ok(token_use) => token_use,
            Err((refusal, wait)) => return refuse(refusal, wait),
        };
        let done = self.disconnect(cx, number, token_use, c);
        let wait = self.lobbies.lsn(number);
        if let Err(refusal) = done {
            return refuse(refusal, wait);
        }
        self.record_heartbeat(number);
        self.check_ledger(number);
        accept((), wait)
    }

    /// Returns the slot use of a player token, or None if the lobby has ended.
    fn read_token(&self, number: u32, id: Id, token: Option<PlayerToken>) -> Result<Option<TokenUse>, (Refusal, Lsn)> {
        let token = token.ok_or((Refusal::PlayerTokenInvalid, 0))?;
        if token.lobby != id {
            return Err((Refusal::PlayerTokenWrongLobby, self.lobbies.lsn(number)));
        }
        let Some(lobby) = self.lobbies.live(number) else { return Ok(None) };
        let status = lobby
            .slots
            .locate(token.slot)
            .map_or(SlotUseStatus::NeverIssued, |at| self.slots.get(at).use_status(token.generation));
        let slot_use = SlotUse { lobby: number, slot: token.slot as u16, generation: token.generation };
        Ok(Some(TokenUse { slot_use, status }))
    }

    /// Expires an overdue slot use and returns its status. If the journal is full, the slot use stays, but the returned
    /// status is "ended" as well.
    fn expire_if_due(&mut self, cx: &mut Context<'_>, slot_use: SlotUse, status: SlotUseStatus) -> SlotUseStatus {
        let SlotUseStatus::Live(state @ (SlotState::Reserved | SlotState::Kept)) = status else { return status };
        let at = self.lobbies.live(slot_use.lobby).and_then(|lobby| lobby.slots.locate(u32::from(slot_use.slot)));
        let Some(at) = at.filter(|at| self.slots.get(*at).time <= self.time.now()) else { return status };
        self.expire_slot_use(cx, at);
        SlotUseStatus::Ended(if state == SlotState::Reserved { SlotUseEnd::Expired } else { SlotUseEnd::Consumed })
    }

    fn connect(&mut self, cx: &mut Context<'_>, slot_use: SlotUse, c: &Connect) -> CommandOutcome<()> {
        if !has_credit(cx, CreditClass::ExistingSlot, Event::PLAYER_CONNECTED_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        let stamp = c.idempotency.as_ref().map(|idempotency| self.stamp(idempotency));
        self.emit(cx, &Event::PlayerConnected { slot_use, at: self.time.now(), stamp });
        self.count_token(slot_use.lobby, TokenOutcome::Connected);
        self.record_heartbeat(slot_use.lobby);
        self.check_ledger(slot_use.lobby);
        accept((), self.lobbies.lsn(slot_use.lobby))
    }

    fn is_still_connected(&self, entry: u32) -> bool {
        let entry = self.entries.get(entry);
        let slot_use = entry.slot_use();
        entry.purpose() == Some(KeyPurpose::Connected)
            && self
                .lobbies
                .live(slot_use.lobby)
                .and_then(|lobby| lobby.slots.locate(u32::from(slot_use.slot)))
                .is_some_and(|at| {
                    self.slots.get(at).use_status(slot_use.generation) == SlotUseStatus::Live(SlotState::Connected)
                })
    }

    fn disconnect(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        token_use: Option<TokenUse>,
        c: &Disconnect,
    ) -> Result<(), Refusal> {
        let stamp = c.idempotency.as_ref().map(|idempotency| self.stamp(idempotency));
        // An ended lobby has no slots. Generation 0 never exists.
        let no_slot_use = SlotUse { lobby: number, slot: 0, generation: 0 };
        let TokenUse { slot_use, status } =
            token_use.unwrap_or(TokenUse { slot_use: no_slot_use, status: SlotUseStatus::Forgotten });
        let hold_ms = c.hold_ms.unwrap_or(0).min(MAX_KEPT_SLOT_MS);
        let now = self.time.now();
        match self.expire_if_due(cx, slot_use, status) {
            SlotUseStatus::Live(SlotState::Connected) if hold_ms > 0 => {
                let deadline = now.saturating_add(hold_ms);
                self.emit_disconnect(
                    cx,
                    number,
                    Event::SLOT_KEPT_LEN,
                    &Event::SlotKept { slot_use, at: now, deadline, stamp },
                )
            }
            SlotUseStatus::Live(SlotState::Kept) if c.hold_ms.is_some() => Ok(()),
            SlotUseStatus::Live(SlotState::Connected) => {
                let event = Event::PlayerLeft { slot_use, at: now, end: SlotUseEnd::Consumed, stamp };
                self.emit_disconnect(cx, number, Event::PLAYER_LEFT_LEN, &event)
            }
            SlotUseStatus::Live(state) => {
                let end = if state == SlotState::Reserved { SlotUseEnd::Released } else { SlotUseEnd::Consumed };
                self.emit_disconnect(
                    cx,
                    number,
                    Event::SLOT_USE_ENDED_LEN,
                    &Event::SlotUseEnded { slot_use, end, stamp },
                )
            }
            SlotUseStatus::NeverIssued | SlotUseStatus::Ended(_) | SlotUseStatus::Forgotten => Ok(()),
        }
    }

    fn emit_disconnect(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        max_len: u64,
        event: &Event<'_>,
    ) -> Result<(), Refusal> {
        if !has_credit(cx, CreditClass::ExistingSlot, max_len) {
            return Err(Refusal::StorageFull);
        }
        self.emit(cx, event);
        self.count_token(number, TokenOutcome::Disconnected);
        Ok(())
    }

    fn refuse_token(&mut self, number: u32, refusal: Refusal, wait: Lsn) -> CommandOutcome<()> {
        let outcome = match refusal {
            Refusal::PlayerTokenInvalid => TokenOutcome::Invalid,
            Refusal::PlayerTokenWrongLobby => TokenOutcome::WrongLobby,
            Refusal::PlayerTokenConsumed => TokenOutcome::Consumed,
            Refusal::PlayerTokenExpired => TokenOutcome::Expired,
            _ => TokenOutcome::Removed,
        };
        self.count_token(number, outcome);
        refuse(refusal, wait)
    }
}
