//! File names of a journal folder, and file operations with the path in their errors.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::OpenError;
use crate::files::{Access, FileHandle, Files};
use crate::lsn::Lsn;

#[derive(Clone)]
pub(crate) struct Folder {
    pub files: Arc<dyn Files>,
    pub path: PathBuf,
}

/// Files of a folder by kind. Files with unknown names are ignored.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub segments: BTreeMap<u64, u64>,
    pub free: BTreeMap<u64, u64>,
    pub images: BTreeSet<Lsn>,
    pub unfinished: Vec<String>,
}

const UNFINISHED: &str = ".tmp";

impl Folder {
    pub fn segment(&self, number: u64) -> PathBuf {
        self.path.join(format!("seg-{number:012}.log"))
    }

    pub fn free(&self, number: u64) -> PathBuf {
        self.path.join(format!("free-{number:012}.log"))
    }

    pub fn image(&self, lsn: Lsn) -> PathBuf {
        self.path.join(format!("image-{lsn:020}.img"))
    }

    /// Returns the temporary path of a file that is being written. The next start removes such a file.
    pub fn unfinished(&self, purpose: &str) -> PathBuf {
        self.path.join(format!("{purpose}{UNFINISHED}"))
    }

    pub fn list(&self) -> Result<Listing, OpenError> {
        let entries = self.files.list(&self.path).map_err(|error| OpenError::io("list", &self.path, error))?;
        let mut listing = Listing::default();
        for entry in entries {
            if let Some(number) = number_in(&entry.name, "seg-", ".log") {
                listing.segments.insert(number, entry.length);
            } else if let Some(number) = number_in(&entry.name, "free-", ".log") {
                listing.free.insert(number, entry.length);
            } else if let Some(lsn) = number_in(&entry.name, "image-", ".img") {
                listing.images.insert(lsn);
            } else if entry.name.ends_with(UNFINISHED) {
                listing.unfinished.push(entry.name);
            }
        }
        Ok(listing)
    }

    pub fn open(&self, path: &Path, access: Access) -> Result<Box<dyn FileHandle>, OpenError> {
        self.files.open(path, access).map_err(|error| OpenError::io("open", path, error))
    }

    pub fn rename(&self, from: &Path, to: &Path) -> Result<(), OpenError> {
        self.files.rename(from, to).map_err(|error| OpenError::io("rename", from, error))
    }

    pub fn unlink(&self, path: &Path) -> Result<(), OpenError> {
        self.files.unlink(path).map_err(|error| OpenError::io("remove", path, error))
    }

    pub fn sync(&self) -> Result<(), OpenError> {
        self.files.sync_folder(&self.path).map_err(|error| OpenError::io("sync", &self.path, error))
    }

    /// Makes the entry of the folder in its parent folder durable.
    pub fn sync_parent(&self) -> Result<(), OpenError> {
        let parent = match self.path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Ok(()),
        };
        self.files.sync_folder(parent).map_err(|error| OpenError::io("sync", parent, error))
    }

    pub fn lock(&self, name: &str) -> Result<Box<dyn Send + Sync>, OpenError> {
        let path = self.path.join(name);
        self.files.lock(&path).map_err(|error| {
            if error.kind() == io::ErrorKind::WouldBlock {
                OpenError::Locked { path }
            } else {
                OpenError::io("lock", &path, error)
            }
        })
    }
}

fn number_in(name: &str, prefix: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_suffix(suffix)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}
