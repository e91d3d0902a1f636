//! The inputs that fuzzing of HTTP connections has found, as a test. `native/front/fuzz` finds further ones.
#![allow(clippy::unwrap_used)]

mod check;
#[path = "../front/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/python.rs"]
#[allow(dead_code)]
mod python;
mod request_model;
mod response_reader;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../front/world.rs"]
#[allow(dead_code)]
mod world;

use check::Checker;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/http");

/// The splits of an input that are tried.
const SPLITS: usize = 16;

#[test]
fn each_input_is_answered_however_it_is_split() {
    let checker = Checker::new();
    let mut paths: Vec<_> = std::fs::read_dir(CORPUS).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 20);
    for path in paths {
        println!("{}", path.display());
        let input = std::fs::read(path).unwrap();
        let step = (input.len() / SPLITS).max(1);
        (0..=input.len()).step_by(step).for_each(|split| checker.check(&input, split));
    }
}
