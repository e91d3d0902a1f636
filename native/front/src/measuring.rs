//! Measurement of one request that hyper has read, over HTTP or gRPC.

use std::rc::Rc;
use std::time::Instant;

use http::header::HeaderMap;

use crate::codes::CANCELLED;
use crate::front::ThreadContext;
use crate::internal_headers;
use crate::measurements::{Measurer, RequestRecord};
use crate::operations::Executed;
use crate::problems::Problem;
use crate::ray_id::RayId;

/// Counts one request when it is answered, or as cancelled when it is dropped before.
pub struct Measuring {
    context: Rc<ThreadContext>,
    measurer: fn(&ThreadContext) -> &Measurer,
    ray_id: RayId,
    started: Instant,
    /// Number of the operation. None: nothing is left to count.
    pub operation: Option<usize>,
}

impl Measuring {
    pub fn new(
        context: &Rc<ThreadContext>,
        measurer: fn(&ThreadContext) -> &Measurer,
        ray_id: RayId,
        operation: Option<usize>,
    ) -> Measuring {
        Measuring { context: context.clone(), measurer, ray_id, started: Instant::now(), operation }
    }

    /// Returns the measuring of a request that goes on elsewhere.
    pub fn take(&mut self) -> Measuring {
        let Measuring { context, measurer, ray_id, started, operation } = self;
        let (context, operation) = (context.clone(), operation.take());
        Measuring { context, measurer: *measurer, ray_id: *ray_id, started: *started, operation }
    }

    /// Counts a request that Python has answered with these headers or trailers.
    pub fn end_passed(&mut self, headers: &HeaderMap, is_ok: bool) {
        let options = self.context.passing.options.clone();
        let named = internal_headers::code(headers).and_then(|code| options.codes.number(code));
        self.count_passed(named.unwrap_or_else(|| if is_ok { 0 } else { options.problems.code(Problem::Internal) }));
    }

    /// Counts a request that the engine has answered.
    pub fn end_executed(&mut self, executed: &Executed, executed_at: Instant) {
        let Some(operation) = self.operation.take() else { return };
        let record = RequestRecord {
            ray_id: self.ray_id,
            operation,
            caller: Some(executed.caller),
            code: executed.code,
            started: self.started,
            executed: executed_at,
            ended: executed_at,
        };
        (self.measurer)(&self.context).count(&[record], Instant::now());
    }

    /// Counts and records a request that the front has answered.
    pub fn end_here(&mut self, code: usize) {
        let Some(operation) = self.operation.take() else { return };
        (self.measurer)(&self.context).count_own(self.ray_id, operation, code, self.started);
    }

    fn count_passed(&mut self, code: usize) {
        let Some(operation) = self.operation.take() else { return };
        (self.measurer)(&self.context).count_passed(operation, code, self.started.elapsed());
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        let cancelled = self.context.passing.options.codes.number(CANCELLED);
        self.count_passed(cancelled.unwrap_or_default());
    }
}
