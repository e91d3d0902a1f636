//! Idempotency keys, with the slot uses that a repeated request returns again.
//!
//! An entry has 32 bytes and names one slot use. The slot uses of a party are stored beside it, because a replay signs
//! their tokens even after other players got the slots.

use std::collections::VecDeque;

use hashbrown::HashTable;

use crate::command::{Idempotency, Ms};
use crate::keyed_hash::TableSeed;
use crate::slot_use::{EncodedSlotUses, SlotUse};
use crate::timer_wheel::NONE;

/// Truncated hashes of an idempotency key: 72 bits of `(caller, key)`, 32 bits of `(operation, message)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyStamp {
    pub(crate) key: u64,
    pub(crate) key_more: u8,
    pub(crate) message: u32,
    pub(crate) at: Ms,
}

impl KeyStamp {
    pub(crate) fn new(idempotency: &Idempotency, at: Ms) -> KeyStamp {
        let k = &idempotency.key;
        let m = &idempotency.message;
        KeyStamp {
            key: u64::from_le_bytes([k[0], k[1], k[2], k[3], k[4], k[5], k[6], k[7]]),
            key_more: k[8],
            message: u32::from_le_bytes([m[0], m[1], m[2], m[3]]),
            at,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPurpose {
    /// Find, join or create, with the number of slots.
    Slots(u8),
    Attach,
    Connected,
    Disconnected,
}

impl KeyPurpose {
    pub(crate) fn to_byte(self) -> u8 {
        match self {
            KeyPurpose::Slots(count) => count,
            KeyPurpose::Attach => 0x80,
            KeyPurpose::Connected => 0x81,
            KeyPurpose::Disconnected => 0x82,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<KeyPurpose> {
        match byte {
            1..0x80 => Some(KeyPurpose::Slots(byte)),
            0x80 => Some(KeyPurpose::Attach),
            0x81 => Some(KeyPurpose::Connected),
            0x82 => Some(KeyPurpose::Disconnected),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct IdempotencyEntry {
    key: u64,
    at_low: u32,
    message: u32,
    lobby: u32,
    generation: u32,
    slot: u16,
    at_high: u16,
    pub(crate) key_id: u16,
    key_more: u8,
    purpose: u8,
}

const _: () = assert!(size_of::<IdempotencyEntry>() == 32);

impl IdempotencyEntry {
    const VACANT: IdempotencyEntry = IdempotencyEntry {
        key: 0,
        at_low: 0,
        message: 0,
        lobby: 0,
        generation: 0,
        slot: 0,
        at_high: 0,
        key_id: 0,
        key_more: 0,
        purpose: 0,
    };

    pub(crate) fn new(stamp: &KeyStamp, purpose: KeyPurpose, slot_use: SlotUse, key_id: u16) -> IdempotencyEntry {
        IdempotencyEntry {
            key: stamp.key,
            at_low: stamp.at as u32,
            message: stamp.message,
            lobby: slot_use.lobby,
            generation: slot_use.generation,
            slot: slot_use.slot,
            at_high: (stamp.at >> 32) as u16,
            key_id,
            key_more: stamp.key_more,
            purpose: purpose.to_byte(),
        }
    }

    pub(crate) fn at(&self) -> Ms {
        u64::from(self.at_high) << 32 | u64::from(self.at_low)
    }

    pub(crate) fn stamp(&self) -> KeyStamp {
        KeyStamp { key: self.key, key_more: self.key_more, message: self.message, at: self.at() }
    }

    pub(crate) fn purpose(&self) -> Option<KeyPurpose> {
        KeyPurpose::from_byte(self.purpose)
    }

    /// Returns the slot use that the stored response names, for a party the first one.
    ///
    /// The response to an attach has no slot: then only the field `lobby` is valid.
    pub(crate) fn slot_use(&self) -> SlotUse {
        SlotUse { lobby: self.lobby, slot: self.slot, generation: self.generation }
    }

    pub(crate) fn is_message(&self, stamp: &KeyStamp) -> bool {
        self.message == stamp.message
    }
}

const PAGE_BITS: u32 = 10;
const PAGE: u32 = 1 << PAGE_BITS;
const PARTS: usize = 64;

struct Party {
    entry: u32,
    uses: Box<[u8]>,
}

/// Idempotency entries of a shard, in pages that never move.
pub(crate) struct IdempotencyTable {
    pages: Vec<Box<[IdempotencyEntry]>>,
    used: u32,
    vacant: Vec<u32>,
    // Many small tables, because the growth of one large table would delay a command for long.
    index: Vec<HashTable<u32>>,
    parties: HashTable<Party>,
    /// `(entry, low bits of its time)`, oldest first. An item is stale if the entry was replaced.
    queue: VecDeque<(u32, u32)>,
}

impl IdempotencyTable {
    pub(crate) fn new() -> IdempotencyTable {
        IdempotencyTable {
            pages: Vec::new(),
            used: 0,
            vacant: Vec::new(),
            index: (0..PARTS).map(|_| HashTable::new()).collect(),
            parties: HashTable::new(),
            queue: VecDeque::new(),
        }
    }

    pub(crate) fn get(&self, number: u32) -> &IdempotencyEntry {
        &self.pages[(number >> PAGE_BITS) as usize][(number & (PAGE - 1)) as usize]
    }

    fn get_mut(&mut self, number: u32) -> &mut IdempotencyEntry {
        &mut self.pages[(number >> PAGE_BITS) as usize][(number & (PAGE - 1)) as usize]
    }

    pub(crate) fn find(&self, seed: &TableSeed, stamp: &KeyStamp) -> Option<u32> {
        let hash = seed.words(stamp.key, u64::from(stamp.key_more));
        let is_key = |number: &u32| {
            let entry = self.get(*number);
            entry.key == stamp.key && entry.key_more == stamp.key_more
        };
        self.index[part(hash)].find(hash, is_key).copied()
    }

    pub(crate) fn insert(&mut self, seed: &TableSeed, entry: IdempotencyEntry, uses: EncodedSlotUses<'_>) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            if self.used & (PAGE - 1) == 0 {
                self.pages.push(vec![IdempotencyEntry::VACANT; PAGE as usize].into_boxed_slice());
            }
            self.used += 1;
            self.used - 1
        });
        debug_assert_ne!(number, NONE);
        *self.get_mut(number) = entry;
        let pages = &self.pages;
        let hash_of = |number: &u32| {
            let entry = &pages[(number >> PAGE_BITS) as usize][(number & (PAGE - 1)) as usize];
            seed.words(entry.key, u64::from(entry.key_more))
        };
        let hash = hash_of(&number);
        self.index[part(hash)].insert_unique(hash, number, hash_of);
        if uses.len() > 1 {
            let party = Party { entry: number, uses: uses.0.into() };
            self.parties
                .insert_unique(seed.words(u64::from(number), 0), party, |party| seed.words(u64::from(party.entry), 0));
        }
        self.queue.push_back((number, entry.at_low));
        number
    }

    pub(crate) fn remove(&mut self, seed: &TableSeed, number: u32) {
        let entry = *self.get(number);
        let hash = seed.words(entry.key, u64::from(entry.key_more));
        if let Ok(found) = self.index[part(hash)].find_entry(hash, |candidate| *candidate == number) {
            found.remove();
        }
        let hash = seed.words(u64::from(number), 0);
        if let Ok(found) = self.parties.find_entry(hash, |party| party.entry == number) {
            found.remove();
        }
        *self.get_mut(number) = IdempotencyEntry::VACANT;
        self.vacant.push(number);
        self.drop_stale();
    }

    fn drop_stale(&mut self) {
        while let Some((number, at_low)) = self.queue.front() {
            let entry = self.get(*number);
            if entry.purpose != 0 && entry.at_low == *at_low {
                return;
            }
            self.queue.pop_front();
        }
    }

    /// Returns the slot uses of a party in order of its tokens, or None for a single slot.
    pub(crate) fn party(&self, seed: &TableSeed, number: u32) -> Option<EncodedSlotUses<'_>> {
        let hash = seed.words(u64::from(number), 0);
        self.parties.find(hash, |party| party.entry == number).map(|party| EncodedSlotUses(&party.uses))
    }

    /// Removes the oldest entry from the queue and returns its number. Returns None if its time is after `up_to`.
    pub(crate) fn take_oldest(&mut self, up_to: Ms) -> Option<u32> {
        let (number, _) = *self.queue.front()?;
        if self.get(number).at() > up_to {
            return None;
        }
        self.queue.pop_front();
        self.drop_stale();
        Some(number)
    }

    /// Returns the time of the entry at queue position `ahead`, or at the last position if the queue is shorter. If
    /// that entry was replaced, returns the time of the nearest older entry. None if the queue is empty.
    pub(crate) fn queued_at(&self, ahead: usize) -> Option<Ms> {
        let last = self.queue.len().checked_sub(1)?;
        self.queue.range(..=ahead.min(last)).rev().find_map(|(number, at_low)| {
            let entry = self.get(*number);
            (entry.purpose != 0 && entry.at_low == *at_low).then(|| entry.at())
        })
    }

    /// Returns the number after the last entry.
    pub(crate) fn end_number(&self) -> u32 {
        self.used
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.used).filter(|number| self.get(*number).purpose != 0)
    }
}

fn part(hash: u64) -> usize {
    (hash >> 48) as usize % PARTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(number: u16) -> KeyStamp {
        let mut key = [7u8; 16];
        key[7..9].copy_from_slice(&number.to_be_bytes());
        KeyStamp::new(&Idempotency { key, message: [1; 16] }, Ms::from(number))
    }

    fn filled(count: u16) -> (TableSeed, IdempotencyTable) {
        let (seed, mut entries) = (TableSeed::new(&[3; 32]), IdempotencyTable::new());
        for number in 0..count {
            let slot_use = SlotUse { lobby: u32::from(number), slot: 0, generation: 1 };
            entries.insert(
                &seed,
                IdempotencyEntry::new(&stamp(number), KeyPurpose::Slots(1), slot_use, 1),
                EncodedSlotUses(&[]),
            );
        }
        (seed, entries)
    }

    #[test]
    fn entry_is_found_by_its_whole_key() {
        let (seed, entries) = filled(20_000);
        for number in 0..20_000 {
            let found = entries.find(&seed, &stamp(number)).expect("it was inserted");
            assert_eq!(entries.get(found).slot_use().lobby, u32::from(number));
        }
        for number in 20_000..60_000 {
            assert_eq!(entries.find(&seed, &stamp(number)), None);
        }
    }

    #[test]
    fn entries_leave_the_queue_oldest_first() {
        let (seed, mut entries) = filled(10);
        for number in [0, 3, 9] {
            let found = entries.find(&seed, &stamp(number)).expect("it was inserted");
            entries.remove(&seed, found);
        }
        let slot_use = SlotUse { lobby: 99, slot: 0, generation: 1 };
        entries.insert(&seed, IdempotencyEntry::new(&stamp(20), KeyPurpose::Attach, slot_use, 1), EncodedSlotUses(&[]));
        assert_eq!(entries.queued_at(0), Some(1));
        let mut oldest = Vec::new();
        while let Some(number) = entries.take_oldest(8) {
            oldest.push(entries.get(number).slot_use().lobby);
        }
        assert_eq!(oldest, [1, 2, 4, 5, 6, 7, 8]);
        assert_eq!(entries.queued_at(0), Some(20), "its number was used before");
    }
}
