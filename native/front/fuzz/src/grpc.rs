//! Fuzz target for gRPC connections. Its checks are those of `native/front/tests/front/fuzz`.
#![no_main]

#[path = "../../tests/front/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../../tests/front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../../tests/front/problem_names.rs"]
mod problem_names;
#[path = "../../tests/front/python.rs"]
#[allow(dead_code)]
mod python;
#[path = "../../tests/front/raw_http2.rs"]
#[allow(dead_code)]
mod raw_http2;
#[path = "../../tests/front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../../tests/front/world.rs"]
#[allow(dead_code)]
mod world;

#[path = "../../tests/front/fuzz"]
mod fuzz {
    mod client_frames;
    pub mod grpc_check;
    mod server_frames;
}

#[path = "../../tests/front/grpc"]
#[allow(dead_code)]
mod grpc {
    pub mod client;
    pub mod python;
    pub mod world;
}

use std::sync::LazyLock;

use fuzz::grpc_check::Checker;
use libfuzzer_sys::fuzz_target;

static CHECKER: LazyLock<Checker> = LazyLock::new(Checker::new);

fuzz_target!(|input: &[u8]| CHECKER.check(input));
