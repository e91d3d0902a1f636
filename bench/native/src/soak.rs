//! Journal under 1,000,000 events a second. Each has 300 bytes, three times the bytes of a transition in a batch of 40 that
//! is padded to 4 KiB.
//!
//! The engine refuses new slots as `STORAGE_FULL` if the credit does not cover their event and the reserve. The load
//! counts such refusals. Each event waits until it is durable, and at most `outstanding` events wait at a time.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_journal::{Lsn, Options, RealFiles, RecoverableState};

use crate::Failure;
use crate::flags::Flags;
use crate::host_measurements::measure_disk;
use crate::latency::{Sample, latency_statistics};
use crate::measurement::Measurement;

/// Pause of the load between two looks at the clock.
const PAUSE: Duration = Duration::from_micros(50);

/// State with an image of a fixed size.
#[derive(Clone, Copy)]
struct SizedState {
    image_bytes: usize,
}

impl RecoverableState for SizedState {
    fn load_image(&mut self, _bytes: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn apply(&mut self, _first_lsn: Lsn, _count: u32, _bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        Ok(())
    }

    fn write_image(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let part = [1; 4096];
        (0..self.image_bytes / part.len()).try_for_each(|_| out.write_all(&part))
    }
}

/// Runs `soak --folder F [--seconds 60] [--events-per-s 1000000] [--event-bytes 300] [--outstanding 16384]
/// [--segment-kib 65536] [--image-mib 128]`. The image of a million reservations has 40 MB.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    let seconds: f64 = flags.get("seconds", 60.0)?;
    let rate: f64 = flags.get("events-per-s", 1e6)?;
    let event = vec![7; flags.get("event-bytes", 300)?];
    let outstanding: u64 = flags.get("outstanding", 16_384)?;
    let state = SizedState { image_bytes: flags.get("image-mib", 128)? << 20 };
    std::fs::create_dir_all(folder)?;
    let disk = measure_disk(folder)?;
    let segment_bytes = flags.get("segment-kib", 64_u64 << 10)? << 10;
    let options = Options { segment_bytes, ..Options::new(folder, 1, &[(1, "Measured")]) };
    let (journal, _) = hosting_journal::open(options, Arc::new(RealFiles), &mut state.clone())?;
    journal.start_compaction(move || state)?;
    let (mut submitted, mut refusals, mut is_refused, mut closed_max) = (0, 0, false, 0);
    // Events that are submitted together count once, from the submission of the first to the durability of the last.
    let (mut pending, mut samples) = (VecDeque::new(), Vec::new());
    let started = Instant::now();
    while started.elapsed().as_secs_f64() < seconds {
        let (submitting_since, last_before) = (Instant::now(), journal.last());
        let due = (started.elapsed().as_secs_f64() * rate) as u64;
        while submitted < due && journal.last() - journal.durable() < outstanding {
            let credit = journal.credit();
            let was_refused = is_refused;
            is_refused = credit.total.saturating_sub(credit.reserve) < event.len() as u64;
            refusals += u64::from(is_refused && !was_refused);
            if is_refused {
                break;
            }
            journal.submit(journal.last() + 1, 1, &event);
            submitted += 1;
        }
        let (last, durable, now) = (journal.last(), journal.durable(), Instant::now());
        if last > last_before {
            pending.push_back((last, submitting_since));
        }
        while let Some((lsn, since)) = pending.front().copied()
            && lsn <= durable
        {
            pending.pop_front();
            let since_ns = |earlier: Instant| now.duration_since(earlier).as_nanos() as u64;
            samples.push(Sample { done_ns: since_ns(started), duration_ns: since_ns(since) });
        }
        closed_max = closed_max.max(journal.stats().segments_closed);
        std::thread::sleep(PAUSE);
    }
    let wall_s = started.elapsed().as_secs_f64();
    journal.shutdown();
    let stats = journal.stats();
    Ok(disk
        .number("events_per_s", stats.events as f64 / wall_s)
        .number("written_mb_per_s", stats.bytes as f64 / wall_s / 1e6)
        .number("events_per_batch", stats.events as f64 / stats.batches as f64)
        .count("refusals", refusals)
        .count("compactions", stats.compactions)
        .count("segments_closed_max", closed_max)
        .and(latency_statistics(samples.into_iter())))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Segments of 1 MiB last for milliseconds. The load would be refused if the credit did not count reserved files.
    #[test]
    fn small_segments_refuse_no_event_of_a_fast_load() {
        let folder = std::env::temp_dir().join(format!("hosting-soak-{}", std::process::id()));
        let words =
            format!("--folder {} --seconds 3 --segment-kib 1024 --outstanding 2000 --image-mib 1", folder.display());
        let measured = run(&Flags::new(words.split(' '))).unwrap().to_string();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(measured.contains(r#""refusals": 0,"#) && !measured.contains(r#""compactions": 0,"#), "{measured}");
    }
}
