//! The book of all lobbies of a shard by number and by id, ended ones too, as long as they are remembered.

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::command::{EndReason, Id, Lsn, Ms};
use crate::deadline::{Links, Timed};
use crate::hash::TableSeed;
use crate::lobby::Lobby;

/// What is kept of a lobby for 24 h after its end.
#[derive(Debug)]
pub(crate) struct Tombstone {
    pub(crate) id: Id,
    pub(crate) namespace_id: Id,
    pub(crate) ended_at: Ms,
    pub(crate) reason: EndReason,
    pub(crate) lsn: Lsn,
    /// Keys of its tokens.
    pub(crate) key_ids: Box<[u16]>,
    pub(crate) entries: u32,
}

#[derive(Debug)]
enum Record {
    Vacant,
    Live(Box<Lobby>),
    Ended(Box<Tombstone>),
}

/// A lobby as it was found.
pub(crate) enum Known<'a> {
    Live(&'a Lobby),
    Ended(&'a Tombstone),
}

/// All lobbies of a shard by number, and their numbers by id.
pub(crate) struct Lobbies {
    records: Vec<Record>,
    by_id: HashTable<u32>,
    /// Numbers below `records.len()` that no lobby has.
    vacant: BTreeSet<u32>,
    /// (when it ended, number).
    ended: BTreeSet<(Ms, u32)>,
}

impl Lobbies {
    pub(crate) fn new() -> Lobbies {
        Lobbies { records: Vec::new(), by_id: HashTable::new(), vacant: BTreeSet::new(), ended: BTreeSet::new() }
    }

    /// A number that no lobby has.
    pub(crate) fn vacant_number(&self) -> u32 {
        self.vacant.first().copied().unwrap_or(self.records.len() as u32)
    }

    pub(crate) fn number_of(&self, seed: &TableSeed, id: Id) -> Option<u32> {
        self.by_id.find(id_hash(seed, id), |number| self.id_of(*number) == Some(id)).copied()
    }

    fn id_of(&self, number: u32) -> Option<Id> {
        match self.known(number)? {
            Known::Live(lobby) => Some(lobby.id),
            Known::Ended(tombstone) => Some(tombstone.id),
        }
    }

    pub(crate) fn known(&self, number: u32) -> Option<Known<'_>> {
        match self.records.get(number as usize)? {
            Record::Vacant => None,
            Record::Live(lobby) => Some(Known::Live(lobby)),
            Record::Ended(tombstone) => Some(Known::Ended(tombstone)),
        }
    }

    #[inline]
    pub(crate) fn live(&self, number: u32) -> Option<&Lobby> {
        match self.records.get(number as usize) {
            Some(Record::Live(lobby)) => Some(lobby),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn live_mut(&mut self, number: u32) -> Option<&mut Lobby> {
        match self.records.get_mut(number as usize) {
            Some(Record::Live(lobby)) => Some(lobby),
            _ => None,
        }
    }

    /// LSN that an answer about this lobby waits for.
    pub(crate) fn lsn(&self, number: u32) -> Lsn {
        match self.known(number) {
            Some(Known::Live(lobby)) => lobby.lsn,
            Some(Known::Ended(tombstone)) => tombstone.lsn,
            None => 0,
        }
    }

    pub(crate) fn set_lsn(&mut self, number: u32, lsn: Lsn) {
        match self.records.get_mut(number as usize) {
            Some(Record::Live(lobby)) => lobby.lsn = lsn,
            Some(Record::Ended(tombstone)) => tombstone.lsn = lsn,
            _ => {}
        }
    }

    /// How many idempotency entries name a lobby; None when there is none of that number.
    pub(crate) fn entries_mut(&mut self, number: u32) -> Option<&mut u32> {
        match self.records.get_mut(number as usize)? {
            Record::Vacant => None,
            Record::Live(lobby) => Some(&mut lobby.entries),
            Record::Ended(tombstone) => Some(&mut tombstone.entries),
        }
    }

    /// Adds a lobby under its own number, which must be vacant.
    pub(crate) fn insert(&mut self, seed: &TableSeed, lobby: Lobby) -> bool {
        let (number, id) = (lobby.number, lobby.id);
        self.place(seed, number, id, Record::Live(Box::new(lobby)))
    }

    pub(crate) fn insert_ended(&mut self, seed: &TableSeed, number: u32, tombstone: Tombstone) -> bool {
        let (id, ended_at) = (tombstone.id, tombstone.ended_at);
        let is_placed = self.place(seed, number, id, Record::Ended(Box::new(tombstone)));
        if is_placed {
            self.ended.insert((ended_at, number));
        }
        is_placed
    }

    fn place(&mut self, seed: &TableSeed, number: u32, id: Id, record: Record) -> bool {
        let at = number as usize;
        // A journal of ours takes numbers one by one: a far one is damage, not a reason to take gigabytes.
        if at > self.records.len() + (1 << 20) || self.known(number).is_some() || self.number_of(seed, id).is_some() {
            return false;
        }
        while self.records.len() <= at {
            self.vacant.insert(self.records.len() as u32);
            self.records.push(Record::Vacant);
        }
        self.vacant.remove(&number);
        self.records[at] = record;
        let records = &self.records;
        self.by_id.insert_unique(id_hash(seed, id), number, |number| match &records[*number as usize] {
            Record::Live(lobby) => id_hash(seed, lobby.id),
            Record::Ended(tombstone) => id_hash(seed, tombstone.id),
            Record::Vacant => 0,
        });
        true
    }

    /// Replaces a live lobby by its tombstone and gives it away.
    pub(crate) fn end(
        &mut self,
        number: u32,
        ended_at: Ms,
        reason: EndReason,
        lsn: Lsn,
        key_ids: Box<[u16]>,
    ) -> Option<Box<Lobby>> {
        let record = self.records.get_mut(number as usize)?;
        let Record::Live(lobby) = core::mem::replace(record, Record::Vacant) else { return None };
        let (id, namespace_id, entries) = (lobby.id, lobby.namespace_id, lobby.entries);
        *record = Record::Ended(Box::new(Tombstone { id, namespace_id, ended_at, reason, lsn, key_ids, entries }));
        self.ended.insert((ended_at, number));
        Some(lobby)
    }

    /// Drops tombstones of lobbies that ended at `up_to` or before and that no idempotency entry names.
    pub(crate) fn forget(&mut self, seed: &TableSeed, up_to: Ms) {
        let due: Vec<(Ms, u32)> = self.ended.range(..=(up_to, u32::MAX)).copied().collect();
        for (ended_at, number) in due {
            let Some(Known::Ended(tombstone)) = self.known(number) else { continue };
            if tombstone.entries > 0 {
                continue;
            }
            let id = tombstone.id;
            if let Ok(found) = self.by_id.find_entry(id_hash(seed, id), |known| *known == number) {
                found.remove();
            }
            self.records[number as usize] = Record::Vacant;
            self.vacant.insert(number);
            self.ended.remove(&(ended_at, number));
        }
    }

    /// When the `ahead`-th lobby that ended later than `after` did so; the last one's time when there are fewer.
    pub(crate) fn ended_at(&self, after: Ms, ahead: usize) -> Option<Ms> {
        self.ended.range((after + 1, 0)..).take(ahead + 1).last().map(|(at, _)| *at)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, Known<'_>)> {
        (0..self.records.len() as u32).filter_map(|number| self.known(number).map(|known| (number, known)))
    }

    pub(crate) fn len(&self) -> u32 {
        self.records.len() as u32
    }
}

impl Timed for Lobbies {
    fn links(&mut self, node: u32) -> &mut Links {
        match &mut self.records[node as usize] {
            Record::Live(lobby) => &mut lobby.timer,
            _ => unreachable!("only live lobbies are in the wheel"),
        }
    }
    fn deadline(&self, node: u32) -> Ms {
        self.live(node).map_or(0, |lobby| lobby.timer_at)
    }
}

/// Lobby ids are random but for their first 16 bits.
fn id_hash(seed: &TableSeed, id: Id) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = id.0;
    let [_, _, i, j, k, l, m, n, o, p, ..] = id.0;
    seed.words(u64::from_le_bytes([a, b, c, d, e, f, g, h]), u64::from_le_bytes([i, j, k, l, m, n, o, p]))
}
