//! The journal through its public interface: over a disk in memory that loses, tears and refuses, and over the real
//! one. Background work is stepped by the tests; nothing here waits for time to pass.
#![allow(clippy::unwrap_used)]

mod clocks;
mod compaction;
mod credit;
mod disk;
mod faults;
mod properties;
mod real;
mod refusals;
mod world;
