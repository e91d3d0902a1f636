//! Certificate of the public listeners.

use std::path::PathBuf;
use std::sync::Arc;

use hosting_front::{Acme, AcmeOptions, Notice, ServerCertificate};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(frozen, module = "pyservice._native")]
pub struct PublicCertificate {
    pub certificate: Arc<ServerCertificate>,
    acme: Option<Acme>,
}

#[pymethods]
impl PublicCertificate {
    #[staticmethod]
    fn read(cert: PathBuf, key: PathBuf) -> PyResult<PublicCertificate> {
        let certificate = ServerCertificate::read(&cert, &key).map_err(PyValueError::new_err)?;
        Ok(PublicCertificate { certificate, acme: None })
    }

    #[staticmethod]
    fn judge(cert: PathBuf, key: PathBuf, server_names: Vec<String>) -> (Vec<String>, Vec<String>, Vec<String>) {
        let findings = hosting_tls::judge_files(&cert, &key, &server_names);
        (findings.problems, findings.invalid_now, findings.warnings)
    }

    #[staticmethod]
    fn order(
        domains: Vec<String>,
        contact: String,
        directory: String,
        root: Option<PathBuf>,
        folder: PathBuf,
    ) -> PyResult<PublicCertificate> {
        let acme = Acme::start(AcmeOptions { domains, contact, directory, root, folder })?;
        Ok(PublicCertificate { certificate: acme.certificate(), acme: Some(acme) })
    }

    fn reload(&self, cert: PathBuf, key: PathBuf) -> PyResult<()> {
        self.certificate.reload(&cert, &key).map_err(PyValueError::new_err)
    }

    fn end_s(&self) -> Option<i64> {
        self.certificate.end_s()
    }

    fn take_notices(&self) -> Vec<(bool, String)> {
        let notices = self.acme.as_ref().map(Acme::take_notices).unwrap_or_default();
        notices.into_iter().map(|Notice { is_problem, text }| (is_problem, text)).collect()
    }
}
