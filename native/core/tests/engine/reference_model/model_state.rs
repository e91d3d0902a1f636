//! State of the reference model in plain vectors, written from the documentation alone.

use std::collections::BTreeMap;

use hosting_core::{EndReason, HoldId, Id, Ms, PlayerCount, Port, Source};

use super::fact_reader::{ExpectedFact, History};

pub const START_LIMIT_MS: Ms = 300_000;
pub const TOMBSTONE_MS: Ms = 24 * 3_600_000;
pub const KEY_LIFE_MS: Ms = 600_000;
pub const REMEMBERED_USES: usize = 32;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    Expired,
    Consumed,
    Released,
    LobbyRemoved,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    Reserved { deadline: Ms },
    Connected { since: Ms, order: u64 },
    Kept { deadline: Ms },
    Ended(Ending),
}

impl Stage {
    pub fn is_live(self) -> bool {
        !matches!(self, Stage::Ended(_))
    }

    pub fn deadline(self) -> Option<Ms> {
        match self {
            Stage::Reserved { deadline } | Stage::Kept { deadline } => Some(deadline),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Use {
    pub token: String,
    pub lobby: usize,
    pub slot: usize,
    pub source: Source,
    pub stage: Stage,
}

/// Time at which a slot became free, and the number of the command. Slots with equal values may be reused in any order.
pub type FreedAt = (Ms, u64);

/// Value of `noticed_at` while the engine may not have freed the slot.
pub const LATER: FreedAt = (Ms::MAX, u64::MAX);

#[derive(Clone, Debug, Default)]
pub struct Slot {
    pub uses: Vec<usize>,
    pub freed_at: FreedAt,
    /// Latest time at which the engine may have freed the slot.
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
    /// Player limits: `find, join, party`.
    pub limits: [u32; 3],
    pub ttl_ms: Ms,
    pub heartbeat_timeout_ms: Ms,
    pub heartbeat_grace_ms: Ms,
    pub is_join_enabled: bool,
    pub ports: Vec<Port>,
    pub create_ts_ms: u64,
    pub lobby_token: String,
    pub is_ours: bool,
    pub is_public: bool,
    pub is_ready: bool,
    pub is_closed: bool,
    pub is_stopping: bool,
    pub state: Vec<u8>,
    pub end: Option<End>,
    pub started_at: Ms,
    pub spoke_at: Ms,
    pub listed_by: Option<u64>,
    pub slots: Vec<Slot>,
    /// Lower bound for the LSN of the lobby's last event.
    pub changed_lsn: u64,
    /// True if a deadline has passed that the engine may not have handled yet.
    pub has_overdue: bool,
    pub overdue_uses: u64,
    pub owed_after: Option<u64>,
    pub history: History,
}

impl Lobby {
    pub fn is_live(&self) -> bool {
        self.end.is_none()
    }

    pub fn has_to_speak(&self) -> bool {
        self.heartbeat_timeout_ms > 0 && (!self.is_ours || self.is_ready && !self.is_stopping)
    }

    pub fn is_silent(&self, now: Ms) -> bool {
        self.has_to_speak() && now > self.spoke_at + self.heartbeat_timeout_ms
    }

    pub fn is_listed(&self, now: Ms) -> bool {
        self.is_ready && !self.is_closed && !self.is_stopping && !self.is_silent(now)
    }

    pub fn end_by_time(&self) -> Option<(Ms, EndReason)> {
        let has_to_be_ready = !(self.is_ready || self.is_ours && self.is_stopping);
        let start = has_to_be_ready.then_some((self.started_at + START_LIMIT_MS, EndReason::StartTimeout));
        let silence = self.has_to_speak().then_some((self.spoke_at + 3 * self.heartbeat_timeout_ms, EndReason::Silent));
        start.into_iter().chain(silence).min_by_key(|(at, _)| *at)
    }

    pub fn has_tags(&self, tags: &[(String, String)]) -> bool {
        tags.iter().all(|tag| self.tags.contains(tag))
    }
}

#[derive(Clone, Debug)]
pub struct Hold {
    pub id: HoldId,
    pub lobby: usize,
    pub size: u32,
    pub waiters: u32,
    pub source: Source,
    pub key: Option<u8>,
    pub message: u128,
}

#[derive(Clone, Debug)]
pub enum Remembered {
    Attached(usize),
    Admission(Vec<usize>),
    Connected(usize),
    Disconnected(usize),
}

#[derive(Clone, Debug)]
pub struct Key {
    pub message: u128,
    pub success: Remembered,
    /// The engine must store the key until this time.
    pub least_until: Ms,
    /// Deadline of the reservation. Afterwards the engine may drop the key.
    pub until: Ms,
}

#[derive(Clone, Debug)]
pub struct SettledHold {
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
    /// Authentic tokens of slot uses that the engine never issued, with their lobby.
    pub never_given: Vec<(String, usize)>,
    pub dropped_keys: Vec<u16>,
    pub settled: Vec<SettledHold>,
    pub last_lsn: u64,
    pub order: u64,
    /// Ended slot uses: `expired, consumed, released, lobby gone`.
    pub ends: BTreeMap<Id, [u64; 4]>,
    /// Ended lobbies: `exited, start timeout, silent, removed, stopped`.
    pub lobby_ends: BTreeMap<Id, [u64; 5]>,
    /// Slot uses that were overdue when their lobby ended.
    pub late_ends: BTreeMap<Id, u64>,
    pub tokens: BTreeMap<Id, [u64; 8]>,
}

impl Model {
    pub fn lobby_index(&self, id: Id) -> Option<usize> {
        self.lobbies.iter().position(|lobby| lobby.id == id)
    }

    pub fn use_of(&self, token: &str) -> Option<usize> {
        self.uses.iter().position(|one| one.token == token)
    }

    pub fn is_forgotten(&self, lobby: usize) -> bool {
        self.lobbies[lobby].end.is_some_and(|end| self.now >= end.at + TOMBSTONE_MS)
    }

    /// Returns true if the engine may still store the tombstone, because it ended the lobby late.
    pub fn is_perhaps_known(&self, lobby: usize) -> bool {
        self.lobbies[lobby].end.is_some_and(|end| self.now < end.noticed.saturating_add(TOMBSTONE_MS))
    }

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

    pub fn players(&self, lobby: usize) -> u32 {
        self.held(lobby) + self.live_uses(lobby).count() as u32
    }

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

    /// Returns the slots that may be next: the first never-used slot, else the slots that are free longest.
    pub fn next_slots(&self, lobby: usize) -> Vec<usize> {
        let slots = &self.lobbies[lobby].slots;
        if let Some(fresh) = slots.iter().position(|slot| slot.uses.is_empty()) {
            return vec![fresh];
        }
        let is_free = |slot: &Slot| slot.uses.last().is_none_or(|last| !self.uses[*last].stage.is_live());
        let free: Vec<usize> = (0..slots.len()).filter(|index| is_free(&slots[*index])).collect();
        // An expired slot use may count as free from its deadline or from its expiry by the engine.
        let oldest = free.iter().map(|index| slots[*index].noticed_at).min().unwrap_or(LATER);
        free.into_iter().filter(|index| slots[*index].freed_at <= oldest).collect()
    }

    pub fn begin_use(&mut self, lobby: usize, slot: usize, source: Source, token: &str) -> usize {
        let deadline = self.now + self.lobbies[lobby].ttl_ms;
        let stage = Stage::Reserved { deadline };
        self.uses.push(Use { token: token.to_owned(), lobby, slot, source, stage });
        let index = self.uses.len() - 1;
        self.lobbies[lobby].slots[slot].uses.push(index);
        self.count_token(lobby, 0);
        index
    }

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
        self.lobbies[lobby].history.expected_facts.push((at, ExpectedFact::Ended(reason, connected)));
        let live: Vec<usize> =
            (0..self.uses.len()).filter(|i| self.uses[*i].lobby == lobby && self.uses[*i].stage.is_live()).collect();
        for index in live {
            self.end_use(index, Ending::LobbyRemoved, (at, 0));
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

    pub fn fail_holds(&mut self, lobby: usize, reason: EndReason) {
        let (failed, remaining): (Vec<Hold>, Vec<Hold>) =
            std::mem::take(&mut self.holds).into_iter().partition(|hold| hold.lobby == lobby);
        self.holds = remaining;
        self.settled.extend(failed.into_iter().map(|hold| SettledHold { hold, outcome: Err(reason) }));
    }

    pub fn count_token(&mut self, lobby: usize, outcome: usize) {
        self.tokens.entry(self.lobbies[lobby].namespace).or_default()[outcome] += 1;
    }

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
