//! Load for a proxy from one thread, the server behind the proxy, and a minimal forwarder. Every byte is checked.

mod datagram_batch;
mod echo_server;
mod epoll;
mod http_load;
mod tcp_throughput;
mod udp_forwarder;
mod udp_load;
mod websocket_load;

use std::time::{Duration, Instant};

use crate::flags::Flags;
use crate::host_measurements::cpu_ns;
use crate::latency::Sample;
use crate::measurement::Measurement;
use crate::{Failure, failure};

pub fn run(name: &str, flags: &Flags) -> Result<Measurement, Failure> {
    match name {
        "http" => http_load::run(flags),
        "stream" => tcp_throughput::run(flags),
        "talk" => websocket_load::run(flags),
        "datagrams" => udp_load::run(flags),
        "serve" => echo_server::run(flags),
        "forward" => udp_forwarder::run(flags),
        _ => Err(failure("usage: bench-edge http|stream|talk|datagrams|serve|forward ...")),
    }
}

struct MeasurementWindow {
    started: Instant,
    length: Duration,
    cpu_before_ns: u64,
}

impl MeasurementWindow {
    fn start(flags: &Flags) -> Result<Self, Failure> {
        let length = Duration::from_secs_f64(flags.get("seconds", 4.0)?);
        Ok(Self { started: Instant::now(), length, cpu_before_ns: cpu_ns() })
    }

    fn is_over(&self) -> bool {
        self.started.elapsed() >= self.length
    }

    fn sample(&self, since: Instant) -> Sample {
        let now = Instant::now();
        let done_ns = now.duration_since(self.started).as_nanos() as u64;
        Sample { done_ns, duration_ns: now.duration_since(since).as_nanos() as u64 }
    }

    fn in_window(&self, samples: Vec<Sample>) -> Vec<Sample> {
        let (start_ns, end_ns) = (self.length.as_nanos() as u64 / 10, self.length.as_nanos() as u64);
        samples.into_iter().filter(|sample| (start_ns..end_ns).contains(&sample.done_ns)).collect()
    }

    fn in_window_s(&self) -> f64 {
        self.length.as_secs_f64() * 0.9
    }

    fn cpu_share(&self) -> Measurement {
        let share = (cpu_ns() - self.cpu_before_ns) as f64 / self.started.elapsed().as_nanos() as f64;
        Measurement::new().number("load_cpu_share", share)
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
