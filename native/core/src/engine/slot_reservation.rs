//! Slot reservation: find, create, join and the release of holds.

use super::derived_state::PROMISED_SLOTS;
use super::idempotent_requests::KeyLookup;
use super::{CreditClass, Engine, LobbyRef, accept, has_credit, refuse};
use crate::command::{
    Admission, ChannelId, CommandOutcome, Context, Create, CreationPolicy, Find, HoldId, Id, Idempotency,
    ImmediatePlacement, Join, Reservation, Source,
};
use crate::idle_lobbies::LobbyGroupKey;
use crate::journal_event::Event;
use crate::lobby::{Limit, Lobby};
use crate::name_interner::tag_symbol;
use crate::refusal::Refusal;
use crate::slot::{SlotState, SlotUseStatus};
use crate::slot_use::SlotUse;
use crate::token::PlayerToken;

/// Largest party. The rules of requests have the same limit.
pub const MAX_PARTY_SIZE: u32 = 64;

/// Maximum number of lobbies that one find examines.
const MAX_CANDIDATES_PER_FIND: usize = 4_096;

enum RejoinOutcome {
    /// Continue as a join without a rejoin token. The slot use has ended, its player is connected, or the slot has no
    /// further use number.
    No,
    /// The slot use is reserved or kept: reserve its slot again.
    Slot(u16),
    /// The service never issued a token for this slot use.
    Invalid,
}

struct SlotRequest<'a> {
    count: u32,
    source: Source,
    idempotency: Option<&'a Idempotency>,
    channels: &'a [ChannelId],
    /// Whether the request waits for a starting lobby.
    waits: bool,
}

/// Result of a command that reserves slots. Only a request that does not wait gets the last two.
enum Placing {
    Done(CommandOutcome<Admission>),
    Starting,
    NoLobby,
}

impl Placing {
    fn of_waiting_request(self) -> CommandOutcome<Admission> {
        match self {
            Placing::Done(outcome) => outcome,
            Placing::Starting | Placing::NoLobby => unreachable!("a request that waits gets a hold or a new lobby"),
        }
    }
}

impl From<Placing> for ImmediatePlacement {
    fn from(placing: Placing) -> ImmediatePlacement {
        let CommandOutcome { result, wait } = match placing {
            Placing::Done(outcome) => outcome,
            Placing::Starting => return ImmediatePlacement::LobbyStarting,
            Placing::NoLobby => return ImmediatePlacement::LobbyNeeded,
        };
        let reserved = |admission| match admission {
            Admission::Reserved(reservation) => reservation,
            Admission::Hold(_) => unreachable!("a request that does not wait gets no hold"),
        };
        ImmediatePlacement::Done(CommandOutcome { result: result.map(reserved), wait })
    }
}

impl<'a> SlotRequest<'a> {
    fn of_find(c: &'a Find<'_>, waits: bool) -> SlotRequest<'a> {
        let channels = channels_of(c.party_size, c.channels);
        SlotRequest { count: c.party_size, source: c.source, idempotency: c.idempotency.as_ref(), channels, waits }
    }

    fn of_join(c: &'a Join<'_>, waits: bool) -> SlotRequest<'a> {
        let channels = channels_of(c.party_size, c.channels);
        SlotRequest { count: c.party_size, source: c.source, idempotency: c.idempotency.as_ref(), channels, waits }
    }

    fn cost(&self) -> u64 {
        Event::max_reservation_len(self.count, self.channels.len())
    }
}

/// Returns the channels that receive the second and later tokens of a party.
fn channels_of(party_size: u32, channels: &[ChannelId]) -> &[ChannelId] {
    &channels[..channels.len().min(party_size.saturating_sub(1) as usize)]
}

impl Engine {
    /// Reserves slots in the fullest lobby that fits, or creates a lobby if `creation` allows it.
    ///
    /// Tries regions in order: the fullest ready lobby of all modes, then the fullest starting one. Examines at most 4,096
    /// lobbies with some of the tags, and then treats the others as not fitting.
    ///
    /// Refusals: `StorageFull`, `IdempotencyKeyReused`, `TooManyPlayersFromSource`, `NoAvailableLobbies`,
    /// `PartyTooLarge`, `TooManyLobbies`, `PortsExhausted`, and `LobbyStopped` for a repeated request.
    pub fn find(&mut self, cx: &mut Context<'_>, c: &Find<'_>) -> CommandOutcome<Admission> {
        self.place_found(cx, c, &SlotRequest::of_find(c, true)).of_waiting_request()
    }

