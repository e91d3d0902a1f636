//! The inputs that fuzzing of HTTP connections has found, as a test. `native/front/fuzz` finds further ones.
#![allow(clippy::unwrap_used)]

mod check;
#[path = "../front/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../fuzz_grpc/client_frames.rs"]
#[allow(dead_code)]
mod client_frames;
mod corpus;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/problem_names.rs"]
mod problem_names;
#[path = "../front/python.rs"]
#[allow(dead_code)]
mod python;
mod request_model;
mod response_reader;
#[path = "../fuzz_grpc/server_frames.rs"]
#[allow(dead_code)]
mod server_frames;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../front/world.rs"]
#[allow(dead_code)]
mod world;

use check::Checker;

/// The splits of an input that are tried.
const SPLITS: usize = 16;

#[test]
fn each_input_is_answered_however_it_is_split() {
    let checker = Checker::new();
    for input in corpus::inputs("http") {
        let step = (input.len() / SPLITS).max(1);
        (0..=input.len()).step_by(step).for_each(|split| checker.check(&input, split));
    }
}
