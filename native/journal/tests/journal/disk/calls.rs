//! File calls of the in-memory disk, and the effect of a fault on each call.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::MutexGuard;

use hosting_journal::{Access, DEVICE_READ_ALIGNMENT, Entry, FileHandle, Files};

use super::{Content, Disk, Fault, Inner, NameChange};

struct Handle {
    disk: Disk,
    content: usize,
    life: u64,
}

fn error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

fn failed(fault: Fault) -> io::Error {
    match fault {
        Fault::Crash => error(libc::EIO),
        Fault::Error(number) => error(number),
    }
}

impl Files for Disk {
    fn create_folder(&self, _path: &Path) -> io::Result<()> {
        self.inner().enter("create_folder")?.map_or(Ok(()), |fault| Err(failed(fault)))
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let mut inner = self.inner();
        if let Some(fault) = inner.enter("list")? {
            return Err(failed(fault));
        }
        let entry = |(path, &content): (&PathBuf, &usize)| {
            let name = path.strip_prefix(folder).ok()?.to_string_lossy().into_owned();
            Some(Entry { name, length: inner.contents[content].cache.len() as u64 })
        };
        Ok(inner.names.iter().filter_map(entry).collect())
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Box<dyn FileHandle>> {
        let mut inner = self.inner();
        if let Some(fault) = inner.enter(if access == Access::Create { "create" } else { "open" })? {
            return Err(failed(fault));
        }
        let content = match (access, inner.names.get(path).copied()) {
            (Access::Create, _) => {
                // Creates new content, so that a lost truncation leaves the old bytes.
                inner.contents.push(Content::default());
                let content = inner.contents.len() - 1;
                inner.change(NameChange { removed: None, set: Some((path.to_owned(), content)) });
                content
            }
            (_, Some(content)) => content,
            (_, None) => return Err(error(libc::ENOENT)),
        };
        let life = inner.life;
        Ok(Box::new(Handle { disk: self.clone(), content, life }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let fault = inner.enter("rename")?;
        let Some(&content) = inner.names.get(from) else { return Err(error(libc::ENOENT)) };
        if fault.is_none() || (fault == Some(Fault::Crash) && inner.random_bool()) {
            inner.change(NameChange { removed: Some(from.to_owned()), set: Some((to.to_owned(), content)) });
        }
        fault.map_or(Ok(()), |fault| Err(failed(fault)))
    }

    fn unlink(&self, path: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        let fault = inner.enter("unlink")?;
        if !inner.names.contains_key(path) {
            return Err(error(libc::ENOENT));
        }
        if fault.is_none() || (fault == Some(Fault::Crash) && inner.random_bool()) {
            inner.change(NameChange { removed: Some(path.to_owned()), set: None });
        }
        fault.map_or(Ok(()), |fault| Err(failed(fault)))
    }

    fn sync_folder(&self, folder: &Path) -> io::Result<()> {
        let mut inner = self.inner();
        match inner.enter("sync_folder")? {
            None if folder == Path::new("/") => Ok(()),
            None => {
                for change in std::mem::take(&mut inner.changes) {
                    inner.persist_names(change);
                }
                Ok(())
            }
            Some(fault) => Err(failed(fault)),
        }
    }

    fn lock(&self, _path: &Path) -> io::Result<Box<dyn Send + Sync>> {
        match self.inner().enter("lock")? {
            None => Ok(Box::new(())),
            Some(fault) => Err(failed(fault)),
        }
    }

    fn physical_block(&self, _folder: &Path) -> Option<u64> {
        Some(self.inner().block as u64)
    }

    fn read_device(&self, path: &Path, offset: u64, length: usize) -> io::Result<Option<Vec<u8>>> {
        assert_eq!((offset % DEVICE_READ_ALIGNMENT, length as u64 % DEVICE_READ_ALIGNMENT), (0, 0));
        let mut inner = self.inner();
        if let Some(fault) = inner.enter("read_device")? {
            return Err(failed(fault));
        }
        if !inner.has_torn_blocks {
            return Ok(None);
        }
        let Some(&content) = inner.names.get(path) else { return Err(error(libc::ENOENT)) };
        let content = &inner.contents[content];
        assert!(content.dirty.is_empty(), "the file was synced before");
        let offset = offset as usize;
        Ok(Some(content.durable_bytes[offset..offset + length].to_vec()))
    }
}

impl Handle {
    fn enter(&self, call: &'static str) -> io::Result<(MutexGuard<'_, Inner>, Option<Fault>)> {
        let mut inner = self.disk.inner();
        if inner.life != self.life {
            return Err(error(libc::EIO));
        }
        let fault = inner.enter(call)?;
        Ok((inner, fault))
    }
}

impl FileHandle for Handle {
    fn length(&self) -> io::Result<u64> {
        Ok(self.disk.inner().contents[self.content].cache.len() as u64)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let (inner, fault) = self.enter("read")?;
        if let Some(fault) = fault {
            return Err(failed(fault));
        }
        let cache = &inner.contents[self.content].cache;
        let start = (offset as usize).min(cache.len());
        let size = buffer.len().min(cache.len() - start);
        buffer[..size].copy_from_slice(&cache[start..start + size]);
        Ok(size)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let (mut inner, fault) = self.enter("write")?;
        let offset = offset as usize;
        if let Some(fault) = fault {
            let block = inner.block;
            for (index, piece) in bytes.chunks(block).enumerate() {
                if inner.random_bool() {
                    inner.write_cache(self.content, piece, offset + index * block);
                }
            }
            return Err(failed(fault));
        }
        let length = inner.contents[self.content].cache.len();
        let grown = (offset + bytes.len()).saturating_sub(length);
        if inner.capacity.is_some_and(|capacity| grown > 0 && inner.used() + grown > capacity) {
            return Err(error(libc::ENOSPC));
        }
        let size = if inner.is_short_writing && bytes.len() > 1 {
            1 + inner.next() as usize % bytes.len()
        } else {
            bytes.len()
        };
        inner.write_cache(self.content, &bytes[..size], offset);
        Ok(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut inner, fault) = self.enter("sync")?;
        match fault {
            None => {
                for block in std::mem::take(&mut inner.contents[self.content].dirty) {
                    inner.persist(self.content, block);
                }
                // A data sync also makes the length durable.
                let content = &mut inner.contents[self.content];
                content.durable_bytes.resize(content.cache.len(), 0);
                Ok(())
            }
            Some(fault) => {
                inner.persist_some(self.content);
                if fault != Fault::Crash {
                    inner.contents[self.content].dirty.clear();
                }
                Err(failed(fault))
            }
        }
    }

    fn allocate(&self, length: u64) -> io::Result<bool> {
        let (mut inner, fault) = self.enter("allocate")?;
        let length = length as usize;
        let grown = length.saturating_sub(inner.contents[self.content].cache.len());
        if inner.capacity.is_some_and(|capacity| inner.used() + grown > capacity) {
            return Err(error(libc::ENOSPC));
        }
        if let Some(fault) = fault {
            return Err(failed(fault));
        }
        inner.contents[self.content].cache.resize(length, 0);
        Ok(true)
    }
}
