//! Benchmark of a recovery: an image of many small records and a log, read by a state that stores nothing.
//!
//! `cargo run --release -p hosting-journal --example recovery_time -- FOLDER [--log-mib 256] [--records 1000000]`

use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use hosting_journal::{Lsn, Options, RealFiles, RecoverableState};

const RECORD: usize = 64;
const EVENT: usize = 40;
const EVENTS_AT_ONCE: u32 = 128;

#[derive(Default)]
struct Walk {
    records: u64,
    events: u64,
    sum: u64,
}

impl Walk {
    fn over(&mut self, bytes: &[u8], size: usize) -> u64 {
        let mut count = 0;
        for piece in bytes.chunks_exact(size) {
            self.sum = self.sum.wrapping_add(u64::from(piece[0]));
            count += 1;
        }
        count
    }
}

impl RecoverableState for Walk {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.records = self.over(bytes, RECORD);
        Ok(())
    }

    fn apply(&mut self, _first_lsn: Lsn, _count: u32, bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        self.events += self.over(bytes, EVENT);
        Ok(())
    }

    fn write_image(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for record in 0..self.records {
            out.write_all(&[record as u8; RECORD])?;
        }
        Ok(())
    }
}

/// Returns the processor time of this process, which depends little on other programs.
fn cpu_ms() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut now) };
    now.tv_sec as f64 * 1_000.0 + now.tv_nsec as f64 / 1_000_000.0
}

fn number(name: &str, default: u64) -> u64 {
    let mut words = std::env::args().skip_while(|argument| argument != name).skip(1);
    words.next().and_then(|argument| argument.parse().ok()).unwrap_or(default)
}

fn fill_log(options: &Options, bytes: u64) -> Result<u64, hosting_journal::OpenError> {
    let (journal, _) = hosting_journal::open(options.clone(), Arc::new(RealFiles), &mut Walk::default())?;
    let events = [3_u8; EVENT * EVENTS_AT_ONCE as usize];
    let mut left = bytes;
    while left > 0 {
        if journal.credit().total < 2 * events.len() as u64 || journal.last() - journal.durable() > 1_024 {
            std::thread::yield_now();
            continue;
        }
        journal.submit(journal.last() + 1, EVENTS_AT_ONCE, &events);
        left = left.saturating_sub(events.len() as u64);
    }
    let last = journal.last();
    journal.close();
    Ok(last)
}

fn run(folder: &Path) -> Result<(), hosting_journal::OpenError> {
    let options = Options::new(folder, 1, &[(1, "Measured")]);
    let log_bytes = number("--log-mib", 256) << 20;
    let records = number("--records", 1_000_000);
    let image_lsn = fill_log(&options, 80 << 20)?;
    let mut state = Walk { records, ..Walk::default() };
    let compacted = hosting_journal::write_compacted_image(options.clone(), Arc::new(RealFiles), &mut state)?;
    let last = fill_log(&options, log_bytes)?;
    for round in 0..5 {
        let mut state = Walk::default();
        let (started_at, cpu_ms) = (Instant::now(), cpu_ms());
        let (journal, recovered) = hosting_journal::open(options.clone(), Arc::new(RealFiles), &mut state)?;
        let took_ms = started_at.elapsed().as_secs_f64() * 1_000.0;
        let cpu_ms = self::cpu_ms() - cpu_ms;
        black_box(state.sum);
        assert_eq!((recovered.last_lsn, recovered.image_lsn, state.records), (last, compacted.lsn, records));
        assert!(recovered.last_lsn > image_lsn && state.events == recovered.events);
        println!(
            "open {round}: {took_ms:.0} ms ({cpu_ms:.0} ms of processor time), image of {} MiB, {} events in {} batches",
            compacted.image_bytes >> 20,
            recovered.events,
            recovered.batches
        );
        journal.close();
    }
    Ok(())
}

fn main() -> ExitCode {
    let Some(folder) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("usage: recovery_time FOLDER [--log-mib N] [--records N]");
        return ExitCode::FAILURE;
    };
    let folder = folder.join(format!("recovery-time-{}", std::process::id()));
    let result = run(&folder);
    let removed = std::fs::remove_dir_all(&folder);
    match result.map_err(|error| error.to_string()).and_then(|()| removed.map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("recovery_time: {reason}");
            ExitCode::FAILURE
        }
    }
}
