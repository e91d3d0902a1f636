//! What a lobby is made of. Changes come from events only (`engine::apply`), but for the fields that say "memory only".

use crate::command::{HoldId, Id, Lsn, Ms, Port};
use crate::fact_outbox::LobbyAttendance;
use crate::idle_lobbies::{IdleState, LobbyGroupKey};
use crate::journal_event::LobbyDefinition;
use crate::service_time::SILENT_TIMEOUTS_UNTIL_END;
use crate::slot::SlotTable;
use crate::timer_wheel::{NONE, TimerLinks};

/// Which limit a call is admitted under (decisions 5.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// find.
    Find = 0,
    /// join and create of one.
    Direct = 1,
    /// join and create of a party.
    Party = 2,
}

impl Limit {
    /// That of join and create for so many.
    pub(crate) fn of_direct(players: u32) -> Limit {
        if players > 1 { Limit::Party } else { Limit::Direct }
    }
}

/// Places by state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlotCounts {
    /// Memory only: of holds, without a slot yet.
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

/// What a lobby counts as in metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LobbyPhase {
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
    pub(crate) counts: SlotCounts,
    pub(crate) attendance: LobbyAttendance,
    pub(crate) slots: SlotTable,
    pub(crate) limits: [u32; 3],
    /// The largest limit: how many slots there are.
    pub(crate) capacity: u32,
    pub(crate) player_token_ttl_ms: u64,
    /// Memory only: when its timer in the wheel fires; its next deadline may be later.
    pub(crate) timer_at: Ms,
    /// Memory only: when its server was heard last; looked at while it may not be silent.
    pub(crate) last_heartbeat_at: Ms,
    pub(crate) is_ready: bool,
    pub(crate) is_closed: bool,
    pub(crate) is_stopping: bool,
    pub(crate) is_public: bool,
    pub(crate) is_join_enabled: bool,
    /// Memory only: silent for longer than its heartbeat timeout.
    pub(crate) is_silent: bool,
    /// Memory only: the find index has yet to look at it.
    pub(crate) is_find_index_stale: bool,
    /// Memory only: as what the namespace counts it.
    pub(crate) class: LobbyPhase,
    /// Memory only: where it stands in the find index: (ready, key).
    pub(crate) indexed: Option<(bool, u64)>,
    /// Memory only: until when it has to be ready.
    pub(crate) start_by: Ms,
    pub(crate) timer: TimerLinks,
    /// Memory only: holds in order of arrival.
    pub(crate) holds: Vec<HoldId>,
    pub(crate) heartbeat_timeout_ms: u64,
    pub(crate) heartbeat_grace_ms: u64,
    pub(crate) version: Id,
    /// LSN of its `LobbyMade`: its age.
    pub(crate) created_lsn: Lsn,
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
    /// Ours to start, with what its process gets.
    pub(crate) managed: Option<ManagedLobby>,
    /// Memory only: since when nobody is in it; anything while somebody is.
    pub(crate) empty_since: Ms,
    /// Memory only: as what the supply counts it, and whether it counts it as live.
    pub(crate) idle_state: IdleState,
    pub(crate) is_counted_live: bool,
    /// Memory only: the supply has yet to look at it.
    pub(crate) is_idle_state_stale: bool,
}

/// What a lobby has that the service starts.
#[derive(Debug, Default)]
pub(crate) struct ManagedLobby {
    /// JSON text that create was given; empty: none.
    pub(crate) lobby_config: Box<[u8]>,
}

impl Lobby {
    /// As it is when it was just made, before anything is derived. Mode, region and tags are symbols.
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
            empty_since: 0,
            idle_state: IdleState::NotIdle,
            is_counted_live: false,
            is_idle_state_stale: false,
        }
    }

    /// True when `places` more players stay within the limit.
    pub(crate) fn fits(&self, limit: Limit, players: u32) -> bool {
        let limit = self.limits[limit as usize].min(self.capacity - self.slots.exhausted);
        self.counts.players() + players <= limit
    }

    /// Free places under the limit of find.
    pub(crate) fn free_to_find(&self) -> u32 {
        self.limits[Limit::Find as usize]
            .min(self.capacity - self.slots.exhausted)
            .saturating_sub(self.counts.players())
    }

    pub(crate) fn is_findable(&self) -> bool {
        self.is_public && !self.is_closed && !self.is_stopping && !self.is_silent
    }

    /// Its own next deadline: start limit, hiding, silent end.
    pub(crate) fn next_deadline(&self) -> Option<Ms> {
        let silence = if self.is_silent { self.silent_end_at() } else { self.hidden_at() };
        self.start_timeout_at().into_iter().chain(silence).min()
    }

    /// When it ends if it is not ready before.
    pub(crate) fn start_timeout_at(&self) -> Option<Ms> {
        (!self.is_ready && !self.awaits_process_exit()).then_some(self.start_by)
    }

    /// When it is hidden if nothing is heard of it before: it is silent for longer than its timeout then.
    pub(crate) fn hidden_at(&self) -> Option<Ms> {
        let is_over = self.last_heartbeat_at.saturating_add(self.heartbeat_timeout_ms).saturating_add(1);
        (!self.is_heartbeat_exempt()).then_some(is_over)
    }

    /// When it ends if nothing is heard of it before.
    pub(crate) fn silent_end_at(&self) -> Option<Ms> {
        let silence_ms = self.heartbeat_timeout_ms.saturating_mul(SILENT_TIMEOUTS_UNTIL_END);
        (!self.is_heartbeat_exempt()).then(|| self.last_heartbeat_at.saturating_add(silence_ms))
    }

    /// Nobody has to hear of it: its mode does not want that, or it is ours and starts or stops. Its process may be waiting
    /// for room or for its build, and how long that may take the start limit says; or it says goodbye to its players.
    fn is_heartbeat_exempt(&self) -> bool {
        self.heartbeat_timeout_ms == 0 || self.managed.is_some() && !self.is_ready || self.awaits_process_exit()
    }

    /// It is being stopped, and ends when its process is over: time alone does not end it, its players may still be there.
    fn awaits_process_exit(&self) -> bool {
        self.managed.is_some() && self.is_stopping
    }

    /// It is being stopped from now on.
    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
        self.is_silent &= !self.is_heartbeat_exempt();
    }

    pub(crate) fn group_key(&self) -> LobbyGroupKey {
        LobbyGroupKey { namespace: self.namespace, version: self.version, mode: self.mode, region: self.region }
    }

    /// As what the supply has to count it now.
    pub(crate) fn idle_state(&self) -> IdleState {
        if self.is_stopping || self.counts.players() > 0 {
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

/// Entry number that means "none".
pub(crate) const NO_ENTRY: u32 = NONE;
