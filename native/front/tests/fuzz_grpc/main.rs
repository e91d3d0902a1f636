//! The inputs that fuzzing of gRPC connections has found, as a test. `native/front/fuzz` finds further ones.
#![allow(clippy::unwrap_used)]

mod check;
#[path = "../grpc/client.rs"]
#[allow(dead_code)]
mod client;
mod client_frames;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
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

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/grpc");

#[test]
fn each_input_is_answered() {
    let checker = Checker::new();
    let mut paths: Vec<_> = std::fs::read_dir(CORPUS).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 20);
    for path in paths {
        println!("{}", path.display());
        checker.check(&std::fs::read(path).unwrap());
    }
}
