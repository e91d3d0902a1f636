//! What each event changes. One function for live commands and recovery: it decides nothing, and refuses bytes that do
//! not fit the state, which only damage can bring.

use super::Engine;
use crate::codec::Reader;
use crate::command::{EndReason, Id, Lsn, Ms, Source};
use crate::event::{ApplyError, Event, LobbyMade, Place, Uses};
use crate::idempotency::{Purpose, Stamp};
use crate::lobby::{Lobby, NO_ENTRY, Own};
use crate::outbox::What;
use crate::slot::{End, LARGEST_CAPACITY, NO_SLOT, SlotState};
use crate::symbol::tag_symbol;

/// Events that are read ahead.
const WINDOW: usize = 16;

pub(super) const NO_LOBBY: ApplyError = ApplyError::Malformed("an event of a lobby that is not live");
const NO_PLACE: ApplyError = ApplyError::Malformed("an event of a place that is not in that state");

impl Engine {
    /// Applies journalled events `first_lsn .. first_lsn + count`; those up to [`Engine::last_lsn`] are skipped, a gap
    /// is malformed. Puts the engine into recovery; call [`Engine::recovered`] before the next command.
    ///
    /// # Errors
    /// [`ApplyError`] names the first event that is not ours; the engine is of no use then.
    pub fn apply(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8]) -> Result<(), ApplyError> {
        self.enter_recovery();
        let mut reader = Reader::new(bytes);
        let mut window = Vec::with_capacity(WINDOW);
        let mut lsn = first_lsn;
        let end = first_lsn + u64::from(count);
        while lsn < end {
            // The places of some events are fetched together before the first of them is changed: memory answers many
            // questions at once in the time of one.
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

    /// Reads the slot that an event is about.
    #[inline]
    fn touch(&self, event: &Event<'_>) -> u32 {
        let (lobby, slot) = match event {
            Event::PlacesReserved { lobby, uses, .. } => (*lobby, uses.iter().next().map_or(0, |(slot, _)| slot)),
            Event::PlaceConnected { place, .. } | Event::PlaceEnded { place, .. } => (place.lobby, place.slot),
            _ => return 0,
        };
        let at = self.lobbies.live(lobby).and_then(|lobby| lobby.slots.locate(u32::from(slot)));
        at.map_or(0, |at| self.slots.get(at).generation)
    }

    #[inline]
    pub(super) fn apply_event(&mut self, lsn: Lsn, event: &Event<'_>) -> Result<(), ApplyError> {
        let number = match *event {
            Event::LobbyMade(ref made, ref stamp) => self.apply_made(lsn, made, stamp.as_ref())?,
            Event::LobbyReady { lobby, at } => {
                self.change_noted((lsn, at), lobby, What::Ready, |lobby| lobby.is_ready = true)?
            }
            Event::LobbyClosed { lobby, is_closed, at } => {
                self.change_noted((lsn, at), lobby, What::Closed(is_closed), |lobby| lobby.is_closed = is_closed)?
            }
            Event::LobbyStopping { lobby, at } => self.change_noted((lsn, at), lobby, What::Stopping, Lobby::stop)?,
            Event::LobbyStateSet { lobby, state } => {
                self.change_lobby(lobby, |lobby| lobby.state = (!state.is_empty()).then(|| state.into()))?
            }
            Event::LobbyEnded { lobby, at, reason, exit_code } => {
                self.apply_ended(lsn, lobby, at, (reason, exit_code))?
            }
            Event::PlacesReserved { lobby, deadline, key_id, source, uses, ref stamp } => {
                self.apply_reserved(lobby, deadline, key_id, source, uses, stamp.as_ref())?
            }
            Event::PlaceConnected { place, at, ref stamp } => self.apply_connected(place, at, stamp.as_ref())?,
            Event::PlaceEnded { place, at, end, ref stamp } => {
                self.apply_place_ended(place, at, end, stamp.as_ref())?
            }
            Event::PlaceKept { place, at, deadline, ref stamp } => {
                self.apply_kept(place, at, deadline, stamp.as_ref())?
            }
            Event::KeyRemembered { place, ref stamp } => {
                self.lobbies.known(place.lobby).ok_or(NO_LOBBY)?;
                self.remember_disconnected(place, stamp.as_ref());
                place.lobby
            }
            Event::Forgotten { entries_up_to, lobbies_up_to } => {
                self.apply_forgotten(entries_up_to, lobbies_up_to);
                self.forgotten_lsn = lsn;
                return Ok(());
            }
            Event::FactsAcknowledged { up_to } => {
                self.outbox.acknowledge(up_to);
                return Ok(());
            }
            Event::LobbyStarts { lobby, lobby_config } => self.apply_starts(lobby, lobby_config)?,
            Event::TokensSent { .. }
            | Event::HumanPassed { .. }
            | Event::HumanAsked { .. }
            | Event::MockConsumed { .. } => {
                let Some(number) = self.apply_record(lsn, event)? else { return Ok(()) };
                number
            }
            _ => return self.apply_ports(lsn, event),
        };
        self.lobbies.set_lsn(number, lsn);
        Ok(())
    }

    pub(super) fn change_lobby(&mut self, number: u32, change: impl FnOnce(&mut Lobby)) -> Result<u32, ApplyError> {
        change(self.lobbies.live_mut(number).ok_or(NO_LOBBY)?);
        self.follow_lobby(number);
        Ok(number)
    }

    fn apply_made(&mut self, lsn: Lsn, made: &LobbyMade<'_>, stamp: Option<&Stamp>) -> Result<u32, ApplyError> {
        let number = made.lobby;
        if !self.insert_lobby(lsn, made) {
            return Err(ApplyError::Malformed("a lobby that is already there, or without places"));
        }
        if let Some(stamp) = stamp {
            let place = Place { lobby: number, slot: NO_SLOT, generation: 0 };
            let entry = self.put_entry(stamp, Purpose::Attach, place, made.key_id, Uses(&[]));
            if let Some(lobby) = self.lobbies.live_mut(number) {
                lobby.attach_entry = entry;
            }
        }
        if self.is_live {
            self.derive_lobby(number);
        }
        self.note_made(lsn, number);
        Ok(number)
    }

    /// It is ours to start.
    fn apply_starts(&mut self, number: u32, lobby_config: &[u8]) -> Result<u32, ApplyError> {
        self.change_lobby(number, |lobby| lobby.own = Some(Own { lobby_config: lobby_config.into() }))?;
        if self.is_live {
            // It may be silent until it is ready.
            self.arm_lobby(number);
        }
        Ok(number)
    }

    /// Adds the lobby that an event or an image describes.
    pub(super) fn insert_lobby(&mut self, lsn: Lsn, made: &LobbyMade<'_>) -> bool {
        let capacity = made.limits.into_iter().max().unwrap_or(0);
        if made.limits.contains(&0) || capacity > LARGEST_CAPACITY {
            return false;
        }
        let mut name = Vec::new();
        let mut tags: Vec<u32> = Vec::with_capacity(made.tags.len());
        for (tag, value) in &made.tags {
            tag_symbol(&mut name, tag, value);
            tags.push(self.symbols.acquire(&self.seed, &name));
        }
        let mode = self.symbols.acquire(&self.seed, made.mode.as_bytes());
        let region = self.symbols.acquire(&self.seed, made.region.as_bytes());
        let lobby = Lobby::new(made, lsn, mode, region, tags.into());
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
                self.end_use(number, at, ended_at, End::LobbyGone);
            }
        }
        let id = lobby_id(self.lobbies.live(number));
        if self.is_live {
            self.underive_lobby(number, reason);
        }
        self.leases.end(lsn, id)?;
        self.note_ended(lsn, number, ended_at, (reason, exit_code), players);
        key_ids.sort_unstable();
        let mut lobby = self.lobbies.end(number, ended_at, reason, lsn, key_ids.into()).ok_or(NO_LOBBY)?;
        lobby.slots.clear(&mut self.slots);
        self.drop_entry_if_over(lobby.attach_entry);
        for symbol in lobby.tags.iter().chain([&lobby.mode, &lobby.region]) {
            self.symbols.release(&self.seed, *symbol);
        }
        Ok(number)
    }

    fn apply_reserved(
        &mut self,
        number: u32,
        deadline: Ms,
        key_id: u16,
        source: Source,
        uses: Uses<'_>,
        stamp: Option<&Stamp>,
    ) -> Result<u32, ApplyError> {
        let (slot, generation) = uses.iter().next().ok_or(ApplyError::Malformed("a reservation without places"))?;
        let entry = stamp.map_or(NO_ENTRY, |stamp| {
            let place = Place { lobby: number, slot, generation };
            self.put_entry(stamp, Purpose::Places(uses.len() as u8), place, key_id, uses)
        });
        for (slot_number, generation) in uses.iter() {
            let at = self.free_slot(number, slot_number)?;
            let slot = self.slots.get_mut(at);
            if slot.generation.checked_add(1) != Some(generation) {
                return Err(ApplyError::Malformed("a use that does not follow the slot's last one"));
            }
            slot.generation = generation;
            slot.key_id = key_id;
            slot.source = source;
            slot.time = deadline;
            slot.state = SlotState::Reserved;
            slot.placed_entry = entry;
            let lobby = self.lobbies.live_mut(number).ok_or(NO_LOBBY)?;
            lobby.counts.reserved += 1;
            if self.is_live {
                self.follow_begun(number, at);
            }
        }
        Ok(number)
    }

    /// Takes a slot for a new use: a free one, or one whose use ends by it (rejoin).
    fn free_slot(&mut self, number: u32, slot: u16) -> Result<u32, ApplyError> {
        let lobby = self.lobbies.live_mut(number).ok_or(NO_LOBBY)?;
        if let Some(at) = lobby.slots.locate(u32::from(slot)) {
            let end = match self.slots.get(at).state {
                SlotState::Free => None,
                SlotState::Reserved => Some(End::Released),
                SlotState::Connected | SlotState::Kept => Some(End::Consumed),
            };
            if let Some(end) = end {
                self.end_use(number, at, 0, end);
                return Ok(at);
            }
        } else if u32::from(slot) >= lobby.capacity {
            return Err(NO_PLACE);
        }
        lobby.slots.take(&mut self.slots, number, slot).ok_or(NO_PLACE)
    }

    fn apply_connected(&mut self, place: Place, at: Ms, stamp: Option<&Stamp>) -> Result<u32, ApplyError> {
        let slot_at = self.locate(place, &[SlotState::Reserved])?;
        if self.is_live {
            self.place_wheel.remove(&mut self.slots, slot_at);
        }
        let entry = stamp.map_or(NO_ENTRY, |stamp| {
            let key_id = self.slots.get(slot_at).key_id;
            self.put_entry(stamp, Purpose::Connected, place, key_id, Uses(&[]))
        });
        let slot = self.slots.get_mut(slot_at);
        slot.state = SlotState::Connected;
        slot.time = at;
        slot.was_listed = false;
        slot.connected_entry = entry;
        let lobby = self.lobbies.live_mut(place.lobby).ok_or(NO_LOBBY)?;
        lobby.counts.reserved -= 1;
        lobby.counts.connected += 1;
        lobby.attendance.came(lobby.counts.connected);
        if self.is_live {
            self.follow_moved(place.lobby, SlotState::Reserved, SlotState::Connected);
        }
        Ok(place.lobby)
    }

    fn apply_kept(
        &mut self,
        place: Place,
        left_at: Ms,
        deadline: Ms,
        stamp: Option<&Stamp>,
    ) -> Result<u32, ApplyError> {
        let at = self.locate(place, &[SlotState::Connected])?;
        let slot = self.slots.get_mut(at);
        let since = slot.time;
        slot.state = SlotState::Kept;
        slot.time = deadline;
        let lobby = self.lobbies.live_mut(place.lobby).ok_or(NO_LOBBY)?;
        lobby.counts.connected -= 1;
        lobby.counts.kept += 1;
        lobby.attendance.left(since, left_at);
        if self.is_live {
            self.place_wheel.insert(&mut self.slots, at);
            self.follow_moved(place.lobby, SlotState::Connected, SlotState::Kept);
        }
        self.remember_disconnected(place, stamp);
        Ok(place.lobby)
    }

    fn apply_place_ended(
        &mut self,
        place: Place,
        left_at: Ms,
        end: End,
        stamp: Option<&Stamp>,
    ) -> Result<u32, ApplyError> {
        let at = self.locate(place, &[SlotState::Reserved, SlotState::Connected, SlotState::Kept])?;
        self.end_use(place.lobby, at, left_at, end);
        let lobby = self.lobbies.live_mut(place.lobby).ok_or(NO_LOBBY)?;
        lobby.slots.put_back(&mut self.slots, at);
        self.remember_disconnected(place, stamp);
        Ok(place.lobby)
    }

    fn apply_forgotten(&mut self, entries_up_to: Ms, lobbies_up_to: Ms) {
        self.entries_up_to = self.entries_up_to.max(entries_up_to);
        self.lobbies_up_to = self.lobbies_up_to.max(lobbies_up_to);
        while let Some(entry) = self.entries.take_oldest(entries_up_to) {
            self.drop_entry_if_over(entry);
        }
        self.lobbies.forget(&self.seed, lobbies_up_to);
    }

    /// Ends the current use of a slot; the caller says what the slot is for next.
    fn end_use(&mut self, number: u32, at: u32, left_at: Ms, end: End) {
        let slot = self.slots.get_mut(at);
        let (was, since) = (slot.state, slot.time);
        slot.remember(end);
        slot.state = SlotState::Free;
        let entries = [slot.placed_entry, slot.connected_entry];
        slot.placed_entry = NO_ENTRY;
        slot.connected_entry = NO_ENTRY;
        if let Some(lobby) = self.lobbies.live_mut(number) {
            match was {
                SlotState::Reserved => lobby.counts.reserved -= 1,
                SlotState::Connected => {
                    lobby.counts.connected -= 1;
                    lobby.attendance.left(since, left_at);
                }
                SlotState::Kept => lobby.counts.kept -= 1,
                SlotState::Free => {}
            }
        }
        if self.is_live {
            self.follow_ended(number, at, was, end);
        }
        entries.into_iter().for_each(|entry| self.drop_entry_if_over(entry));
    }

    /// Where the slot of a use is that must be going on in one of these states.
    pub(super) fn locate(&self, place: Place, states: &[SlotState]) -> Result<u32, ApplyError> {
        let lobby = self.lobbies.live(place.lobby).ok_or(NO_LOBBY)?;
        let at = lobby.slots.locate(u32::from(place.slot)).ok_or(NO_PLACE)?;
        let slot = self.slots.get(at);
        let is_it = slot.generation == place.generation && states.contains(&slot.state);
        if is_it { Ok(at) } else { Err(NO_PLACE) }
    }
}

fn lobby_id(lobby: Option<&Lobby>) -> Id {
    lobby.map(|lobby| lobby.id).unwrap_or_default()
}
