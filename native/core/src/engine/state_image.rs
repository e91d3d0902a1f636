//! Images of all durable state. Equal states have equal images.
//!
//! Layout (little-endian): magic, version u16, shard u16, last LSN, entries_up_to, forgotten LSN. Then, each after its
//! count u32: lobbies by number with kind 1 (live) or 2 (ended), and idempotency entries by time and key. Then with
//! their counts: facts, channel tokens, captcha passes, consumed mock tokens. Then quarantined ports and leases.
//!
//! Version 4 has the namespace of each channel token. It is written if a lobby with channel tokens has ended. Otherwise the
//! image has version 3, because each token has the namespace of its lobby.
//!
//! Version 5 also has trials: live lobbies of kind 3, each with the end of its trial, and facts of trials. It is written
//! if there are any, and has the namespace of each channel token.
//!
//! Version 6 also has named nodes, each with its quarantined ports and leases, and then the leases without a node. It is
//! written if there are any. The ports and leases of the other versions are those of the node without a name.

use super::Engine;
use super::lobby_facts::{load_attendance, write_attendance};
use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Id, Lsn, Ms};
use crate::idempotency_table::{IdempotencyEntry, KeyPurpose, KeyStamp};
use crate::journal_event::{Field, LobbyDefinition};
use crate::lobby::{Lobby, ManagedLobby};
use crate::lobby_table::{LobbyRecord, LobbyTable, Tombstone};
use crate::name_interner::split_tag_symbol;
use crate::slot::{Slot, SlotState};
use crate::slot_use::{EncodedSlotUses, SlotUse};

const MAGIC: &[u8; 8] = b"hostimg\0";
const VERSION: u16 = 3;
const VERSION_WITH_TOKEN_NAMESPACES: u16 = 4;
const VERSION_WITH_TRIALS: u16 = 5;
const VERSION_WITH_NODES: u16 = 6;
const CHUNK: usize = 1 << 16;

const LIVE: u8 = 1;
const ENDED: u8 = 2;
const LIVE_TRIAL: u8 = 3;

const BAD_LOBBY: ApplyError = ApplyError::Malformed("a lobby of the image does not add up");

impl Engine {
    /// Writes all durable state in chunks of about 64 KiB.
    pub fn write_image(&self, out: &mut dyn FnMut(&[u8])) {
        let mut bytes = Vec::with_capacity(CHUNK * 2);
        let mut w = Writer { bytes: &mut bytes };
        w.raw(MAGIC);
        let version = self.image_version();
        let has_token_namespaces = version >= VERSION_WITH_TOKEN_NAMESPACES;
        w.u16(version);
        w.u16(self.config.shard);
        w.u64(self.last_lsn);
        w.u64(self.entries_up_to);
        w.u64(self.forgotten_lsn);
        w.u32(self.lobbies.iter().count() as u32);
        for (number, known) in self.lobbies.iter() {
            match known {
                LobbyRecord::Live(lobby) => self.write_lobby(lobby, &mut bytes, out),
                LobbyRecord::Ended(tombstone) => write_tombstone(number, tombstone, &mut bytes),
            }
            flush(&mut bytes, out, CHUNK);
        }
        self.write_entries(&mut bytes, out);
        self.write_outbox(&mut bytes, |bytes| flush(bytes, out, CHUNK));
        self.event_channels.write(has_token_namespaces, &mut bytes, &mut |bytes| flush(bytes, out, CHUNK));
        self.captcha_passes.write(&mut bytes, &mut |bytes| flush(bytes, out, CHUNK));
        self.mock_tokens.write(&mut bytes, &mut |bytes| flush(bytes, out, CHUNK));
        self.leases.write(version >= VERSION_WITH_NODES, &mut bytes, &mut |bytes| flush(bytes, out, CHUNK));
        flush(&mut bytes, out, 1);
    }

