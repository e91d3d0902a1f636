//! Conversion of Python values: exceptions, ids, hashes, and frozen classes of lobbies.

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use hosting_core as core;
use hosting_core::{Id, Idempotency, Refusal};
use hosting_matchmaker::ServiceError;
use pyo3::exceptions::{PyBaseException, PyException, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::errors::service_error;
use crate::leased_port::LeasedPort;

pyo3::create_exception!(pyservice._native, OpenFailed, PyException, "The data directory cannot be opened.");
// The attributes are set on each exception: a class of the stable ABI can extend an exception only from Python 3.12 on.
pyo3::create_exception!(pyservice._native, Refused, PyException, "The engine refused a command and changed nothing.");

pub fn tag_pairs(tags: &[(String, String)]) -> Vec<(&str, &str)> {
    let mut pairs: Vec<_> = tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    pairs.sort_unstable();
    pairs
}

pub fn ids(list: Vec<IdBytes>) -> Vec<Id> {
    list.into_iter().map(|id| id.0).collect()
}

pub use hosting_matchmaker::reason_word;

/// Returns the exception `Refused` with its error. The error may be sent once the LSN `wait` is durable.
fn refused(py: Python<'_>, refusal: &Refusal, wait: u64) -> PyErr {
    let fill = |exception: &Bound<'_, PyBaseException>| -> PyResult<()> {
        exception.setattr(intern!(py, "wait"), wait)?;
        exception.setattr(intern!(py, "error"), service_error(py, &ServiceError::from(refusal))?)
    };
    let exception = Refused::new_err(refusal.slug());
    fill(exception.value(py)).err().unwrap_or(exception)
}

/// Returns the value and LSN of an answer, or raises `Refused`.
pub fn resolve_outcome<T>(answer: core::CommandOutcome<T>) -> PyResult<(T, u64)> {
    let wait = answer.wait;
    answer.result.map(|value| (value, wait)).map_err(|refusal| Python::attach(|py| refused(py, &refusal, wait)))
}

/// Returns the LSN of an answer, or raises `Refused`.
pub fn resolve_lsn<T>(answer: core::CommandOutcome<T>) -> PyResult<u64> {
    resolve_outcome(answer).map(|(_, wait)| wait)
}

fn array<const N: usize>(value: Borrowed<'_, '_, PyAny>, rule: &'static str) -> PyResult<[u8; N]> {
    value.cast::<PyBytes>()?.as_bytes().try_into().map_err(|_| PyValueError::new_err(rule))
}

#[derive(Clone, Copy, Default)]
pub struct IdBytes(pub Id);

impl<'a, 'py> FromPyObject<'a, 'py> for IdBytes {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<IdBytes> {
        array(value, "an id is 16 bytes").map(|bytes| IdBytes(Id(bytes)))
    }
}

impl<'py> IntoPyObject<'py> for IdBytes {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        Ok(PyBytes::new(py, &self.0.0))
    }
}

pub struct KeyBytes(pub [u8; 32]);

impl<'a, 'py> FromPyObject<'a, 'py> for KeyBytes {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<KeyBytes> {
        array(value, "a key is 32 bytes").map(KeyBytes)
    }
}

/// Key hash and message hash of a request, together 32 bytes.
#[derive(Clone, Copy)]
pub struct IdempotencyBytes(pub Idempotency);

impl<'a, 'py> FromPyObject<'a, 'py> for IdempotencyBytes {
    type Error = PyErr;

    fn extract(value: Borrowed<'a, 'py, PyAny>) -> PyResult<IdempotencyBytes> {
        let whole: [u8; 32] = array(value, "idempotency is 32 bytes of Engine.idempotency()")?;
        let (mut key, mut message) = ([0; 16], [0; 16]);
        key.copy_from_slice(&whole[..16]);
        message.copy_from_slice(&whole[16..]);
        Ok(IdempotencyBytes(Idempotency { key, message }))
    }
}

impl<'py> IntoPyObject<'py> for IdempotencyBytes {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Infallible> {
        let Idempotency { key, message } = self.0;
        Ok(PyBytes::new(py, &[key, message].concat()))
    }
}

/// Values that Python sees as a tuple.
pub struct Sequence<T>(pub Vec<T>);

impl<'py, T: IntoPyObject<'py>> IntoPyObject<'py> for Sequence<T> {
    type Target = PyTuple;
    type Output = Bound<'py, PyTuple>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        PyTuple::new(py, self.0)
    }
}