    /// Reserves slots like [`Engine::find`], but waits for no lobby and creates none.
    pub fn find_now(&mut self, cx: &mut Context<'_>, c: &Find<'_>) -> ImmediatePlacement {
        self.place_found(cx, c, &SlotRequest::of_find(c, false)).into()
    }

    fn place_found(&mut self, cx: &mut Context<'_>, c: &Find<'_>, request: &SlotRequest<'_>) -> Placing {
        if let Some(begun) = self.begin_slot_request(cx, request) {
            return begun;
        }
        let mut candidates_left = MAX_CANDIDATES_PER_FIND;
        let number = loop {
            let refusal = if self.is_over_source_limit(c.namespace, c.source, c.party_size, c.source_limit) {
                Refusal::TooManyPlayersFromSource
            } else if let Some(number) = self.choose_lobby(c, &mut candidates_left) {
                if self.hide_if_silent(number) {
                    continue;
                }
                break number;
            } else {
                Refusal::NoAvailableLobbies
            };
            if self.expire_part(cx, request.cost()) {
                continue;
            }
            if refusal != Refusal::NoAvailableLobbies {
                return Placing::Done(refuse(refusal, self.last_lsn));
            }
            if !request.waits && !matches!(c.creation, CreationPolicy::Prevented) {
                return Placing::NoLobby;
            }
            let needed = (Limit::Find, c.party_size);
            match self.create_lobby_for(cx, c.namespace, &c.creation, needed, Refusal::NoAvailableLobbies) {
                Ok(number) => break number,
                Err((refusal, wait)) => return Placing::Done(refuse(refusal, wait)),
            }
        };
        self.reserve_or_hold(cx, number, request)
    }

    /// Creates a lobby and holds slots in it.
    ///
    /// Refusals: `StorageFull`, `IdempotencyKeyReused`, `TooManyPlayersFromSource`, `PartyTooLarge`, `TooManyLobbies`,
    /// `CapacityExhausted`, `PortsExhausted`, and `LobbyStopped` for a repeated request.
    pub fn create(&mut self, cx: &mut Context<'_>, c: &Create<'_>) -> CommandOutcome<Admission> {
        let channels = channels_of(c.party_size, c.channels);
        let idempotency = c.idempotency.as_ref();
        let request = SlotRequest { count: c.party_size, source: c.source, idempotency, channels, waits: true };
        if let Some(begun) = self.begin_slot_request(cx, &request) {
            return begun.of_waiting_request();
        }
        while self.is_over_source_limit(c.namespace, c.source, c.party_size, c.source_limit) {
            if !self.expire_part(cx, request.cost()) {
                return refuse(Refusal::TooManyPlayersFromSource, self.last_lsn);
            }
        }
        let needed = (Limit::of_direct(c.party_size), c.party_size);
        match self.create_lobby_for(cx, c.namespace, &c.creation, needed, Refusal::CapacityExhausted) {
            Ok(number) => self.reserve_or_hold(cx, number, &request).of_waiting_request(),
            Err((refusal, wait)) => refuse(refusal, wait),
        }
    }

    /// Reserves slots in one lobby. A rejoin token reserves its own slot again, while its slot use is reserved or kept.
    ///
    /// Refusals: `StorageFull`, `IdempotencyKeyReused`, `PlayerTokenInvalid`, `PlayerTokenWrongLobby` (of the rejoin
    /// token), `LobbyNotFound`, `LobbyStopped`, `JoinDisabled`, `LobbyDraining`, `LobbyClosed`, `LobbyUnreachable`,
    /// `PartyTooLarge`, `TooManyPlayersFromSource`, `LobbyFull`.
    pub fn join(&mut self, cx: &mut Context<'_>, c: &Join<'_>) -> CommandOutcome<Admission> {
        self.place_in_lobby(cx, c, &SlotRequest::of_join(c, true)).of_waiting_request()
    }

    /// Reserves slots like [`Engine::join`], but does not wait for a starting lobby.
    pub fn join_now(&mut self, cx: &mut Context<'_>, c: &Join<'_>) -> ImmediatePlacement {
        self.place_in_lobby(cx, c, &SlotRequest::of_join(c, false)).into()
    }

