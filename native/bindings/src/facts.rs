//! Python classes of lobby facts. Converts service time to wall-clock time.

use hosting_core as core;
use hosting_core::{LobbyFactKind, Lsn, Ms};
use hosting_matchmaker::wall_ms;
use hosting_shard::Shard;
use pyo3::prelude::*;

use crate::convert::{IdBytes, reason_word};

/// Conversion of service time to the current wall clock.
#[derive(Clone, Copy)]
struct WallClock {
    now_ms: u64,
    service_ms: Ms,
}

impl WallClock {
    fn now(shard: &Shard) -> WallClock {
        WallClock { now_ms: wall_ms(), service_ms: shard.now() }
    }

    fn at(self, service_ms: Ms) -> u64 {
        self.now_ms.saturating_sub(self.service_ms.saturating_sub(service_ms))
    }
}

#[derive(Default)]
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Fact {
    lsn: u64,
    kind: &'static str,
    ts_ms: u64,
    lobby: IdBytes,
    namespace: IdBytes,
    version: Option<IdBytes>,
    mode: Option<String>,
    region: Option<String>,
    is_public: Option<bool>,
    is_trial: Option<bool>,
    max_players: Option<(u32, u32, u32)>,
    create_ts_ms: Option<u64>,
    reason: Option<&'static str>,
    exit_code: Option<i32>,
    player_ms: Option<u64>,
    peak_players: Option<u32>,
    connections: Option<u32>,
    players: Option<(u32, u32, u32)>,
}

impl Fact {
    fn from_core(fact: core::Fact, wall_clock: WallClock) -> Fact {
        let (lobby, namespace) = (IdBytes(fact.lobby), IdBytes(fact.namespace));
        let ts_ms = if fact.at == 0 { 0 } else { wall_clock.at(fact.at) };
        let with_kind = |kind| Fact { lsn: fact.lsn, kind, ts_ms, lobby, namespace, ..Fact::default() };
        match fact.kind {
            LobbyFactKind::Created(details) => {
                Fact { ts_ms: details.create_ts_ms, ..with_kind("made") }.with_details(*details)
            }
            LobbyFactKind::Ready => with_kind("ready"),
            LobbyFactKind::Closed(true) => with_kind("closed"),
            LobbyFactKind::Closed(false) => with_kind("opened"),
            LobbyFactKind::Stopping => with_kind("stopping"),
            LobbyFactKind::Ended(ended) => {
                let core::LobbyAttendance { player_ms, peak_players, connections } = ended.attendance;
                Fact {
                    // The two clocks can differ by a millisecond.
                    ts_ms: if ts_ms == 0 { 0 } else { ts_ms.max(ended.details.create_ts_ms) },
                    reason: Some(reason_word(ended.reason)),
                    exit_code: ended.exit_code,
                    player_ms: Some(player_ms),
                    peak_players: Some(peak_players),
                    connections: Some(connections),
                    players: Some(ended.players.into()),
                    ..with_kind("ended")
                }
                .with_details(ended.details)
            }
        }
    }

    fn with_details(self, details: core::LobbyDetails) -> Fact {
        Fact {
            version: Some(IdBytes(details.version)),
            mode: Some(details.mode.into()),
            region: Some(details.region.into()),
            is_public: Some(details.is_public),
            is_trial: Some(details.is_trial),
            max_players: Some(details.max_players.into()),
            create_ts_ms: Some(details.create_ts_ms),
            ..self
        }
    }
}

/// Facts after an LSN, and the number of earlier facts dropped unread.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Facts {
    facts: Vec<Py<Fact>>,
    oldest: u64,
    lost: u64,
}

pub fn read_facts(py: Python<'_>, shard: &Shard, after: Lsn, limit: usize) -> PyResult<Facts> {
    let durable = shard.durable();
    let facts = shard.engine().read_facts(after, durable, limit);
    let wall_clock = WallClock::now(shard);
    let (oldest, lost) = (facts.oldest, facts.lost);
    let facts =
        facts.facts.into_iter().map(|fact| Py::new(py, Fact::from_core(fact, wall_clock))).collect::<PyResult<_>>()?;
    Ok(Facts { facts, oldest, lost })
}
