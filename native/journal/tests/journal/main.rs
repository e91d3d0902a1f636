//! Tests of the public journal interface, on an in-memory disk with faults and on the real disk.
//! The tests step background work themselves and never sleep.
#![allow(clippy::unwrap_used)]

mod clocks;
mod compaction;
mod credit;
mod disk;
mod faults;
mod format_1;
mod properties;
mod real;
mod refusals;
mod signals;
mod world;
