//! `bench-edge http|stream|talk|datagrams|serve|forward ...`: load that passes through edge-guard, the server behind
//! it, and the least that could stand in its place.

use std::process::ExitCode;

use hosting_bench::{flags::Flags, passing, report};

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-edge", passing::run(&what, &flags))
}
