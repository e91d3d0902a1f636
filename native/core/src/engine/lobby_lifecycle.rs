//! Lifecycle of lobbies: attach, ready, close, state, stop and end.

use std::collections::BTreeMap;

use super::idempotent_requests::KeyLookup;
use super::{CreditClass, Engine, LobbyRef, accept, has_credit, refuse};
use crate::command::{Attach, Attached, CommandOutcome, Context, EndReason, Id, Lsn, Publicity, ResolvedHold};
use crate::journal_event::{Event, LobbyDefinition};
use crate::lobby_table::LobbyRecord;
use crate::port_leases::PortLease;
use crate::refusal::Refusal;
use crate::slot::MAX_CAPACITY;

impl Engine {
    /// Attaches a lobby server that the service did not start. Player limits are clamped to 1 to 65,535.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped` (a repeated request after the end), `StorageFull`,
    /// `TooManyLobbies`.
    ///
    /// # Panics
    /// If the engine knows `c.id`.
    pub fn attach(&mut self, cx: &mut Context<'_>, c: &Attach<'_>) -> CommandOutcome<Attached> {
        self.begin_command(cx);
        self.expire_part(cx, 0);
        match self.look_up_key(c.idempotency.as_ref()) {
            KeyLookup::Reused(wait) => return refuse(Refusal::IdempotencyKeyReused, wait),
            KeyLookup::IdempotencyEntry(entry) => return self.replay_attach(entry),
            KeyLookup::Fresh | KeyLookup::Hold(_) => {}
        }
        assert!(self.lobbies.number_of(&self.seed, c.id).is_none(), "a lobby id is used once");
        let event = self.lobby_created_event(c);
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        if !has_credit(cx, CreditClass::NewSlot, bytes.len() as u64) {
            return refuse(Refusal::StorageFull, 0);
        }
        while self.live_lobby_count(c.namespace) >= u64::from(c.lobby_count_max) {
            if !self.expire_part(cx, bytes.len() as u64) {
                return refuse(Refusal::TooManyLobbies, self.last_lsn);
            }
        }
        self.emit(cx, &event);
        let lobby_token = self.config.keys.sign_lobby(self.config.keys.current_id(), c.id).unwrap_or_default();
        accept(Attached { lobby: c.id, lobby_token }, self.last_lsn)
    }

    pub(super) fn live_lobby_count(&self, namespace: Id) -> u64 {
        let namespace = self.ledger.namespace_of(&self.seed, namespace);
        namespace.map_or(0, |number| self.ledger.namespaces[number as usize].lobbies.len() as u64)
    }

