//! File operations of the journal as traits, and their implementation with libc.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
    Create,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    pub length: u64,
}

/// Folder operations. Tests implement this trait to simulate crashes and errors.
pub trait Files: Send + Sync + 'static {
    fn create_folder(&self, path: &Path) -> io::Result<()>;
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;
    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn FileHandle>>;
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn unlink(&self, path: &Path) -> io::Result<()>;
    /// Makes renames, creations and removals in a folder durable.
    fn sync_folder(&self, folder: &Path) -> io::Result<()>;
    /// Takes an exclusive lock until the value is dropped. Fails with `WouldBlock` if the lock is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>>;
    /// Returns the physical block size of the folder's device, or `None` if it is unknown.
    fn physical_block(&self, folder: &Path) -> Option<u64>;
    /// Reads bytes of a file from its device instead of the page cache.
    ///
    /// `offset` and `length` are multiples of [`DEVICE_READ_ALIGNMENT`]. Returns `None` if the file system does not promise
    /// such reads.
    fn read_device(&self, path: &Path, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>>;
}

/// Alignment of offset, length and memory that every device accepts for reads without the page cache.
pub const DEVICE_READ_ALIGNMENT: u64 = 4096;

pub trait FileHandle: Send + Sync {
    fn length(&self) -> io::Result<u64>;
    /// Calls `pread` once. The read can be short, and returns 0 at the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Calls `pwrite` once. The write can be short.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize>;
    /// Calls `fdatasync` once.
    fn sync_data(&self) -> io::Result<()>;
    /// Reserves disk space for `length` bytes. Returns false if the file system cannot, and fails only if the disk is full.
    fn allocate(&self, length: u64) -> io::Result<bool>;
}

/// Bytes that are written to a new file between two syncs. A larger value would delay the syncs of batches.
pub(crate) const BYTES_PER_SYNC: u64 = 8 * 1024 * 1024;

pub(crate) fn write_all_at(file: &dyn FileHandle, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = file.write_at(bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[written..];
        offset += written as u64;
    }
    Ok(())
}

pub(crate) fn read_exact_at(file: &dyn FileHandle, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        let read = file.read_at(buffer, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[read..];
        offset += read as u64;
    }
    Ok(())
}

pub(crate) fn is_no_space(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}

/// File operations of libc, called by symbol (`pwrite`, `fdatasync`), so that a preloaded library can replace them.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

