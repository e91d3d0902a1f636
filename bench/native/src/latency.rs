//! Latency samples and their statistics.

use crate::measurement::Measurement;

#[derive(Clone, Copy)]
pub struct Sample {
    pub done_ns: u64,
    pub duration_ns: u64,
}

/// Returns median, p99 and maximum in microseconds.
pub fn latency_statistics(samples: impl Iterator<Item = Sample>) -> Measurement {
    let times_ns = sorted_ns(samples);
    let at = |share| percentile_us(&times_ns, share);
    Measurement::new().number("p50_us", at(0.5)).number("p99_us", at(0.99)).number("max_us", at(1.0))
}

pub fn p99_us(samples: impl Iterator<Item = Sample>) -> f64 {
    percentile_us(&sorted_ns(samples), 0.99)
}

fn sorted_ns(samples: impl Iterator<Item = Sample>) -> Vec<u64> {
    let mut times_ns: Vec<u64> = samples.map(|sample| sample.duration_ns).collect();
    times_ns.sort_unstable();
    times_ns
}

fn percentile_us(times_ns: &[u64], share: f64) -> f64 {
    let index = (times_ns.len() as f64 * share) as usize;
    times_ns.get(index.min(times_ns.len().saturating_sub(1))).map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}
