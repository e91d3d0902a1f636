//! Fuzz target for HTTP connections. Its checks are those of `native/front/tests/front/fuzz`.
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
#[allow(dead_code)]
mod fuzz {
    mod client_frames;
    pub mod http_check;
    mod request_model;
    mod response_reader;
    mod server_frames;
}

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;

use fuzz::http_check::Checker;
use libfuzzer_sys::fuzz_target;

static CHECKER: LazyLock<Checker> = LazyLock::new(Checker::new);

// The place of the pause depends on the bytes, so that a finding can be repeated.
fuzz_target!(|input: &[u8]| {
    let mut hasher = DefaultHasher::new();
    input.hash(&mut hasher);
    CHECKER.check(input, hasher.finish() as usize);
});
