//! Slots per client address and namespace: held, reserved, connected and kept.

use hashbrown::HashTable;

use crate::command::Source;
use crate::keyed_hash::TableSeed;

#[derive(Clone, Copy)]
struct Count {
    source: Source,
    namespace: u32,
    slots: u32,
}

const PARTS: usize = 64;

/// Number of slots for each namespace and client address.
pub(crate) struct SourceSlotCounts {
    // Many small tables, because the growth of one large table would delay a command for long.
    parts: Vec<HashTable<Count>>,
}

impl SourceSlotCounts {
    pub(crate) fn new() -> SourceSlotCounts {
        SourceSlotCounts { parts: (0..PARTS).map(|_| HashTable::new()).collect() }
    }

    pub(crate) fn slots(&self, seed: &TableSeed, namespace: u32, source: Source) -> u32 {
        let hash = seed.words(source, u64::from(namespace));
        self.parts[part(hash)].find(hash, |count| is(count, namespace, source)).map_or(0, |count| count.slots)
    }

    pub(crate) fn add(&mut self, seed: &TableSeed, namespace: u32, source: Source, slots: u32) {
        if source == 0 {
            return;
        }
        let hash = seed.words(source, u64::from(namespace));
        let part = &mut self.parts[part(hash)];
        match part.find_mut(hash, |count| is(count, namespace, source)) {
            Some(count) => count.slots += slots,
            None => {
                let rehash = |count: &Count| seed.words(count.source, u64::from(count.namespace));
                part.insert_unique(hash, Count { source, namespace, slots }, rehash);
            }
        }
    }

    pub(crate) fn remove(&mut self, seed: &TableSeed, namespace: u32, source: Source, slots: u32) {
        if source == 0 {
            return;
        }
        let hash = seed.words(source, u64::from(namespace));
        if let Ok(mut entry) = self.parts[part(hash)].find_entry(hash, |count| is(count, namespace, source)) {
            let remaining = entry.get().slots.saturating_sub(slots);
            if remaining == 0 {
                entry.remove();
            } else {
                entry.get_mut().slots = remaining;
            }
        } else {
            debug_assert!(false, "a source without a count");
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = SourceSlotCounts::new();
    }
}

fn is(count: &Count, namespace: u32, source: Source) -> bool {
    count.source == source && count.namespace == namespace
}

fn part(hash: u64) -> usize {
    (hash >> 48) as usize % PARTS
}
