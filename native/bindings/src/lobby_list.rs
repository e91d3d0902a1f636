//! Parts of the lobby list for Python.

use hosting_core::ListedLobby as CoreListedLobby;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::ListedLobby;

#[pyclass(frozen, module = "pyservice._native")]
pub struct ListPart(pub hosting_matchmaker::ListPart);

#[pymethods]
impl ListPart {
    #[getter]
    fn json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.json)
    }
    #[getter]
    fn count(&self) -> usize {
        self.0.lobbies.len()
    }
    #[getter]
    fn lobbies(&self) -> Vec<ListedLobby> {
        let listed = |lobby: &CoreListedLobby| ListedLobby { inner: lobby.clone() };
        self.0.lobbies.iter().map(listed).collect()
    }
    #[getter]
    fn following(&self) -> Option<u64> {
        self.0.following
    }
    #[getter]
    fn is_full(&self) -> bool {
        self.0.is_full
    }
}