    fn place_in_lobby(&mut self, cx: &mut Context<'_>, c: &Join<'_>, request: &SlotRequest<'_>) -> Placing {
        if let Some(begun) = self.begin_slot_request(cx, request) {
            return begun;
        }
        let rejoin_token = match self.read_rejoin_token(c) {
            Ok(token) => token,
            Err(refusal) => return Placing::Done(refuse(refusal, 0)),
        };
        let number = match self.resolve_joinable_lobby(cx, c) {
            Ok(number) => number,
            Err(outcome) => return Placing::Done(outcome),
        };
        loop {
            let placing = self.join_resolved(cx, c, number, rejoin_token.as_ref(), request);
            let may_succeed_after_expiry = matches!(
                &placing,
                Placing::Done(CommandOutcome {
                    result: Err(Refusal::LobbyFull | Refusal::TooManyPlayersFromSource),
                    ..
                })
            );
            if !may_succeed_after_expiry || !self.expire_part(cx, request.cost()) {
                return placing;
            }
        }
    }

    fn join_resolved(
        &mut self,
        cx: &mut Context<'_>,
        c: &Join<'_>,
        number: u32,
        rejoin_token: Option<&PlayerToken>,
        request: &SlotRequest<'_>,
    ) -> Placing {
        let wait = self.lobbies.lsn(number);
        let Some(lobby) = self.lobbies.live(number) else {
            return Placing::Done(refuse(Refusal::LobbyStopped, wait));
        };
        Placing::Done(match rejoin_token.map_or(RejoinOutcome::No, |token| self.rejoin(lobby, token)) {
            RejoinOutcome::Invalid => refuse(Refusal::PlayerTokenInvalid, wait),
            RejoinOutcome::Slot(slot) => self.rejoin_slot(cx, number, slot, request, c.source_limit),
            RejoinOutcome::No => match self.check_join(lobby, c) {
                Err((refusal, wait)) => refuse(refusal, wait),
                Ok(()) => return self.reserve_or_hold(cx, number, request),
            },
        })
    }

    /// Removes one waiting request from a hold. Drops the hold if no request is left.
    pub fn release_hold(&mut self, cx: &mut Context<'_>, hold: HoldId) {
        self.begin_command(cx);
        let number = self.holds.get(hold).map(|hold| hold.lobby);
        let (Some(number), Some(dropped)) = (number, self.holds.release(hold)) else { return };
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        if let Ok(position) = lobby.holds.binary_search(&hold) {
            lobby.holds.remove(position);
        }
        self.uncount_hold(number, dropped.slots, dropped.source);
        self.check_ledger(number);
    }

    /// Returns the answer of a repeated or refused request, or None if slots must be reserved.
    fn begin_slot_request(&mut self, cx: &mut Context<'_>, request: &SlotRequest<'_>) -> Option<Placing> {
        self.begin_command(cx);
        if !(1..=MAX_PARTY_SIZE).contains(&request.count) {
            return Some(Placing::Done(refuse(Refusal::PartyTooLarge(MAX_PARTY_SIZE), 0)));
        }
        self.expire_part(cx, request.cost());
        if !request.waits && matches!(self.look_up_key(request.idempotency), KeyLookup::Hold(_)) {
            return Some(Placing::Starting);
        }
        if let Some(outcome) = self.recall_or_share(request.idempotency) {
            return Some(Placing::Done(outcome));
        }
        let has_credit = has_credit(cx, CreditClass::NewSlot, request.cost());
        (!has_credit).then(|| Placing::Done(refuse(Refusal::StorageFull, 0)))
    }

    pub(super) fn recall_or_share(&mut self, idempotency: Option<&Idempotency>) -> Option<CommandOutcome<Admission>> {
        match self.look_up_key(idempotency) {
            KeyLookup::Fresh => None,
            KeyLookup::Reused(wait) => Some(refuse(Refusal::IdempotencyKeyReused, wait)),
            KeyLookup::IdempotencyEntry(entry) => {
                let CommandOutcome { result, wait } = self.replay_reservation(entry);
                Some(CommandOutcome { result: result.map(Admission::Reserved), wait })
            }
            KeyLookup::Hold(hold) => {
                self.holds.share(hold);
                Some(accept(Admission::Hold(hold), 0))
            }
        }
    }

    fn is_over_source_limit(&self, namespace: Id, source: Source, count: u32, limit: u32) -> bool {
        if source == 0 {
            return false;
        }
        let namespace = self.ledger.namespace_of(&self.seed, namespace);
        let present = namespace.map_or(0, |namespace| self.source_slot_counts.slots(&self.seed, namespace, source));
        present.saturating_add(count) > limit
    }

