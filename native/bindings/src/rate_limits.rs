//! Classes of rate limits: token buckets, and the limits of an operation.

use std::sync::Arc;

use hosting_matchmaker::{OperationLimits, ServiceError};
use pyo3::prelude::*;

use crate::errors::raised;

#[pyclass(frozen, module = "pyservice._native")]
pub struct Buckets(pub Arc<hosting_matchmaker::Buckets>);

#[pymethods]
impl Buckets {
    #[new]
    fn new(per_second: f64, burst: u32, max_keys: usize) -> Buckets {
        Buckets(Arc::new(hosting_matchmaker::Buckets::new(per_second, burst, max_keys)))
    }

    fn change(&self, per_second: f64, burst: u32) {
        self.0.change(per_second, burst);
    }

    fn take(&self, key: &[u8], now: f64) -> f64 {
        self.0.take(key, now)
    }

    fn put_back(&self, key: &[u8]) {
        self.0.put_back(key);
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

#[pyclass(name = "OperationLimits", frozen, module = "pyservice._native")]
pub struct NamedLimits {
    tokens: (String, Py<Buckets>),
    token_addresses: (String, Py<Buckets>),
    client_addresses: (String, Py<Buckets>),
    groups: (String, Py<Buckets>),
}

#[pymethods]
impl NamedLimits {
    #[new]
    fn new(
        tokens: (String, Py<Buckets>),
        token_addresses: (String, Py<Buckets>),
        client_addresses: (String, Py<Buckets>),
        groups: (String, Py<Buckets>),
    ) -> NamedLimits {
        NamedLimits { tokens, token_addresses, client_addresses, groups }
    }

    #[pyo3(signature = (token, address, group))]
    fn admit(&self, py: Python<'_>, token: Option<&[u8]>, address: &[u8], group: Option<&[u8]>) -> PyResult<()> {
        fn named((name, buckets): &(String, Py<Buckets>)) -> (&str, &hosting_matchmaker::Buckets) {
            (name, &buckets.get().0)
        }
        let limits = OperationLimits {
            tokens: named(&self.tokens),
            token_addresses: named(&self.token_addresses),
            client_addresses: named(&self.client_addresses),
            groups: named(&self.groups),
        };
        let limited = |(limit, wait_s): (&str, f64)| raised(py, &ServiceError::rate_limited(limit.to_owned(), wait_s));
        limits.admit(token, address, group).map_err(limited)
    }
}
