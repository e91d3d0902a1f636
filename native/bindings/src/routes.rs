//! `Routes` class: the operations by method and path, for the Python servers.

use std::collections::HashMap;

use hosting_front::{Plane, RouteOptions, Routes};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

#[pyclass(name = "Routes", frozen, module = "pyservice._native")]
pub struct OperationRoutes(Routes);

#[pymethods]
impl OperationRoutes {
    #[new]
    fn new(routes: Vec<(String, String, String)>) -> PyResult<OperationRoutes> {
        let route = |(method, template, slug)| RouteOptions {
            method,
            template,
            slug,
            plane: Plane::Data,
            body_bytes_max: 0,
            needs_token: false,
        };
        Routes::new(routes.into_iter().map(route)).map(OperationRoutes).map_err(PyValueError::new_err)
    }

    fn find(&self, method: &str, path: &str) -> Option<(&str, HashMap<String, String>)> {
        let (slug, parameters) = self.0.find_with_parameters(method, path)?;
        Some((slug, parameters.into_iter().collect()))
    }

    fn methods(&self, path: &str) -> Vec<&str> {
        self.0.methods(path)
    }
}
