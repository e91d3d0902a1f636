//! Index of findable lobbies by group and tag, fullest first.
//!
//! The lobbies of a group are ordered by `free slots << 48 | creation LSN`. The first lobby from `n << 48` on is the
//! fullest with at least `n` free slots. Of equally full lobbies, the oldest is first.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::command::Lsn;
use crate::idle_lobbies::LobbyGroupKey;
use crate::keyed_hash::TableSeed;

const AGE_BITS: u32 = 48;

pub(crate) fn order_key(free: u32, created: Lsn) -> u64 {
    u64::from(free) << AGE_BITS | created & ((1 << AGE_BITS) - 1)
}

impl LobbyGroupKey {
    fn hash(&self, seed: &TableSeed) -> u64 {
        let mut version = [0u8; 8];
        version.copy_from_slice(&self.version.0[8..]);
        let mode_and_region = u64::from(self.mode) << 32 | u64::from(self.region);
        seed.words(seed.words(u64::from_le_bytes(version), u64::from(self.namespace)), mode_and_region)
    }
}

#[derive(Default)]
struct FillOrder {
    ready: BTreeMap<u64, u32>,
    starting: BTreeMap<u64, u32>,
}

impl FillOrder {
    fn lobbies(&self, is_ready: bool) -> &BTreeMap<u64, u32> {
        if is_ready { &self.ready } else { &self.starting }
    }

    fn lobbies_mut(&mut self, is_ready: bool) -> &mut BTreeMap<u64, u32> {
        if is_ready { &mut self.ready } else { &mut self.starting }
    }
}

struct Group {
    key: LobbyGroupKey,
    lobbies: u32,
    all_tags: FillOrder,
    by_tag: BTreeMap<u32, FillOrder>,
}

pub(crate) struct FindIndex {
    groups: Vec<Option<Group>>,
    by_key: HashTable<u32>,
    vacant: Vec<u32>,
    pub(crate) stale: Vec<u32>,
    pub(crate) visited: u64,
}

impl FindIndex {
    pub(crate) fn new() -> FindIndex {
        FindIndex { groups: Vec::new(), by_key: HashTable::new(), vacant: Vec::new(), stale: Vec::new(), visited: 0 }
    }

    pub(crate) fn find(&self, seed: &TableSeed, key: &LobbyGroupKey) -> Option<u32> {
        let is_key = |number: &u32| self.groups[*number as usize].as_ref().is_some_and(|group| group.key == *key);
        self.by_key.find(key.hash(seed), is_key).copied()
    }

    pub(crate) fn acquire(&mut self, seed: &TableSeed, key: LobbyGroupKey) -> u32 {
        let number = self.find(seed, &key).unwrap_or_else(|| self.add(seed, key));
        if let Some(group) = &mut self.groups[number as usize] {
            group.lobbies += 1;
        }
        number
    }

    fn add(&mut self, seed: &TableSeed, key: LobbyGroupKey) -> u32 {
        let group = Some(Group { key, lobbies: 0, all_tags: FillOrder::default(), by_tag: BTreeMap::new() });
        let number = match self.vacant.pop() {
            Some(number) => {
                self.groups[number as usize] = group;
                number
            }
            None => {
                self.groups.push(group);
                self.groups.len() as u32 - 1
            }
        };
        let groups = &self.groups;
        let hash_of = |number: &u32| groups[*number as usize].as_ref().map_or(0, |group| group.key.hash(seed));
        self.by_key.insert_unique(key.hash(seed), number, hash_of);
        number
    }

    pub(crate) fn release(&mut self, seed: &TableSeed, number: u32) {
        let Some(group) = &mut self.groups[number as usize] else { return };
        group.lobbies -= 1;
        if group.lobbies > 0 {
            return;
        }
        let hash = group.key.hash(seed);
        if let Ok(entry) = self.by_key.find_entry(hash, |candidate| *candidate == number) {
            entry.remove();
        }
        self.groups[number as usize] = None;
        self.vacant.push(number);
    }

    /// Moves a lobby from one position `(is ready, result of order_key)` to another. None means "not in the index".
    pub(crate) fn move_lobby(
        &mut self,
        group: u32,
        lobby: u32,
        tags: &[u32],
        from: Option<(bool, u64)>,
        to: Option<(bool, u64)>,
    ) {
        let Some(group) = &mut self.groups[group as usize] else { return };
        if let Some((is_ready, key)) = from {
            group.all_tags.lobbies_mut(is_ready).remove(&key);
        }
        if let Some((is_ready, key)) = to {
            group.all_tags.lobbies_mut(is_ready).insert(key, lobby);
        }
        for tag in tags {
            let tag_orders = group.by_tag.entry(*tag).or_default();
            if let Some((is_ready, key)) = from {
                tag_orders.lobbies_mut(is_ready).remove(&key);
            }
            if let Some((is_ready, key)) = to {
                tag_orders.lobbies_mut(is_ready).insert(key, lobby);
            } else if tag_orders.ready.is_empty() && tag_orders.starting.is_empty() {
                group.by_tag.remove(tag);
            }
        }
    }

    /// Returns the fullest lobby with at least `players` free slots and all `tags`.
    ///
    /// Examines at most `candidates_left` lobbies, and subtracts the examined ones from it. Tags that are common, but
    /// never occur together, would otherwise make one find examine every lobby.
    pub(crate) fn fullest(
        &mut self,
        group: u32,
        is_ready: bool,
        players: u32,
        tags: &[u32],
        candidates_left: &mut usize,
        has_tags: impl Fn(u32) -> bool,
    ) -> Option<(u64, u32)> {
        let group = self.groups[group as usize].as_ref()?;
        let mut lobbies_by_fill = group.all_tags.lobbies(is_ready);
        for tag in tags {
            let tag_lobbies = group.by_tag.get(tag)?.lobbies(is_ready);
            if tag_lobbies.len() < lobbies_by_fill.len() {
                lobbies_by_fill = tag_lobbies;
            }
        }
        let needs_check = tags.len() > 1;
        for (key, lobby) in lobbies_by_fill.range(order_key(players, 0)..).take(*candidates_left) {
            self.visited += 1;
            *candidates_left -= 1;
            if !needs_check || has_tags(*lobby) {
                return Some((*key, *lobby));
            }
        }
        None
    }
}