struct RealFile(OwnedFd);

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        let result = call();
        if result >= 0 {
            return Ok(result as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn open_fd(path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    // SAFETY: the path is a valid C string for the duration of the call.
    let fd = retry(|| unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o600 as libc::c_uint) } as isize)?;
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

impl Files for RealFiles {
    fn create_folder(&self, path: &Path) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = match entry.metadata() {
                // Another thread has renamed or removed the file since the folder was read.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                result => result?,
            };
            if metadata.is_file() {
                entries.push(Entry { name: entry.file_name().to_string_lossy().into_owned(), length: metadata.len() });
            }
        }
        Ok(entries)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn FileHandle>> {
        let flags = match access {
            Access::Read => libc::O_RDONLY,
            Access::Write => libc::O_RDWR,
            Access::Create => libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC,
        };
        let fd = open_fd(path, flags)?;
        if access == Access::Read {
            // SAFETY: plain call on an open descriptor. A failure only disables read-ahead.
            unsafe { libc::posix_fadvise(fd.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
        }
        Ok(Box::new(RealFile(fd)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let fd = open_fd(folder, libc::O_RDONLY | libc::O_DIRECTORY)?;
        // SAFETY: plain call on an open descriptor.
        retry(|| unsafe { libc::fsync(fd.as_raw_fd()) } as isize).map(drop)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        let fd = open_fd(path, libc::O_RDWR | libc::O_CREAT)?;
        // SAFETY: plain call on an open descriptor.
        retry(|| unsafe { libc::flock(fd.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } as isize)?;
        Ok(Box::new(fd))
    }

    fn physical_block(&self, folder: &Path) -> Option<u64> {
        let device = std::fs::metadata(folder).ok()?.dev();
        let name = format!("{}:{}", libc::major(device), libc::minor(device));
        read_physical_block(&Path::new("/sys/dev/block").join(name))
    }

    fn read_device(&self, path: &Path, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        let fd = match open_fd(path, libc::O_RDONLY | libc::O_DIRECT) {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            result => result?,
        };
        if !has_direct_reads(&fd) {
            return Ok(None);
        }
        let alignment = DEVICE_READ_ALIGNMENT as usize;
        let mut bytes = vec![0; length + alignment];
        let start = bytes.as_ptr().addr().next_multiple_of(alignment) - bytes.as_ptr().addr();
        read_exact_at(&RealFile(fd), &mut bytes[start..start + length], offset)?;
        bytes.truncate(start + length);
        bytes.drain(..start);
        Ok(Some(bytes))
    }
}

/// Reads the physical block size from the folder of a device or partition in sysfs.
fn read_physical_block(device: &Path) -> Option<u64> {
    // The folder of a partition has no queue. The folder above it belongs to the whole device.
    let queue = ["queue", "../queue"].map(|queue| device.join(queue).join("physical_block_size"));
    let text = queue.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
    text.trim().parse().ok()
}

/// Reports whether the kernel promises that direct reads of a file bypass the page cache.
///
/// Some file systems accept `O_DIRECT` and then read from the page cache. Linux has this question since version 6.1.
fn has_direct_reads(fd: &OwnedFd) -> bool {
    // SAFETY: an all-zero value is valid, and the call fills it or fails.
    let mut stat: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, and `stat` outlives the call.
    let result =
        unsafe { libc::statx(fd.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut stat) };
    let is_accepted = |alignment: u32| alignment != 0 && DEVICE_READ_ALIGNMENT.is_multiple_of(alignment.into());
    result == 0
        && stat.stx_mask & libc::STATX_DIOALIGN != 0
        && is_accepted(stat.stx_dio_mem_align)
        && is_accepted(stat.stx_dio_offset_align)
}

impl FileHandle for RealFile {
    fn length(&self) -> io::Result<u64> {
        // SAFETY: an all-zero stat is a valid value, and the call fills it or fails.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: `stat` outlives the call.
        retry(|| unsafe { libc::fstat(self.0.as_raw_fd(), &mut stat) } as isize)?;
        Ok(stat.st_size as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let fd = self.0.as_raw_fd();
        // SAFETY: pointer and length belong to one live mutable slice.
        retry(|| unsafe { libc::pread(fd, buffer.as_mut_ptr().cast(), buffer.len(), offset as libc::off_t) })
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let fd = self.0.as_raw_fd();
        // SAFETY: pointer and length belong to one live slice.
        retry(|| unsafe { libc::pwrite(fd, bytes.as_ptr().cast(), bytes.len(), offset as libc::off_t) })
    }

    fn sync_data(&self) -> io::Result<()> {
        // SAFETY: plain call on an open descriptor.
        // The call is never repeated: a second sync can succeed although the first sync lost data.
        if unsafe { libc::fdatasync(self.0.as_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn allocate(&self, length: u64) -> io::Result<bool> {
        // SAFETY: plain call on an open descriptor.
        let result = retry(|| unsafe { libc::fallocate(self.0.as_raw_fd(), 0, 0, length as libc::off_t) } as isize);
        match result {
            Err(error) if is_no_space(&error) => Err(error),
            result => Ok(result.is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_uses_the_physical_block_of_its_device() {
        let sysfs = tempfile::tempdir().unwrap();
        let disk = sysfs.path().join("devices/disk");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir(disk.join("partition")).unwrap();
        std::fs::write(disk.join("queue/physical_block_size"), "16384\n").unwrap();
        for (name, target) in [("8:0", "devices/disk"), ("8:1", "devices/disk/partition")] {
            let link = sysfs.path().join(name);
            std::os::unix::fs::symlink(target, &link).unwrap();
            assert_eq!(read_physical_block(&link), Some(16_384), "{name}");
        }
        assert_eq!(read_physical_block(&sysfs.path().join("0:42")), None);
    }

    #[test]
    fn files_can_be_renamed_while_their_folder_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], "").unwrap();
        std::thread::scope(|scope| {
            let listing = scope.spawn(|| (0..2_000).all(|_| RealFiles.list(folder.path()).is_ok()));
            while !listing.is_finished() {
                std::fs::rename(&paths[0], &paths[1]).unwrap();
                std::fs::rename(&paths[1], &paths[0]).unwrap();
            }
            assert!(listing.join().unwrap());
        });
    }

    #[test]
    fn device_has_the_synced_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = RealFiles.open(&path, Access::Create).unwrap();
        let bytes: Vec<u8> = (0..16_384_u32).map(|number| (number % 251) as u8).collect();
        write_all_at(file.as_ref(), &bytes, 0).unwrap();
        file.sync_data().unwrap();
        // `None` is the answer of a file system or a kernel without this promise.
        if let Some(read) = RealFiles.read_device(&path, 4_096, 8_192).unwrap() {
            assert_eq!(read, bytes[4_096..12_288]);
        }
    }
}
