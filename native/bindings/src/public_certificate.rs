//! Certificate of the public listeners.

use std::path::PathBuf;
use std::sync::Arc;

use hosting_front::ServerCertificate;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "pyservice._native")]
pub struct PublicCertificate {
    pub certificate: Arc<ServerCertificate>,
}

#[pymethods]
impl PublicCertificate {
    #[staticmethod]
    fn read(cert: PathBuf, key: PathBuf) -> PyResult<PublicCertificate> {
        let certificate = ServerCertificate::read(&cert, &key).map_err(PyValueError::new_err)?;
        Ok(PublicCertificate { certificate })
    }

    fn reload(&self, cert: PathBuf, key: PathBuf) -> PyResult<()> {
        self.certificate.reload(&cert, &key).map_err(PyValueError::new_err)
    }

    fn end_s(&self) -> Option<i64> {
        self.certificate.end_s()
    }
}
