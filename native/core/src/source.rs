//! Players per client address and namespace: held, reserved, connected and kept places. Derived from holds and slots.

use hashbrown::HashTable;

use crate::command::Source;
use crate::hash::TableSeed;

#[derive(Clone, Copy)]
struct Count {
    source: Source,
    namespace: u32,
    places: u32,
}

const PARTS: usize = 64;

/// The counts, in many small tables so that growing one never stops the engine for long.
pub(crate) struct Sources {
    parts: Vec<HashTable<Count>>,
}

impl Sources {
    pub(crate) fn new() -> Sources {
        Sources { parts: (0..PARTS).map(|_| HashTable::new()).collect() }
    }

    pub(crate) fn places(&self, seed: &TableSeed, namespace: u32, source: Source) -> u32 {
        let hash = seed.words(source, u64::from(namespace));
        self.parts[part(hash)].find(hash, |count| is(count, namespace, source)).map_or(0, |count| count.places)
    }

    /// Source 0 counts for nobody.
    pub(crate) fn add(&mut self, seed: &TableSeed, namespace: u32, source: Source, places: u32) {
        if source == 0 {
            return;
        }
        let hash = seed.words(source, u64::from(namespace));
        let part = &mut self.parts[part(hash)];
        match part.find_mut(hash, |count| is(count, namespace, source)) {
            Some(count) => count.places += places,
            None => {
                let rehash = |count: &Count| seed.words(count.source, u64::from(count.namespace));
                part.insert_unique(hash, Count { source, namespace, places }, rehash);
            }
        }
    }

    pub(crate) fn remove(&mut self, seed: &TableSeed, namespace: u32, source: Source, places: u32) {
        if source == 0 {
            return;
        }
        let hash = seed.words(source, u64::from(namespace));
        if let Ok(mut entry) = self.parts[part(hash)].find_entry(hash, |count| is(count, namespace, source)) {
            let left = entry.get().places.saturating_sub(places);
            if left == 0 {
                entry.remove();
            } else {
                entry.get_mut().places = left;
            }
        } else {
            debug_assert!(false, "a source without a count");
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Sources::new();
    }
}

fn is(count: &Count, namespace: u32, source: Source) -> bool {
    count.source == source && count.namespace == namespace
}

/// Bits that the table itself uses least.
fn part(hash: u64) -> usize {
    (hash >> 48) as usize % PARTS
}
