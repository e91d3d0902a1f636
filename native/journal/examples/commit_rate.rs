//! Benchmark of durable events per second on a folder, with a fixed number of outstanding submissions.
//! Prints the file system, the median `fdatasync` time, and batches and syncs per event. Rejects memory file systems,
//! because a sync costs nothing there.
//!
//! `cargo run --release -p hosting-journal --example commit_rate -- FOLDER [--outstanding 256] [--seconds 5]
//! [--event-bytes 40]`

use std::ffi::CString;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_journal::{DurableSignal, Journal, Lsn, Options, RealFiles, RecoverableState};

#[derive(Default)]
struct Count {
    events: u64,
}

impl RecoverableState for Count {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String> {
        let bytes: [u8; 8] = bytes.try_into().map_err(|_| "not eight bytes".to_owned())?;
        self.events = u64::from_le_bytes(bytes);
        Ok(())
    }

    fn apply(&mut self, _first_lsn: Lsn, count: u32, _bytes: &[u8], _service_ms: u64) -> Result<(), String> {
        self.events += u64::from(count);
        Ok(())
    }

    fn write_image(&self, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(&self.events.to_le_bytes())
    }
}

struct Arguments {
    folder: PathBuf,
    outstanding: u64,
    seconds: u64,
    event_bytes: usize,
}

fn parse() -> Result<Arguments, String> {
    let mut arguments = Arguments { folder: PathBuf::new(), outstanding: 256, seconds: 5, event_bytes: 40 };
    let mut words = std::env::args().skip(1);
    while let Some(argument) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            value.filter(|&value| value > 0).ok_or_else(|| format!("{argument} takes a number above 0"))
        };
        match argument.as_str() {
            "--outstanding" => arguments.outstanding = number()?,
            "--seconds" => arguments.seconds = number()?,
            "--event-bytes" => arguments.event_bytes = number()? as usize,
            folder => arguments.folder = PathBuf::from(folder),
        }
    }
    if arguments.folder.as_os_str().is_empty() {
        return Err("usage: commit_rate FOLDER [--outstanding N] [--seconds N] [--event-bytes N]".to_owned());
    }
    Ok(arguments)
}

