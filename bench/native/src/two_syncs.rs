//! Time of two syncs. A request that arrives at a random time waits for the end of the running sync. Then it waits for
//! the sync with its own bytes.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::flags::Flags;
use crate::host_measurements::{create_prewritten_file, file_system};
use crate::latency::{Sample, latency_statistics};
use crate::measurement::Measurement;

const FILE_BYTES: u64 = 16 << 20;
const BLOCK: [u8; 4096] = [1; 4096];
const ARRIVAL_INTERVAL: Duration = Duration::from_micros(20);

/// Runs `syncs --folder F [--seconds 1]`: writes and syncs one block after the other without a pause.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    let limit = Duration::from_secs_f64(flags.get("seconds", 1.0)?);
    std::fs::create_dir_all(folder)?;
    let file_system = file_system(folder)?;
    let path = folder.join("syncs");
    let file = create_prewritten_file(&path, FILE_BYTES)?;
    let mut ends = Vec::new();
    let mut offset = 0;
    let started = Instant::now();
    while started.elapsed() < limit {
        file.write_all_at(&BLOCK, offset)?;
        file.sync_data()?;
        ends.push(started.elapsed());
        offset = (offset + BLOCK.len() as u64) % FILE_BYTES;
    }
    std::fs::remove_file(&path)?;
    Ok(latency_statistics(arrivals(&ends).into_iter())
        .text("file_system", file_system)
        .count("syncs", ends.len() as u64))
}

/// Returns the latency of a request at each arrival time. Each sync starts at the end of the one before.
fn arrivals(ends: &[Duration]) -> Vec<Sample> {
    let mut samples = Vec::new();
    let mut arrival = Duration::ZERO;
    for pair in ends.windows(2) {
        while arrival < pair[0] {
            let (done_ns, duration_ns) = (pair[1].as_nanos() as u64, (pair[1] - arrival).as_nanos() as u64);
            samples.push(Sample { done_ns, duration_ns });
            arrival += ARRIVAL_INTERVAL;
        }
    }
    samples
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_waits_for_the_running_sync_and_for_the_next_one() {
        let ends = [40, 60, 100].map(Duration::from_micros);
        let waits_us: Vec<u64> = arrivals(&ends).iter().map(|sample| sample.duration_ns / 1000).collect();
        assert_eq!(waits_us, [60, 40, 60], "arrivals at 0, 20 and 40 µs");
    }
}
