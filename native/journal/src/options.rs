//! What the caller of the journal brings: settings, and the state that the log rebuilds.

use std::io;
use std::path::PathBuf;

use crate::Lsn;
use crate::error::OpenError;
use crate::segment;

/// Smallest segment, in bytes.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 256 * 1024;
/// Largest segment, in bytes: lengths of batches are 32 bits.
const SEGMENT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Segments are whole blocks of the file system.
const SEGMENT_BYTES_MULTIPLE: u64 = 4096;

/// Settings of a journal.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of the journal's files; made if it is not there.
    pub dir: PathBuf,
    /// File with the kernel's boot id, `/proc/sys/kernel/random/boot_id` outside tests.
    pub boot_id_path: PathBuf,
    /// Shard whose log this is, from 1.
    pub shard: u16,
    /// Length of a segment file: 64 MiB by default, at least 256 KiB, a multiple of 4 KiB. Files of another length
    /// are read, but not used again.
    pub segment_bytes: u64,
    /// Every event kind that this build writes, with its name. The table is part of each segment and image, so that
    /// an older build can refuse an unknown kind by its name.
    pub kinds: &'static [(u8, &'static str)],
    /// Called when a batch could not be written or synced. Nothing of that batch was published, and nothing will be.
    pub on_fatal: fn(&str) -> !,
}

impl Options {
    /// Options with the defaults of a production journal.
    pub fn new(dir: impl Into<PathBuf>, shard: u16, kinds: &'static [(u8, &'static str)]) -> Self {
        Self {
            dir: dir.into(),
            boot_id_path: PathBuf::from("/proc/sys/kernel/random/boot_id"),
            shard,
            segment_bytes: 64 * 1024 * 1024,
            kinds,
            on_fatal: abort_process,
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let refuse = |reason: String| Err(OpenError::Options { reason });
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes)
            || !self.segment_bytes.is_multiple_of(SEGMENT_BYTES_MULTIPLE)
        {
            return refuse(format!(
                "segment_bytes is {}, must be a multiple of {SEGMENT_BYTES_MULTIPLE} from {SEGMENT_BYTES_MIN} to \
                 {SEGMENT_BYTES_MAX}",
                self.segment_bytes
            ));
        }
        if self.kinds.iter().any(|(_, name)| name.is_empty() || name.len() > 255) {
            return refuse("names of event kinds have 1 to 255 bytes".to_owned());
        }
        if !segment::kinds_fit(self.kinds) {
            return refuse("the table of event kinds is too large for a segment header".to_owned());
        }
        Ok(())
    }
}

/// Prints why and ends the process at once: no destructor, no answer, no further write.
pub(crate) fn abort_process(reason: &str) -> ! {
    eprintln!("journal: {reason}; ending at once, nothing of it was answered");
    std::process::abort()
}

/// What the log rebuilds. Recovery and compaction drive it.
pub trait State {
    /// Takes the content of an image, as [`State::write_image`] wrote it. The state is fresh.
    fn load_image(&mut self, bytes: &[u8]) -> Result<(), String>;

    /// Applies the events of one batch: the bytes of one or more submissions, one after the other. `service_ms` is
    /// the service time at which the batch was written.
    fn apply(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8], service_ms: u64) -> Result<(), String>;

    /// Writes everything that recovery needs. Buffered and checksummed by the journal.
    fn write_image(&self, out: &mut dyn io::Write) -> io::Result<()>;

    /// Asked after [`State::apply`] failed: the event kind that was not known, if that was the reason. It becomes
    /// [`OpenError::UnknownKind`] with the name that the segment's header gives it.
    fn unknown_kind(&self) -> Option<u8> {
        None
    }
}