    fn choose_lobby(&mut self, c: &Find<'_>, candidates_left: &mut usize) -> Option<u32> {
        self.refresh_find_index();
        let namespace = self.ledger.namespace_of(&self.seed, c.namespace)?;
        let mut name = Vec::new();
        let mut tags = Vec::with_capacity(c.tags.len());
        for (tag, value) in c.tags {
            tag_symbol(&mut name, tag, value);
            tags.push(self.names.find(&self.seed, &name)?);
        }
        for region in c.regions {
            let Some(region) = self.names.find(&self.seed, region.as_bytes()) else { continue };
            for is_ready in [true, false] {
                let mut best: Option<(u64, u32)> = None;
                for mode in c.modes {
                    let Some(mode) = self.names.find(&self.seed, mode.as_bytes()) else { continue };
                    let key = LobbyGroupKey { namespace, version: c.version, mode, region };
                    let Some(group) = self.find_index.find(&self.seed, &key) else { continue };
                    let lobbies = &self.lobbies;
                    let has_tags = |number: u32| {
                        lobbies.live(number).is_some_and(|lobby| tags.iter().all(|tag| lobby.tags.contains(tag)))
                    };
                    let fullest =
                        self.find_index.fullest(group, is_ready, c.party_size, &tags, candidates_left, has_tags);
                    best = best.into_iter().chain(fullest).min();
                }
                if let Some((_, number)) = best {
                    return Some(number);
                }
            }
        }
        None
    }

    fn read_rejoin_token(&self, c: &Join<'_>) -> Result<Option<PlayerToken>, Refusal> {
        let Some(text) = c.rejoin_token else { return Ok(None) };
        if c.party_size != 1 {
            return Err(Refusal::PartyTooLarge(1));
        }
        let token = self.config.keys.verify_player(text).ok_or(Refusal::PlayerTokenInvalid)?;
        if token.lobby == c.lobby { Ok(Some(token)) } else { Err(Refusal::PlayerTokenWrongLobby) }
    }

    fn resolve_joinable_lobby(&mut self, cx: &mut Context<'_>, c: &Join<'_>) -> Result<u32, CommandOutcome<Admission>> {
        let (number, is_live) = match self.resolve_lobby(cx, c.lobby) {
            LobbyRef::Unknown => return Err(refuse(Refusal::LobbyNotFound, self.forgotten_lsn)),
            LobbyRef::Live(number) => (number, true),
            LobbyRef::Ended(number) => (number, false),
        };
        if self.namespace_id_of(number) != Some(c.namespace) {
            // A lobby of another namespace must look like an unknown lobby.
            return Err(refuse(Refusal::LobbyNotFound, self.forgotten_lsn));
        }
        let wait = self.lobbies.lsn(number);
        let lobby = self.lobbies.live(number).filter(|_| is_live);
        let Some(lobby) = lobby else { return Err(refuse(Refusal::LobbyStopped, wait)) };
        if lobby.is_trial() {
            return Err(refuse(Refusal::LobbyNotFound, wait));
        }
        if !lobby.is_join_enabled {
            return Err(refuse(Refusal::JoinDisabled, wait));
        }
        if lobby.is_stopping {
            return Err(refuse(Refusal::LobbyDraining, wait));
        }
        Ok(number)
    }

    fn check_join(&self, lobby: &Lobby, c: &Join<'_>) -> Result<(), (Refusal, u64)> {
        if lobby.is_closed {
            return Err((Refusal::LobbyClosed, lobby.lsn));
        }
        if lobby.is_unreachable() {
            return Err((Refusal::LobbyUnreachable, lobby.lsn));
        }
        let limit = Limit::of_direct(c.party_size);
        if c.party_size > lobby.limits[limit as usize] {
            return Err((Refusal::PartyTooLarge(lobby.limits[limit as usize]), lobby.lsn));
        }
        if self.is_over_source_limit(c.namespace, c.source, c.party_size, c.source_limit) {
            return Err((Refusal::TooManyPlayersFromSource, self.last_lsn));
        }
        if !lobby.fits(limit, c.party_size) {
            return Err((Refusal::LobbyFull, lobby.lsn));
        }
        Ok(())
    }

