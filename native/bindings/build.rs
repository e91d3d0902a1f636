//! Passes the optimization level of the profile on, because cargo names `quick` and `release` alike.

fn main() {
    let level = std::env::var("OPT_LEVEL").expect("cargo sets it");
    println!("cargo::rustc-env=HOSTING_OPT_LEVEL={level}");
    println!("cargo::rerun-if-changed=build.rs");
}
