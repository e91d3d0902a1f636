//! One shard: an engine, its journal, the lock under which commands run, and the expiry thread.
//!
//! Start with [`Shard::open`].

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod expiry;
mod expiry_thread;
mod replayed_engine;
mod shard;

pub use replayed_engine::{ReplayedEngine, write_compacted_image};
pub use shard::{EngineGuard, Shard};