    /// Loads an image into a new engine and starts recovery.
    ///
    /// # Errors
    /// [`ApplyError::Malformed`]; the engine is unusable then.
    pub fn load_image(&mut self, bytes: &[u8]) -> Result<(), ApplyError> {
        if self.last_lsn != 0 {
            return Err(ApplyError::Malformed("an image can only be loaded into a new engine"));
        }
        self.enter_recovery();
        let mut r = Reader::new(bytes);
        let (magic, version) = (r.take(MAGIC.len())?, r.u16()?);
        if magic != MAGIC || !(VERSION..=VERSION_WITH_NODES).contains(&version) {
            return Err(ApplyError::Malformed("not an image, or of another version"));
        }
        if r.u16()? != self.config.shard {
            return Err(ApplyError::Malformed("an image of another shard"));
        }
        self.last_lsn = r.u64()?;
        self.entries_up_to = r.u64()?;
        self.forgotten_lsn = r.u64()?;
        for _ in 0..r.u32()? {
            match r.u8()? {
                LIVE => self.load_lobby(&mut r, None)?,
                LIVE_TRIAL => {
                    let until = r.u64()?;
                    self.load_lobby(&mut r, Some(until))?;
                }
                ENDED => self.load_tombstone(&mut r)?,
                _ => return Err(BAD_LOBBY),
            }
        }
        for _ in 0..r.u32()? {
            self.load_entry(&mut r)?;
        }
        while self.entries.take_oldest(self.entries_up_to).is_some() {
            // Expired entries leave the queue, but stay in the table until their slot use ends.
        }
        self.load_outbox(&mut r)?;
        let has_token_namespaces = version >= VERSION_WITH_TOKEN_NAMESPACES;
        let lobbies = &self.lobbies;
        self.event_channels.load(has_token_namespaces, &mut r, |lobby, lsn| live_namespace(lobbies, lobby, lsn))?;
        self.captcha_passes.load(&mut r)?;
        self.mock_tokens.load(&mut r)?;
        self.leases.load(version >= VERSION_WITH_NODES, &mut r)?;
        if r.is_empty() { Ok(()) } else { Err(ApplyError::Malformed("unexpected bytes after the image")) }
    }

    /// Returns the oldest version that can hold the state, so that an earlier build of the service can read the image.
    fn image_version(&self) -> u16 {
        let is_trial = |record| matches!(record, LobbyRecord::Live(lobby) if lobby.is_trial());
        if self.leases.has_nodes() {
            VERSION_WITH_NODES
        } else if self.outbox.has_trials() || self.lobbies.iter().any(|(_, record)| is_trial(record)) {
            VERSION_WITH_TRIALS
        } else if self.has_tokens_of_ended_lobbies() {
            VERSION_WITH_TOKEN_NAMESPACES
        } else {
            VERSION
        }
    }

    fn has_tokens_of_ended_lobbies(&self) -> bool {
        self.event_channels
            .tokens_after(None)
            .any(|((_, (lsn, _)), sent)| live_namespace(&self.lobbies, sent.lobby, lsn) != Some(sent.namespace))
    }

