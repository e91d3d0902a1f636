//! Latency samples and their statistics.

use crate::measurement::Measurement;

#[derive(Clone, Copy)]
pub struct Sample {
    pub done_ns: u64,
    pub duration_ns: u64,
}

/// Returns median, p99 and maximum in microseconds.
pub fn latency_statistics(samples: impl Iterator<Item = Sample>) -> Measurement {
    let mut times_ns: Vec<u64> = samples.map(|sample| sample.duration_ns).collect();
    times_ns.sort_unstable();
    let at = |share: f64| {
        let index = (times_ns.len() as f64 * share) as usize;
        times_ns.get(index.min(times_ns.len().saturating_sub(1))).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
    };
    Measurement::new().number("p50_us", at(0.5)).number("p99_us", at(0.99)).number("max_us", at(1.0))
}
