//! Python classes of facts and counts. Converts service time to wall-clock time.

use std::time::{SystemTime, UNIX_EPOCH};

use hosting_core::{Ended, Fact as CoreFact, LobbyAttendance, LobbyDetails, LobbyFactKind, Lsn, Ms};
use hosting_shard::Shard;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::reason_word;

/// Returns the current time in milliseconds since the Unix epoch.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Conversion of service time to the current wall clock.
#[derive(Clone, Copy)]
struct Wall {
    now_ms: u64,
    service_ms: Ms,
}

impl Wall {
    fn of(shard: &Shard) -> Wall {
        Wall { now_ms: wall_ms(), service_ms: shard.now() }
    }

    fn at(self, service_ms: Ms) -> u64 {
        self.now_ms.saturating_sub(self.service_ms.saturating_sub(service_ms))
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Fact {
    inner: CoreFact,
    #[pyo3(get)]
    ts_ms: u64,
}

impl Fact {
    fn of(inner: CoreFact, wall: Wall) -> Fact {
        let ts_ms = match (&inner.what, inner.at) {
            (LobbyFactKind::Created(about), _) => about.create_ts_ms,
            (_, 0) => 0,
            // The two clocks can differ by a millisecond.
            (LobbyFactKind::Ended(ended), at) => wall.at(at).max(ended.about.create_ts_ms),
            (_, at) => wall.at(at),
        };
        Fact { inner, ts_ms }
    }

    fn about(&self) -> Option<&LobbyDetails> {
        match &self.inner.what {
            LobbyFactKind::Created(about) => Some(about),
            LobbyFactKind::Ended(ended) => Some(&ended.about),
            LobbyFactKind::Ready | LobbyFactKind::Closed(_) | LobbyFactKind::Stopping => None,
        }
    }

    fn ended(&self) -> Option<&Ended> {
        if let LobbyFactKind::Ended(ended) = &self.inner.what { Some(ended) } else { None }
    }

    fn attendance(&self) -> Option<&LobbyAttendance> {
        self.ended().map(|ended| &ended.attendance)
    }
}

#[pymethods]
impl Fact {
    #[getter]
    fn lsn(&self) -> u64 {
        self.inner.lsn
    }
    #[getter]
    fn kind(&self) -> &'static str {
        match self.inner.what {
            LobbyFactKind::Created(_) => "made",
            LobbyFactKind::Ready => "ready",
            LobbyFactKind::Closed(true) => "closed",
            LobbyFactKind::Closed(false) => "opened",
            LobbyFactKind::Stopping => "stopping",
            LobbyFactKind::Ended(_) => "ended",
        }
    }
    #[getter]
    fn lobby<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.lobby.0)
    }
    #[getter]
    fn namespace<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.namespace.0)
    }
    #[getter]
    fn version<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.about().map(|about| PyBytes::new(py, &about.version.0))
    }
    #[getter]
    fn mode(&self) -> Option<&str> {
        self.about().map(|about| &*about.mode)
    }
    #[getter]
    fn region(&self) -> Option<&str> {
        self.about().map(|about| &*about.region)
    }
    #[getter]
    fn is_public(&self) -> Option<bool> {
        self.about().map(|about| about.is_public)
    }
    #[getter]
    fn max_players(&self) -> Option<(u32, u32, u32)> {
        self.about().map(|about| about.max_players.into())
    }
    #[getter]
    fn create_ts_ms(&self) -> Option<u64> {
        self.about().map(|about| about.create_ts_ms)
    }
    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.ended().map(|ended| reason_word(ended.reason))
    }
    #[getter]
    fn exit_code(&self) -> Option<i32> {
        self.ended().and_then(|ended| ended.exit_code)
    }
    #[getter]
    fn player_ms(&self) -> Option<u64> {
        self.attendance().map(|attendance| attendance.player_ms)
    }
    #[getter]
    fn peak_players(&self) -> Option<u32> {
        self.attendance().map(|attendance| attendance.peak_players)
    }
    #[getter]
    fn connections(&self) -> Option<u32> {
        self.attendance().map(|attendance| attendance.connections)
    }
    #[getter]
    fn players(&self) -> Option<(u32, u32, u32)> {
        self.ended().map(|ended| ended.players.into())
    }
}

/// Facts after an LSN, and the number of lost facts before them.
#[pyclass(frozen, module = "pyservice._native")]
pub struct Facts {
    #[pyo3(get)]
    facts: Vec<Py<Fact>>,
    #[pyo3(get)]
    oldest: u64,
    #[pyo3(get)]
    lost: u64,
}

/// Returns the durable facts after an LSN. The engine can have later facts.
pub fn read(py: Python<'_>, shard: &Shard, after: Lsn, limit: usize) -> PyResult<Facts> {
    let durable = shard.durable();
    let facts = shard.engine().read_facts(after, durable, limit);
    let wall = Wall::of(shard);
    let told = facts.facts.into_iter().map(|fact| Py::new(py, Fact::of(fact, wall)));
    Ok(Facts { facts: told.collect::<PyResult<_>>()?, oldest: facts.oldest, lost: facts.lost })
}
