//! Errors of opening and compacting a journal, with the file and the offset of the problem.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::lsn::Lsn;

#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    Io {
        operation: &'static str,
        path: PathBuf,
        offset: Option<u64>,
        source: io::Error,
    },
    Locked {
        path: PathBuf,
    },
    Options {
        reason: String,
    },
    BootId {
        path: PathBuf,
        reason: String,
    },
    /// A file has a format version that this build cannot read. `known` is the newest version that it reads.
    Version {
        path: PathBuf,
        found: u32,
        known: u32,
    },
    Shard {
        path: PathBuf,
        found: u16,
        expected: u16,
    },
    Header {
        path: PathBuf,
        reason: String,
    },
    MissingSegment {
        segment: u64,
        path: PathBuf,
    },
    /// A damaged batch has valid batches after it, so that acknowledged events would be lost.
    Damaged {
        segment: u64,
        offset: u64,
        next_segment: u64,
        next_offset: u64,
    },
    /// A valid batch does not continue the sequence of the log.
    Gap {
        segment: u64,
        offset: u64,
        expected: Lsn,
        found: Lsn,
        expected_batch: u64,
        found_batch: u64,
    },
    /// The log ends before the last event of an image.
    EndsEarly {
        last: Lsn,
        path: PathBuf,
    },
    /// An image is damaged and no older image can replace it, or [`crate::RecoverableState::load_image`] failed.
    Image {
        path: PathBuf,
        reason: String,
    },
    /// The log and this build have different names for an event kind.
    KindRenamed {
        path: PathBuf,
        kind: u8,
        found: String,
        expected: &'static str,
    },
    /// The log contains an event kind that this build does not know.
    UnknownKind {
        kind: u8,
        name: Option<String>,
        segment: u64,
        offset: u64,
    },
    Apply {
        segment: u64,
        offset: u64,
        first_lsn: Lsn,
        reason: String,
    },
    /// The log was written before the restore that began with another epoch.
    BeforeRestore {
        path: PathBuf,
        epoch: u64,
        first_epoch: u64,
    },
}

impl OpenError {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), offset: None, source }
    }

    pub(crate) fn io_at(operation: &'static str, path: &Path, offset: u64, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), offset: Some(offset), source }
    }

    /// Reports whether the disk or the quota is full, so that a retry can succeed later.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Io { source, .. } if crate::files::is_no_space(source))
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { operation, path, offset: Some(offset), source } => {
                write!(f, "{operation} {} at offset {offset}: {source}", path.display())
            }
            Self::Io { operation, path, offset: None, source } => {
                write!(f, "{operation} {}: {source}", path.display())
            }
            Self::Locked { path } => write!(f, "{} is held by another process", path.display()),
            Self::Options { reason } => write!(f, "journal options: {reason}"),
            Self::BootId { path, reason } => write!(f, "boot id {}: {reason}", path.display()),
            Self::Version { path, found, known } => {
                write!(f, "{} has format version {found}, this build reads up to {known}", path.display())
            }
            Self::Shard { path, found, expected } => {
                write!(f, "{} belongs to shard {found}, not to {expected}", path.display())
            }
            Self::Header { path, reason } => write!(f, "header of {}: {reason}", path.display()),
            Self::MissingSegment { segment, path } => {
                write!(f, "segment {segment} ({}) is missing", path.display())
            }
            Self::Damaged { segment, offset, next_segment, next_offset } => write!(
                f,
                "segment {segment} is damaged at offset {offset}, but the log goes on in segment {next_segment} at \
                 offset {next_offset}"
            ),
            Self::Gap { segment, offset, expected, found, expected_batch, found_batch } => write!(
                f,
                "segment {segment}, offset {offset}: batch {expected_batch} with event {expected} should follow, found \
                 batch {found_batch} with event {found}"
            ),
            Self::EndsEarly { last, path } => {
                write!(f, "the log ends at event {last}, before what {} covers", path.display())
            }
            Self::Image { path, reason } => write!(f, "image {}: {reason}", path.display()),
            Self::KindRenamed { path, kind, found, expected } => {
                write!(f, "{}: event kind {kind} is named {found} there and {expected} here", path.display())
            }
            Self::UnknownKind { kind, name, segment, offset } => write!(
                f,
                "segment {segment}, offset {offset}: event kind {kind} ({}) is not known to this build",
                name.as_deref().unwrap_or("without a name")
            ),
            Self::Apply { segment, offset, first_lsn, reason } => {
                write!(f, "segment {segment}, offset {offset}, events from {first_lsn}: {reason}")
            }
            Self::BeforeRestore { path, epoch, first_epoch } => write!(
                f,
                "{} has epoch {epoch} and is older than the restore, which began with {first_epoch}: move it away",
                path.display()
            ),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
