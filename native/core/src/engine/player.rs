//! `players.connected` and `players.disconnected` (decisions 5.2). Class: existing place; a refusal needs no credit.

use super::replay::Recalled;
use super::{Class, Engine, Met, accept, has_credit, refuse};
use crate::command::{Answer, Connect, Context, Disconnect, Id, Lsn};
use crate::error::Refusal;
use crate::event::{Event, Place, cost};
use crate::idempotency::{Purpose, Stamp};
use crate::ledger::TokenOutcome;
use crate::lobby::Lobby;
use crate::slot::{End, SlotState, Standing};
use crate::time::LONGEST_KEPT_MS;
use crate::token::PlayerClaim;

/// The use that an authentic token of this lobby names, and what became of it.
struct Found {
    place: Place,
    standing: Standing,
}

impl Engine {
    /// Marks the place of a token connected. Checks form and MAC, lobby, then what became of the use.
    ///
    /// Refusals: `IdempotencyKeyReused`, `PlayerTokenInvalid`, `PlayerTokenWrongLobby`, `PlayerTokenConsumed`,
    /// `PlayerTokenExpired`, `PlayerRemoved`, `LobbyTokenExpired`, `StorageFull`.
    pub fn connected(&mut self, cx: &mut Context<'_>, c: &Connect<'_>) -> Answer<()> {
        self.begin(cx);
        let number = match self.meet(cx, c.lobby) {
            Met::Unknown => return refuse(Refusal::LobbyTokenExpired, self.forgotten_lsn),
            Met::Live(number) | Met::Ended(number) => number,
        };
        match self.recall(c.idempotency.as_ref()) {
            Recalled::Reused(wait) => return refuse(Refusal::IdempotencyKeyReused, wait),
            Recalled::Entry(entry) if self.is_still_connected(entry) => {
                self.hear(number);
                return accept((), self.lobbies.lsn(number));
            }
            Recalled::Entry(_) | Recalled::Fresh | Recalled::Hold(_) => {}
        }
        let found = match self.read_token(number, c.lobby, c.player_token) {
            Ok(found) => found,
            Err((refusal, wait)) => return self.refuse_token(number, refusal, wait),
        };
        let Some(Found { place, standing }) = found else {
            return self.refuse_token(number, Refusal::PlayerRemoved, self.lobbies.lsn(number));
        };
        let refusal = match self.expire_if_due(cx, place, standing) {
            Standing::Live(SlotState::Reserved) => return self.connect(cx, place, c),
            Standing::Live(_) | Standing::Ended(End::Consumed) => Refusal::PlayerTokenConsumed,
            Standing::Ended(End::Expired) => Refusal::PlayerTokenExpired,
            Standing::Ended(End::Released | End::LobbyGone) | Standing::TooOld => Refusal::PlayerRemoved,
            Standing::NeverGiven => Refusal::PlayerTokenInvalid,
        };
        self.refuse_token(number, refusal, self.lobbies.lsn(number))
    }

    /// Ends the place of a token, or keeps a connected one for `hold_ms`. Repeats are accepted and never touch a later
    /// user of the slot.
    ///
    /// Refusals: `IdempotencyKeyReused`, `PlayerTokenInvalid`, `PlayerTokenWrongLobby`, `LobbyTokenExpired`,
    /// `StorageFull`.
    pub fn disconnected(&mut self, cx: &mut Context<'_>, c: &Disconnect<'_>) -> Answer<()> {
        self.begin(cx);
        let number = match self.meet(cx, c.lobby) {
            Met::Unknown => return refuse(Refusal::LobbyTokenExpired, self.forgotten_lsn),
            Met::Live(number) | Met::Ended(number) => number,
        };
        match self.recall(c.idempotency.as_ref()) {
            Recalled::Reused(wait) => return refuse(Refusal::IdempotencyKeyReused, wait),
            Recalled::Entry(_) => {
                self.hear(number);
                return accept((), self.lobbies.lsn(number));
            }
            Recalled::Fresh | Recalled::Hold(_) => {}
        }
        let found = match self.read_token(number, c.lobby, c.player_token) {
            Ok(found) => found,
            Err((refusal, wait)) => return refuse(refusal, wait),
        };
        let done = self.disconnect(cx, number, found, c);
        let wait = self.lobbies.lsn(number);
        if let Err(refusal) = done {
            return refuse(refusal, wait);
        }
        self.hear(number);
        self.audit(number);
        accept((), wait)
    }

    /// What an authentic token of this lobby names; None when the lobby has ended.
    fn read_token(&self, number: u32, id: Id, text: &str) -> Result<Option<Found>, (Refusal, Lsn)> {
        let claim = PlayerClaim::read(text).ok_or((Refusal::PlayerTokenInvalid, 0))?;
        let token = claim.token;
        // What the token names is fetched before its MAC is computed, so that memory and processor work at the same time.
        let lobby = self.lobbies.live(number);
        let standing = match lobby.filter(|_| token.lobby == id).and_then(|lobby| lobby.slots.locate(token.slot)) {
            Some(at) => self.slots.get(at).standing(token.generation),
            None => Standing::NeverGiven,
        };
        if let (Some(lobby), Standing::Live(SlotState::Connected)) = (lobby, standing) {
            self.touch_for_end(lobby, token.slot);
        }
        if !self.config.keys.is_true(&claim) {
            return Err((Refusal::PlayerTokenInvalid, 0));
        }
        if token.lobby != id {
            return Err((Refusal::PlayerTokenWrongLobby, self.lobbies.lsn(number)));
        }
        let place = Place { lobby: number, slot: token.slot as u16, generation: token.generation };
        Ok(lobby.map(|_| Found { place, standing }))
    }

