//! Durable event log with group commit, crash recovery and compaction into images.
//!
//! Owns the files of one journal folder and the service clock. Events are opaque bytes with numbers.
//!
//! Start with [`open`], [`Journal`] and [`RecoverableState`]. A journal folder holds
//! `seg-<number>.log` (segments), `free-<number>.log` (pre-written files for later segments), `image-<lsn>.img`, `lock`
//! and `compact.lock`.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod batch_format;
mod batch_queue;
mod batch_writer;
mod compaction;
mod durable_signal;
mod error;
mod files;
mod folder;
mod image;
mod journal;
mod journal_core;
mod lsn;
mod mutex;
mod opening;
mod options;
mod recovery;
mod segment_format;
mod segment_pool;
mod segment_preparation;
mod segment_reader;
mod service_clock;
mod stats;
mod time_and_random;

pub use batch_queue::Credit;
pub use compaction::{CompactionResult, write_compacted_image};
pub use durable_signal::DurableSignal;
pub use error::OpenError;
pub use files::{Access, DEVICE_READ_ALIGNMENT, Entry, FileHandle, Files, RealFiles};
pub use journal::Journal;
pub use lsn::Lsn;
pub use opening::{RecoverySummary, open, open_stepped};
pub use options::{Options, RecoverableState};
pub use service_clock::{ClockRecord, ServiceClock};
pub use stats::{BATCH_EVENT_BOUNDS, CompactionFailure, Histogram, LastCompaction, SYNC_NS_BOUNDS, Stats};
pub use time_and_random::{RealTimeAndRandom, TimeAndRandom};
