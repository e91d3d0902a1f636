//! Measurement of one request that hyper has read.

use std::rc::Rc;
use std::time::Instant;

use crate::codes::CANCELLED;
use crate::front::{Answering, ThreadContext};
use crate::measurements::RequestRecord;
use crate::operations::Executed;
use crate::ray_id::RayId;

/// Counts one request when it is answered, or as cancelled when it is dropped before.
pub struct Measuring {
    context: Rc<ThreadContext>,
    ray_id: RayId,
    /// Number of the operation, once it is known.
    pub operation: usize,
    pub started: Instant,
    is_counted: bool,
    _answering: Answering,
}

impl Measuring {
    pub fn new(context: &Rc<ThreadContext>, ray_id: RayId, operation: usize) -> Measuring {
        Measuring {
            context: context.clone(),
            ray_id,
            operation,
            started: Instant::now(),
            is_counted: false,
            _answering: context.clone().begin_answer(),
        }
    }

    /// Counts a request that Python has answered.
    pub fn end(&mut self, code: usize) {
        self.is_counted = true;
        self.context.measurer().count_passed(self.operation, code, self.started.elapsed());
    }

    /// Counts a request that the engine has answered.
    pub fn end_executed(&mut self, executed: &Executed, run: Instant) {
        self.is_counted = true;
        let record = RequestRecord {
            ray_id: self.ray_id,
            operation: self.operation,
            caller: Some(executed.caller),
            code: executed.code,
            started: self.started,
            executed: run,
            ended: run,
        };
        self.context.measurer().count(&[record], Instant::now());
    }

    /// Counts and records a request that the front has answered.
    pub fn end_here(&mut self, code: usize) {
        self.is_counted = true;
        self.context.measurer().count_own(self.ray_id, self.operation, code, self.started);
    }
}

impl Drop for Measuring {
    fn drop(&mut self) {
        if !self.is_counted {
            let cancelled = self.context.passing.options.codes.number(CANCELLED);
            self.end(cancelled.unwrap_or_default());
        }
    }
}
