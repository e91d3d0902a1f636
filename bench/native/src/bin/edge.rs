//! `bench-edge http|stream|talk|datagrams|serve ...`: load that passes through edge-guard, and the server behind it.

use std::process::ExitCode;

use hosting_bench::{flags::Flags, passing, report};

fn main() -> ExitCode {
    let (what, flags) = Flags::of_process();
    report("bench-edge", passing::run(&what, &flags))
}