/// Returns a random v4 UUID with the shard in its first 16 bits.
pub fn random_lobby_id(shard: u16) -> PyResult<Id> {
    let mut bytes: [u8; 16] = random_bytes()?;
    bytes[..2].copy_from_slice(&shard.to_be_bytes());
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Ok(Id(bytes))
}

pub fn random_u64() -> PyResult<u64> {
    random_bytes().map(u64::from_ne_bytes)
}

fn random_bytes<const N: usize>() -> PyResult<[u8; N]> {
    let mut bytes = [0_u8; N];
    // SAFETY: pointer and length belong to one live, writable array.
    let filled_bytes = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if filled_bytes != N as isize {
        return Err(PyValueError::new_err("the kernel gave no random bytes"));
    }
    Ok(bytes)
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Port {
    name: String,
    address: String,
    port: u16,
    is_tls: bool,
}

impl From<core::Port> for Port {
    fn from(core::Port { name, address, port, is_tls }: core::Port) -> Port {
        Port { name, address, port, is_tls }
    }
}

/// Snapshot of a lobby. Each property is converted when Python reads it, because most callers read only a few
/// properties.
#[pyclass(frozen, module = "pyservice._native")]
pub struct Lobby {
    pub inner: core::LobbyView,
}

#[pymethods]
impl Lobby {
    #[getter]
    fn id(&self) -> IdBytes {
        IdBytes(self.inner.id)
    }
    #[getter]
    fn namespace(&self) -> IdBytes {
        IdBytes(self.inner.namespace)
    }
    #[getter]
    fn version(&self) -> IdBytes {
        IdBytes(self.inner.version)
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
    fn ports(&self) -> Sequence<Port> {
        Sequence(self.inner.ports.iter().cloned().map(Port::from).collect())
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
    fn is_trial(&self) -> bool {
        self.inner.is_trial
    }
    #[getter]
    fn tags(&self) -> HashMap<&str, &str> {
        self.inner.tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }
    #[getter]
    fn leased(&self) -> Sequence<LeasedPort> {
        Sequence(self.inner.own.as_ref().map(|own| LeasedPort::all(&own.leased)).unwrap_or_default())
    }
    #[getter]
    fn lobby_config(&self) -> Option<&[u8]> {
        self.inner.own.as_ref().and_then(|own| own.lobby_config.as_deref())
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Placed {
    #[pyo3(get)]
    pub lobby: IdBytes,
    pub tokens: Vec<String>,
    #[pyo3(get)]
    hold: u64,
    #[pyo3(get)]
    pub wait: u64,
}

#[pymethods]
impl Placed {
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.tokens)
    }
}

impl Placed {
    fn reserved(reservation: core::Reservation, wait: u64) -> Placed {
        Placed { lobby: IdBytes(reservation.lobby), tokens: reservation.tokens, hold: 0, wait }
    }

    /// Converts an admission, which may be sent once the LSN `wait` is durable. `lobby` is the starting lobby of a
    /// hold.
    pub fn of(placed: core::Admission, lobby: Option<Id>, wait: u64) -> Placed {
        match placed {
            core::Admission::Reserved(reservation) => Placed::reserved(reservation, wait),
            core::Admission::Hold(hold) => {
                Placed { lobby: IdBytes(lobby.unwrap_or_default()), tokens: Vec::new(), hold: hold.0, wait }
            }
        }
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Resolved {
    hold: u64,
    placed: Option<Py<Placed>>,
    refusal: Option<Py<PyBaseException>>,
}

impl Resolved {
    pub fn of(py: Python<'_>, resolved: core::ResolvedHold) -> PyResult<Resolved> {
        let (hold, wait) = (resolved.hold.0, resolved.outcome.wait);
        Ok(match resolved.outcome.result {
            Ok(reservation) => {
                Resolved { hold, placed: Some(Py::new(py, Placed::reserved(reservation, wait))?), refusal: None }
            }
            Err(refusal) => Resolved { hold, placed: None, refusal: Some(refused(py, &refusal, wait).into_value(py)) },
        })
    }
}

/// Returns a copy of a descriptor that the caller keeps open during the call.
pub fn copied(descriptor: RawFd) -> PyResult<OwnedFd> {
    // SAFETY: see above.
    Ok(unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned()?)
}
