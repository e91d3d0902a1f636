//! Fuzz target for gRPC connections. Its checks are those of `native/front/tests/fuzz_grpc`.
#![no_main]

#[path = "../../tests/fuzz_grpc/check.rs"]
mod check;
#[path = "../../tests/grpc/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../../tests/fuzz_grpc/client_frames.rs"]
mod client_frames;
#[path = "../../tests/front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../../tests/front/problem_names.rs"]
mod problem_names;
#[path = "../../tests/grpc/python.rs"]
#[allow(dead_code)]
mod python;
#[path = "../../tests/fuzz_grpc/server_frames.rs"]
mod server_frames;
#[path = "../../tests/front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../../tests/grpc/world.rs"]
#[allow(dead_code)]
mod world;

use std::sync::LazyLock;

use check::Checker;
use libfuzzer_sys::fuzz_target;

static CHECKER: LazyLock<Checker> = LazyLock::new(Checker::new);

fuzz_target!(|input: &[u8]| CHECKER.check(input));
