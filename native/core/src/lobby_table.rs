//! Table of a shard's lobbies by number and id. Ended lobbies stay as tombstones.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::command::{EndReason, Id, Lsn, Ms};
use crate::keyed_hash::TableSeed;
use crate::lobby::Lobby;
use crate::timer_wheel::{TimerLinks, TimerNodes};

/// Record of a lobby for 24 h after its end.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) id: Id,
    pub(crate) namespace_id: Id,
    pub(crate) ended_at: Ms,
    pub(crate) reason: EndReason,
    pub(crate) lsn: Lsn,
    pub(crate) key_ids: Box<[u16]>,
    pub(crate) entries: u32,
}

#[derive(Debug)]
enum TableEntry {
    Vacant,
    Live(Box<Lobby>),
    Ended(Box<Tombstone>),
}

pub(crate) enum LobbyRecord<'a> {
    Live(&'a Lobby),
    Ended(&'a Tombstone),
}

pub(crate) struct LobbyTable {
    records: Vec<TableEntry>,
    by_id: HashTable<u32>,
    vacant: BTreeSet<u32>,
    ended: BTreeSet<(Ms, u32)>,
}

impl LobbyTable {
    pub(crate) fn new() -> LobbyTable {
        LobbyTable { records: Vec::new(), by_id: HashTable::new(), vacant: BTreeSet::new(), ended: BTreeSet::new() }
    }

    pub(crate) fn vacant_number(&self) -> u32 {
        self.vacant.first().copied().unwrap_or(self.records.len() as u32)
    }

    /// Returns the number after the last record.
    pub(crate) fn end_number(&self) -> u32 {
        self.records.len() as u32
    }

    pub(crate) fn number_of(&self, seed: &TableSeed, id: Id) -> Option<u32> {
        self.by_id.find(id_hash(seed, id), |number| self.id_of(*number) == Some(id)).copied()
    }

    fn id_of(&self, number: u32) -> Option<Id> {
        match self.get(number)? {
            LobbyRecord::Live(lobby) => Some(lobby.id),
            LobbyRecord::Ended(tombstone) => Some(tombstone.id),
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<LobbyRecord<'_>> {
        match self.records.get(number as usize)? {
            TableEntry::Vacant => None,
            TableEntry::Live(lobby) => Some(LobbyRecord::Live(lobby)),
            TableEntry::Ended(tombstone) => Some(LobbyRecord::Ended(tombstone)),
        }
    }

    #[inline]
    pub(crate) fn live(&self, number: u32) -> Option<&Lobby> {
        match self.records.get(number as usize) {
            Some(TableEntry::Live(lobby)) => Some(lobby),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn live_mut(&mut self, number: u32) -> Option<&mut Lobby> {
        match self.records.get_mut(number as usize) {
            Some(TableEntry::Live(lobby)) => Some(lobby),
            _ => None,
        }
    }

    pub(crate) fn lsn(&self, number: u32) -> Lsn {
        match self.get(number) {
            Some(LobbyRecord::Live(lobby)) => lobby.lsn,
            Some(LobbyRecord::Ended(tombstone)) => tombstone.lsn,
            None => 0,
        }
    }

    pub(crate) fn set_lsn(&mut self, number: u32, lsn: Lsn) {
        match self.records.get_mut(number as usize) {
            Some(TableEntry::Live(lobby)) => lobby.lsn = lsn,
            Some(TableEntry::Ended(tombstone)) => tombstone.lsn = lsn,
            _ => {}
        }
    }

    pub(crate) fn entries_mut(&mut self, number: u32) -> Option<&mut u32> {
        match self.records.get_mut(number as usize)? {
            TableEntry::Vacant => None,
            TableEntry::Live(lobby) => Some(&mut lobby.entries),
            TableEntry::Ended(tombstone) => Some(&mut tombstone.entries),
        }
    }

    /// Adds a lobby. Returns false if its number or id is in use.
    pub(crate) fn insert(&mut self, seed: &TableSeed, lobby: Lobby) -> bool {
        let (number, id) = (lobby.number, lobby.id);
        self.insert_entry(seed, number, id, TableEntry::Live(Box::new(lobby)))
    }

    pub(crate) fn insert_ended(&mut self, seed: &TableSeed, number: u32, tombstone: Tombstone) -> bool {
        let (id, ended_at) = (tombstone.id, tombstone.ended_at);
        let is_inserted = self.insert_entry(seed, number, id, TableEntry::Ended(Box::new(tombstone)));
        if is_inserted {
            self.ended.insert((ended_at, number));
        }
        is_inserted
    }

    fn insert_entry(&mut self, seed: &TableSeed, number: u32, id: Id, entry: TableEntry) -> bool {
        let at = number as usize;
        // Numbers grow one by one, so a distant number is damage. The check avoids a huge allocation.
        if at > self.records.len() + (1 << 20) || self.get(number).is_some() || self.number_of(seed, id).is_some() {
            return false;
        }
        while self.records.len() <= at {
            self.vacant.insert(self.records.len() as u32);
            self.records.push(TableEntry::Vacant);
        }
        self.vacant.remove(&number);
        self.records[at] = entry;
        let records = &self.records;
        self.by_id.insert_unique(id_hash(seed, id), number, |number| match &records[*number as usize] {
            TableEntry::Live(lobby) => id_hash(seed, lobby.id),
            TableEntry::Ended(tombstone) => id_hash(seed, tombstone.id),
            TableEntry::Vacant => 0,
        });
        true
    }

    pub(crate) fn end(
        &mut self,
        number: u32,
        ended_at: Ms,
        reason: EndReason,
        lsn: Lsn,
        key_ids: Box<[u16]>,
    ) -> Option<Box<Lobby>> {
        let record = self.records.get_mut(number as usize)?;
        let TableEntry::Live(lobby) = core::mem::replace(record, TableEntry::Vacant) else { return None };
        let (id, namespace_id, entries) = (lobby.id, lobby.namespace_id, lobby.entries);
        *record = TableEntry::Ended(Box::new(Tombstone { id, namespace_id, ended_at, reason, lsn, key_ids, entries }));
        self.ended.insert((ended_at, number));
        Some(lobby)
    }

    /// Drops tombstones of lobbies that ended at `up_to` or before, unless an idempotency entry refers to them. Calls
    /// `dropped` with the namespace of each.
    pub(crate) fn forget(&mut self, seed: &TableSeed, up_to: Ms, mut dropped: impl FnMut(Id)) {
        let due: Vec<(Ms, u32)> = self.ended.range(..=(up_to, u32::MAX)).copied().collect();
        for (ended_at, number) in due {
            let Some(LobbyRecord::Ended(tombstone)) = self.get(number) else { continue };
            if tombstone.entries > 0 {
                continue;
            }
            let (id, namespace) = (tombstone.id, tombstone.namespace_id);
            if let Ok(found) = self.by_id.find_entry(id_hash(seed, id), |candidate| *candidate == number) {
                found.remove();
            }
            self.records[number as usize] = TableEntry::Vacant;
            self.vacant.insert(number);
            self.ended.remove(&(ended_at, number));
            dropped(namespace);
        }
    }

    /// Returns the end time at position `ahead`, or the last end time if there are fewer. Counts only tombstones that
    /// ended later than `after`, oldest first.
    pub(crate) fn ended_at(&self, after: Ms, ahead: usize) -> Option<Ms> {
        self.ended.range((after + 1, 0)..).take(ahead + 1).last().map(|(at, _)| *at)
    }

    pub(crate) fn tombstone_count(&self) -> usize {
        self.ended.len()
    }

    /// Returns the end time of the last of the `count` oldest tombstones. Stops before the first one that an idempotency
    /// entry refers to, so that a repeated call still gets its first response.
    pub(crate) fn unreferenced_tombstones_up_to(&self, count: usize) -> Option<Ms> {
        let is_unreferenced =
            |number: u32| matches!(self.get(number), Some(LobbyRecord::Ended(tombstone)) if tombstone.entries == 0);
        self.ended.iter().take(count).take_while(|(_, number)| is_unreferenced(*number)).last().map(|(at, _)| *at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, LobbyRecord<'_>)> {
        (0..self.records.len() as u32).filter_map(|number| self.get(number).map(|record| (number, record)))
    }

    pub(crate) fn len(&self) -> u32 {
        self.records.len() as u32
    }
}

impl TimerNodes for LobbyTable {
    fn links(&mut self, node: u32) -> &mut TimerLinks {
        match &mut self.records[node as usize] {
            TableEntry::Live(lobby) => &mut lobby.timer,
            _ => unreachable!("only live lobbies are in the wheel"),
        }
    }
    fn deadline(&self, node: u32) -> Ms {
        self.live(node).map_or(0, |lobby| lobby.timer_at)
    }
}

/// Hashes a lobby id without its first 16 bits, because all lobbies of a shard share them.
fn id_hash(seed: &TableSeed, id: Id) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = id.0;
    let [_, _, i, j, k, l, m, n, o, p, ..] = id.0;
    seed.words(u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p]))
}
