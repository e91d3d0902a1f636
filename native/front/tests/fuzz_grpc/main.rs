//! The inputs that fuzzing of gRPC connections has found, as a test. `native/front/fuzz` finds further ones.
#![allow(clippy::unwrap_used)]

mod check;
#[path = "../grpc/client.rs"]
#[allow(dead_code)]
mod client;
mod client_frames;
#[path = "../fuzz_http/corpus.rs"]
mod corpus;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/problem_names.rs"]
mod problem_names;
#[path = "../grpc/python.rs"]
#[allow(dead_code)]
mod python;
mod server_frames;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../grpc/world.rs"]
#[allow(dead_code)]
mod world;

use check::Checker;

#[test]
fn each_input_is_answered() {
    let checker = Checker::new();
    corpus::inputs("grpc").for_each(|input| checker.check(&input));
}
