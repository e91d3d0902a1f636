//! `bench-journal transitions | raw --together N | build | recover [--cold]`, each with `--folder F`: what is durable.

use std::process::ExitCode;

use hosting_bench::flags::Flags;
use hosting_bench::{Failure, figures::Figures, raw_log, recovery, report, transitions, wrong};

fn measure(what: &str, flags: &Flags) -> Result<Figures, Failure> {
    match what {
        "transitions" => transitions::run(flags),
        "raw" => raw_log::run(flags),
        "build" => recovery::build(flags),
        "recover" => recovery::recover(flags),
        _ => Err(wrong("usage: bench-journal transitions|raw|build|recover --folder FOLDER ...")),
    }
}

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-journal", measure(&what, &flags))
}
