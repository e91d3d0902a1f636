//! One shard: an engine, its journal, the lock under which commands run, and the timer thread.
//!
//! Start with [`Shard::open`]. The process that compacts the journal calls [`write_compacted_image`].

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod replayed_engine;
mod shard;
mod timer;

pub use replayed_engine::{ReplayedEngine, write_compacted_image};
pub use shard::Shard;
