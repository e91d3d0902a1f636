//! Application of events to the durable state, for live commands and for recovery.
//!
//! Applying an event decides nothing. An event that contradicts the state is an error: the journal is damaged.

use super::Engine;
use crate::codec::ApplyError;
use crate::codec::Reader;
use crate::command::{EndReason, Id, LeaseNode, Lsn, Ms, Source};
use crate::event_channels::SentToken;
use crate::fact_outbox::LobbyFactKind;
use crate::idempotency_table::{KeyPurpose, KeyStamp};
use crate::journal_event::{Event, LobbyDefinition};
use crate::lease_definition::LeaseDefinition;
use crate::lobby::{Lobby, ManagedLobby, NO_ENTRY};
use crate::name_interner::tag_symbol;
use crate::port_leases::LOCAL_NODE;
use crate::slot::{MAX_CAPACITY, NO_SLOT, SlotState, SlotUseEnd};
use crate::slot_use::{EncodedSlotUses, SlotUse};

const WINDOW: usize = 16;

pub(super) const NO_LOBBY: ApplyError = ApplyError::Malformed("an event of a lobby that is not live");
const WRONG_SLOT_STATE: ApplyError = ApplyError::Malformed("an event does not match the state of its slot use");

impl Engine {
    /// Applies journalled events `first_lsn .. first_lsn + count`. Skips events that were applied before. A gap is an error.
    ///
    /// Starts recovery. Call [`Engine::finish_recovery`] before the next command.
    ///
    /// # Errors
    /// [`ApplyError`] names the first bad event; the engine is unusable then.
    pub fn apply(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8]) -> Result<(), ApplyError> {
        self.enter_recovery();
        let mut reader = Reader::new(bytes);
        let mut window = Vec::with_capacity(WINDOW);
        let mut lsn = first_lsn;
        let end = first_lsn + u64::from(count);
        while lsn < end {
            // Loads the slots of several events before changing the first, so that the memory accesses overlap.
            let mut touched = 0u32;
            while window.len() < WINDOW && lsn < end {
                let event = Event::decode(&mut reader)?;
                touched = touched.wrapping_add(self.touch(&event));
                window.push((lsn, event));
                lsn += 1;
            }
            core::hint::black_box(touched);
            for (lsn, event) in window.drain(..) {
                self.apply_next(lsn, &event)?;
            }
        }
        if reader.is_empty() { Ok(()) } else { Err(ApplyError::Malformed("more bytes than events")) }
    }

    fn apply_next(&mut self, lsn: Lsn, event: &Event<'_>) -> Result<(), ApplyError> {
        if lsn <= self.last_lsn {
            return Ok(());
        }
        if lsn != self.last_lsn + 1 {
            return Err(ApplyError::Malformed("events are missing"));
        }
        self.apply_event(lsn, event)?;
        self.last_lsn = lsn;
        Ok(())
    }

    #[inline]
    fn touch(&self, event: &Event<'_>) -> u32 {
        let (lobby, slot) = match event {
            Event::SlotsReserved { lobby, uses, .. } => (*lobby, uses.iter().next().map_or(0, |(slot, _)| slot)),
            Event::PlayerConnected { slot_use, .. } | Event::SlotUseEnded { slot_use, .. } => {
                (slot_use.lobby, slot_use.slot)
            }
            _ => return 0,
        };
        let at = self.lobbies.live(lobby).and_then(|lobby| lobby.slots.locate(u32::from(slot)));
        at.map_or(0, |at| self.slots.get(at).generation)
    }

    #[inline]
    pub(super) fn apply_event(&mut self, lsn: Lsn, event: &Event<'_>) -> Result<(), ApplyError> {
        let changed_lobby = match *event {
            Event::LobbyCreated { ref definition, ref stamp } => {
                self.apply_created(lsn, definition, stamp.as_ref(), None)?
            }
            Event::TrialCreated { ref definition, until } => self.apply_created(lsn, definition, None, Some(until))?,
            Event::LobbyReady { lobby, at } => {
                self.change_lobby_with_fact((lsn, at), lobby, LobbyFactKind::Ready, |lobby| lobby.is_ready = true)?
            }
            Event::LobbyClosed { lobby, is_closed, at } => {
                let fact = LobbyFactKind::Closed(is_closed);
                self.change_lobby_with_fact((lsn, at), lobby, fact, |lobby| lobby.is_closed = is_closed)?
            }
            Event::LobbyStopping { lobby, at } => {
                self.change_lobby_with_fact((lsn, at), lobby, LobbyFactKind::Stopping, Lobby::stop)?
            }
            Event::LobbyStateSet { lobby, state } => {
                self.change_lobby(lobby, |lobby| lobby.state = (!state.is_empty()).then(|| state.into()))?
            }
            Event::LobbyManaged { lobby, lobby_config } => self.apply_managed(lobby, lobby_config)?,
            Event::LobbyEnded { lobby, at, reason } => self.apply_ended(lsn, lobby, at, (reason, None))?,
            Event::LobbyExited { lobby, at, reason, exit_code } => {
                self.apply_ended(lsn, lobby, at, (reason, Some(exit_code)))?
            }
            Event::SlotsReserved { lobby, deadline, key_id, source, uses, ref stamp } => {
                self.apply_reserved(lobby, deadline, key_id, source, uses, stamp.as_ref())?
            }
            Event::PlayerConnected { slot_use, at, ref stamp } => self.apply_connected(slot_use, at, stamp.as_ref())?,
            Event::PlayerLeft { slot_use, at, end, ref stamp } => {
                self.apply_slot_use_ended(slot_use, at, end, stamp.as_ref())?
            }
            Event::SlotUseEnded { slot_use, end, ref stamp } => {
                self.apply_slot_use_ended(slot_use, 0, end, stamp.as_ref())?
            }
            Event::SlotKept { slot_use, at, deadline, ref stamp } => {
                self.apply_kept(slot_use, at, deadline, stamp.as_ref())?
            }
            Event::DisconnectKeyStored { slot_use, ref stamp } => {
                self.lobbies.get(slot_use.lobby).ok_or(NO_LOBBY)?;
                self.store_disconnect_key(slot_use, stamp.as_ref());
                slot_use.lobby
            }
            Event::TokensSent { lobby, ts_ms, at, deadline, key_id, deliveries } => {
                let namespace = self.lobbies.live(lobby).ok_or(NO_LOBBY)?.namespace_id;
                let sent = deliveries.iter().map(|(channel, slot, generation)| {
                    (channel, SentToken { lobby, slot, generation, key_id, ts_ms, deadline, namespace })
                });
                self.event_channels.add(lsn, at, sent);
                lobby
            }
            _ => return self.apply_lobby_independent(lsn, event),
        };
        self.lobbies.set_lsn(changed_lobby, lsn);
        Ok(())
    }

    fn apply_lobby_independent(&mut self, lsn: Lsn, event: &Event<'_>) -> Result<(), ApplyError> {
        match *event {
            Event::OldRecordsDropped { entries_up_to, lobbies_up_to } => {
                self.apply_old_records_dropped(entries_up_to, lobbies_up_to);
                self.forgotten_lsn = lsn;
            }
            Event::FactsAcknowledged { up_to } => self.outbox.acknowledge(up_to),
            Event::CaptchaPassed { source, at } => self.captcha_passes.record_pass(source, at),
            Event::CaptchaRequestCounted { source } => self.captcha_passes.count_request(source),
            Event::MockTokenConsumed { hour, at, mac } => self.mock_tokens.consume(hour, at, mac),
            Event::PortsLeased { owner, ref lease } => {
                self.leases.add(lsn, owner, LeaseDefinition::clone(lease), Some(LeaseNode::default()))?;
            }
            Event::PortsRequested { owner, ref lease } => {
                self.leases.add(lsn, owner, LeaseDefinition::clone(lease), None)?;
            }
            Event::PortsBound { owner, node, host, ref numbers, at } => {
                let node = LeaseNode { name: node.into(), host: host.into() };
                self.leases.bind(lsn, owner, node, numbers, at)?;
            }
            Event::PortReplaced { owner, name, number, until } => {
                self.leases.replace(lsn, owner, name, number, until)?;
            }
            Event::BackendsSet { owner, ref backends } => self.leases.set_backends(lsn, owner, backends)?,
            Event::LeaseEnded { owner } => self.leases.end(lsn, owner),
            Event::PortsReturned { owner, until } => self.leases.give_back(owner, LOCAL_NODE, until)?,
            Event::NodePortsReturned { owner, node, until } => self.leases.give_back(owner, node, until)?,
            _ => debug_assert!(false, "an event of a lobby"),
        }
        Ok(())
    }

    pub(super) fn change_lobby(&mut self, number: u32, change: impl FnOnce(&mut Lobby)) -> Result<u32, ApplyError> {
        change(self.lobbies.live_mut(number).ok_or(NO_LOBBY)?);
        self.lobby_changed(number);
        Ok(number)
    }

    fn apply_created(
        &mut self,
        lsn: Lsn,
        definition: &LobbyDefinition<'_>,
        stamp: Option<&KeyStamp>,
        trial_until: Option<Ms>,
    ) -> Result<u32, ApplyError> {
        let number = definition.lobby;
        if !self.insert_lobby(lsn, definition, trial_until) {
            return Err(ApplyError::Malformed("a lobby that is already there, or without count"));
        }
        if let Some(stamp) = stamp {
            let slot_use = SlotUse { lobby: number, slot: NO_SLOT, generation: 0 };
            let entry = self.put_entry(stamp, KeyPurpose::Attach, slot_use, definition.key_id, EncodedSlotUses(&[]));
            if let Some(lobby) = self.lobbies.live_mut(number) {
                lobby.attach_entry = entry;
            }
        }
        if self.is_live {
            self.derive_lobby(number);
        }
        self.push_created_fact(lsn, number);
        Ok(number)
    }

    fn apply_managed(&mut self, number: u32, lobby_config: &[u8]) -> Result<u32, ApplyError> {
        self.change_lobby(number, |lobby| lobby.managed = Some(ManagedLobby { lobby_config: lobby_config.into() }))?;
        if self.is_live {
            // A starting managed lobby is exempt from heartbeats.
            self.schedule_lobby_timer(number);
        }
        Ok(number)
    }

    pub(super) fn insert_lobby(&mut self, lsn: Lsn, definition: &LobbyDefinition<'_>, trial_until: Option<Ms>) -> bool {
        let capacity = definition.limits.into_iter().max().unwrap_or(0);
        if definition.limits.contains(&0) || capacity > MAX_CAPACITY {
            return false;
        }
        let mut name = Vec::new();
        let mut tags: Vec<u32> = Vec::with_capacity(definition.tags.len());
        for (tag, value) in &definition.tags {
            tag_symbol(&mut name, tag, value);
            tags.push(self.names.acquire(&self.seed, &name));
        }
        let mode = self.names.acquire(&self.seed, definition.mode.as_bytes());
        let region = self.names.acquire(&self.seed, definition.region.as_bytes());
        let mut lobby = Lobby::new(definition, lsn, mode, region, tags.into());
        lobby.trial_until = trial_until;
        self.lobbies.insert(&self.seed, lobby)
    }

    fn apply_ended(
        &mut self,
        lsn: Lsn,
        number: u32,
        ended_at: Ms,
        (reason, exit_code): (EndReason, Option<i32>),
    ) -> Result<u32, ApplyError> {
        let lobby = self.lobbies.live(number).ok_or(NO_LOBBY)?;
        let used = lobby.slots.used;
        let players = [lobby.counts.reserved, lobby.counts.connected, lobby.counts.kept];
        let mut key_ids = vec![lobby.key_id];
        for slot in 0..used {
            let Some(at) = self.lobbies.live(number).and_then(|lobby| lobby.slots.locate(slot)) else { continue };
            let slot = self.slots.get(at);
            if !key_ids.contains(&slot.key_id) {
                key_ids.push(slot.key_id);
            }
            if slot.state != SlotState::Free {
                self.end_use(number, at, ended_at, SlotUseEnd::LobbyGone);
            }
        }
        let id = lobby_id(self.lobbies.live(number));
        if self.is_live {
            self.remove_derived_lobby(number, reason);
        }
        self.leases.end(lsn, id);
        self.push_ended_fact(lsn, number, ended_at, (reason, exit_code), players);
        key_ids.sort_unstable();
        let mut lobby = self.lobbies.end(number, ended_at, reason, lsn, key_ids.into()).ok_or(NO_LOBBY)?;
        lobby.slots.clear(&mut self.slots);
        self.drop_entry_if_over(lobby.attach_entry);
        for symbol in lobby.tags.iter().chain([&lobby.mode, &lobby.region]) {
            self.names.release(&self.seed, *symbol);
        }
        Ok(number)
    }

    fn apply_reserved(
        &mut self,
        number: u32,
        deadline: Ms,
        key_id: u16,
        source: Source,
        uses: EncodedSlotUses<'_>,
        stamp: Option<&KeyStamp>,
    ) -> Result<u32, ApplyError> {
        let (slot, generation) = uses.iter().next().ok_or(ApplyError::Malformed("a reservation without count"))?;
        let entry = stamp.map_or(NO_ENTRY, |stamp| {
            let slot_use = SlotUse { lobby: number, slot, generation };
            self.put_entry(stamp, KeyPurpose::Slots(uses.len() as u8), slot_use, key_id, uses)
        });
        for (slot_number, generation) in uses.iter() {
            let at = self.take_slot(number, slot_number)?;
            let slot = self.slots.get_mut(at);
            if slot.generation.checked_add(1) != Some(generation) {
                return Err(ApplyError::Malformed("a use that does not follow the slot's last one"));
            }
            slot.generation = generation;
            slot.key_id = key_id;
            slot.source = source;
            slot.time = deadline;
            slot.state = SlotState::Reserved;
            slot.reservation_entry = entry;
            let lobby = self.lobbies.live_mut(number).ok_or(NO_LOBBY)?;
            lobby.counts.reserved += 1;
            if self.is_live {
                self.slot_use_began(number, at);
            }
        }
        Ok(number)
    }

    /// Takes a slot for a new use, and returns its index in the slot arena. A rejoin ends the slot's current use.
    fn take_slot(&mut self, number: u32, slot: u16) -> Result<u32, ApplyError> {
        let lobby = self.lobbies.live_mut(number).ok_or(NO_LOBBY)?;
        if let Some(at) = lobby.slots.locate(u32::from(slot)) {
            let end = match self.slots.get(at).state {
                SlotState::Free => None,
                SlotState::Reserved => Some(SlotUseEnd::Released),
                SlotState::Connected | SlotState::Kept => Some(SlotUseEnd::Consumed),
            };
            if let Some(end) = end {
                self.end_use(number, at, 0, end);
                return Ok(at);
            }
        } else if u32::from(slot) >= lobby.capacity {
            return Err(WRONG_SLOT_STATE);
        }
        lobby.slots.take(&mut self.slots, number, slot).ok_or(WRONG_SLOT_STATE)
    }

    fn apply_connected(&mut self, slot_use: SlotUse, at: Ms, stamp: Option<&KeyStamp>) -> Result<u32, ApplyError> {
        let slot_at = self.locate(slot_use, &[SlotState::Reserved])?;
        if self.is_live {
            self.slot_timers.remove(&mut self.slots, slot_at);
        }
        let entry = stamp.map_or(NO_ENTRY, |stamp| {
            let key_id = self.slots.get(slot_at).key_id;
            self.put_entry(stamp, KeyPurpose::Connected, slot_use, key_id, EncodedSlotUses(&[]))
        });
        let slot = self.slots.get_mut(slot_at);
        slot.state = SlotState::Connected;
        slot.time = at;
        slot.was_listed = false;
        slot.connected_entry = entry;
        let lobby = self.lobbies.live_mut(slot_use.lobby).ok_or(NO_LOBBY)?;
        lobby.counts.reserved -= 1;
        lobby.counts.connected += 1;
        lobby.attendance.player_connected(lobby.counts.connected);
        if self.is_live {
            self.slot_state_changed(slot_use.lobby, SlotState::Reserved, SlotState::Connected);
        }
        Ok(slot_use.lobby)
    }

    fn apply_kept(
        &mut self,
        slot_use: SlotUse,
        left_at: Ms,
        deadline: Ms,
        stamp: Option<&KeyStamp>,
    ) -> Result<u32, ApplyError> {
        let at = self.locate(slot_use, &[SlotState::Connected])?;
        let slot = self.slots.get_mut(at);
        let since = slot.time;
        slot.state = SlotState::Kept;
        slot.time = deadline;
        let lobby = self.lobbies.live_mut(slot_use.lobby).ok_or(NO_LOBBY)?;
        lobby.counts.connected -= 1;
        lobby.counts.kept += 1;
        lobby.attendance.player_left(since, left_at);
        if self.is_live {
            self.slot_timers.insert(&mut self.slots, at);
            self.slot_state_changed(slot_use.lobby, SlotState::Connected, SlotState::Kept);
        }
        self.store_disconnect_key(slot_use, stamp);
        Ok(slot_use.lobby)
    }

    fn apply_slot_use_ended(
        &mut self,
        slot_use: SlotUse,
        left_at: Ms,
        end: SlotUseEnd,
        stamp: Option<&KeyStamp>,
    ) -> Result<u32, ApplyError> {
        let at = self.locate(slot_use, &[SlotState::Reserved, SlotState::Connected, SlotState::Kept])?;
        self.end_use(slot_use.lobby, at, left_at, end);
        let lobby = self.lobbies.live_mut(slot_use.lobby).ok_or(NO_LOBBY)?;
        lobby.slots.put_back(&mut self.slots, at);
        self.store_disconnect_key(slot_use, stamp);
        Ok(slot_use.lobby)
    }

    fn apply_old_records_dropped(&mut self, entries_up_to: Ms, lobbies_up_to: Ms) {
        self.entries_up_to = self.entries_up_to.max(entries_up_to);
        self.lobbies_up_to = self.lobbies_up_to.max(lobbies_up_to);
        while let Some(entry) = self.entries.take_oldest(entries_up_to) {
            self.drop_entry_if_over(entry);
        }
        let is_live = self.is_live;
        self.lobbies.forget(&self.seed, lobbies_up_to, |namespace| {
            if is_live {
                self.ledger.remove_tombstone(&self.seed, namespace);
            }
        });
    }

    /// Ends the current use of a slot. The caller frees or reuses the slot.
    fn end_use(&mut self, number: u32, at: u32, left_at: Ms, end: SlotUseEnd) {
        let slot = self.slots.get_mut(at);
        let (was, since) = (slot.state, slot.time);
        slot.remember(end);
        slot.state = SlotState::Free;
        let entries = [slot.reservation_entry, slot.connected_entry];
        slot.reservation_entry = NO_ENTRY;
        slot.connected_entry = NO_ENTRY;
        if let Some(lobby) = self.lobbies.live_mut(number) {
            match was {
                SlotState::Reserved => lobby.counts.reserved -= 1,
                SlotState::Connected => {
                    lobby.counts.connected -= 1;
                    lobby.attendance.player_left(since, left_at);
                }
                SlotState::Kept => lobby.counts.kept -= 1,
                SlotState::Free => {}
            }
        }
        if self.is_live {
            self.slot_use_ended(number, at, was, end);
        }
        entries.into_iter().for_each(|entry| self.drop_entry_if_over(entry));
    }

    pub(super) fn locate(&self, slot_use: SlotUse, states: &[SlotState]) -> Result<u32, ApplyError> {
        let lobby = self.lobbies.live(slot_use.lobby).ok_or(NO_LOBBY)?;
        let at = lobby.slots.locate(u32::from(slot_use.slot)).ok_or(WRONG_SLOT_STATE)?;
        let slot = self.slots.get(at);
        let is_current_use = slot.generation == slot_use.generation && states.contains(&slot.state);
        if is_current_use { Ok(at) } else { Err(WRONG_SLOT_STATE) }
    }
}

fn lobby_id(lobby: Option<&Lobby>) -> Id {
    lobby.map(|lobby| lobby.id).unwrap_or_default()
}
