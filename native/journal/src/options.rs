//! Journal options, and the trait of the state that the log rebuilds.

use std::io;
use std::path::PathBuf;

use crate::lsn::Lsn;

#[derive(Clone, Debug)]
pub struct Options {
    pub dir: PathBuf,
    pub boot_id_path: PathBuf,
    pub shard: u16,
    /// Length of new segment files: a multiple of 4 KiB, at least 256 KiB. Files of another length are read, but not
    /// reused.
    pub segment_bytes: u64,
    /// Smallest epoch of this run. A restored service begins above the epochs of the lost journal.
    pub first_epoch: u64,
    /// Number and name of every event kind of this build. Each segment and image contains this table.
    pub kinds: &'static [(u8, &'static str)],
    /// Function that ends the process after a failed write or sync, or a panic in a thread of the journal. The events of
    /// that batch are never published.
    pub on_fatal: fn(&str) -> !,
}

impl Options {
    pub fn new(dir: impl Into<PathBuf>, shard: u16, kinds: &'static [(u8, &'static str)]) -> Self {
        Self {
            dir: dir.into(),
            boot_id_path: PathBuf::from("/proc/sys/kernel/random/boot_id"),
            shard,
            segment_bytes: 64 * 1024 * 1024,
            first_epoch: 1,
            kinds,
            on_fatal: abort_process,
        }
    }
}

/// Prints the reason and aborts the process, so that it sends no more responses and writes nothing more.
pub(crate) fn abort_process(reason: &str) -> ! {
    eprintln!("journal: {reason}; aborting. No pending operation was confirmed");
    std::process::abort()
}

pub trait RecoverableState {
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Applies the events of one batch. `bytes` joins one or more submissions. `service_ms` is the time of the write.
    fn apply(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8], service_ms: u64) -> Result<(), String>;

    fn write_image(&self, out: &mut dyn io::Write) -> io::Result<()>;

    /// Returns the event kind that the last [`RecoverableState::apply`] did not know, or None if it had no such error.
    fn unknown_kind(&self) -> Option<u8> {
        None
    }
}