    fn lobby_created_event<'a>(&self, c: &Attach<'a>) -> Event<'a> {
        let stamp = c.idempotency.as_ref().map(|idempotency| self.stamp(idempotency));
        Event::LobbyCreated { definition: Box::new(self.lobby_definition(c, Publicity::Public)), stamp }
    }

    pub(super) fn lobby_definition<'a>(&self, c: &Attach<'a>, publicity: Publicity) -> LobbyDefinition<'a> {
        LobbyDefinition {
            lobby: self.lobbies.vacant_number(),
            id: c.id,
            namespace: c.namespace,
            version: c.version,
            mode: c.mode,
            region: c.region,
            is_public: publicity == Publicity::Public,
            is_join_enabled: c.is_join_enabled,
            limits: limits_of(c),
            player_token_ttl_ms: c.player_token_ttl_ms,
            heartbeat_timeout_ms: c.heartbeat_timeout_ms,
            heartbeat_grace_ms: c.heartbeat_grace_ms,
            create_ts_ms: c.create_ts_ms,
            key_id: self.config.keys.current_id(),
            tags: c.tags.to_vec(),
            ports: c.ports.to_vec(),
        }
    }

    /// Marks a lobby ready and turns its holds into reservations, in order of arrival.
    ///
    /// Refusals: `LobbyStopped`, `LobbyTokenExpired`, `PortsNotBound`, `StorageFull`.
    pub fn ready(&mut self, cx: &mut Context<'_>, lobby: Id) -> CommandOutcome<()> {
        let number = match self.resolve_calling_lobby(cx, lobby) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        let Some(current) = self.lobbies.live(number) else { return refuse(Refusal::LobbyStopped, 0) };
        if !current.is_ready {
            // Players get the ports of a ready lobby, and the ports never change after that.
            if self.leases.live(lobby).is_some_and(PortLease::awaits_node) {
                return refuse(Refusal::PortsNotBound, current.lsn);
            }
            let held = current.holds.iter().filter_map(|hold| self.holds.get(*hold));
            let needed: u64 = Event::LOBBY_READY_LEN
                + held.map(|hold| Event::max_reservation_len(hold.slots, hold.channels.len())).sum::<u64>();
            if !has_credit(cx, CreditClass::NewSlot, needed) {
                return refuse(Refusal::StorageFull, 0);
            }
            let holds = self.take_holds(number);
            self.emit(cx, &Event::LobbyReady { lobby: number, at: self.time.now() });
            let mut reservations = Vec::with_capacity(holds.len());
            for (id, hold) in &holds {
                reservations.push((*id, self.reserve_held(cx, number, hold)));
            }
            let wait = self.lobbies.lsn(number);
            let resolved = reservations.into_iter().map(|(hold, it)| ResolvedHold { hold, outcome: accept(it, wait) });
            self.resolved_holds.extend(resolved);
            self.check_ledger(number);
            // Heartbeats are required from now on.
            self.record_heartbeat(number);
            self.schedule_lobby_timer(number);
        }
        self.accept_lobby_call(number)
    }

    /// Closes a lobby to new players, or opens it again.
    ///
    /// Refusals: `LobbyStopped`, `LobbyTokenExpired`, `StorageFull`.
    pub fn set_closed(&mut self, cx: &mut Context<'_>, lobby: Id, is_closed: bool) -> CommandOutcome<()> {
        let number = match self.resolve_calling_lobby(cx, lobby) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        if self.lobbies.live(number).is_some_and(|lobby| lobby.is_closed != is_closed) {
            if !has_credit(cx, CreditClass::ExistingSlot, Event::LOBBY_CLOSED_LEN) {
                return refuse(Refusal::StorageFull, 0);
            }
            self.emit(cx, &Event::LobbyClosed { lobby: number, is_closed, at: self.time.now() });
        }
        self.accept_lobby_call(number)
    }

    /// Sets which lobbies have a port at which nothing listens, each with a sentence that says so. While such a lobby is
    /// ready, find and list omit it, and joins get `LobbyUnreachable`. Unknown lobbies are ignored.
    pub fn set_unreachable(&mut self, cx: &mut Context<'_>, lobbies: BTreeMap<Id, String>) -> CommandOutcome<()> {
        self.begin_command(cx);
        let earlier = core::mem::replace(&mut self.unreachable_lobbies, lobbies);
        let later = &self.unreachable_lobbies;
        let ended = earlier.keys().filter(|id| !later.contains_key(id)).map(|id| (*id, false));
        let begun = later.keys().filter(|id| !earlier.contains_key(id)).map(|id| (*id, true));
        let changes: Vec<(Id, bool)> = ended.chain(begun).collect();
        for (id, nothing_listens) in changes {
            let Some(number) = self.lobbies.number_of(&self.seed, id) else { continue };
            let Some(lobby) = self.lobbies.live_mut(number) else { continue };
            lobby.nothing_listens = nothing_listens;
            self.lobby_changed(number);
        }
        accept((), 0)
    }

    /// Returns the sentence of the last [`Engine::set_unreachable`] about a lobby.
    pub fn unreachable_problem(&self, lobby: Id) -> Option<&str> {
        self.unreachable_lobbies.get(&lobby).map(String::as_str)
    }

    /// Stores the state of a lobby byte for byte. An empty state clears it.
    ///
    /// Refusals: `LobbyStopped`, `LobbyTokenExpired`, `StorageFull`.
    pub fn set_state(&mut self, cx: &mut Context<'_>, lobby: Id, state: &[u8]) -> CommandOutcome<()> {
        let number = match self.resolve_calling_lobby(cx, lobby) {
            Ok(number) => number,
            Err(outcome) => return outcome,
        };
        let current = self.lobbies.live(number).and_then(|lobby| lobby.state.as_deref()).unwrap_or_default();
        if *current != *state {
            // State is large and frees no slot, so it may not use the journal bytes that expiry needs.
            if !has_credit(cx, CreditClass::NewSlot, Event::LOBBY_STATE_SET_LEN + state.len() as u64) {
                return refuse(Refusal::StorageFull, 0);
            }
            self.emit(cx, &Event::LobbyStateSet { lobby: number, state });
        }
        self.accept_lobby_call(number)
    }

    /// Returns the state of a lobby in one of the namespaces.
    ///
    /// `caller` is the calling lobby, if any. It must be live, and the call counts as its heartbeat.
    ///
    /// Refusals: `LobbyNotFound`, `LobbyStopped`, `LobbyTokenExpired`.
    pub fn state(
        &mut self,
        cx: &mut Context<'_>,
        namespaces: &[Id],
        lobby: Id,
        caller: Option<Id>,
    ) -> CommandOutcome<Option<Vec<u8>>> {
        self.begin_command(cx);
        let calling_lobby = match caller.map(|caller| self.resolve_calling_lobby(cx, caller)).transpose() {
            Ok(calling_lobby) => calling_lobby,
            Err(outcome) => return outcome,
        };
        let (number, is_live) = match self.resolve_visible_lobby(cx, namespaces, lobby) {
            Ok(lobby) => lobby,
            Err((refusal, wait)) => return refuse(refusal, wait),
        };
        let wait = self.lobbies.lsn(number);
        let current = self.lobbies.live(number).filter(|_| is_live);
        let Some(current) = current else { return refuse(Refusal::LobbyStopped, wait) };
        let state = current.state.as_deref().map(<[u8]>::to_vec);
        if let Some(calling_lobby) = calling_lobby {
            self.record_heartbeat(calling_lobby);
        }
        accept(state, wait)
    }

    /// Ends a lobby in one of the namespaces. Returns false if the lobby had already ended.
    ///
    /// Refusals: `LobbyNotFound`, `StorageFull`.
    pub fn detach(&mut self, cx: &mut Context<'_>, namespaces: &[Id], lobby: Id) -> CommandOutcome<bool> {
        self.begin_command(cx);
        match self.resolve_visible_lobby(cx, namespaces, lobby) {
            Ok((number, _)) => self.end_resolved(cx, number, EndReason::Removed, None),
            Err((refusal, wait)) => refuse(refusal, wait),
        }
    }

    /// Ends a lobby for a reason. Returns false if the lobby had already ended.
    ///
    /// Refusals: `LobbyNotFound`, `StorageFull`.
    pub fn end(&mut self, cx: &mut Context<'_>, lobby: Id, reason: EndReason) -> CommandOutcome<bool> {
        self.begin_command(cx);
        match self.resolve_lobby(cx, lobby) {
            LobbyRef::Live(number) | LobbyRef::Ended(number) => self.end_resolved(cx, number, reason, None),
            LobbyRef::Unknown => refuse(Refusal::LobbyNotFound, self.forgotten_lsn),
        }
    }

    /// Ends a lobby after its process exited. The reason is `Stopped` for a stopping lobby, else `Exited`.
    pub fn process_exited(&mut self, cx: &mut Context<'_>, lobby: Id, exit_code: Option<i32>) -> CommandOutcome<bool> {
        self.begin_command(cx);
        match self.resolve_lobby(cx, lobby) {
            LobbyRef::Live(number) | LobbyRef::Ended(number) => {
                let is_stopping = self.lobbies.live(number).is_some_and(|lobby| lobby.is_stopping);
                let reason = if is_stopping { EndReason::Stopped } else { EndReason::Exited };
                self.end_resolved(cx, number, reason, exit_code)
            }
            LobbyRef::Unknown => refuse(Refusal::LobbyNotFound, self.forgotten_lsn),
        }
    }

    /// Marks a lobby stopping. Joins get `LobbyDraining`, and the holds of the lobby fail.
    ///
    /// With `only_if_idle`, a lobby with players does not change, and the result is false.
    ///
    /// Refusals: `LobbyNotFound`, `LobbyStopped`, `StorageFull`.
    pub fn stop(&mut self, cx: &mut Context<'_>, lobby: Id, only_if_idle: bool) -> CommandOutcome<bool> {
        self.begin_command(cx);
        while only_if_idle && self.expire_part(cx, Event::LOBBY_STOPPING_LEN) {}
        let number = match self.resolve_lobby(cx, lobby) {
            LobbyRef::Live(number) => number,
            LobbyRef::Ended(number) => return refuse(Refusal::LobbyStopped, self.lobbies.lsn(number)),
            LobbyRef::Unknown => return refuse(Refusal::LobbyNotFound, self.forgotten_lsn),
        };
        let Some(current) = self.lobbies.live(number) else { return refuse(Refusal::LobbyNotFound, 0) };
        let (is_stopping, is_idle, wait) = (current.is_stopping, current.counts.players() == 0, current.lsn);
        if is_stopping || only_if_idle && !is_idle {
            return accept(is_stopping, wait);
        }
        if !has_credit(cx, CreditClass::ExistingSlot, Event::LOBBY_STOPPING_LEN) {
            return refuse(Refusal::StorageFull, 0);
        }
        let holds = self.take_holds(number);
        self.emit(cx, &Event::LobbyStopping { lobby: number, at: self.time.now() });
        let wait = self.lobbies.lsn(number);
        self.fail_holds(holds, (EndReason::Removed, None), wait);
        self.check_ledger(number);
        accept(true, wait)
    }

    /// Returns the holds that became reservations or failed since the last call.
    pub fn take_resolved_holds(&mut self) -> Vec<ResolvedHold> {
        core::mem::take(&mut self.resolved_holds)
    }

    fn end_resolved(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        reason: EndReason,
        exit_code: Option<i32>,
    ) -> CommandOutcome<bool> {
        if self.lobbies.live(number).is_none() {
            return accept(false, self.lobbies.lsn(number));
        }
        if !self.end_lobby(cx, number, reason, exit_code) {
            return refuse(Refusal::StorageFull, 0);
        }
        accept(true, self.lobbies.lsn(number))
    }

    /// Ends a lobby and fails its holds. Returns false if the journal is full.
    pub(super) fn end_lobby(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        reason: EndReason,
        exit_code: Option<i32>,
    ) -> bool {
        if !has_credit(cx, CreditClass::ExistingSlot, Event::LOBBY_EXITED_LEN) {
            return false;
        }
        let holds = self.take_holds(number);
        let at = self.time.now();
        let event = match exit_code {
            Some(exit_code) => Event::LobbyExited { lobby: number, at, reason, exit_code },
            None => Event::LobbyEnded { lobby: number, at, reason },
        };
        self.emit(cx, &event);
        let wait = self.lobbies.lsn(number);
        self.fail_holds(holds, (reason, exit_code), wait);
        true
    }

    fn fail_holds(
        &mut self,
        holds: Vec<(crate::HoldId, crate::slot_holds::Hold)>,
        (reason, exit_code): (EndReason, Option<i32>),
        wait: Lsn,
    ) {
        let failed = holds.into_iter().map(|(hold, _)| ResolvedHold {
            hold,
            outcome: refuse(Refusal::LobbyStartFailed(reason, exit_code), wait),
        });
        self.resolved_holds.extend(failed);
    }

    pub(super) fn resolve_calling_lobby<T>(
        &mut self,
        cx: &mut Context<'_>,
        lobby: Id,
    ) -> Result<u32, CommandOutcome<T>> {
        self.begin_command(cx);
        match self.resolve_lobby(cx, lobby) {
            LobbyRef::Live(number) => Ok(number),
            LobbyRef::Ended(number) => Err(refuse(Refusal::LobbyStopped, self.lobbies.lsn(number))),
            LobbyRef::Unknown => Err(refuse(Refusal::LobbyTokenExpired, self.forgotten_lsn)),
        }
    }

    pub(super) fn accept_lobby_call(&mut self, number: u32) -> CommandOutcome<()> {
        self.record_heartbeat(number);
        accept((), self.lobbies.lsn(number))
    }

    /// Returns the number of a lobby in one of the namespaces, and whether it is live.
    fn resolve_visible_lobby(
        &mut self,
        cx: &mut Context<'_>,
        namespaces: &[Id],
        id: Id,
    ) -> Result<(u32, bool), (Refusal, Lsn)> {
        let (number, is_live) = match self.resolve_lobby(cx, id) {
            LobbyRef::Live(number) => (number, true),
            LobbyRef::Ended(number) => (number, false),
            LobbyRef::Unknown => return Err((Refusal::LobbyNotFound, self.forgotten_lsn)),
        };
        let is_visible = self.namespace_id_of(number).is_some_and(|namespace| namespaces.contains(&namespace));
        if is_visible { Ok((number, is_live)) } else { Err((Refusal::LobbyNotFound, self.forgotten_lsn)) }
    }

    pub(super) fn namespace_id_of(&self, number: u32) -> Option<Id> {
        Some(match self.lobbies.get(number)? {
            LobbyRecord::Live(lobby) => lobby.namespace_id,
            LobbyRecord::Ended(tombstone) => tombstone.namespace_id,
        })
    }
}

pub(super) fn limits_of(c: &Attach<'_>) -> [u32; 3] {
    [c.max_players, c.max_players_direct, c.max_players_party].map(|limit| limit.clamp(1, MAX_CAPACITY))
}
