//! Recovery of a folder with a million reservations in the image and 256 MiB of log, with a warm or cold page cache.

use std::path::{Path, PathBuf};

use hosting_core::Id;

use crate::engine_fixture::{NAMESPACE, hash_key};
use crate::flags::Flags;
use crate::host_measurements::{cached_bytes, cpu_ns, evict_pages, load_pages, measure_disk, page_aligned_bytes};
use crate::measured_shard::{MeasuredShard, compact};
use crate::measurement::Measurement;
use crate::transitions::{PlayerLoop, add_lobbies, reserve};
use crate::{Failure, failure};

const ADDRESSES: u32 = 250_000;
const PENDING_EVENTS_MAX: u64 = 4_096;

/// Runs `build --folder F [--lobbies 10000] [--slots 100] [--log-mib 256]`, which creates the folder.
pub fn build(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    std::fs::create_dir_all(folder)?;
    let disk = measure_disk(folder)?;
    let (shard, recovered, _) = MeasuredShard::open(folder)?;
    if recovered.last_lsn > 0 {
        return Err(failure("the folder is in use already"));
    }
    let (count, slots_per_lobby): (u64, u32) = (flags.get("lobbies", 10_000)?, flags.get("slots", 100)?);
    let full_lobbies = add_lobbies(&shard, 0, count, slots_per_lobby)?;
    let busy_lobbies = add_lobbies(&shard, count, 1_000, 100)?;
    fill(&shard, &full_lobbies, slots_per_lobby)?;
    let filled_lsn = shard.journal().last();
    let mut player_loop = PlayerLoop::new(busy_lobbies, 256, flags.get("seed", 1)?);
    // An image covers only closed segments. Continues until the last reservation is in a closed segment.
    let closed = shard.journal().stats().segments_closed;
    while shard.journal().stats().segments_closed == closed {
        player_loop.run_step(&shard)?;
    }
    shard.flush();
    let image_lsn = compact(folder)?;
    if image_lsn < filled_lsn {
        return Err(failure("the image does not have all reservations"));
    }
    shard.journal().image_written()?;
    let before = shard.journal().stats().bytes;
    let log_bytes = flags.get("log-mib", 256_u64)? << 20;
    while shard.journal().stats().bytes - before < log_bytes {
        player_loop.run_step(&shard)?;
    }
    shard.flush();
    let stats = shard.journal().stats();
    Ok(disk
        .count("reservations", count * u64::from(slots_per_lobby))
        .count("image_lsn", image_lsn)
        .count("last_lsn", stats.last_lsn)
        .count("log_bytes", stats.bytes - before)
        .number("events_per_batch", stats.events as f64 / stats.batches as f64))
}

fn fill(shard: &MeasuredShard, lobbies: &[Id], slots_per_lobby: u32) -> Result<(), Failure> {
    let hash = hash_key();
    let mut address = 0_u32;
    for _ in 0..slots_per_lobby {
        for lobby in lobbies {
            address = (address + 1) % ADDRESSES;
            let (_, lsn) = reserve(shard, *lobby, hash.source(NAMESPACE, &address.to_be_bytes()))?;
            while lsn > shard.journal().durable() + PENDING_EVENTS_MAX {
                shard.wait();
            }
        }
    }
    shard.flush();
    Ok(())
}

/// Runs `recover --folder F --reservations N [--cold]`, which opens the folder and checks its state.
pub fn recover(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    let expected: u64 = flags.get("reservations", 1_000_000)?;
    let disk = measure_disk(folder)?;
    let files = files_of(folder)?;
    for file in &files {
        if flags.has("cold") { evict_pages(file)? } else { load_pages(file).map(drop)? }
    }
    let cached: u64 = files.iter().map(|file| cached_bytes(file)).sum::<Result<u64, Failure>>()?;
    let all: u64 = files.iter().map(|file| page_aligned_bytes(file)).sum::<Result<u64, Failure>>()?;
    let cpu_before_ns = cpu_ns();
    let (shard, recovered, times) = MeasuredShard::open(folder)?;
    let cpu_ms = (cpu_ns() - cpu_before_ns) as f64 / 1e6;
    let counts = shard.shard.engine().namespace_counts();
    let reserved: u64 = counts.iter().map(|(_, namespace)| namespace.slots[2]).sum();
    // The last players that filled the log still have slots in other lobbies.
    if reserved < expected || reserved > expected + 1_000 {
        return Err(failure(format!("{reserved} slots are reserved, not {expected}")));
    }
    if shard.shard.engine().ledger_violations() > 0 {
        return Err(failure("the ledger does not add up"));
    }
    Ok(disk
        .number("ready_ms", times.total_ms)
        .number("image_read_ms", times.image_read_ms)
        .number("image_load_ms", times.image_load_ms)
        .number("log_read_ms", times.log_read_ms)
        .number("apply_ms", times.apply_ms)
        .number("derive_ms", times.derive_ms)
        .number("cpu_ms", cpu_ms)
        .number("cached_share", cached as f64 / all as f64)
        .count("reserved", reserved)
        .count("batches", recovered.batches)
        .count("events", recovered.events)
        .count("image_lsn", recovered.image_lsn))
}

fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log" || extension == "img") {
            files.push(path);
        }
    }
    Ok(files)
}
