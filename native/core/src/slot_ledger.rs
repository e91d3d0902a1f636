//! Slot and lobby counts per namespace and per `(namespace, mode, region)`. Derived, never durable.
//!
//! A namespace stays while it has lobbies, tombstones or idle groups. Then the ledger drops it and reuses its number. If
//! the namespace gets a lobby again, its counts continue, unless too many others were dropped since.
//!
//! Checks that every slot is in exactly one state: `free + held + reserved + connected + kept = capacity`.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashTable;

use crate::change_feed::ChangeFeed;
use crate::command::{Id, Lsn, NamespaceCounts, PresenceChanges};
use crate::keyed_hash::TableSeed;
use crate::lobby::{Lobby, LobbyPhase};
use crate::slot::{SlotArena, SlotState, slot_count};

/// Maximum number of dropped namespaces with remembered counts.
const MAX_REMEMBERED_NAMESPACES: usize = 1_000;

#[derive(Clone, Copy)]
pub(crate) enum TokenOutcome {
    Issued = 0,
    Connected = 1,
    Invalid = 2,
    WrongLobby = 3,
    Consumed = 4,
    Expired = 5,
    Removed = 6,
    Disconnected = 7,
}

#[derive(Default)]
pub(crate) struct NamespaceLedger {
    pub(crate) id: Id,
    pub(crate) lobbies: BTreeMap<Lsn, u32>,
    /// Counts of the namespace, except for `slots[0]` (free), which is computed from `capacity` on demand.
    pub(crate) counts: NamespaceCounts,
    pub(crate) capacity: u64,
    pub(crate) tombstones: u32,
    idle_groups: u32,
    /// True if the number is in `SlotLedger::changed`. Belongs to the number, so it outlives the namespace.
    is_changed: bool,
    reported: (u64, u64),
}

impl NamespaceLedger {
    fn presence(&self) -> (u64, u64) {
        (self.counts.slots[slot_count(SlotState::Connected)], self.lobbies.len() as u64)
    }

    fn is_unused(&self) -> bool {
        self.lobbies.is_empty() && self.tombstones == 0 && self.idle_groups == 0
    }
}

pub(crate) struct RegionTally {
    pub(crate) namespace: u32,
    pub(crate) mode: u32,
    pub(crate) region: u32,
    pub(crate) connected: u64,
    lobbies: u32,
}

pub(crate) struct SlotLedger {
    /// Namespaces by number. An entry with a vacant number has no counts.
    pub(crate) namespaces: Vec<NamespaceLedger>,
    by_id: HashTable<u32>,
    vacant_namespaces: Vec<u32>,
    /// Dropped namespaces and their counts, oldest first.
    pub(crate) remembered: VecDeque<(Id, NamespaceCounts)>,
    /// Sum of the counts of dropped namespaces that are not remembered.
    pub(crate) forgotten: NamespaceCounts,
    tallies: Vec<RegionTally>,
    tally_by_key: BTreeMap<(u32, u32, u32), u32>,
    vacant_tallies: Vec<u32>,
    changed: Vec<u32>,
    presence_changes: ChangeFeed<u32>,
    pub(crate) violations: u64,
}

impl SlotLedger {
    pub(crate) fn new() -> SlotLedger {
        SlotLedger {
            namespaces: Vec::new(),
            by_id: HashTable::new(),
            vacant_namespaces: Vec::new(),
            remembered: VecDeque::new(),
            forgotten: NamespaceCounts::default(),
            tallies: Vec::new(),
            tally_by_key: BTreeMap::new(),
            vacant_tallies: Vec::new(),
            changed: Vec::new(),
            presence_changes: ChangeFeed::starting_at(1),
            violations: 0,
        }
    }

    pub(crate) fn namespace_of(&self, seed: &TableSeed, id: Id) -> Option<u32> {
        self.by_id.find(seed.bytes(&id.0), |number| self.namespaces[*number as usize].id == id).copied()
    }

