//! Conversion of errors from and to `pyservice.errors`, and their forms in HTTP and gRPC.

use hosting_matchmaker::{Code, FieldProblem, ServiceError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyTuple, PyType};

/// Returns a `ServiceError` of `pyservice.errors`.
pub fn service_error<'py>(py: Python<'py>, error: &ServiceError) -> PyResult<Bound<'py, PyAny>> {
    static SERVICE_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static FIELD_PROBLEM: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let problem_type = FIELD_PROBLEM.import(py, "pyservice.errors", "FieldProblem")?;
    let problem = |problem: &FieldProblem| problem_type.call1((PyTuple::new(py, problem.path())?, problem.message()));
    let details = PyDict::new(py);
    let problems: Vec<_> = error.problems().iter().map(problem).collect::<PyResult<_>>()?;
    details.set_item("errors", problems)?;
    let metadata = PyDict::new(py);
    for (name, value) in error.metadata() {
        metadata.set_item(name, value)?;
    }
    details.set_item("metadata", metadata)?;
    details.set_item("retry_after_s", error.retry_after_s())?;
    let service_error = SERVICE_ERROR.import(py, "pyservice.errors", "ServiceError")?;
    service_error.call((error.code.slug(), error.detail()), Some(&details))
}

pub fn raised(py: Python<'_>, error: &ServiceError) -> PyErr {
    service_error(py, error).map_or_else(|error| error, PyErr::from_value)
}

/// Attributes of `pyservice.errors.ServiceError`.
#[derive(FromPyObject)]
pub struct ErrorArgument<'py> {
    code: String,
    detail: String,
    errors: Vec<ProblemArgument>,
    metadata: Bound<'py, PyMapping>,
    retry_after_s: Option<u32>,
}

/// Attributes of `pyservice.errors.FieldProblem`.
#[derive(FromPyObject)]
struct ProblemArgument {
    path: Vec<String>,
    message: String,
    omitted_count: usize,
}

impl ErrorArgument<'_> {
    fn error(self) -> PyResult<ServiceError> {
        let code = Code::of_slug(&self.code).ok_or_else(|| PyValueError::new_err(self.code))?;
        let mut error = ServiceError::from(code).with_detail(self.detail);
        for ProblemArgument { path, message, omitted_count } in self.errors {
            error = error.with_problem(match omitted_count {
                0 => FieldProblem::described(path, message),
                count => FieldProblem::omitted(count),
            });
        }
        for (name, value) in self.metadata.items()?.extract::<Vec<(String, String)>>()? {
            error = error.with_metadata(name, value);
        }
        Ok(self.retry_after_s.into_iter().fold(error, |error, wait_s| error.with_retry_after(wait_s.into())))
    }
}

/// Returns the body of the HTTP response.
#[pyfunction]
pub fn problem_json<'py>(py: Python<'py>, error: ErrorArgument<'py>, ray_id: &str) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &error.error()?.problem_json(ray_id)))
}

/// Returns the `google.rpc.Status` of the gRPC response.
#[pyfunction]
pub fn grpc_status<'py>(py: Python<'py>, error: ErrorArgument<'py>) -> PyResult<Bound<'py, PyBytes>> {
    Ok(PyBytes::new(py, &error.error()?.grpc_status()))
}
