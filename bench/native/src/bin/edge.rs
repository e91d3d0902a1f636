//! Load for edge-guard, the server behind edge-guard, and a minimal forwarder as a baseline.
//!
//! `bench-edge http|stream|talk|datagrams|serve|forward ...`

use std::process::ExitCode;

use hosting_bench::{flags::Flags, proxy_load, report};

fn main() -> ExitCode {
    let (name, flags) = Flags::of_process();
    report("bench-edge", proxy_load::run(&name, &flags))
}
