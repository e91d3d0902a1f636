//! Conversion to Python values: frozen classes, exceptions, ids and hashes.

use std::collections::HashMap;

use hosting_core as core;
use hosting_core::{EndReason, Id, Idempotency, Refusal};
use pyo3::exceptions::{PyBaseException, PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::servers::LeasedPort;

pyo3::create_exception!(pyservice._native, OpenFailed, PyException, "The data directory cannot be opened.");
// The attributes are set on each exception: a class of the stable ABI can extend an exception only from Python 3.12 on.
pyo3::create_exception!(pyservice._native, Refused, PyException, "The engine refused a command and changed nothing.");

/// Returns the word of an end reason in error metadata and metric labels.
pub fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Exited => "exited",
        EndReason::StartTimeout => "start_timeout",
        EndReason::Silent => "silent",
        EndReason::Removed => "removed",
        EndReason::Stopped => "stopped",
    }
}

/// Returns the exception `Refused` with its error code and typed context.
pub fn refused(py: Python<'_>, refusal: &Refusal, wait: u64) -> PyErr {
    let fill = |error: &Bound<'_, PyBaseException>| -> PyResult<()> {
        error.setattr(intern!(py, "slug"), refusal.slug())?;
        error.setattr(intern!(py, "wait"), wait)?;
        error.setattr(intern!(py, "context"), context(py, refusal)?)
    };
    let error = Refused::new_err(refusal.slug());
    fill(error.value(py)).err().unwrap_or(error)
}

fn context<'py>(py: Python<'py>, refusal: &Refusal) -> PyResult<Bound<'py, PyDict>> {
    let context = PyDict::new(py);
    match refusal {
        Refusal::LobbyStartFailed(reason, exit_code) => {
            context.set_item("reason", reason_word(*reason))?;
            if let Some(exit_code) = exit_code {
                context.set_item("exit_code", exit_code)?;
            }
        }
        Refusal::PartyTooLarge(limit) => context.set_item("limit", limit)?,
        Refusal::TokenInListInvalid(indexes) => context.set_item("indexes", PyTuple::new(py, indexes.iter())?)?,
        _ => {}
    }
    Ok(context)
}

/// Returns the value and LSN of an answer, or raises `Refused`.
pub fn settled<T>(py: Python<'_>, answer: core::Answer<T>) -> PyResult<(T, u64)> {
    match answer.result {
        Ok(value) => Ok((value, answer.wait)),
        Err(refusal) => Err(refused(py, &refusal, answer.wait)),
    }
}

pub fn id(bytes: &[u8]) -> PyResult<Id> {
    let bytes = bytes.try_into().map_err(|_| PyValueError::new_err("an id is 16 bytes"))?;
    Ok(Id(bytes))
}

/// Returns a random v4 UUID with the shard in its first 16 bits.
pub fn fresh_lobby_id(shard: u16) -> PyResult<Id> {
    let mut bytes: [u8; 16] = random_bytes()?;
    bytes[..2].copy_from_slice(&shard.to_be_bytes());
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Ok(Id(bytes))
}

pub fn random() -> PyResult<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

fn random_bytes<const N: usize>() -> PyResult<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: pointer and length belong to one live, writable array.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got != N as isize {
        return Err(PyValueError::new_err("the kernel gave no random bytes"));
    }
    Ok(bytes)
}

pub fn ids(list: &[Vec<u8>]) -> PyResult<Vec<Id>> {
    list.iter().map(|bytes| id(bytes)).collect()
}

pub fn key32(bytes: &[u8]) -> PyResult<[u8; 32]> {
    bytes.try_into().map_err(|_| PyValueError::new_err("a key is 32 bytes"))
}

pub fn idempotency(bytes: Option<&[u8]>) -> PyResult<Option<Idempotency>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let whole: [u8; 32] =
        bytes.try_into().map_err(|_| PyValueError::new_err("idempotency is 32 bytes of Engine.idempotency()"))?;
    let (mut key, mut message) = ([0; 16], [0; 16]);
    key.copy_from_slice(&whole[..16]);
    message.copy_from_slice(&whole[16..]);
    Ok(Some(Idempotency { key, message }))
}

pub fn idempotency_bytes<'py>(py: Python<'py>, hashes: Idempotency) -> Bound<'py, PyBytes> {
    let mut whole = [0; 32];
    whole[..16].copy_from_slice(&hashes.key);
    whole[16..].copy_from_slice(&hashes.message);
    PyBytes::new(py, &whole)
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Port {
    inner: core::Port,
}

