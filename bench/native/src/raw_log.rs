//! Baseline of [`crate::transitions`]: writes and syncs the same bytes without engine and journal, one transition at a
//! time or in groups.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::flags::Flags;
use crate::host_measurements::{create_prewritten_file, measure_disk};
use crate::measurement::Measurement;

const FILE_BYTES: u64 = 64 << 20;

/// Runs `raw --folder F [--together 1] [--bytes 48] [--seconds 3]`.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    let group_size: u64 = flags.get("together", 1)?;
    let bytes: u64 = flags.get("bytes", 48)?;
    let seconds: f64 = flags.get("seconds", 3.0)?;
    std::fs::create_dir_all(folder)?;
    let disk = measure_disk(folder)?;
    let path = folder.join("raw");
    let file = create_prewritten_file(&path, FILE_BYTES)?;
    let batch = vec![1_u8; (group_size * bytes) as usize];
    let (mut offset, mut syncs) = (0, 0_u64);
    let started = Instant::now();
    let until = started + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        if offset + batch.len() as u64 > FILE_BYTES {
            offset = 0;
        }
        file.write_all_at(&batch, offset)?;
        file.sync_data()?;
        offset += batch.len() as u64;
        syncs += 1;
    }
    let wall_s = started.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    Ok(disk
        .number("transitions_per_s", (syncs * group_size) as f64 / wall_s)
        .count("syncs", syncs)
        .count("together", group_size))
}
