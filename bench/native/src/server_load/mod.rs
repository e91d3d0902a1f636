//! Load for the HTTP and gRPC servers, in a closed loop or at a fixed rate (open loop).
//!
//! Each worker sends one request at a time and checks the response. Open-loop latency begins at the planned time, or
//! when a request is sent.

mod grpc;
mod http;
mod request_plan;
mod send_schedule;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::flags::Flags;
use crate::host_measurements::cpu_ns;
use crate::latency::{Sample, latency_statistics, p99_us};
use crate::measurement::Measurement;
use crate::{Failure, failure};
use request_plan::RequestPlan;
use send_schedule::SendSchedule;

/// Headers of the requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientHeaders {
    /// A client that follows the how-to guides sends them, with an idempotency key for each request.
    Usual,
    /// Only those that a request needs. No usual client sends them.
    Bare,
}

#[derive(Default)]
struct WorkerResult {
    samples: Vec<Sample>,
    errors: BTreeMap<String, u64>,
    rays: u64,
}

enum RequestResult {
    Done { has_ray: bool },
    Refused { code: String, has_ray: bool },
}

impl WorkerResult {
    /// Records a response. `expected` is the code of an expected error.
    fn record(&mut self, schedule: &SendSchedule, started: Instant, reply: RequestResult, expected: Option<&str>) {
        let now = Instant::now();
        let sample = Sample {
            done_ns: now.duration_since(schedule.started_at()).as_nanos() as u64,
            duration_ns: now.duration_since(started).as_nanos() as u64,
        };
        self.samples.push(sample);
        match reply {
            RequestResult::Done { has_ray } if expected.is_none() => self.rays += u64::from(has_ray),
            RequestResult::Done { .. } => *self.errors.entry("OK".to_owned()).or_default() += 1,
            RequestResult::Refused { code, has_ray } if expected == Some(&code) => self.rays += u64::from(has_ray),
            RequestResult::Refused { code, .. } => *self.errors.entry(code).or_default() += 1,
        }
    }
}

/// Runs `http|grpc --address HOST:PORT --plan FILE --connections N [--streams N] [--rate PER_S]
/// [--latency-from planned|sent] [--headers usual|bare]`.
pub fn run(transport: &str, flags: &Flags) -> Result<Measurement, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(transport, flags))
}

async fn measure(transport: &str, flags: &Flags) -> Result<Measurement, Failure> {
    let address = flags.text("address")?.to_owned();
    let connections: usize = flags.get("connections", 256)?;
    let streams: usize = if transport == "grpc" { flags.get("streams", 64)? } else { 1 };
    let rate: f64 = flags.get("rate", 0.0)?;
    let plan = Arc::new(RequestPlan::read(flags.text("plan")?, connections * streams)?);
    let request_count = plan.len() as u64;
    let schedule = Arc::new(SendSchedule::new(rate, flags.text("latency-from").is_ok_and(|from| from == "sent"))?);
    let is_bare = flags.text("headers").is_ok_and(|headers| headers == "bare");
    let headers = if is_bare { ClientHeaders::Bare } else { ClientHeaders::Usual };
    let cpu_before_ns = cpu_ns();
    let workers = match transport {
        "http" => http::start(&address, connections, &plan, &schedule, headers).await?,
        "grpc" => grpc::start(&address, connections, streams, &plan, &schedule, headers).await?,
        _ => return Err(failure("usage: bench-load http|grpc ...")),
    };
    schedule.start();
    let mut results = Vec::with_capacity(workers.len());
    for worker in workers {
        results.push(worker.await??);
    }
    let cpu_share = (cpu_ns() - cpu_before_ns) as f64 / schedule.started_at().elapsed().as_nanos() as f64;
    let response_count: u64 = results.iter().map(|result| result.samples.len() as u64).sum();
    if response_count != request_count {
        return Err(failure(format!("{request_count} requests, {response_count} answers")));
    }
    Ok(figures(&results, rate)
        .number("first_second_p99_us", p99_us(begun_in_second(0, &results)))
        .number("second_second_p99_us", p99_us(begun_in_second(1, &results)))
        .number("load_cpu_share", cpu_share)
        .number("lost_ms", schedule.lost().await.as_secs_f64() * 1e3)
        .count("answers", response_count))
}

/// Returns the requests that began in one second of the run.
fn begun_in_second(second: u64, results: &[WorkerResult]) -> impl Iterator<Item = Sample> {
    let samples = results.iter().flat_map(|result| result.samples.iter().copied());
    samples.filter(move |sample| sample.done_ns.saturating_sub(sample.duration_ns) / 1_000_000_000 == second)
}

/// Returns the figures of the measured window: without the first tenth, and only while all workers ran.
fn figures(results: &[WorkerResult], rate: f64) -> Measurement {
    let last_done_ns = |result: &WorkerResult| result.samples.last().map_or(0, |sample| sample.done_ns);
    let end_ns = results.iter().map(last_done_ns).min().unwrap_or(0);
    let start_ns = end_ns / 10;
    let is_in_window = |sample: &&Sample| (start_ns..end_ns).contains(&sample.done_ns);
    let in_window: Vec<Sample> =
        results.iter().flat_map(|result| result.samples.iter().filter(is_in_window).copied()).collect();
    let window = Duration::from_nanos(end_ns - start_ns);
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (code, count) in results.iter().flat_map(|result| &result.errors) {
        *errors.entry(code).or_default() += count;
    }
    Measurement::new()
        .text("loop", if rate > 0.0 { "open" } else { "closed" })
        .number("planned_per_s", rate)
        .number("answers_per_s", in_window.len() as f64 / window.as_secs_f64())
        .number("window_s", window.as_secs_f64())
        .and(latency_statistics(in_window.into_iter()))
        .count("rays", results.iter().map(|result| result.rays).sum())
        .count("error_count", errors.values().sum())
        .counts("errors", errors.into_iter())
}
