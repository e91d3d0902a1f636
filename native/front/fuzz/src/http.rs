//! Fuzz target for HTTP connections. Its checks are those of `native/front/tests/fuzz_http`.
#![no_main]

#[path = "../../tests/fuzz_http/check.rs"]
mod check;
#[path = "../../tests/front/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../../tests/fuzz_grpc/client_frames.rs"]
#[allow(dead_code)]
mod client_frames;
#[path = "../../tests/front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../../tests/front/problem_names.rs"]
mod problem_names;
#[path = "../../tests/front/python.rs"]
#[allow(dead_code)]
mod python;
#[path = "../../tests/fuzz_http/request_model.rs"]
mod request_model;
#[path = "../../tests/fuzz_http/response_reader.rs"]
mod response_reader;
#[path = "../../tests/fuzz_grpc/server_frames.rs"]
#[allow(dead_code)]
mod server_frames;
#[path = "../../tests/front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../../tests/front/world.rs"]
#[allow(dead_code)]
mod world;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use check::Checker;
use libfuzzer_sys::fuzz_target;

static CHECKER: LazyLock<Checker> = LazyLock::new(Checker::new);

// The place of the pause depends on the bytes, so that a finding can be repeated.
fuzz_target!(|input: &[u8]| {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    CHECKER.check(input, hasher.finish() as usize);
});
