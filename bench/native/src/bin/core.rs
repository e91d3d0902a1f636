//! Benchmarks of the engine without a journal.
//!
//! `bench-core cycles [--keys] | naive | find --wish W --lobbies N | growth [--keys] | leases --taken SHARE | outage`

use std::process::ExitCode;

use hosting_bench::cycles::{self, CycleOptions};
use hosting_bench::flags::Flags;
use hosting_bench::{
    Failure, failure, find_cost, measurement::Measurement, memory_growth, naive_engine, outage_hold, port_lease_cost,
    report,
};

fn measure(name: &str, flags: &Flags) -> Result<Measurement, Failure> {
    match name {
        "cycles" => cycles::run(&CycleOptions::from_flags(flags)?, flags.has("keys")),
        "naive" => naive_engine::run(&CycleOptions::from_flags(flags)?),
        "find" => find_cost::run(flags),
        "growth" => memory_growth::run(flags),
        "leases" => port_lease_cost::run(flags),
        "outage" => outage_hold::run(flags),
        _ => Err(failure("usage: bench-core cycles|naive|find|growth|leases|outage [--seed N] ...")),
    }
}

fn main() -> ExitCode {
    let (name, flags) = Flags::of_process();
    report("bench-core", measure(&name, &flags))
}