    fn rejoin(&self, lobby: &Lobby, token: &PlayerToken) -> RejoinOutcome {
        let Some(at) = lobby.slots.locate(token.slot) else { return RejoinOutcome::Invalid };
        let slot = self.slots.get(at);
        // Without journal credit (bytes that the journal can still accept) an overdue use stays, but counts as ended.
        let is_due = self.time.now() >= slot.time;
        match slot.use_status(token.generation) {
            SlotUseStatus::NeverIssued => RejoinOutcome::Invalid,
            SlotUseStatus::Live(_) if slot.generation == u32::MAX => RejoinOutcome::No,
            SlotUseStatus::Live(SlotState::Reserved | SlotState::Kept) if !is_due => RejoinOutcome::Slot(slot.number),
            SlotUseStatus::Live(_) | SlotUseStatus::Ended(_) | SlotUseStatus::Forgotten => RejoinOutcome::No,
        }
    }

    /// Reserves the slot of a rejoin token again. Closed lobbies allow this, because the player was in the lobby
    /// before.
    fn rejoin_slot(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        slot: u16,
        request: &SlotRequest<'_>,
        source_limit: u32,
    ) -> CommandOutcome<Admission> {
        let Some(lobby) = self.lobbies.live(number) else { return refuse(Refusal::LobbyNotFound, 0) };
        let Some(at) = lobby.slots.locate(u32::from(slot)) else { return refuse(Refusal::PlayerTokenInvalid, 0) };
        // A slot of the same source already counts towards the limit.
        let new_source_uses = u32::from(self.slots.get(at).source != request.source);
        let is_over = self.is_over_source_limit(lobby.namespace_id, request.source, new_source_uses, source_limit);
        if is_over {
            return refuse(Refusal::TooManyPlayersFromSource, self.last_lsn);
        }
        let tokens = self.reserve(cx, number, request, Some(slot));
        self.check_ledger(number);
        self.reserved(number, tokens)
    }

    /// Reserves slots in a ready lobby, or holds slots in a starting lobby. The caller has checked the limits.
    fn reserve_or_hold(&mut self, cx: &mut Context<'_>, number: u32, request: &SlotRequest<'_>) -> Placing {
        let Some(lobby) = self.lobbies.live_mut(number) else {
            return Placing::Done(refuse(Refusal::LobbyNotFound, 0));
        };
        if !lobby.is_ready && !request.waits {
            return Placing::Starting;
        }
        if !lobby.is_ready {
            let hold =
                self.holds.add(number, request.count, request.source, request.idempotency.copied(), request.channels);
            lobby.holds.push(hold);
            lobby.counts.held += request.count;
            let namespace = lobby.namespace;
            self.source_slot_counts.add(&self.seed, namespace, request.source, request.count);
            self.ledger.namespaces[namespace as usize].counts.slots[PROMISED_SLOTS] += u64::from(request.count);
            self.mark_find_index_stale(number);
            self.check_ledger(number);
            return Placing::Done(accept(Admission::Hold(hold), 0));
        }
        let tokens = self.reserve(cx, number, request, None);
        self.check_ledger(number);
        Placing::Done(self.reserved(number, tokens))
    }

    fn reserved(&self, number: u32, tokens: Vec<String>) -> CommandOutcome<Admission> {
        let lobby = self.lobbies.live(number).map(|lobby| lobby.id).unwrap_or_default();
        accept(Admission::Reserved(Reservation { lobby, tokens }), self.lobbies.lsn(number))
    }

