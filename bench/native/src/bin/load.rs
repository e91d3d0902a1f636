//! Load for the HTTP or gRPC server, from one thread.
//!
//! `bench-load http|grpc --address HOST:PORT --plan FILE ...`

use std::process::ExitCode;

use hosting_bench::{doors, flags::Flags, report};

fn main() -> ExitCode {
    let (door, flags) = Flags::of_process();
    report("bench-load", doors::run(&door, &flags))
}