    /// Reads what the end of a use will change: the count of its source, and the slot that is the last free one so far.
    fn touch_for_end(&self, lobby: &Lobby, slot: u32) {
        let source = lobby.slots.locate(slot).map_or(0, |at| self.slots.get(at).source);
        let tail = lobby.slots.locate(u32::from(lobby.slots.free_tail));
        let places = self.sources.places(&self.seed, lobby.namespace, source);
        core::hint::black_box((places, tail.map(|at| self.slots.get(at).generation)));
    }

    /// A use past its deadline is over: it expires here if there is credit, and is treated as expired if not.
    fn expire_if_due(&mut self, cx: &mut Context<'_>, place: Place, standing: Standing) -> Standing {
        let Standing::Live(state @ (SlotState::Reserved | SlotState::Kept)) = standing else { return standing };
        let at = self.lobbies.live(place.lobby).and_then(|lobby| lobby.slots.locate(u32::from(place.slot)));
        let Some(at) = at.filter(|at| self.slots.get(*at).time <= self.time.now()) else { return standing };
        self.expire_place(cx, at);
        Standing::Ended(if state == SlotState::Reserved { End::Expired } else { End::Consumed })
    }

    fn connect(&mut self, cx: &mut Context<'_>, place: Place, c: &Connect<'_>) -> Answer<()> {
        if !has_credit(cx, Class::ExistingPlace, cost::CONNECTED) {
            return refuse(Refusal::StorageFull, 0);
        }
        let stamp = c.idempotency.as_ref().map(|idempotency| self.stamp(idempotency));
        self.emit(cx, &Event::PlaceConnected { place, at: self.time.now(), stamp });
        self.count_token(place.lobby, TokenOutcome::Connected);
        self.hear(place.lobby);
        self.audit(place.lobby);
        accept((), self.lobbies.lsn(place.lobby))
    }

    fn is_still_connected(&self, entry: u32) -> bool {
        let entry = self.entries.get(entry);
        let place = entry.place();
        entry.purpose() == Some(Purpose::Connected)
            && self
                .lobbies
                .live(place.lobby)
                .and_then(|lobby| lobby.slots.locate(u32::from(place.slot)))
                .is_some_and(|at| self.slots.get(at).standing(place.generation) == Standing::Live(SlotState::Connected))
    }

    fn disconnect(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        found: Option<Found>,
        c: &Disconnect<'_>,
    ) -> Result<(), Refusal> {
        let stamp = c.idempotency.as_ref().map(|idempotency| self.stamp(idempotency));
        // An ended lobby has no places; its key is remembered under a use that never was.
        let nowhere = Place { lobby: number, slot: 0, generation: 0 };
        let Found { place, standing } = found.unwrap_or(Found { place: nowhere, standing: Standing::TooOld });
        let hold_ms = c.hold_ms.unwrap_or(0).min(LONGEST_KEPT_MS);
        let now = self.time.now();
        match self.expire_if_due(cx, place, standing) {
            Standing::Live(SlotState::Connected) if hold_ms > 0 => {
                let deadline = now.saturating_add(hold_ms);
                self.emit_for_place(cx, cost::KEPT, &Event::PlaceKept { place, at: now, deadline, stamp })
            }
            Standing::Live(SlotState::Kept) if c.hold_ms.is_some() => self.remember_key(cx, place, stamp),
            Standing::Live(SlotState::Connected) => {
                let left = Event::PlaceEnded { place, at: now, end: End::Consumed, stamp };
                self.emit_for_place(cx, cost::PLACE_LEFT, &left)
            }
            Standing::Live(state) => {
                let end = if state == SlotState::Reserved { End::Released } else { End::Consumed };
                self.emit_for_place(cx, cost::PLACE_ENDED, &Event::PlaceEnded { place, at: 0, end, stamp })
            }
            Standing::NeverGiven | Standing::Ended(_) | Standing::TooOld => self.remember_key(cx, place, stamp),
        }
    }

    fn emit_for_place(&mut self, cx: &mut Context<'_>, cost: u64, event: &Event<'_>) -> Result<(), Refusal> {
        if !has_credit(cx, Class::ExistingPlace, cost) {
            return Err(Refusal::StorageFull);
        }
        let (Event::PlaceKept { place, .. } | Event::PlaceEnded { place, .. }) = event else { return Ok(()) };
        let number = place.lobby;
        self.emit(cx, event);
        self.count_token(number, TokenOutcome::Disconnected);
        Ok(())
    }

    /// A success that changed no place still has its key remembered.
    fn remember_key(&mut self, cx: &mut Context<'_>, place: Place, stamp: Option<Stamp>) -> Result<(), Refusal> {
        if stamp.is_none() {
            return Ok(());
        }
        if !has_credit(cx, Class::ExistingPlace, cost::REMEMBERED) {
            return Err(Refusal::StorageFull);
        }
        self.emit(cx, &Event::KeyRemembered { place, stamp });
        Ok(())
    }

    fn refuse_token(&mut self, number: u32, refusal: Refusal, wait: Lsn) -> Answer<()> {
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
