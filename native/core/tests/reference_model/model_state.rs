//! State of the reference model in plain vectors, written from the specification alone.

use std::collections::BTreeMap;

use hosting_core::{EndReason, HoldId, Id, Ms, PlayerCount, Port, Source};

use crate::fact_reader::{History, Seen};

/// A starting lobby that is not ready after this long fails (decisions 5.6).
pub const START_LIMIT_MS: Ms = 300_000;
/// An ended lobby is known for this long (decisions 2, 5.2).
pub const TOMBSTONE_MS: Ms = 24 * 3_600_000;
/// The least life of an idempotency key (decisions 1.8).
pub const KEY_LIFE_MS: Ms = 600_000;
/// How many ended uses of a slot are told apart (decisions 5.2).
pub const REMEMBERED_USES: usize = 32;

/// How a use of a slot ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Expired,
    Consumed,
    Released,
    LobbyGone,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Reserved {
        deadline: Ms,
    },
    /// Since when, and by which command.
    Connected {
        since: Ms,
        order: u64,
    },
    Kept {
        deadline: Ms,
    },
    Ended(Ending),
}

impl Stage {
    pub fn is_live(self) -> bool {
        !matches!(self, Stage::Ended(_))
    }

    /// When time alone ends this use.
    pub fn deadline(self) -> Option<Ms> {
        match self {
            Stage::Reserved { deadline } | Stage::Kept { deadline } => Some(deadline),
            _ => None,
        }
    }
}

/// One use of a slot, from reservation to end, under the one token that was given for it.
#[derive(Clone, Debug)]
pub struct Use {
    pub token: String,
    pub lobby: usize,
    pub slot: usize,
    pub source: Source,
    pub stage: Stage,
}

/// When a slot became free: time, then order within that time. Equal ranks are freed together, and any order is right.
pub type FreedAt = (Ms, u64);

/// Not noticed yet.
pub const LATER: FreedAt = (Ms::MAX, u64::MAX);

#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// Uses in order, as indexes into [`Model::uses`].
    pub uses: Vec<usize>,
    pub freed_at: FreedAt,
    /// The latest moment at which the engine may have noticed.
    pub noticed_at: FreedAt,
}

impl Slot {
    pub fn is_overdue(&self) -> bool {
        self.noticed_at == LATER
    }
}

#[derive(Clone, Copy, Debug)]
pub struct End {
    pub at: Ms,
    /// The latest moment at which the engine may have noticed.
    pub noticed: Ms,
}

#[derive(Clone, Debug)]
pub struct Lobby {
    pub id: Id,
    pub namespace: Id,
    pub version: Id,
    pub mode: String,
    pub region: String,
    pub tags: Vec<(String, String)>,
    /// find, direct, party.
    pub limits: [u32; 3],
    pub ttl_ms: Ms,
    pub heartbeat_timeout_ms: Ms,
    pub heartbeat_grace_ms: Ms,
    pub is_join_enabled: bool,
    pub ports: Vec<Port>,
    pub create_ts_ms: u64,
    pub lobby_token: String,
    /// The service starts it.
    pub is_ours: bool,
    pub is_public: bool,
    pub is_ready: bool,
    pub is_closed: bool,
    pub is_stopping: bool,
    pub state: Vec<u8>,
    pub end: Option<End>,
    pub started_at: Ms,
    pub spoke_at: Ms,
    /// The command that brought the previous heartbeat list.
    pub listed_by: Option<u64>,
    pub slots: Vec<Slot>,
    /// Its last event is not older than this LSN.
    pub changed_lsn: u64,
    /// Time changed something here that the engine need not have noticed yet.
    pub has_overdue: bool,
    /// Places of it among this.
    pub overdue_uses: u64,
    /// And this is to be an event, after this LSN.
    pub owed_after: Option<u64>,
    pub history: History,
}

impl Lobby {
    pub fn is_live(&self) -> bool {
        self.end.is_none()
    }

    /// Its silence counts: one of ours has all of the start limit until it is ready, and ends with its process once it is
    /// being stopped.
    pub fn has_to_speak(&self) -> bool {
        self.heartbeat_timeout_ms > 0 && (!self.is_ours || self.is_ready && !self.is_stopping)
    }

    /// "a lobby silent for longer is not found".
    pub fn is_silent(&self, now: Ms) -> bool {
        self.has_to_speak() && now > self.spoke_at + self.heartbeat_timeout_ms
    }

    /// Listed, if it is public: ready, open, not stopping, not silent.
    pub fn is_listed(&self, now: Ms) -> bool {
        self.is_ready && !self.is_closed && !self.is_stopping && !self.is_silent(now)
    }

    /// The moment and reason at which time alone ends this lobby.
    pub fn end_by_time(&self) -> Option<(Ms, EndReason)> {
        let has_to_be_ready = !(self.is_ready || self.is_ours && self.is_stopping);
        let start = has_to_be_ready.then_some((self.started_at + START_LIMIT_MS, EndReason::StartTimeout));
        let silence = self.has_to_speak().then_some((self.spoke_at + 3 * self.heartbeat_timeout_ms, EndReason::Silent));
        start.into_iter().chain(silence).min_by_key(|(at, _)| *at)
    }