    fn uncount_hold(&mut self, number: u32, count: u32, source: Source) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        lobby.counts.held -= count;
        let namespace = lobby.namespace;
        self.source_slot_counts.remove(&self.seed, namespace, source, count);
        self.ledger.namespaces[namespace as usize].counts.slots[PROMISED_SLOTS] -= u64::from(count);
        self.mark_find_index_stale(number);
    }

    pub(super) fn take_holds(&mut self, number: u32) -> Vec<(HoldId, crate::slot_holds::Hold)> {
        let ids = self.lobbies.live_mut(number).map(|lobby| core::mem::take(&mut lobby.holds)).unwrap_or_default();
        let mut claimed_holds = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some(hold) = self.holds.remove(id) {
                self.uncount_hold(number, hold.slots, hold.source);
                claimed_holds.push((id, hold));
            }
        }
        claimed_holds
    }

    pub(super) fn reserve_held(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        hold: &crate::slot_holds::Hold,
    ) -> Reservation {
        let (idempotency, channels) = (hold.idempotency.as_ref(), &*hold.channels);
        let request = SlotRequest { count: hold.slots, source: hold.source, idempotency, channels, waits: true };
        let tokens = self.reserve(cx, number, &request, None);
        Reservation { lobby: self.lobbies.live(number).map(|lobby| lobby.id).unwrap_or_default(), tokens }
    }

    /// Reserves the given slot, or the next free ones, and signs their tokens. The caller has checked credit and limits.
    fn reserve(
        &mut self,
        cx: &mut Context<'_>,
        number: u32,
        request: &SlotRequest<'_>,
        slot: Option<u16>,
    ) -> Vec<String> {
        let Some(lobby) = self.lobbies.live(number) else { return Vec::new() };
        let mut uses = core::mem::take(&mut self.slot_uses);
        uses.clear();
        let free = lobby.slots.free_numbers(&self.slots, lobby.capacity);
        for slot in slot.into_iter().chain(free).take(request.count as usize) {
            let last = lobby.slots.locate(u32::from(slot)).map_or(0, |at| self.slots.get(at).generation);
            uses.push(slot, last + 1);
        }
        debug_assert_eq!(uses.encoded().len(), request.count, "the limits leave a slot for each player");
        let key_id = self.config.keys.current_id();
        let deadline = self.time.now().saturating_add(lobby.player_token_ttl_ms);
        let event = Event::SlotsReserved {
            lobby: number,
            deadline,
            key_id,
            source: request.source,
            uses: uses.encoded(),
            stamp: request.idempotency.map(|idempotency| self.stamp(idempotency)),
        };
        self.emit(cx, &event);
        self.send_tokens(cx, number, request.channels, uses.encoded(), deadline);
        let tokens = uses
            .encoded()
            .iter()
            .filter_map(|(slot, generation)| self.token(SlotUse { lobby: number, slot, generation }, key_id))
            .collect();
        self.slot_uses = uses;
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Attach, Credit, EventBuffer};
    use crate::engine::EngineConfig;
    use crate::token::KeyRing;

    const NAMESPACE: Id = Id([2; 16]);

    #[test]
    fn rejoin_with_the_last_use_of_a_slot_reserves_another_slot() {
        let mut engine = Engine::new(EngineConfig::new(1, KeyRing::new(vec![(1, [7; 32])], 1).expect("one key")));
        let mut events = EventBuffer::default();
        let cx = &mut Context { now: 1, credit: Credit::UNLIMITED, events: &mut events };
        let lobby = Id([0, 1, 3, 3, 3, 3, 0x43, 3, 0x83, 3, 3, 3, 3, 3, 3, 3]);
        let attach = Attach {
            id: lobby,
            namespace: NAMESPACE,
            version: Id([4; 16]),
            mode: "duel",
            region: "local",
            tags: &[],
            max_players: 2,
            max_players_direct: 2,
            max_players_party: 2,
            player_token_ttl_ms: 1_000,
            heartbeat_timeout_ms: 0,
            heartbeat_grace_ms: 1_000,
            is_join_enabled: true,
            ports: &[],
            create_ts_ms: 1,
            lobby_count_max: 1,
            idempotency: None,
        };
        engine.attach(cx, &attach).result.expect("the first lobby");
        engine.ready(cx, lobby).result.expect("a starting lobby");
        let mut join = Join {
            namespace: NAMESPACE,
            lobby,
            party_size: 1,
            rejoin_token: None,
            source: 0,
            source_limit: 1,
            idempotency: None,
            channels: &[],
        };
        engine.join(cx, &join).result.expect("two free slots");
        let number = engine.lobbies.number_of(&engine.seed, lobby).expect("the lobby is live");
        let at = engine.lobbies.live(number).and_then(|lobby| lobby.slots.locate(0)).expect("slot 0 is used");
        engine.slots.get_mut(at).generation = u32::MAX;
        let last_token =
            engine.token(SlotUse { lobby: number, slot: 0, generation: u32::MAX }, 1).expect("a known key");

        join.rejoin_token = Some(&last_token);
        let Ok(Admission::Reserved(reservation)) = engine.join(cx, &join).result else { panic!("no free slot") };
        let token = engine.keys().verify_player(&reservation.tokens[0]).expect("signed by this engine");
        assert_eq!((token.slot, token.generation), (1, 1));
    }
}
