//! Benchmarks of the journal. Each takes `--folder F`.
//!
//! `bench-journal transitions | soak | raw --together N | build | recover [--cold] | disk | syncs`

use std::path::Path;
use std::process::ExitCode;

use hosting_bench::flags::Flags;
use hosting_bench::{
    Failure, failure, host_measurements, measurement::Measurement, raw_log, recovery, report, soak, transitions,
    two_syncs,
};

fn measure(name: &str, flags: &Flags) -> Result<Measurement, Failure> {
    match name {
        "transitions" => transitions::run(flags),
        "raw" => raw_log::run(flags),
        "build" => recovery::build(flags),
        "recover" => recovery::recover(flags),
        "soak" => soak::run(flags),
        "syncs" => two_syncs::run(flags),
        "disk" => disk(Path::new(flags.text("folder")?)),
        _ => Err(failure("usage: bench-journal transitions|soak|raw|build|recover|disk|syncs --folder FOLDER ...")),
    }
}

fn disk(folder: &Path) -> Result<Measurement, Failure> {
    std::fs::create_dir_all(folder)?;
    host_measurements::measure_disk(folder)
}

fn main() -> ExitCode {
    let (name, flags) = Flags::of_process();
    report("bench-journal", measure(&name, &flags))
}
