//! Benchmark of the alignment of batches: commits per second of batches that begin on multiples of 512 bytes and of 4 KiB.
//! Alternates between the two after each commit, so that other load of the machine and its disk affects both alike.
//!
//! `cargo run --release -p hosting-journal --example alignment_cost -- FOLDER [ROUNDS]`

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

const ALIGNMENTS: [usize; 2] = [512, 4_096];
const FILE_BYTES: u64 = 8 << 20;
const COMMITS_PER_ROUND: u64 = 400;

/// File of zeros, as the journal prepares a segment, with the position of the next batch.
struct Segment {
    file: File,
    alignment: usize,
    offset: u64,
    commit_ns: Vec<u64>,
}

impl Segment {
    fn create(folder: &Path, alignment: usize) -> io::Result<Segment> {
        let file = File::create(folder.join(format!("alignment-cost-{}-{alignment}", std::process::id())))?;
        file.write_all_at(&vec![0; FILE_BYTES as usize], 0)?;
        file.sync_all()?;
        Ok(Segment { file, alignment, offset: 0, commit_ns: Vec::new() })
    }

    fn commit(&mut self) -> io::Result<()> {
        let batch = vec![7; self.alignment];
        let started_at = Instant::now();
        self.file.write_all_at(&batch, self.offset)?;
        self.file.sync_data()?;
        self.commit_ns.push(started_at.elapsed().as_nanos() as u64);
        self.offset = (self.offset + self.alignment as u64) % FILE_BYTES;
        Ok(())
    }

    /// Returns the commits per second of the median commit since the last call.
    fn median_rate(&mut self) -> f64 {
        let mut times = std::mem::take(&mut self.commit_ns);
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |median| 1e9 / *median as f64)
    }
}

fn measure(folder: &Path, rounds: u32) -> io::Result<()> {
    let [mut small, mut large] = [Segment::create(folder, ALIGNMENTS[0])?, Segment::create(folder, ALIGNMENTS[1])?];
    for round in 1..=rounds {
        for number in 0..COMMITS_PER_ROUND {
            // The second of two commits may find the disk warm.
            let [first, second] = if number % 2 == 0 { [&mut small, &mut large] } else { [&mut large, &mut small] };
            first.commit()?;
            second.commit()?;
        }
        let [small_rate, large_rate] = [small.median_rate(), large.median_rate()];
        println!(
            "round {round}: {small_rate:.0} commits/s at {} bytes, {large_rate:.0} at {}, ratio {:.2}",
            ALIGNMENTS[0],
            ALIGNMENTS[1],
            large_rate / small_rate
        );
    }
    for alignment in ALIGNMENTS {
        std::fs::remove_file(folder.join(format!("alignment-cost-{}-{alignment}", std::process::id())))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let (folder, rounds) = (words.next(), words.next().map_or(Some(5), |word| word.parse().ok()));
    let (Some(folder), Some(rounds)) = (folder, rounds) else {
        eprintln!("usage: alignment_cost FOLDER [ROUNDS]");
        return ExitCode::FAILURE;
    };
    match measure(Path::new(&folder), rounds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("alignment_cost: {error}");
            ExitCode::FAILURE
        }
    }
}
