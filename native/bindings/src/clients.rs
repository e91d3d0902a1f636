//! Classes and functions for the clients of Python's own listeners: addresses, limits, and reading progress.

use std::net::IpAddr;
use std::os::fd::RawFd;

use hosting_client_addresses::{ClientKey, contains, forwarded_client};
use hosting_front::{Admission, ConnectionBudget as Budget};
use ipnet::{AddrParseError, IpNet};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

#[pyclass(frozen, module = "pyservice._native")]
pub struct ConnectionBudget(Budget);

#[pymethods]
impl ConnectionBudget {
    #[new]
    fn new(most: usize) -> ConnectionBudget {
        ConnectionBudget(Budget::new(most))
    }

    fn admit(&self, client: Option<&[u8]>) -> PyResult<Option<ConnectionAdmission>> {
        let admission = self.0.admit(client.map(client_key).transpose()?);
        Ok(admission.filter(Admission::keep).map(ConnectionAdmission))
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct ConnectionAdmission(#[expect(dead_code, reason = "its drop ends the connection")] Admission);

#[pyclass(frozen, module = "pyservice._native")]
pub struct TrustedProxies(Vec<IpNet>);

#[pymethods]
impl TrustedProxies {
    #[new]
    fn new(networks: Vec<String>) -> PyResult<TrustedProxies> {
        parse_networks(&networks).map(TrustedProxies)
    }

    fn trusts(&self, address: IpAddr) -> bool {
        contains(&self.0, address)
    }

    fn client(&self, peer: IpAddr, forwarded_for: Vec<Vec<u8>>) -> IpAddr {
        if !self.trusts(peer) {
            return peer;
        }
        forwarded_client(&self.0, peer, forwarded_for.iter().map(Vec::as_slice))
    }
}

#[pyfunction]
pub fn packed_client(py: Python<'_>, address: IpAddr) -> Bound<'_, PyBytes> {
    PyBytes::new(py, ClientKey::of(address).as_bytes())
}

/// Returns the trace id and the span id of a valid header `traceparent`.
#[pyfunction]
pub fn read_trace(traceparent: &str) -> Option<(String, String)> {
    let trace = hosting_front::trace(traceparent.as_bytes())?;
    let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    Some((text(&trace.id.digits()), text(&trace.parent_span)))
}

#[pyfunction]
pub fn coordinates(text: &str) -> Option<(f64, f64)> {
    hosting_front::coordinates(text.as_bytes())
}

#[pyfunction]
pub fn acked_bytes(descriptor: RawFd) -> Option<u64> {
    hosting_front::acked_bytes(descriptor)
}

pub fn client_key(bytes: &[u8]) -> PyResult<ClientKey> {
    ClientKey::from_bytes(bytes).ok_or_else(|| PyValueError::new_err("a client has 4 or 8 bytes"))
}

pub fn parse_networks(texts: &[String]) -> PyResult<Vec<IpNet>> {
    let network = |text: &String| text.parse().map_err(|error: AddrParseError| error.to_string());
    texts.iter().map(network).collect::<Result<_, _>>().map_err(PyValueError::new_err)
}
