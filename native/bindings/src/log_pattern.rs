//! Python class of a regular expression for lines of logs. Each search takes linear time.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use regex::{Regex, RegexBuilder};

/// Limit of the memory of a compiled expression.
const SIZE_MAX: usize = 1 << 20;

#[pyclass(frozen, module = "pyservice._native")]
pub struct LogPattern(Regex);

#[pymethods]
impl LogPattern {
    #[new]
    fn new(expression: &str) -> PyResult<LogPattern> {
        let compiled = RegexBuilder::new(expression).size_limit(SIZE_MAX).dfa_size_limit(SIZE_MAX).build();
        compiled.map(LogPattern).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn matches(&self, py: Python<'_>, line: &str) -> bool {
        py.detach(|| self.0.is_match(line))
    }
}
