//! Measurement of one request that hyper has read, over HTTP or gRPC.

use std::sync::Arc;
use std::time::Instant;

use http::header::HeaderMap;

use crate::measurements::code_number;
use crate::measurements::measurer::{Measurer, RequestRecord};
use crate::measurements::pass_reason::PassReason;
use crate::requests::internal_headers;
use crate::requests::ray_id::RayId;
use crate::requests::trace_context::Trace;
use crate::responses::decider::Decided;
use crate::responses::problems::Problem;

/// Counts one request when it is answered, or as cancelled when it is dropped before.
pub struct RequestMeasurement {
    measurer: Arc<Measurer>,
    ray_id: RayId,
    trace: Option<Trace>,
    started: Instant,
    /// Number of the operation. None: nothing is left to count.
    pub operation: Option<usize>,
    /// Why the request is passed on to Python, if it is.
    pub reason: PassReason,
}

impl RequestMeasurement {
    pub fn new(measurer: &Arc<Measurer>, ray_id: RayId, trace: Option<Trace>, operation: Option<usize>) -> Self {
        let (measurer, started, reason) = (measurer.clone(), Instant::now(), PassReason::Operation);
        RequestMeasurement { measurer, ray_id, trace, started, operation, reason }
    }

    /// Returns the measurement of a request that goes on elsewhere.
    pub fn take(&mut self) -> RequestMeasurement {
        let (measurer, operation) = (self.measurer.clone(), self.operation.take());
        RequestMeasurement { measurer, operation, ..*self }
    }

    /// Counts a request that Python has answered with these headers or trailers.
    pub fn end_passed(&mut self, headers: &HeaderMap, is_ok: bool) {
        let named = internal_headers::code(headers).and_then(code_number::of_name);
        let unnamed = if is_ok { code_number::OK } else { code_number::of(Problem::Internal.code()) };
        self.count_passed(named.unwrap_or(unnamed));
    }

    /// Counts a request that the front has decided at `executed_at`.
    pub fn end_decided(&mut self, decided: &Decided, executed_at: Instant) {
        let Some(operation) = self.operation.take() else { return };
        let record = RequestRecord {
            ray_id: self.ray_id,
            trace: self.trace,
            operation,
            caller: decided.subject,
            code: decided.code(),
            exceeded: decided.exceeded,
            started: self.started,
            executed: executed_at,
            ended: executed_at,
        };
        self.measurer.count(&[record], Instant::now());
    }

    /// Counts and records a request that the front has answered.
    pub fn end_here(&mut self, code: usize) {
        let Some(operation) = self.operation.take() else { return };
        self.measurer.count_own(self.ray_id, self.trace, operation, code, self.started);
    }

    fn count_passed(&mut self, code: usize) {
        let Some(operation) = self.operation.take() else { return };
        self.measurer.count_passed(operation, code, self.reason, self.started.elapsed());
    }
}

impl Drop for RequestMeasurement {
    fn drop(&mut self) {
        self.count_passed(code_number::CANCELLED);
    }
}
