//! Load for a proxy from one thread, the server behind the proxy, and a minimal forwarder. Every byte is checked.

mod batch;
mod datagrams;
mod forward;
mod http;
mod poll;
mod serve;
mod stream;
mod talk;

use std::time::{Duration, Instant};

use crate::figures::Figures;
use crate::flags::Flags;
use crate::host::cpu_ns;
use crate::latency::Sample;
use crate::{Failure, wrong};

pub fn run(what: &str, flags: &Flags) -> Result<Figures, Failure> {
    match what {
        "http" => http::run(flags),
        "stream" => stream::run(flags),
        "talk" => talk::run(flags),
        "datagrams" => datagrams::run(flags),
        "serve" => serve::run(flags),
        "forward" => forward::run(flags),
        _ => Err(wrong("usage: bench-edge http|stream|talk|datagrams|serve|forward ...")),
    }
}

struct Window {
    began: Instant,
    length: Duration,
    cpu_before_ns: u64,
}

impl Window {
    fn begin(flags: &Flags) -> Result<Self, Failure> {
        let length = Duration::from_secs_f64(flags.get("seconds", 4.0)?);
        Ok(Self { began: Instant::now(), length, cpu_before_ns: cpu_ns() })
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.length
    }

    fn sample(&self, since: Instant) -> Sample {
        let now = Instant::now();
        let done_ns = now.duration_since(self.began).as_nanos() as u64;
        Sample { done_ns, took_ns: now.duration_since(since).as_nanos() as u64 }
    }

    fn counted(&self, samples: Vec<Sample>) -> Vec<Sample> {
        let (start_ns, end_ns) = (self.length.as_nanos() as u64 / 10, self.length.as_nanos() as u64);
        samples.into_iter().filter(|sample| (start_ns..end_ns).contains(&sample.done_ns)).collect()
    }

    fn counted_s(&self) -> f64 {
        self.length.as_secs_f64() * 0.9
    }

    fn load(&self) -> Figures {
        let share = (cpu_ns() - self.cpu_before_ns) as f64 / self.began.elapsed().as_nanos() as f64;
        Figures::new().number("load_cpu_share", share)
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..length)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}