    /// Returns the number of a namespace. The caller adds the lobby or tombstone that a new namespace is for.
    pub(crate) fn namespace(&mut self, seed: &TableSeed, id: Id) -> u32 {
        if let Some(number) = self.namespace_of(seed, id) {
            return number;
        }
        let number = self.vacant_namespaces.pop().unwrap_or_else(|| {
            self.namespaces.push(NamespaceLedger::default());
            self.namespaces.len() as u32 - 1
        });
        let namespace = &mut self.namespaces[number as usize];
        namespace.id = id;
        // A linear search is fast enough, because few lobbies are the first of their namespace.
        let remembered_at = self.remembered.iter().position(|(known, _)| *known == id);
        if let Some((_, counts)) = remembered_at.and_then(|at| self.remembered.remove(at)) {
            namespace.counts = counts;
        }
        let namespaces = &self.namespaces;
        self.by_id.insert_unique(seed.bytes(&id.0), number, |number| seed.bytes(&namespaces[*number as usize].id.0));
        number
    }

    pub(crate) fn add_tombstone(&mut self, seed: &TableSeed, id: Id) {
        let number = self.namespace(seed, id);
        self.namespaces[number as usize].tombstones += 1;
    }

    pub(crate) fn remove_tombstone(&mut self, seed: &TableSeed, id: Id) {
        let Some(number) = self.namespace_of(seed, id) else {
            debug_assert!(false, "a tombstone keeps its namespace");
            return;
        };
        self.namespaces[number as usize].tombstones -= 1;
        self.drop_if_unused(seed, number);
    }

    pub(crate) fn add_idle_group(&mut self, namespace: u32) {
        self.namespaces[namespace as usize].idle_groups += 1;
    }

    pub(crate) fn remove_idle_group(&mut self, seed: &TableSeed, namespace: u32) {
        self.namespaces[namespace as usize].idle_groups -= 1;
        self.drop_if_unused(seed, namespace);
    }

    fn drop_if_unused(&mut self, seed: &TableSeed, number: u32) {
        let namespace = &mut self.namespaces[number as usize];
        if !namespace.is_unused() {
            return;
        }
        // A reader that has not seen the drop to zero gets all counts at its next read.
        if namespace.reported != (0, 0) {
            self.presence_changes.record(number);
        }
        self.presence_changes.forget(number);
        let is_changed = namespace.is_changed;
        let dropped = core::mem::replace(namespace, NamespaceLedger { is_changed, ..NamespaceLedger::default() });
        if let Ok(entry) = self.by_id.find_entry(seed.bytes(&dropped.id.0), |candidate| *candidate == number) {
            entry.remove();
        }
        self.vacant_namespaces.push(number);
        if dropped.counts != NamespaceCounts::default() {
            self.remembered.push_back((dropped.id, dropped.counts));
        }
        if self.remembered.len() > MAX_REMEMBERED_NAMESPACES
            && let Some((_, counts)) = self.remembered.pop_front()
        {
            self.forgotten += &counts;
        }
    }

    pub(crate) fn acquire_tally(&mut self, namespace: u32, mode: u32, region: u32) -> u32 {
        let key = (namespace, mode, region);
        if let Some(number) = self.tally_by_key.get(&key) {
            self.tallies[*number as usize].lobbies += 1;
            return *number;
        }
        let tally = RegionTally { namespace, mode, region, connected: 0, lobbies: 1 };
        let number = match self.vacant_tallies.pop() {
            Some(number) => {
                self.tallies[number as usize] = tally;
                number
            }
            None => {
                self.tallies.push(tally);
                self.tallies.len() as u32 - 1
            }
        };
        self.tally_by_key.insert(key, number);
        number
    }

    pub(crate) fn release_tally(&mut self, number: u32) {
        let tally = &mut self.tallies[number as usize];
        tally.lobbies -= 1;
        if tally.lobbies == 0 {
            self.tally_by_key.remove(&(tally.namespace, tally.mode, tally.region));
            self.vacant_tallies.push(number);
        }
    }

    pub(crate) fn tally_mut(&mut self, number: u32) -> &mut RegionTally {
        &mut self.tallies[number as usize]
    }

    pub(crate) fn tallies_of(&self, namespace: u32) -> impl Iterator<Item = &RegionTally> {
        let range = (namespace, 0, 0)..=(namespace, u32::MAX, u32::MAX);
        self.tally_by_key.range(range).map(|(_, number)| &self.tallies[*number as usize])
    }

    #[inline]
    pub(crate) fn mark_presence_changed(&mut self, namespace: u32) {
        let namespace_ledger = &mut self.namespaces[namespace as usize];
        if !namespace_ledger.is_changed {
            namespace_ledger.is_changed = true;
            self.changed.push(namespace);
        }
    }

