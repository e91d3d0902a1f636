//! Durable log with group commit, and images that shorten it.
//!
//! Owns the files of one journal folder: what is appended, when it is on disk, what is read back after a crash, and
//! service time. Knows bytes and event numbers only; what an event means is its caller's.
//!
//! Read in this order: [`Options`] and [`State`] (what the caller brings), [`open`] and [`Journal`] (what it gets),
//! [`compact`] (what a child process runs). A journal folder holds `seg-<number>.log` (segments in use, closed and
//! prepared), `free-<number>.log` (pre-written files that wait for a new number), `image-<lsn>.img`, `lock` and
//! `compact.lock`.

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
mod stats;
mod supply;
mod writer;

pub use clock::{Clock, ClockRecord};
pub use compaction::{Compacted, compact, end_with_parent};
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

/// Version of segment, batch and image framing that this build writes and reads.
pub const FORMAT_VERSION: u32 = 1;
