//! Free space of the disk that logs leave to others.
//!
//! It is looked at now and then and not for each line: at least once a second while something is written, and before
//! more than `BLIND_BYTES` are. So each keeper takes at most so much of the reserve in a second.

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::statvfs;

use crate::log::WRITE_BYTES_MAX;
use crate::times::now;

/// What is written between two looks.
const BLIND_BYTES: usize = WRITE_BYTES_MAX;
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// So much of the disk of a folder.
pub struct Reserve {
    folder: PathBuf,
    bytes: u64,
    looked_at: Option<Duration>,
    /// What may be written before the next look.
    blind_bytes: usize,
    is_reached: bool,
}

impl Reserve {
    /// Of the disk that has this folder; 0: none.
    pub fn new(folder: PathBuf, bytes: u64) -> Self {
        Self { folder, bytes, looked_at: None, blind_bytes: 0, is_reached: false }
    }

    /// Whether so much may be written now. Who may is expected to.
    pub fn has_room_for(&mut self, bytes: usize) -> bool {
        if self.bytes == 0 {
            return true;
        }
        let is_recent = self.looked_at.is_some_and(|at| now() < at + LOOK_EVERY);
        if !is_recent || !self.is_reached && self.blind_bytes < bytes {
            self.looked_at = Some(now());
            self.blind_bytes = BLIND_BYTES;
            // A disk that does not tell says with the write itself whether it has room.
            self.is_reached =
                statvfs(&self.folder).is_ok_and(|about| about.f_bavail.saturating_mul(about.f_frsize) < self.bytes);
        }
        self.blind_bytes = self.blind_bytes.saturating_sub(bytes);
        !self.is_reached
    }
}
