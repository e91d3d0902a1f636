//! Inputs of the fuzz targets.

use std::path::Path;

/// Returns the inputs of a target, in the order of their names. Prints each name before its input is used.
pub fn inputs(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 20);
    paths.into_iter().map(|path| {
        println!("{}", path.display());
        std::fs::read(path).unwrap()
    })
}
