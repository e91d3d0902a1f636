//! `bench-load http|grpc --address HOST:PORT --plan FILE ...`: load for a door, from one thread.

use std::process::ExitCode;

use hosting_bench::{doors, flags::Flags, report};

fn main() -> ExitCode {
    let (door, flags) = Flags::of_process();
    report("bench-load", doors::run(&door, &flags))
}
