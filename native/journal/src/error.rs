//! Why a journal cannot be opened or compacted. Each case names the file, and the offset where there is one.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::Lsn;

/// Why a journal cannot be opened or compacted.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// A file operation failed.
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Where in the file, if it was a read or a write.
        offset: Option<u64>,
        /// What the operating system said.
        source: io::Error,
    },
    /// Another process has the folder open.
    Locked {
        /// The lock file.
        path: PathBuf,
    },
    /// The options contradict themselves or the limits of the format.
    Options {
        /// Which option, and why.
        reason: String,
    },
    /// The boot id cannot be read.
    BootId {
        /// The file that the options name.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file was written by a build with another format.
    Version {
        /// The file.
        path: PathBuf,
        /// Version in the file.
        found: u32,
        /// Version that this build reads.
        known: u32,
    },
    /// A file belongs to another shard.
    Shard {
        /// The file.
        path: PathBuf,
        /// Shard in the file.
        found: u16,
        /// Shard of the options.
        expected: u16,
    },
    /// The header of a segment is damaged.
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A segment that the log needs is not there.
    MissingSegment {
        /// Its number.
        segment: u64,
        /// The file that is missing.
        path: PathBuf,
    },
    /// A batch is damaged although the log goes on after it: acknowledged events would be lost.
    Damaged {
        /// Segment of the damaged batch.
        segment: u64,
        /// Its offset in the segment's file, in bytes.
        offset: u64,
        /// Segment of a batch after it.
        next_segment: u64,
        /// Offset of that batch.
        next_offset: u64,
    },
    /// A valid batch does not continue the log.
    Gap {
        /// Segment in which the log should have gone on.
        segment: u64,
        /// Offset at which it should have, in bytes.
        offset: u64,
        /// Event number that should have come.
        expected: Lsn,
        /// Event number that came.
        found: Lsn,
        /// Batch number that should have come.
        expected_batch: u64,
        /// Batch number that came.
        found_batch: u64,
    },
    /// The log ends before what an image proves to have been acknowledged.
    EndsEarly {
        /// Last event that was found.
        last: Lsn,
        /// The image that covers more.
        path: PathBuf,
    },
    /// An image is damaged and nothing older can replace it, or the state does not take it.
    Image {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An event kind has another name in the log than in this build.
    KindRenamed {
        /// The file.
        path: PathBuf,
        /// The kind.
        kind: u8,
        /// Its name in the file.
        found: String,
        /// Its name in this build.
        expected: &'static str,
    },
    /// The log holds an event of a kind that this build does not know.
    UnknownKind {
        /// The kind.
        kind: u8,
        /// Its name in the segment's header.
        name: Option<String>,
        /// Segment of the batch with the event.
        segment: u64,
        /// Offset of that batch, in bytes.
        offset: u64,
    },
    /// The state refused a batch.
    Apply {
        /// Segment of the batch.
        segment: u64,
        /// Its offset, in bytes.
        offset: u64,
        /// Number of its first event.
        first_lsn: Lsn,
        /// What the state said.
        reason: String,
    },
}

impl OpenError {
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), offset: None, source }
    }

    pub(crate) fn io_at(operation: &'static str, path: &Path, offset: u64, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), offset: Some(offset), source }
    }

    /// Whether the disk or the quota is full: worth trying again when there is room.
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
                write!(f, "{} has format version {found}, this build reads {known}", path.display())
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