#[pymethods]
impl Port {
    #[getter]
    fn name(&self) -> &str {
        &self.inner.name
    }
    #[getter]
    fn address(&self) -> &str {
        &self.inner.address
    }
    #[getter]
    fn port(&self) -> u16 {
        self.inner.port
    }
    #[getter]
    fn is_tls(&self) -> bool {
        self.inner.is_tls
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Lobby {
    pub inner: core::LobbyView,
}

#[pymethods]
impl Lobby {
    #[getter]
    fn id<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.id.0)
    }
    #[getter]
    fn namespace<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.namespace.0)
    }
    #[getter]
    fn version<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.inner.version.0)
    }
    #[getter]
    fn mode(&self) -> &str {
        &self.inner.mode
    }
    #[getter]
    fn region(&self) -> &str {
        &self.inner.region
    }
    #[getter]
    fn ports<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let ports: Vec<Port> = self.inner.ports.iter().map(|port| Port { inner: port.clone() }).collect();
        PyTuple::new(py, ports)
    }
    #[getter]
    fn max_players(&self) -> (u32, u32, u32) {
        self.inner.max_players.into()
    }
    #[getter]
    fn is_ready(&self) -> bool {
        self.inner.is_ready
    }
    #[getter]
    fn is_closed(&self) -> bool {
        self.inner.is_closed
    }
    #[getter]
    fn is_open(&self) -> bool {
        self.inner.is_open
    }
    #[getter]
    fn players(&self) -> (u32, u32, u32, u32) {
        self.inner.players.into()
    }
    #[getter]
    fn create_ts_ms(&self) -> u64 {
        self.inner.create_ts_ms
    }
    #[getter]
    fn is_ours(&self) -> bool {
        self.inner.own.is_some()
    }
    #[getter]
    fn is_public(&self) -> bool {
        self.inner.publicity == core::Publicity::Public
    }
    #[getter]
    fn is_stopping(&self) -> bool {
        self.inner.is_stopping
    }
    #[getter]
    fn tags(&self) -> HashMap<&str, &str> {
        self.inner.tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
    #[getter]
    fn leased<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let ports = self.inner.own.as_ref().map(|own| &*own.ports).unwrap_or_default();
        PyTuple::new(py, ports.iter().map(LeasedPort::of))
    }
    #[getter]
    fn lobby_config<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let config = self.inner.own.as_ref().and_then(|own| own.lobby_config.as_deref());
        config.map(|bytes| PyBytes::new(py, bytes))
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Placed {
    lobby: Option<Id>,
    tokens: Vec<String>,
    #[pyo3(get)]
    hold: u64,
    #[pyo3(get)]
    wait: u64,
}

#[pymethods]
impl Placed {
    #[getter]
    fn lobby<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.lobby.as_ref().map_or(&[][..], |id| &id.0[..]))
    }
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tokens)
    }
}

impl Placed {
    pub fn reserved(reservation: core::Reservation, wait: u64) -> Placed {
        Placed { lobby: Some(reservation.lobby), tokens: reservation.tokens, hold: 0, wait }
    }

    /// Converts an admission. `lobby` is the starting lobby of a hold.
    pub fn of(placed: core::Admission, lobby: Option<Id>, wait: u64) -> Placed {
        match placed {
            core::Admission::Reserved(reservation) => Placed::reserved(reservation, wait),
            core::Admission::Held(hold) => Placed { lobby, tokens: Vec::new(), hold: hold.0, wait },
        }
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Resolved {
    #[pyo3(get)]
    hold: u64,
    #[pyo3(get)]
    placed: Option<Py<Placed>>,
    #[pyo3(get)]
    refusal: Option<Py<PyAny>>,
}

impl Resolved {
    pub fn of(py: Python<'_>, resolved: core::ResolvedHold) -> PyResult<Resolved> {
        let hold = resolved.hold.0;
        let wait = resolved.answer.wait;
        Ok(match resolved.answer.result {
            Ok(reservation) => {
                let placed = Py::new(py, Placed::reserved(reservation, wait))?;
                Resolved { hold, placed: Some(placed), refusal: None }
            }
            Err(refusal) => {
                let error = refused(py, &refusal, wait).into_value(py).into_any();
                Resolved { hold, placed: None, refusal: Some(error) }
            }
        })
    }
}
