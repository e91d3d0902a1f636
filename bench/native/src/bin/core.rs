//! Benchmarks of the engine without a journal.
//!
//! `bench-core cycles [--keys] | naive | find --wish W --lobbies N | growth [--keys] | leases --taken SHARE`

use std::process::ExitCode;

use hosting_bench::cycles::{self, Scene};
use hosting_bench::flags::Flags;
use hosting_bench::{Failure, figures::Figures, finds, growth, leases, naive, report, wrong};

fn measure(what: &str, flags: &Flags) -> Result<Figures, Failure> {
    match what {
        "cycles" => cycles::run(&Scene::of(flags)?, flags.has("keys")),
        "naive" => naive::run(&Scene::of(flags)?),
        "find" => finds::run(flags),
        "growth" => growth::run(flags),
        "leases" => leases::run(flags),
        _ => Err(wrong("usage: bench-core cycles|naive|find|growth|leases [--seed N] ...")),
    }
}

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-core", measure(&what, &flags))
}
