//! Counts of gRPC calls, for the metrics and rays of the service.

use std::rc::Rc;
use std::time::Instant;

use http::header::HeaderMap;

use crate::codes::CANCELLED;
use crate::grpc::GrpcServer;
use crate::grpc::errors::GRPC_STATUS;
use crate::internal_headers;
use crate::measurements::RequestRecord;
use crate::operations::Executed;
use crate::ray_id::RayId;

const INTERNAL: &str = "INTERNAL";

/// Counts one call of a known method when it is answered, or as cancelled when it is dropped before.
pub struct Measuring {
    server: Rc<GrpcServer>,
    ray_id: RayId,
    started: Instant,
    /// Number of the operation. None: nothing is left to count.
    operation: Option<usize>,
}

impl Measuring {
    pub fn new(server: Rc<GrpcServer>, ray_id: RayId, operation: Option<usize>) -> Measuring {
        Measuring { server, ray_id, started: Instant::now(), operation }
    }

    /// Returns the measuring of a call that goes on elsewhere.
    pub fn take(&mut self) -> Measuring {
        let Measuring { server, ray_id, started, operation } = self;
        Measuring { server: server.clone(), ray_id: *ray_id, started: *started, operation: operation.take() }
    }

    /// Counts a call that the engine has executed.
    pub fn end_executed(&mut self, executed: &Executed, executed_at: Instant) {
        let Some(operation) = self.operation.take() else { return };
        let ended = Instant::now();
        let record = RequestRecord {
            ray_id: self.ray_id,
            operation,
            caller: Some(executed.caller),
            code: executed.code,
            started: self.started,
            executed: executed_at,
            ended,
        };
        self.server.context.grpc_measurer().count(&[record], ended);
    }

    /// Counts a call that Python has answered with these trailers.
    pub fn end_passed(&mut self, trailers: &HeaderMap) {
        let named = internal_headers::code(trailers);
        let is_ok = trailers.get(GRPC_STATUS).is_some_and(|status| status == "0");
        self.count_passed(named.unwrap_or(if is_ok { crate::codes::OK } else { INTERNAL }));
    }

    /// Counts a call that the front refuses. `code` is the number of its code.
    pub fn end_refused(&mut self, code: usize) {
        let Some(operation) = self.operation.take() else { return };
        self.server.context.grpc_measurer().count_own(self.ray_id, operation, code, self.started);
    }

    fn count_passed(&mut self, code: &str) {
        let Some(operation) = self.operation.take() else { return };
        self.server.context.grpc_measurer().count_passed(operation, self.code_number(code), self.started.elapsed());
    }

    fn code_number(&self, code: &str) -> usize {
        let codes = &self.server.context.passing.options.codes;
        codes.number(code).or_else(|| codes.number(INTERNAL)).unwrap_or_default()
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        self.count_passed(CANCELLED);
    }
}
