//! Load for edge-guard, the server behind edge-guard, and a minimal forwarder as a baseline.
//!
//! `bench-edge http|stream|talk|datagrams|serve|forward ...`

use std::process::ExitCode;

use hosting_bench::{flags::Flags, passing, report};

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-edge", passing::run(&what, &flags))
}
