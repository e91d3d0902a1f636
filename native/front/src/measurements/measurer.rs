//! Counts and records of answered requests, for the metrics and rays of the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hosting_matchmaker::{Limit, Subject};
use parking_lot::Mutex;

use crate::measurements::code_number;
use crate::measurements::pass_reason::PassReason;
use crate::measurements::record_allowance::{RecordAllowance, RecordKind};
use crate::requests::ray_id::RayId;
use crate::requests::trace_context::Trace;

/// Bound of the records that wait until they are taken. Further ones are dropped and counted.
const RECORDS_MAX: usize = 1_000;
/// One of this many usual requests is recorded.
const ONE_IN: u16 = 100;
const SLOW: Duration = Duration::from_millis(100);

/// One answered request.
#[derive(Clone)]
pub struct RequestRecord {
    pub ray_id: RayId,
    /// The trace of the client, which is the ray id then.
    pub trace: Option<Trace>,
    /// Number of the operation in [`crate::Routes::slugs`].
    pub operation: usize,
    /// None for a request without a valid token.
    pub caller: Option<Subject>,
    /// Number of the answer's code.
    pub code: usize,
    /// The rate limit that refused the request.
    pub exceeded: Option<Limit>,
    pub started: Instant,
    /// End of the engine's command.
    pub executed: Instant,
    pub ended: Instant,
}

impl RequestRecord {
    /// Failed, slow and traced requests are recorded, and a random part of all others. Returns None for one of the rest.
    fn record_kind(&self, duration: Duration) -> Option<RecordKind> {
        let random = u16::from_be_bytes([self.ray_id.bytes()[0], self.ray_id.bytes()[1]]);
        if self.code != 0 || duration > SLOW {
            return Some(RecordKind::Problem);
        }
        (self.trace.is_some() || random < u16::MAX / ONE_IN).then_some(RecordKind::Sample)
    }
}

/// Counts and records since the last [`Measurer::take`].
#[derive(Default, Clone)]
pub struct Measurements {
    /// In the order of [`crate::Routes::slugs`].
    pub operations: Vec<OperationCounts>,
    pub records: Vec<RequestRecord>,
    pub dropped_records: u64,
    /// Number of requests that were refused because of failed authentications of their client address.
    pub limited_failures: u64,
    /// Number of requests that are not answered yet.
    pub in_flight: usize,
}

impl Measurements {
    /// Adds the measurements of another thread.
    pub fn add(&mut self, other: Measurements) {
        let Measurements { operations, records, dropped_records, limited_failures, in_flight } = other;
        self.operations.iter_mut().zip(operations).for_each(|(sum, counts)| sum.add(counts));
        self.records.extend(records);
        self.dropped_records += dropped_records;
        self.limited_failures += limited_failures;
        self.in_flight += in_flight;
    }
}

#[derive(Default, Clone)]
pub struct OperationCounts {
    /// Number of requests by the number of their code.
    pub codes: Vec<u64>,
    /// Number of requests by duration. The last number counts durations above all bounds.
    pub durations: Vec<u64>,
    pub duration_sum: Duration,
    /// Number of requests that were passed on to Python, in the order of [`PassReason::all`].
    pub passed: [u64; PassReason::COUNT],
    /// Number of requests that a rate limit refused, in the order of [`Limit::ALL`].
    pub rate_limited: [u64; Limit::ALL.len()],
}

impl OperationCounts {
    fn add(&mut self, other: OperationCounts) {
        let OperationCounts { codes, durations, duration_sum, passed, rate_limited } = other;
        self.codes.iter_mut().zip(codes).for_each(|(sum, count)| *sum += count);
        self.durations.iter_mut().zip(durations).for_each(|(sum, count)| *sum += count);
        self.duration_sum += duration_sum;
        self.passed.iter_mut().zip(passed).for_each(|(sum, count)| *sum += count);
        self.rate_limited.iter_mut().zip(rate_limited).for_each(|(sum, count)| *sum += count);
    }
}

/// Counts and records of one thread.
pub struct Measurer {
    bounds: Vec<Duration>,
    allowance: Arc<RecordAllowance>,
    empty: Measurements,
    current: Mutex<Measurements>,
    in_flight: AtomicUsize,
}

impl Measurer {
    pub fn new(operations: usize, bounds: Vec<Duration>, allowance: Arc<RecordAllowance>) -> Measurer {
        let counts = OperationCounts {
            codes: vec![0; code_number::COUNT],
            durations: vec![0; bounds.len() + 1],
            duration_sum: Duration::ZERO,
            passed: [0; PassReason::COUNT],
            rate_limited: [0; Limit::ALL.len()],
        };
        let empty = Measurements { operations: vec![counts; operations], ..Measurements::default() };
        Measurer { bounds, allowance, current: Mutex::new(empty.clone()), empty, in_flight: AtomicUsize::new(0) }
    }

    /// Counts and records requests with answers that are durable since `ended`.
    pub fn count(&self, requests: &[RequestRecord], ended: Instant) {
        let mut current = self.current.lock();
        for request in requests {
            let duration = ended - request.started;
            self.count_one(&mut current, request.operation, request.code, duration);
            if let Some(limit) = request.exceeded {
                current.operations[request.operation].rate_limited[limit as usize] += 1;
            }
            let Some(kind) = request.record_kind(duration) else { continue };
            if current.records.len() < RECORDS_MAX && self.allowance.take(request.caller, kind, ended) {
                current.records.push(RequestRecord { ended, ..request.clone() });
            } else {
                current.dropped_records += 1;
            }
        }
    }

    /// Counts a request that Python has recorded.
    pub fn count_passed(&self, operation: usize, code: usize, reason: PassReason, duration: Duration) {
        let mut current = self.current.lock();
        self.count_one(&mut current, operation, code, duration);
        current.operations[operation].passed[reason.number()] += 1;
    }

    pub fn count_limited_failure(&self) {
        self.current.lock().limited_failures += 1;
    }

    /// Counts and records a request that the front has answered without the engine.
    pub fn count_own(&self, ray_id: RayId, trace: Option<Trace>, operation: usize, code: usize, started: Instant) {
        let ended = Instant::now();
        let record = RequestRecord {
            ray_id,
            trace,
            operation,
            caller: None,
            code,
            exceeded: None,
            started,
            executed: started,
            ended,
        };
        self.count(&[record], ended);
    }

    fn count_one(&self, current: &mut Measurements, operation: usize, code: usize, duration: Duration) {
        let counts = &mut current.operations[operation];
        counts.codes[code] += 1;
        counts.durations[self.bounds.partition_point(|bound| *bound < duration)] += 1;
        counts.duration_sum += duration;
    }

    /// Counts requests as in flight until the returned value is dropped.
    pub fn begin(self: &Arc<Self>, count: usize) -> InFlight {
        self.in_flight.fetch_add(count, Ordering::Relaxed);
        InFlight { measurer: self.clone(), count }
    }

    /// Returns what happened since the last call.
    pub fn take(&self) -> Measurements {
        // Cloned before the thread of the front may wait for the lock.
        let empty = self.empty.clone();
        let taken = std::mem::replace(&mut *self.current.lock(), empty);
        Measurements { in_flight: self.in_flight.load(Ordering::Relaxed), ..taken }
    }
}

/// Requests that count as in flight until their answers are written.
pub struct InFlight {
    measurer: Arc<Measurer>,
    count: usize,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.measurer.in_flight.fetch_sub(self.count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
