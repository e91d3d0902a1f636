//! The set on disk: replaced whole, so a crash at any instant leaves the old one or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::RouteSet;

/// The file `routes` of a folder.
#[derive(Debug)]
pub struct RouteFile {
    folder: PathBuf,
}

impl RouteFile {
    /// Of one folder.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// What was kept last; an empty set when there is none.
    ///
    /// # Errors
    /// The file is there and cannot be read: whoever starts without it would drop every game.
    pub fn load(&self) -> io::Result<RouteSet> {
        match fs::read(self.folder.join("routes")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RouteSet::default()),
            Err(error) => Err(error),
        }
    }

    /// Keeps a set: when this returns it is what the next start finds.
    ///
    /// # Errors
    /// The disk's.
    pub fn save(&self, set: &RouteSet) -> io::Result<()> {
        let fresh = self.folder.join("routes.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(set).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join("routes"))?;
        File::open(&self.folder)?.sync_all()
    }
}