    /// Returns true if counts changed since the last [`Self::presence_since`].
    pub(crate) fn is_presence_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    pub(crate) fn presence_since(&mut self, after: u64) -> PresenceChanges {
        for namespace in core::mem::take(&mut self.changed) {
            let namespace_ledger = &mut self.namespaces[namespace as usize];
            namespace_ledger.is_changed = false;
            if namespace_ledger.presence() != namespace_ledger.reported {
                namespace_ledger.reported = namespace_ledger.presence();
                self.presence_changes.record(namespace);
            }
        }
        let (is_all, changed) = self.presence_changes.since(after, u64::MAX);
        let namespaces = changed.map(|namespace| {
            let NamespaceLedger { id, reported: (players, lobbies), .. } = self.namespaces[namespace as usize];
            (id, players, lobbies)
        });
        PresenceChanges { namespaces: namespaces.collect(), generation: self.presence_changes.sequence(), is_all }
    }

    pub(crate) fn count_token(&mut self, namespace: u32, outcome: TokenOutcome) {
        self.namespaces[namespace as usize].counts.tokens[outcome as usize] += 1;
    }

    pub(crate) fn move_phase(&mut self, namespace: u32, from: Option<LobbyPhase>, to: Option<LobbyPhase>) {
        let lobbies = &mut self.namespaces[namespace as usize].counts.lobbies;
        if let Some(class) = from {
            lobbies[class as usize] -= 1;
        }
        if let Some(class) = to {
            lobbies[class as usize] += 1;
        }
    }

    /// Checks that the slot counts of a lobby add up, and counts violations. Takes O(1). Debug builds check every slot
    /// and panic.
    pub(crate) fn check(&mut self, lobby: &Lobby, arena: &SlotArena) {
        let table = &lobby.slots;
        let without_user = lobby.capacity - table.used + table.free_len + table.exhausted;
        let counts = &lobby.counts;
        let adds_up = without_user + counts.reserved + counts.connected + counts.kept == lobby.capacity
            && counts.held <= without_user;
        if !adds_up {
            self.violations += 1;
        }
        debug_assert!(adds_up, "the ledger of a lobby adds up: {lobby:?}");
        #[cfg(debug_assertions)]
        check_slots(lobby, arena);
        #[cfg(not(debug_assertions))]
        let _ = arena;
    }
}

#[cfg(debug_assertions)]
fn check_slots(lobby: &Lobby, arena: &SlotArena) {
    let mut by_state = [0u32; 4];
    for number in 0..lobby.slots.used {
        if let Some(at) = lobby.slots.locate(number) {
            by_state[arena.get(at).state as usize] += 1;
        }
    }
    let counts = &lobby.counts;
    debug_assert_eq!(by_state[SlotState::Free as usize], lobby.slots.free_len + lobby.slots.exhausted);
    debug_assert_eq!(by_state[SlotState::Reserved as usize], counts.reserved);
    debug_assert_eq!(by_state[SlotState::Connected as usize], counts.connected);
    debug_assert_eq!(by_state[SlotState::Kept as usize], counts.kept);
    let free = lobby.slots.free_numbers(arena, lobby.capacity).count() as u32;
    debug_assert_eq!(free, lobby.capacity - lobby.slots.used + lobby.slots.free_len);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_namespaces_leave_no_memory_without_a_presence_reader() {
        let seed = TableSeed::new(&[1; 32]);
        let mut ledger = SlotLedger::new();
        for byte in 0..=255 {
            let id = Id([byte; 16]);
            let number = ledger.namespace(&seed, id);
            ledger.namespaces[number as usize].lobbies.insert(1, 1);
            ledger.mark_presence_changed(number);
            ledger.add_tombstone(&seed, id);
            ledger.namespaces[number as usize].lobbies.remove(&1);
            ledger.mark_presence_changed(number);
            ledger.remove_tombstone(&seed, id);
            assert_eq!(ledger.namespace_of(&seed, id), None);
        }
        assert_eq!((ledger.namespaces.len(), ledger.by_id.len(), ledger.vacant_namespaces.len()), (1, 0, 1));
        assert_eq!(ledger.changed.len(), 1);
        let presence = ledger.presence_since(1);
        assert_eq!((presence.is_all, presence.generation, presence.namespaces), (false, 1, vec![]));
    }
}
