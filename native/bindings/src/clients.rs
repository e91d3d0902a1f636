//! Limits on the clients of Python's own listeners.

use hosting_front::{Admission, ClientKey, ConnectionBudget as Budget};
use ipnet::{AddrParseError, IpNet};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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

pub fn client_key(bytes: &[u8]) -> PyResult<ClientKey> {
    ClientKey::from_bytes(bytes).ok_or_else(|| PyValueError::new_err("a client has 4 or 8 bytes"))
}

pub fn parse_networks(texts: &[String]) -> PyResult<Vec<IpNet>> {
    let network = |text: &String| text.parse().map_err(|error: AddrParseError| error.to_string());
    texts.iter().map(network).collect::<Result<_, _>>().map_err(PyValueError::new_err)
}
