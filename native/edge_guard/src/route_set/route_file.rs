//! File `routes` with the saved route set. Each save replaces the file atomically.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::RouteSet;

#[derive(Debug, Clone)]
pub struct RouteFile {
    folder: PathBuf,
}

impl RouteFile {
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Loads the saved route set. Returns an empty set if there is no file, and an error if the file is damaged.
    pub fn load(&self) -> io::Result<RouteSet> {
        match fs::read(self.folder.join("routes")) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(RouteSet::default()),
            Err(error) => Err(error),
        }
    }

    pub fn save(&self, set: &RouteSet) -> io::Result<()> {
        let fresh = self.folder.join("routes.new");
        let mut file = File::create(&fresh)?;
        file.write_all(&serde_json::to_vec(set).map_err(io::Error::other)?)?;
        file.sync_all()?;
        fs::rename(&fresh, self.folder.join("routes"))?;
        File::open(&self.folder)?.sync_all()
    }
}
