//! Benchmarks of the journal. Each takes `--folder F`.
//!
//! `bench-journal transitions | raw --together N | build | recover [--cold] | disk`

use std::path::Path;
use std::process::ExitCode;

use hosting_bench::flags::Flags;
use hosting_bench::{Failure, figures::Figures, host, raw_log, recovery, report, transitions, wrong};

fn measure(what: &str, flags: &Flags) -> Result<Figures, Failure> {
    match what {
        "transitions" => transitions::run(flags),
        "raw" => raw_log::run(flags),
        "build" => recovery::build(flags),
        "recover" => recovery::recover(flags),
        "disk" => disk(Path::new(flags.text("folder")?)),
        _ => Err(wrong("usage: bench-journal transitions|raw|build|recover|disk --folder FOLDER ...")),
    }
}

fn disk(folder: &Path) -> Result<Figures, Failure> {
    std::fs::create_dir_all(folder)?;
    host::disk_figures(folder)
}

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-journal", measure(&what, &flags))
}