    /// Returns the hash of all durable state, as `write_image` writes it.
    pub fn durable_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        self.write_image(&mut |bytes| {
            hasher.update(bytes);
        });
        *hasher.finalize().as_bytes()
    }

    fn write_lobby(&self, lobby: &Lobby, bytes: &mut Vec<u8>, out: &mut dyn FnMut(&[u8])) {
        let mut w = Writer { bytes };
        match lobby.trial_until {
            Some(until) => {
                w.u8(LIVE_TRIAL);
                w.u64(until);
            }
            None => w.u8(LIVE),
        }
        let text = |bytes| core::str::from_utf8(bytes).unwrap_or_default();
        let tags = lobby.tags.iter().filter_map(|tag| split_tag_symbol(self.names.bytes(*tag)));
        let created = Box::new(LobbyDefinition {
            lobby: lobby.number,
            id: lobby.id,
            namespace: lobby.namespace_id,
            version: lobby.version,
            mode: self.names.text(lobby.mode),
            region: self.names.text(lobby.region),
            is_public: lobby.is_public,
            is_join_enabled: lobby.is_join_enabled,
            limits: lobby.limits,
            player_token_ttl_ms: lobby.player_token_ttl_ms,
            heartbeat_timeout_ms: lobby.heartbeat_timeout_ms,
            heartbeat_grace_ms: lobby.heartbeat_grace_ms,
            create_ts_ms: lobby.create_ts_ms,
            key_id: lobby.key_id,
            tags: tags.map(|(name, value)| (text(name), text(value))).collect(),
            ports: lobby.ports.to_vec(),
        });
        created.write(&mut w);
        w.u64(lobby.created_lsn);
        w.flag(lobby.is_ready);
        w.flag(lobby.is_closed);
        w.flag(lobby.is_stopping);
        write_attendance(&mut w, &lobby.attendance);
        w.flag(lobby.managed.is_some());
        w.long_bytes(lobby.managed.as_ref().map(|own| &*own.lobby_config).unwrap_or_default());
        w.long_bytes(lobby.state.as_deref().unwrap_or_default());
        w.u32(lobby.slots.used);
        w.u16(lobby.slots.free_head);
        w.u16(lobby.slots.free_tail);
        for number in 0..lobby.slots.used {
            let Some(at) = lobby.slots.locate(number) else { continue };
            self.write_slot(at, bytes);
            flush(bytes, out, CHUNK);
        }
    }

    fn write_slot(&self, at: u32, bytes: &mut Vec<u8>) {
        let slot = self.slots.get(at);
        let mut w = Writer { bytes };
        w.u32(slot.generation);
        w.u16(slot.key_id);
        w.u8(slot.state as u8);
        w.u16(slot.next_free);
        w.u64(slot.source);
        w.u64(slot.time);
        w.u64(slot.history);
    }

    fn load_lobby(&mut self, r: &mut Reader<'_>, trial_until: Option<Ms>) -> Result<(), ApplyError> {
        let created = Box::<LobbyDefinition<'_>>::read(r)?;
        let number = created.lobby;
        if !self.insert_lobby(r.u64()?, &created, trial_until) {
            return Err(BAD_LOBBY);
        }
        let Some(lobby) = self.lobbies.live_mut(number) else { return Err(BAD_LOBBY) };
        lobby.lsn = 0;
        lobby.is_ready = r.flag()?;
        lobby.is_closed = r.flag()?;
        lobby.is_stopping = r.flag()?;
        lobby.attendance = load_attendance(r)?;
        let (is_ours, lobby_config) = (r.flag()?, r.long_bytes()?);
        lobby.managed = is_ours.then(|| ManagedLobby { lobby_config: lobby_config.into() });
        let state = r.long_bytes()?;
        lobby.state = (!state.is_empty()).then(|| state.into());
        let used = r.u32()?;
        let (free_head, free_tail) = (r.u16()?, r.u16()?);
        if used > lobby.capacity {
            return Err(BAD_LOBBY);
        }
        for _ in 0..used {
            let at = lobby.slots.extend(&mut self.slots, number);
            let slot = self.slots.get_mut(at);
            load_slot(r, slot)?;
            match slot.state {
                SlotState::Reserved => lobby.counts.reserved += 1,
                SlotState::Connected => lobby.counts.connected += 1,
                SlotState::Kept => lobby.counts.kept += 1,
                SlotState::Free if slot.generation == u32::MAX => lobby.slots.exhausted += 1,
                SlotState::Free => lobby.slots.free_len += 1,
            }
        }
        let attendance = &mut lobby.attendance;
        attendance.peak_players = attendance.peak_players.max(lobby.counts.connected);
        lobby.slots.free_head = free_head;
        lobby.slots.free_tail = free_tail;
        let listed =
            lobby.slots.free_numbers(&self.slots, lobby.capacity).take(used as usize + lobby.capacity as usize);
        let is_whole = listed.count() as u32 == lobby.capacity - used + lobby.slots.free_len;
        if is_whole { Ok(()) } else { Err(BAD_LOBBY) }
    }

    fn load_tombstone(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        let number = r.u32()?;
        let tombstone = Tombstone {
            id: r.id()?,
            namespace_id: r.id()?,
            ended_at: r.u64()?,
            reason: Field::read(r)?,
            lsn: 0,
            key_ids: (0..r.u16()?).map(|_| r.u16()).collect::<Result<_, _>>()?,
            entries: 0,
        };
        let is_inserted = self.lobbies.insert_ended(&self.seed, number, tombstone);
        if is_inserted { Ok(()) } else { Err(BAD_LOBBY) }
    }

    fn write_entries(&self, bytes: &mut Vec<u8>, out: &mut dyn FnMut(&[u8])) {
        let mut numbers: Vec<u32> = self.entries.numbers().collect();
        numbers.sort_unstable_by_key(|number| {
            let stamp = self.entries.get(*number).stamp();
            (stamp.at, stamp.key, stamp.key_more)
        });
        Writer { bytes }.u32(numbers.len() as u32);
        for number in numbers {
            let entry = self.entries.get(number);
            let Some(purpose) = entry.purpose() else { continue };
            let (stamp, slot_use) = (entry.stamp(), entry.slot_use());
            let mut w = Writer { bytes };
            w.u64(stamp.at);
            w.u64(stamp.key);
            w.u8(stamp.key_more);
            w.u32(stamp.message);
            w.u8(purpose.to_byte());
            w.u16(entry.key_id);
            w.u32(slot_use.lobby);
            w.u16(slot_use.slot);
            w.u32(slot_use.generation);
            if let Some(uses) = self.entries.party(&self.seed, number) {
                w.raw(uses.0);
            }
            flush(bytes, out, CHUNK);
        }
    }

    fn load_entry(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        let (at, key, key_more, message) = (r.u64()?, r.u64()?, r.u8()?, r.u32()?);
        let stamp = KeyStamp { key, key_more, message, at };
        let purpose = KeyPurpose::from_byte(r.u8()?).ok_or(ApplyError::Malformed("an entry for an unknown purpose"))?;
        let key_id = r.u16()?;
        let slot_use = SlotUse { lobby: r.u32()?, slot: r.u16()?, generation: r.u32()? };
        let uses = match purpose {
            KeyPurpose::Slots(count) if count > 1 => {
                EncodedSlotUses(r.take(usize::from(count) * EncodedSlotUses::WIDTH)?)
            }
            _ => EncodedSlotUses(&[]),
        };
        let Some(entries) = self.lobbies.entries_mut(slot_use.lobby) else {
            return Err(ApplyError::Malformed("an idempotency entry of an unknown lobby"));
        };
        *entries += 1;
        let number = self.entries.insert(&self.seed, IdempotencyEntry::new(&stamp, purpose, slot_use, key_id), uses);
        self.link_entry(number, purpose, slot_use, uses);
        Ok(())
    }

    fn link_entry(&mut self, number: u32, purpose: KeyPurpose, slot_use: SlotUse, uses: EncodedSlotUses<'_>) {
        let Some(lobby) = self.lobbies.live_mut(slot_use.lobby) else { return };
        if purpose == KeyPurpose::Attach {
            lobby.attach_entry = number;
            return;
        }
        for (slot, generation) in uses.iter().chain([(slot_use.slot, slot_use.generation)]) {
            let Some(at) = lobby.slots.locate(u32::from(slot)) else { continue };
            let slot = self.slots.get_mut(at);
            if slot.generation != generation || slot.state == SlotState::Free {
                continue;
            }
            match purpose {
                KeyPurpose::Slots(_) => slot.reservation_entry = number,
                KeyPurpose::Connected => slot.connected_entry = number,
                KeyPurpose::Attach | KeyPurpose::Disconnected => {}
            }
        }
    }
}