    pub fn has_tags(&self, wanted: &[(String, String)]) -> bool {
        wanted.iter().all(|tag| self.tags.contains(tag))
    }
}

/// Finders' or joiners' places in a starting lobby.
#[derive(Clone, Debug)]
pub struct Hold {
    pub id: HoldId,
    pub lobby: usize,
    pub size: u32,
    /// Requests that wait for it.
    pub waiters: u32,
    pub source: Source,
    pub key: Option<u8>,
    pub message: u128,
}

/// What a remembered success was.
#[derive(Clone, Debug)]
pub enum Remembered {
    Attached(usize),
    Admission(Vec<usize>),
    Connected(usize),
    /// By this lobby.
    Disconnected(usize),
}

#[derive(Clone, Debug)]
pub struct Key {
    pub message: u128,
    pub success: Remembered,
    /// Remembered at least until then, and as long as what it reserved is reserved.
    pub least_until: Ms,
    /// Forgotten then, if it reserved something: its deadline has passed.
    pub until: Ms,
}

/// A hold that must be resolved: its waiters get tokens, or why not.
#[derive(Clone, Debug)]
pub struct Settled {
    pub hold: Hold,
    pub outcome: Result<(), EndReason>,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub now: Ms,
    pub lobbies: Vec<Lobby>,
    pub uses: Vec<Use>,
    pub holds: Vec<Hold>,
    pub keys: BTreeMap<u8, Key>,
    /// Authentic tokens of uses that were never given here, with their lobby.
    pub never_given: Vec<(String, usize)>,
    /// Key ids that the ring no longer has.
    pub dropped_keys: Vec<u16>,
    pub settled: Vec<Settled>,
    /// LSN of the shard's last event.
    pub last_lsn: u64,
    /// Number of the command, orders what happens within one millisecond.
    pub order: u64,
    /// Ends by cause since the start of the run: expired, consumed, released, lobby gone.
    pub ends: BTreeMap<Id, [u64; 4]>,
    /// Ends of lobbies since the start of the run: exited, start timeout, silent, removed.
    pub lobby_ends: BTreeMap<Id, [u64; 5]>,
    /// Ends of places that were overdue when their lobby ended.
    pub late_ends: BTreeMap<Id, u64>,
    /// As in `NamespaceCounts::tokens`.
    pub tokens: BTreeMap<Id, [u64; 8]>,
}

impl Model {
    pub fn lobby_index(&self, id: Id) -> Option<usize> {
        self.lobbies.iter().position(|lobby| lobby.id == id)
    }

    pub fn use_of(&self, token: &str) -> Option<usize> {
        self.uses.iter().position(|one| one.token == token)
    }

    /// The lobby is ended and also forgotten.
    pub fn is_forgotten(&self, lobby: usize) -> bool {
        self.lobbies[lobby].end.is_some_and(|end| self.now >= end.at + TOMBSTONE_MS)
    }

    /// The engine may have noticed the end late, and then forgets late.
    pub fn is_perhaps_known(&self, lobby: usize) -> bool {
        self.lobbies[lobby].end.is_some_and(|end| self.now < end.noticed.saturating_add(TOMBSTONE_MS))
    }

    /// "lives as long as the reservation, at least 10 minutes": it must be known.
    pub fn must_recall(&self, key: &Key) -> bool {
        let is_reserved = |index: &usize| matches!(self.uses[*index].stage, Stage::Reserved { .. });
        let has_reserved = matches!(&key.success, Remembered::Admission(uses) if uses.iter().any(is_reserved));
        self.now < key.least_until || has_reserved
    }

    pub fn live_uses(&self, lobby: usize) -> impl Iterator<Item = &Use> {
        self.uses.iter().filter(move |one| one.lobby == lobby && one.stage.is_live())
    }

    pub fn held(&self, lobby: usize) -> u32 {
        self.holds.iter().filter(|hold| hold.lobby == lobby).map(|hold| hold.size).sum()
    }

    /// Players = held + reserved + connected + kept (decisions 5.1).
    pub fn players(&self, lobby: usize) -> u32 {
        self.held(lobby) + self.live_uses(lobby).count() as u32
    }

    /// Held, reserved, connected, kept.
    pub fn players_by_stage(&self, lobby: usize) -> [u32; 4] {
        let mut counts = [self.held(lobby), 0, 0, 0];
        for one in self.live_uses(lobby) {
            match one.stage {
                Stage::Reserved { .. } => counts[1] += 1,
                Stage::Connected { .. } => counts[2] += 1,
                Stage::Kept { .. } => counts[3] += 1,
                Stage::Ended(_) => {}
            }
        }
        counts
    }

    /// Places of one client address in a namespace.
    pub fn players_of(&self, namespace: Id, source: Source) -> u32 {
        let used = self.uses.iter().filter(|one| {
            one.source == source && one.stage.is_live() && self.lobbies[one.lobby].namespace == namespace
        });
        let held =
            self.holds.iter().filter(|hold| hold.source == source && self.lobbies[hold.lobby].namespace == namespace);
        used.count() as u32 + held.map(|hold| hold.size).sum::<u32>()
    }

