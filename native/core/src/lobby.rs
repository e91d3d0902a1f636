//! One live lobby: its fields, limits and deadlines.
//!
//! Fields for heartbeats, timers, holds and indexes exist in memory only. Events change the other fields.

use crate::command::{EndReason, HoldId, Id, Lsn, Ms, Port};
use crate::fact_outbox::LobbyAttendance;
use crate::idle_lobbies::{IdleState, LobbyGroupKey};
use crate::journal_event::LobbyDefinition;
use crate::slot::SlotTable;
use crate::timer_wheel::{NONE, TimerLinks};

/// A silent lobby ends after this many heartbeat timeouts.
const SILENT_TIMEOUTS_UNTIL_END: u64 = 3;

/// Kind of player limit, as an index into [`Lobby::limits`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    Find = 0,
    Direct = 1,
    Party = 2,
}

impl Limit {
    pub(crate) fn of_direct(players: u32) -> Limit {
        if players > 1 { Limit::Party } else { Limit::Direct }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlotCounts {
    pub(crate) held: u32,
    pub(crate) reserved: u32,
    pub(crate) connected: u32,
    pub(crate) kept: u32,
}

impl SlotCounts {
    pub(crate) fn players(&self) -> u32 {
        self.held + self.reserved + self.connected + self.kept
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LobbyPhase {
    Starting = 0,
    Ready = 1,
    Closed = 2,
    Silent = 3,
}

/// State of a live lobby.
// Field order matters: commands on slots use only the first fields, and so load few cache lines.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Lobby {
    pub(crate) id: Id,
    pub(crate) namespace_id: Id,
    pub(crate) number: u32,
    pub(crate) namespace: u32,
    pub(crate) tally: u32,
    pub(crate) group: u32,
    /// LSN of the lobby's last event. 0 after loading an image, because recovered events are durable.
    pub(crate) lsn: Lsn,
    pub(crate) counts: SlotCounts,
    pub(crate) attendance: LobbyAttendance,
    pub(crate) slots: SlotTable,
    pub(crate) limits: [u32; 3],
    /// Number of slots: the largest of the three player limits.
    pub(crate) capacity: u32,
    pub(crate) player_token_ttl_ms: u64,
    pub(crate) timer_at: Ms,
    pub(crate) last_heartbeat_at: Ms,
    pub(crate) is_ready: bool,
    pub(crate) is_closed: bool,
    pub(crate) is_stopping: bool,
    pub(crate) is_public: bool,
    pub(crate) is_join_enabled: bool,
    pub(crate) is_silent: bool,
    /// True if nothing listens on a port of its game server. Not durable.
    pub(crate) nothing_listens: bool,
    pub(crate) is_find_index_stale: bool,
    pub(crate) class: LobbyPhase,
    /// Position in the find index, as `(is ready, result of order_key)`. None: not in the index.
    pub(crate) indexed: Option<(bool, u64)>,
    pub(crate) start_by: Ms,
    pub(crate) timer: TimerLinks,
    pub(crate) holds: Vec<HoldId>,
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) version: Id,
    pub(crate) created_lsn: Lsn,
    pub(crate) mode: u32,
    pub(crate) region: u32,
    pub(crate) tags: Box<[u32]>,
    pub(crate) ports: Box<[Port]>,
    pub(crate) create_ts_ms: u64,
    pub(crate) key_id: u16,
    pub(crate) state: Option<Box<[u8]>>,
    pub(crate) attach_entry: u32,
    /// Number of idempotency entries that refer to this lobby.
    pub(crate) entries: u32,
    pub(crate) managed: Option<ManagedLobby>,
    /// End of a trial. None: the lobby is for players.
    pub(crate) trial_until: Option<Ms>,
    /// Time since which the lobby has no players. Not valid while the lobby has players.
    pub(crate) empty_since: Ms,
    pub(crate) idle_state: IdleState,
    pub(crate) is_counted_live: bool,
    pub(crate) is_idle_state_stale: bool,
}

#[derive(Debug, Default)]
pub(crate) struct ManagedLobby {
    pub(crate) lobby_config: Box<[u8]>,
}

impl Lobby {
    pub(crate) fn new(created: &LobbyDefinition<'_>, lsn: Lsn, mode: u32, region: u32, tags: Box<[u32]>) -> Lobby {
        let mut ports = created.ports.clone();
        ports.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Lobby {
            number: created.lobby,
            namespace: 0,
            tally: 0,
            group: 0,
            lsn,
            counts: SlotCounts::default(),
            attendance: LobbyAttendance::default(),
            slots: SlotTable::new(),
            limits: created.limits,
            capacity: created.limits.into_iter().max().unwrap_or(0),
            player_token_ttl_ms: created.player_token_ttl_ms,
            is_ready: false,
            is_closed: false,
            is_stopping: false,
            is_public: created.is_public,
            is_join_enabled: created.is_join_enabled,
            is_silent: false,
            nothing_listens: false,
            is_find_index_stale: false,
            indexed: None,
            class: LobbyPhase::Starting,
            last_heartbeat_at: 0,
            start_by: 0,
            timer_at: Ms::MAX,
            timer: TimerLinks::UNLINKED,
            holds: Vec::new(),
            heartbeat_timeout_ms: created.heartbeat_timeout_ms,
            heartbeat_grace_ms: created.heartbeat_grace_ms,
            id: created.id,
            version: created.version,
            namespace_id: created.namespace,
            created_lsn: lsn,
            mode,
            region,
            tags,
            ports: ports.into(),
            create_ts_ms: created.create_ts_ms,
            key_id: created.key_id,
            state: None,
            attach_entry: NO_ENTRY,
            entries: 0,
            managed: None,
            trial_until: None,
            empty_since: 0,
            idle_state: IdleState::NotIdle,
            is_counted_live: false,
            is_idle_state_stale: false,
        }
    }

    pub(crate) fn fits(&self, limit: Limit, players: u32) -> bool {
        let limit = self.limits[limit as usize].min(self.capacity - self.slots.exhausted);
        self.counts.players() + players <= limit
    }

    pub(crate) fn free_to_find(&self) -> u32 {
        self.limits[Limit::Find as usize]
            .min(self.capacity - self.slots.exhausted)
            .saturating_sub(self.counts.players())
    }

    pub(crate) fn is_findable(&self) -> bool {
        self.is_public && !self.is_closed && !self.is_stopping && !self.is_silent && !self.is_unreachable()
    }

    /// Returns true if the lobby says that it is ready, but players do not reach it. A starting server has time to open
    /// its ports.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_ready && self.nothing_listens
    }

    pub(crate) fn next_deadline(&self) -> Option<Ms> {
        let silence = if self.is_silent { self.silent_end_at() } else { self.hidden_at() };
        self.start_timeout_at().into_iter().chain(silence).chain(self.trial_until).min()
    }

    pub(crate) fn start_timeout_at(&self) -> Option<Ms> {
        (!self.is_ready && !self.awaits_process_exit()).then_some(self.start_by)
    }

    /// Returns the time at which find hides the lobby, one millisecond after its heartbeat timeout. None if missing
    /// heartbeats have no effect.
    pub(crate) fn hidden_at(&self) -> Option<Ms> {
        let is_over = self.last_heartbeat_at.saturating_add(self.heartbeat_timeout_ms).saturating_add(1);
        (!self.is_heartbeat_exempt()).then_some(is_over)
    }

    pub(crate) fn silent_end_at(&self) -> Option<Ms> {
        let silence_ms = self.heartbeat_timeout_ms.saturating_mul(SILENT_TIMEOUTS_UNTIL_END);
        (!self.is_heartbeat_exempt()).then(|| self.last_heartbeat_at.saturating_add(silence_ms))
    }

    /// Returns true if missing heartbeats have no effect: without a timeout, and while a managed lobby starts or stops.
    fn is_heartbeat_exempt(&self) -> bool {
        // A starting process may still wait for its build.
        self.heartbeat_timeout_ms == 0 || self.managed.is_some() && !self.is_ready || self.awaits_process_exit()
    }

    /// Returns true for a managed lobby that is stopping.
    fn awaits_process_exit(&self) -> bool {
        // No timeout ends the lobby, because players may still be in its process.
        self.managed.is_some() && self.is_stopping
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        self.is_silent &= !self.is_heartbeat_exempt();
    }

    pub(crate) fn group_key(&self) -> LobbyGroupKey {
        LobbyGroupKey { namespace: self.namespace, version: self.version, mode: self.mode, region: self.region }
    }

    pub(crate) fn is_trial(&self) -> bool {
        self.trial_until.is_some()
    }

    /// Returns the first time at which the lobby ends without a command, and the reason.
    pub(crate) fn end_deadline(&self) -> Option<(Ms, EndReason)> {
        let is_started = self.is_ready || self.is_stopping;
        let after_trial = if is_started { EndReason::Stopped } else { EndReason::StartTimeout };
        [
            self.start_timeout_at().map(|at| (at, EndReason::StartTimeout)),
            self.silent_end_at().map(|at| (at, EndReason::Silent)),
            self.trial_until.map(|at| (at, after_trial)),
        ]
        .into_iter()
        .flatten()
        .min_by_key(|(at, _)| *at)
    }

    pub(crate) fn idle_state(&self) -> IdleState {
        if self.is_stopping || self.is_trial() || self.counts.players() > 0 {
            IdleState::NotIdle
        } else if self.is_ready {
            IdleState::Empty(self.empty_since)
        } else if self.managed.is_some() && self.is_public {
            IdleState::Starting
        } else {
            IdleState::NotIdle
        }
    }

    pub(crate) fn phase(&self) -> LobbyPhase {
        if self.is_silent {
            LobbyPhase::Silent
        } else if !self.is_ready {
            LobbyPhase::Starting
        } else if self.is_closed || self.is_stopping {
            LobbyPhase::Closed
        } else {
            LobbyPhase::Ready
        }
    }
}

pub(crate) const NO_ENTRY: u32 = NONE;
