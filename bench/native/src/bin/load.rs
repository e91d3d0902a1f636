//! Load for the HTTP or gRPC server, from one thread.
//!
//! `bench-load http|grpc --address HOST:PORT --plan FILE ...`

use std::process::ExitCode;

use hosting_bench::{flags::Flags, report, server_load};

fn main() -> ExitCode {
    let (transport, flags) = Flags::of_process();
    report("bench-load", server_load::run(&transport, &flags))
}
