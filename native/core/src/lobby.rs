//! Lobbies: what a lobby is made of, and the book of all of them, ended ones too. Changes come from events only
//! (`engine::apply`), but for the fields that say "memory only".

use std::collections::BTreeSet;

use hashbrown::HashTable;

use crate::command::{EndReason, HoldId, Id, Lsn, Ms, Port};
use crate::deadline::{Links, NONE, Timed};
use crate::event::LobbyMade;
use crate::hash::TableSeed;
use crate::outbox::Attendance;
use crate::slot::SlotTable;

/// Which limit a call is admitted under (decisions 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// find.
    Find = 0,
    /// join of one.
    Direct = 1,
    /// join of a party.
    Party = 2,
}

/// Places by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Memory only: of holds, without a slot yet.
    pub(crate) held: u32,
    pub(crate) reserved: u32,
    pub(crate) connected: u32,
    pub(crate) kept: u32,
}

impl Counts {
    pub(crate) fn players(&self) -> u32 {
        self.held + self.reserved + self.connected + self.kept
    }
}

/// What a lobby counts as in metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LobbyClass {
    Starting = 0,
    Ready = 1,
    Closed = 2,
    Silent = 3,
}

/// A lobby that has not ended. The fields stand in order of use: a command on a place touches the first lines only.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lobby {
    pub(crate) id: Id,
    pub(crate) namespace_id: Id,
    pub(crate) number: u32,
    /// Number of its namespace, of (namespace, mode, region), and of its group in the find index.
    pub(crate) namespace: u32,
    pub(crate) tally: u32,
    pub(crate) group: u32,
    /// LSN of its last event; not in images, because what an image holds is durable.
    pub(crate) lsn: Lsn,
    pub(crate) counts: Counts,
    pub(crate) attendance: Attendance,
    pub(crate) slots: SlotTable,
    pub(crate) limits: [u32; 3],
    /// The largest limit: how many slots there are.
    pub(crate) capacity: u32,
    pub(crate) ttl_ms: u64,
    /// Memory only: when its timer in the wheel fires; its next deadline may be later.
    pub(crate) timer_at: Ms,
    /// Memory only: when its server was heard last.
    pub(crate) spoke_at: Ms,
    pub(crate) is_ready: bool,
    pub(crate) is_closed: bool,
    pub(crate) is_stopping: bool,
    pub(crate) is_public: bool,
    pub(crate) is_join_enabled: bool,
    /// Memory only: silent for longer than its heartbeat timeout.
    pub(crate) is_silent: bool,
    /// Memory only: the find index has yet to look at it.
    pub(crate) is_dirty: bool,
    /// Memory only: as what the namespace counts it.
    pub(crate) class: LobbyClass,
    /// Memory only: where it stands in the find index: (ready, key).
    pub(crate) indexed: Option<(bool, u64)>,
    /// Memory only: until when it has to be ready.
    pub(crate) start_by: Ms,
    pub(crate) timer: Links,
    /// Memory only: holds in order of arrival.
    pub(crate) holds: Vec<HoldId>,
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) version: Id,
    /// LSN of its `LobbyMade`: its age.
    pub(crate) made: Lsn,
    /// Symbols.
    pub(crate) mode: u32,
    pub(crate) region: u32,
    pub(crate) tags: Box<[u32]>,
    pub(crate) ports: Box<[Port]>,
    pub(crate) create_ts_ms: u64,
    /// Key of its `lobby_` token.
    pub(crate) key_id: u16,
    pub(crate) state: Option<Box<[u8]>>,
    /// Idempotency entry of its attach.
    pub(crate) attach_entry: u32,
    /// How many idempotency entries name it.
    pub(crate) entries: u32,
}

impl Lobby {
    /// As it is when it was just made, before anything is derived. Mode, region and tags are symbols.
    pub(crate) fn new(made: &LobbyMade<'_>, lsn: Lsn, mode: u32, region: u32, tags: Box<[u32]>) -> Lobby {
        let mut ports = made.ports.clone();
        ports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Lobby {
            number: made.lobby,
            namespace: 0,
            tally: 0,
            group: 0,
            lsn,
            counts: Counts::default(),
            attendance: Attendance::default(),
            slots: SlotTable::new(),
            limits: made.limits,
            capacity: made.limits.into_iter().max().unwrap_or(0),
            ttl_ms: made.ttl_ms,
            is_ready: false,
            is_closed: false,
            is_stopping: false,
            is_public: made.is_public,
            is_join_enabled: made.is_join_enabled,
            is_silent: false,
            is_dirty: false,
            indexed: None,
            class: LobbyClass::Starting,
            spoke_at: 0,
            start_by: 0,
            timer_at: Ms::MAX,
            timer: Links::UNLINKED,
            holds: Vec::new(),
            heartbeat_timeout_ms: made.heartbeat_timeout_ms,
            heartbeat_grace_ms: made.heartbeat_grace_ms,
            id: made.id,
            version: made.version,
            namespace_id: made.namespace,
            made: lsn,
            mode,
            region,
            tags,
            ports: ports.into(),
            create_ts_ms: made.create_ts_ms,
            key_id: made.key_id,
            state: None,
            attach_entry: NO_ENTRY,
            entries: 0,
        }
    }

    /// True when `places` more players stay within the limit.
    pub(crate) fn fits(&self, limit: Limit, places: u32) -> bool {
        let limit = self.limits[limit as usize].min(self.capacity - self.slots.worn);
        self.counts.players() + places <= limit
    }

    /// Free places under the limit of find.
    pub(crate) fn free_to_find(&self) -> u32 {
        self.limits[Limit::Find as usize].min(self.capacity - self.slots.worn).saturating_sub(self.counts.players())
    }

    pub(crate) fn is_findable(&self) -> bool {
        self.is_public && !self.is_closed && !self.is_stopping && !self.is_silent
    }

    /// Its own next deadline: start limit, hiding, silent end.
    pub(crate) fn next_deadline(&self, silent_ends_after: u64) -> Option<Ms> {
        let start = (!self.is_ready).then_some(self.start_by);
        let silence = (self.heartbeat_timeout_ms > 0).then(|| {
            if self.is_silent {
                self.spoke_at.saturating_add(self.heartbeat_timeout_ms.saturating_mul(silent_ends_after))
            } else {
                self.spoke_at.saturating_add(self.heartbeat_timeout_ms).saturating_add(1)
            }
        });
        start.into_iter().chain(silence).min()
    }

    pub(crate) fn classify(&self) -> LobbyClass {
        if self.is_silent {
            LobbyClass::Silent
        } else if !self.is_ready {
            LobbyClass::Starting
        } else if self.is_closed || self.is_stopping {
            LobbyClass::Closed
        } else {
            LobbyClass::Ready
        }
    }
}

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

/// Entry number that means "none".
pub(crate) const NO_ENTRY: u32 = NONE;
