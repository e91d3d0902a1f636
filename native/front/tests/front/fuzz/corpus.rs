//! The inputs that fuzzing has found, as tests. `native/front/fuzz` finds further ones.

use std::path::Path;

use crate::fuzz::{grpc_check, http_check};

/// The splits of an input over HTTP that are tried.
const SPLITS: usize = 16;

/// Returns the inputs of a target, in the order of their names. Prints each name before its input is used.
fn inputs(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 20);
    paths.into_iter().map(|path| {
        println!("{}", path.display());
        std::fs::read(path).unwrap()
    })
}

#[test]
fn each_http_input_is_answered_however_it_is_split() {
    let checker = http_check::Checker::new();
    for input in inputs("http") {
        let step = (input.len() / SPLITS).max(1);
        (0..=input.len()).step_by(step).for_each(|split| checker.check(&input, split));
    }
}

#[test]
fn each_grpc_input_is_answered() {
    let checker = grpc_check::Checker::new();
    inputs("grpc").for_each(|input| checker.check(&input));
}
