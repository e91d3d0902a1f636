//! Durable event log with group commit, crash recovery and compaction into images.
//!
//! Owns the files of one journal folder and the service clock. Events are opaque bytes with numbers.
//!
//! Start with [`open`], [`Journal`], [`State`] and [`write_compacted_image`]. A journal folder holds `seg-<number>.log` (segments),
//! `free-<number>.log` (pre-written files for later segments), `image-<lsn>.img`, `lock` and `compact.lock`.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod batch;
mod clock;
mod compaction;
mod error;
mod eventfd;
mod files;
mod folder;
mod image;
mod journal;
mod machine;
mod opening;
mod options;
mod queue;
mod reader;
mod recovery;
mod segment;
mod segment_pool;
mod stats;
mod writer;

pub use clock::{Clock, ClockRecord};
pub use compaction::{Compacted, end_with_parent, write_compacted_image};
pub use error::OpenError;
pub use files::{Access, Entry, FileHandle, Files, RealFiles};
pub use journal::Journal;
pub use machine::{Machine, RealMachine};
pub use opening::{Recovered, open, open_stepped};
pub use options::{Options, State};
pub use queue::Credit;
pub use stats::{BATCH_EVENT_BOUNDS, Histogram, LastCompaction, SYNC_NS_BOUNDS, Stats};

/// Number of an event, counted from 1; 0 means none.
pub type Lsn = u64;

/// Format version of segments, batches and images.
pub const FORMAT_VERSION: u32 = 1;