    pub fn live_lobbies(&self, namespace: Id) -> impl Iterator<Item = (usize, &Lobby)> {
        let all = self.lobbies.iter().enumerate();
        all.filter(move |(_, lobby)| lobby.namespace == namespace && lobby.is_live())
    }

    pub fn namespace_has_overdue(&self, namespace: Id) -> bool {
        self.lobbies.iter().any(|lobby| lobby.namespace == namespace && lobby.has_overdue)
    }

    /// The slots that the next use may take: never used in ascending order first, then those longest free
    /// (docs/design.md, Engine).
    pub fn next_slots(&self, lobby: usize) -> Vec<usize> {
        let slots = &self.lobbies[lobby].slots;
        if let Some(fresh) = slots.iter().position(|slot| slot.uses.is_empty()) {
            return vec![fresh];
        }
        let is_free = |slot: &Slot| slot.uses.last().is_none_or(|last| !self.uses[*last].stage.is_live());
        let free: Vec<usize> = (0..slots.len()).filter(|index| is_free(&slots[*index])).collect();
        // One that became free by time may count from its deadline or from when that was noticed.
        let oldest = free.iter().map(|index| slots[*index].noticed_at).min().unwrap_or(LATER);
        free.into_iter().filter(|index| slots[*index].freed_at <= oldest).collect()
    }

    /// Starts a use of a slot under the token that the engine gave.
    pub fn begin_use(&mut self, lobby: usize, slot: usize, source: Source, token: &str) -> usize {
        let deadline = self.now + self.lobbies[lobby].ttl_ms;
        let stage = Stage::Reserved { deadline };
        self.uses.push(Use { token: token.to_owned(), lobby, slot, source, stage });
        let index = self.uses.len() - 1;
        self.lobbies[lobby].slots[slot].uses.push(index);
        self.count_token(lobby, 0);
        index
    }

    /// Whoever is connected is so no more.
    pub fn leave(&mut self, index: usize, at: Ms) {
        if let Stage::Connected { since, .. } = self.uses[index].stage {
            self.lobbies[self.uses[index].lobby].history.attendance.player_ms += at - since;
        }
    }

    pub fn end_use(&mut self, index: usize, ending: Ending, freed_at: FreedAt) {
        self.leave(index, freed_at.0);
        self.uses[index].stage = Stage::Ended(ending);
        let (lobby, slot) = (self.uses[index].lobby, self.uses[index].slot);
        let slot = &mut self.lobbies[lobby].slots[slot];
        (slot.freed_at, slot.noticed_at) = (freed_at, freed_at);
        self.ends.entry(self.lobbies[lobby].namespace).or_default()[ending as usize] += 1;
    }

    pub fn end_lobby(&mut self, lobby: usize, at: Ms, reason: EndReason) {
        let connected = self.players_by_stage(lobby)[2];
        self.lobbies[lobby].history.seen.push((at, Seen::Ended(reason, connected)));
        let live: Vec<usize> =
            (0..self.uses.len()).filter(|i| self.uses[*i].lobby == lobby && self.uses[*i].stage.is_live()).collect();
        for index in live {
            self.end_use(index, Ending::LobbyGone, (at, 0));
        }
        self.lobbies[lobby].end = Some(End { at, noticed: Ms::MAX });
        *self.late_ends.entry(self.lobbies[lobby].namespace).or_default() += self.lobbies[lobby].overdue_uses;
        let cause = match reason {
            EndReason::Exited => 0,
            EndReason::StartTimeout => 1,
            EndReason::Silent => 2,
            EndReason::Removed => 3,
            EndReason::Stopped => 4,
        };
        self.lobby_ends.entry(self.lobbies[lobby].namespace).or_default()[cause] += 1;
        self.fail_holds(lobby, reason);
    }

    /// "A lobby that ends before ready answers all with `MATCHMAKER_LOBBY_START_FAILED`".
    pub fn fail_holds(&mut self, lobby: usize, reason: EndReason) {
        let (gone, rest): (Vec<Hold>, Vec<Hold>) =
            std::mem::take(&mut self.holds).into_iter().partition(|hold| hold.lobby == lobby);
        self.holds = rest;
        self.settled.extend(gone.into_iter().map(|hold| Settled { hold, outcome: Err(reason) }));
    }

    pub fn count_token(&mut self, lobby: usize, outcome: usize) {
        self.tokens.entry(self.lobbies[lobby].namespace).or_default()[outcome] += 1;
    }

    /// Connected players by (mode, region), those without players left out.
    pub fn player_counts(&self, namespace: Id) -> Vec<PlayerCount> {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (index, lobby) in self.live_lobbies(namespace) {
            let connected = u64::from(self.players_by_stage(index)[2]);
            *counts.entry((lobby.mode.clone(), lobby.region.clone())).or_default() += connected;
        }
        let counts = counts.into_iter().filter(|(_, count)| *count > 0);
        counts.map(|((mode, region), player_count)| PlayerCount { mode, region, player_count }).collect()
    }
}
