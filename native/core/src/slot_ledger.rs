//! Slot and lobby counts per namespace and per `(namespace, mode, region)`. Derived, never durable.
//!
//! Checks that every slot is in exactly one state: `free + held + reserved + connected + kept = capacity`.

use std::collections::BTreeMap;

use hashbrown::HashTable;

use crate::change_feed::ChangeFeed;
use crate::command::{Id, Lsn, NamespaceCounts, PresenceChanges};
use crate::engine::slot_count;
use crate::keyed_hash::TableSeed;
use crate::lobby::{Lobby, LobbyPhase};
use crate::slot::{SlotArena, SlotState};

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

pub(crate) struct NamespaceLedger {
    pub(crate) id: Id,
    pub(crate) lobbies: BTreeMap<Lsn, u32>,
    /// Counts of the namespace, except for `slots[0]` (free), which is computed from `capacity` on demand.
    pub(crate) counts: NamespaceCounts,
    pub(crate) capacity: u64,
    is_changed: bool,
    reported: (u64, u64),
}

impl NamespaceLedger {
    fn presence(&self) -> (u64, u64) {
        (self.counts.slots[slot_count(SlotState::Connected)], self.lobbies.len() as u64)
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
    pub(crate) namespaces: Vec<NamespaceLedger>,
    by_id: HashTable<u32>,
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

    pub(crate) fn namespace(&mut self, seed: &TableSeed, id: Id) -> u32 {
        if let Some(number) = self.namespace_of(seed, id) {
            return number;
        }
        let number = self.namespaces.len() as u32;
        let counts = NamespaceCounts::default();
        let (lobbies, reported) = (BTreeMap::new(), (0, 0));
        self.namespaces.push(NamespaceLedger { id, lobbies, counts, capacity: 0, is_changed: false, reported });
        let namespaces = &self.namespaces;
        self.by_id.insert_unique(seed.bytes(&id.0), number, |number| seed.bytes(&namespaces[*number as usize].id.0));
        number
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
