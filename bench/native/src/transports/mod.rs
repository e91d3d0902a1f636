//! Load for the HTTP and gRPC servers, in a closed loop or at a fixed rate (open loop).
//!
//! Each worker sends one request at a time and checks the response. Open-loop latency begins at the planned time.

mod grpc;
mod http;
mod pace;
mod plan;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::figures::Figures;
use crate::flags::Flags;
use crate::host::cpu_ns;
use crate::latency::{Sample, latency_figures};
use crate::{Failure, wrong};
use pace::Pace;
use plan::Plan;

#[derive(Default)]
struct Seen {
    samples: Vec<Sample>,
    errors: BTreeMap<String, u64>,
    rays: u64,
}

enum Reply {
    Done { has_ray: bool },
    Refused(String),
}

impl Seen {
    fn note(&mut self, pace: &Pace, asked: Instant, reply: Reply) {
        let now = Instant::now();
        let sample = Sample {
            done_ns: now.duration_since(pace.began()).as_nanos() as u64,
            took_ns: now.duration_since(asked).as_nanos() as u64,
        };
        self.samples.push(sample);
        match reply {
            Reply::Done { has_ray } => self.rays += u64::from(has_ray),
            Reply::Refused(code) => *self.errors.entry(code).or_default() += 1,
        }
    }
}

/// Runs `http|grpc --address HOST:PORT --plan FILE --connections N [--streams N] [--rate PER_S]`.
pub fn run(transport: &str, flags: &Flags) -> Result<Figures, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure(transport, flags))
}

async fn measure(transport: &str, flags: &Flags) -> Result<Figures, Failure> {
    let address = flags.text("address")?.to_owned();
    let connections: usize = flags.get("connections", 256)?;
    let streams: usize = if transport == "grpc" { flags.get("streams", 64)? } else { 1 };
    let rate: f64 = flags.get("rate", 0.0)?;
    let plan = Arc::new(Plan::read(flags.text("plan")?, connections * streams)?);
    let asked = plan.len() as u64;
    let pace = Arc::new(Pace::new(rate));
    let cpu_before_ns = cpu_ns();
    let workers = match transport {
        "http" => http::start(&address, connections, &plan, &pace).await?,
        "grpc" => grpc::start(&address, connections, streams, &plan, &pace).await?,
        _ => return Err(wrong("usage: bench-load http|grpc ...")),
    };
    pace.begin();
    let mut all = Vec::with_capacity(workers.len());
    for worker in workers {
        all.push(worker.await??);
    }
    let cpu_share = (cpu_ns() - cpu_before_ns) as f64 / pace.began().elapsed().as_nanos() as f64;
    let answered: u64 = all.iter().map(|seen| seen.samples.len() as u64).sum();
    if answered != asked {
        return Err(wrong(format!("{asked} requests, {answered} answers")));
    }
    Ok(figures(&all, rate).number("load_cpu_share", cpu_share).count("answers", answered))
}

/// Returns the figures of the measured window: without the first tenth, and only while all workers ran.
fn figures(all: &[Seen], rate: f64) -> Figures {
    let last_of = |seen: &Seen| seen.samples.last().map_or(0, |sample| sample.done_ns);
    let end_ns = all.iter().map(last_of).min().unwrap_or(0);
    let start_ns = end_ns / 10;
    let is_inside = |sample: &&Sample| (start_ns..end_ns).contains(&sample.done_ns);
    let inside: Vec<Sample> = all.iter().flat_map(|seen| seen.samples.iter().filter(is_inside).copied()).collect();
    let window = Duration::from_nanos(end_ns - start_ns);
    let mut errors: BTreeMap<&str, u64> = BTreeMap::new();
    for (code, count) in all.iter().flat_map(|seen| &seen.errors) {
        *errors.entry(code).or_default() += count;
    }
    Figures::new()
        .text("loop", if rate > 0.0 { "open" } else { "closed" })
        .number("asked_per_s", rate)
        .number("answers_per_s", inside.len() as f64 / window.as_secs_f64())
        .number("window_s", window.as_secs_f64())
        .and(latency_figures(inside.into_iter()))
        .count("rays", all.iter().map(|seen| seen.rays).sum())
        .count("error_count", errors.values().sum())
        .counts("errors", errors.into_iter())
}