fn file_system(folder: &Path) -> Result<String, String> {
    let path = CString::new(folder.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: an all-zero value is valid, and the call fills it or fails.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: path and result outlive the call.
    if unsafe { libc::statfs(path.as_ptr(), &mut stat) } != 0 {
        return Err(format!("{}: {}", folder.display(), io::Error::last_os_error()));
    }
    match stat.f_type as u64 {
        0x0102_1994 | 0x8584_58f6 => Err(format!("{} is in memory: a sync costs nothing there", folder.display())),
        0xef53 => Ok("ext4".to_owned()),
        0x5846_5342 => Ok("xfs".to_owned()),
        0x9123_683e => Ok("btrfs".to_owned()),
        0x794c_7630 => Ok("overlayfs".to_owned()),
        other => Ok(format!("{other:#x}")),
    }
}

/// Waits until the first pending event is durable, at most 1 ms.
fn wait(journal: &Journal, signal: &DurableSignal) {
    if !signal.request(journal.durable() + 1) {
        return;
    }
    let mut poll = libc::pollfd { fd: signal.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut counter = [0_u8; 8];
    // SAFETY: both calls get pointers to live values with their lengths.
    unsafe {
        if libc::poll(&mut poll, 1, 1) > 0 {
            libc::read(signal.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len());
        }
    }
}

/// Returns the median time of one `fdatasync` after a small write, the lower limit of a commit on this disk.
fn median_fdatasync_ns(folder: &Path) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let path = folder.join(format!("fdatasync-{}", std::process::id()));
    let file = std::fs::File::create(&path)?;
    file.write_all_at(&vec![0; 1 << 20], 0)?;
    file.sync_all()?;
    let mut times = Vec::new();
    for round in 0..201_u64 {
        file.write_all_at(&[1; 512], round % 256 * 4_096)?;
        let started_at = Instant::now();
        file.sync_data()?;
        times.push(started_at.elapsed().as_nanos() as u64);
    }
    std::fs::remove_file(&path)?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// Submits events until the time is over. Returns the number of attempts without credit.
fn drive(journal: &Journal, options: &Options, arguments: &Arguments, event: &[u8]) -> Result<u64, String> {
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut refused = 0_u64;
    let signal = journal.subscribe().map_err(|error| error.to_string())?;
    while Instant::now() < until {
        while journal.last() - journal.durable() < arguments.outstanding {
            let credit = journal.credit();
            if credit.total.saturating_sub(credit.reserve) < event.len() as u64 {
                refused += 1;
                break;
            }
            journal.submit(journal.last() + 1, 1, event);
        }
        wait(journal, &signal);
        if journal.compaction_due() {
            hosting_journal::write_compacted_image(options.clone(), Arc::new(RealFiles), &mut Count::default())
                .and_then(|_| journal.image_written())
                .map_err(|error| error.to_string())?;
        }
    }
    Ok(refused)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    std::fs::create_dir_all(&arguments.folder).map_err(|error| error.to_string())?;
    let file_system = file_system(&arguments.folder)?;
    let fdatasync_ns = median_fdatasync_ns(&arguments.folder).map_err(|error| error.to_string())?;
    let folder = arguments.folder.join(format!("commit-rate-{}", std::process::id()));
    let options = Options::new(&folder, 1, &[(1, "Measured")]);
    let opened_at = Instant::now();
    let (journal, _) = hosting_journal::open(options.clone(), Arc::new(RealFiles), &mut Count::default())
        .map_err(|error| error.to_string())?;
    let open_ms = opened_at.elapsed().as_millis();
    let event = vec![7_u8; arguments.event_bytes];
    let started_at = Instant::now();
    let refused = drive(&journal, &options, arguments, &event)?;
    let seconds = started_at.elapsed().as_secs_f64();
    journal.shutdown();
    let (stats, last) = (journal.stats(), journal.last());
    drop(journal);
    let mut count = Count::default();
    let reopened_at = Instant::now();
    let (again, recovered) =
        hosting_journal::open(options, Arc::new(RealFiles), &mut count).map_err(|error| error.to_string())?;
    let reopen_ms = reopened_at.elapsed().as_millis();
    again.close();
    std::fs::remove_dir_all(&folder).map_err(|error| error.to_string())?;
    if (count.events, recovered.last_lsn) != (last, last) {
        return Err(format!("{last} events were durable, {} were read back", count.events));
    }
    println!("file system        {file_system}");
    println!("fdatasync          {} us median, before the run", fdatasync_ns / 1_000);
    println!("open on empty      {open_ms} ms");
    println!(
        "events durable     {:.0} /s, {} outstanding, {} bytes each",
        stats.events as f64 / seconds,
        arguments.outstanding,
        event.len()
    );
    println!("batches            {} ({:.1} events each)", stats.batches, stats.events as f64 / stats.batches as f64);
    println!(
        "bytes per event    {:.0}, {:.0} per batch",
        stats.bytes as f64 / stats.events as f64,
        stats.bytes as f64 / stats.batches as f64
    );
    println!("syncs per event    {:.4}", stats.syncs as f64 / stats.events as f64);
    println!("write and sync     median at most {} us", median_bound_ns(&stats) / 1_000);
    println!("waits for credit   {refused}");
    println!("open again         {reopen_ms} ms, {} events after the image", recovered.events);
    Ok(())
}

fn median_bound_ns(stats: &hosting_journal::Stats) -> u64 {
    let half = stats.sync_ns.count() / 2;
    let mut cumulative_count = 0;
    for (count, bound) in stats.sync_ns.counts.iter().zip(stats.sync_ns.bounds) {
        cumulative_count += count;
        if cumulative_count > half {
            return *bound;
        }
    }
    u64::MAX
}

fn main() -> ExitCode {
    match parse().and_then(|arguments| run(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("commit_rate: {reason}");
            ExitCode::FAILURE
        }
    }
}