/// Returns the namespace of a live lobby that was created before an event.
fn live_namespace(lobbies: &LobbyTable, lobby: u32, lsn: Lsn) -> Option<Id> {
    lobbies.live(lobby).filter(|lobby| lobby.created_lsn < lsn).map(|lobby| lobby.namespace_id)
}

fn load_slot(r: &mut Reader<'_>, slot: &mut Slot) -> Result<(), ApplyError> {
    slot.generation = r.u32()?;
    slot.key_id = r.u16()?;
    slot.state = SlotState::from_byte(r.u8()?).ok_or(BAD_LOBBY)?;
    slot.next_free = r.u16()?;
    slot.source = r.u64()?;
    slot.time = r.u64()?;
    slot.history = r.u64()?;
    Ok(())
}

fn write_tombstone(number: u32, tombstone: &Tombstone, bytes: &mut Vec<u8>) {
    let mut w = Writer { bytes };
    w.u8(ENDED);
    w.u32(number);
    w.id(tombstone.id);
    w.id(tombstone.namespace_id);
    w.u64(tombstone.ended_at);
    tombstone.reason.write(&mut w);
    w.u16(tombstone.key_ids.len() as u16);
    tombstone.key_ids.iter().for_each(|key_id| w.u16(*key_id));
}

fn flush(bytes: &mut Vec<u8>, out: &mut dyn FnMut(&[u8]), least: usize) {
    if bytes.len() >= least {
        out(bytes);
        bytes.clear();
    }
}
