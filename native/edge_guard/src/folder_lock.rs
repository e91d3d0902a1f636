//! Lock of the edge-guard folder: one process at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Lock of the edge-guard folder. The lock ends when all duplicates of its descriptor are closed.
#[derive(Debug)]
pub struct FolderLock(Arc<File>);

impl FolderLock {
    /// Locks a folder. Returns `None` if another process has the lock.
    pub fn take(folder: &Path) -> io::Result<Option<Self>> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(folder.join("LOCK"))?;
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::WouldBlock { Ok(None) } else { Err(error) };
        }
        let lock = Self(Arc::new(file));
        lock.write_pid()?;
        Ok(Some(lock))
    }

    #[must_use]
    pub fn inherit(descriptor: OwnedFd) -> Self {
        Self(Arc::new(File::from(descriptor)))
    }

    #[must_use]
    pub fn descriptor(&self) -> Arc<File> {
        self.0.clone()
    }

    pub fn write_pid(&self) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let pid = format!("{}\n", std::process::id());
        // Written before it is truncated, so that a reader always sees a complete first line.
        self.0.write_all_at(pid.as_bytes(), 0)?;
        self.0.set_len(pid.len() as u64)?;
        (&*self.0).flush()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn folder_lock_is_exclusive_and_has_the_pid() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("a/b");
        let lock = FolderLock::take(&inner).unwrap().unwrap();
        assert!(FolderLock::take(&inner).unwrap().is_none());
        let pid = std::fs::read_to_string(inner.join("LOCK")).unwrap();
        assert_eq!(pid, format!("{}\n", std::process::id()));
        let inherited = FolderLock::inherit(lock.descriptor().try_clone().unwrap().into());
        drop(lock);
        assert!(FolderLock::take(&inner).unwrap().is_none(), "the inherited lock holds");
        drop(inherited);
        // A program that another test starts at this moment has a copy of the descriptor until it runs.
        let end = Instant::now() + Duration::from_secs(10);
        while FolderLock::take(&inner).unwrap().is_none() {
            assert!(Instant::now() < end, "the lock has not ended");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
