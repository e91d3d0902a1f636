//! In-memory disk for tests. Simulates lost and torn writes, torn blocks, failed syncs and calls, and a full disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod calls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Crash,
    Error(i32),
}

#[derive(Clone, Default)]
struct Content {
    cache: Vec<u8>,
    durable_bytes: Vec<u8>,
    /// Blocks for the next sync. A failed sync clears the set, although some blocks may not be written.
    dirty: BTreeSet<usize>,
}

#[derive(Clone)]
struct NameChange {
    removed: Option<PathBuf>,
    set: Option<(PathBuf, usize)>,
}

#[derive(Clone, Default)]
struct Inner {
    contents: Vec<Content>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    changes: Vec<NameChange>,
    calls: u64,
    fault: Option<(u64, Fault)>,
    is_off: bool,
    /// Process generation. Handles of an earlier process fail.
    life: u64,
    random: u64,
    block: usize,
    capacity: Option<usize>,
    is_short_writing: bool,
    has_torn_blocks: bool,
    log: Vec<&'static str>,
}

#[derive(Clone)]
pub struct Disk(Arc<Mutex<Inner>>);

impl Inner {
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut value = self.random;
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    }

    fn random_bool(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn enter(&mut self, call: &'static str) -> io::Result<Option<Fault>> {
        if self.is_off {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        self.calls += 1;
        self.log.push(call);
        match self.fault {
            Some((at, fault)) if at == self.calls => {
                if fault == Fault::Crash {
                    self.is_off = true;
                }
                Ok(Some(fault))
            }
            _ => Ok(None),
        }
    }

    fn used(&self) -> usize {
        self.names
            .values()
            .collect::<BTreeSet<_>>()
            .into_iter()
            .map(|&content| self.contents[content].cache.len())
            .sum()
    }

    fn write_cache(&mut self, content: usize, bytes: &[u8], offset: usize) {
        let block = self.block;
        let content = &mut self.contents[content];
        let end = offset + bytes.len();
        if content.cache.len() < end {
            content.cache.resize(end, 0);
        }
        content.cache[offset..end].copy_from_slice(bytes);
        content.dirty.extend(offset / block..end.div_ceil(block));
    }

    fn persist(&mut self, content: usize, block: usize) {
        let size = self.block;
        let content = &mut self.contents[content];
        let start = block * size;
        let end = (start + size).min(content.cache.len());
        if start >= end {
            return;
        }
        if content.durable_bytes.len() < end {
            content.durable_bytes.resize(end, 0);
        }
        content.durable_bytes[start..end].copy_from_slice(&content.cache[start..end]);
    }

    /// Replaces a durable block by random bytes.
    fn tear(&mut self, content: usize, block: usize) {
        self.persist(content, block);
        let noise = self.next().to_le_bytes();
        let size = self.block;
        let durable_bytes = &mut self.contents[content].durable_bytes;
        let end = durable_bytes.len().min((block + 1) * size);
        for (index, byte) in durable_bytes[block * size..end].iter_mut().enumerate() {
            *byte ^= noise[index % noise.len()] ^ index as u8;
        }
    }

    fn persist_some(&mut self, content: usize) {
        let loss_mode = self.next() % 4;
        for block in self.contents[content].dirty.clone() {
            if loss_mode > 1 && self.has_torn_blocks && self.next().is_multiple_of(3) {
                self.tear(content, block);
            } else if loss_mode == 1 || (loss_mode > 1 && self.random_bool()) {
                self.persist(content, block);
                self.contents[content].dirty.remove(&block);
            }
        }
    }

    fn change(&mut self, change: NameChange) {
        if let Some(path) = &change.removed {
            self.names.remove(path);
        }
        if let Some((path, content)) = &change.set {
            self.names.insert(path.clone(), *content);
        }
        self.changes.push(change);
    }

    fn persist_names(&mut self, change: NameChange) {
        if let Some(path) = change.removed {
            self.durable_names.remove(&path);
        }
        if let Some((path, content)) = change.set {
            self.durable_names.insert(path, content);
        }
    }

    fn persist_some_names(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        let in_order = self.random_bool();
        let cut = self.next() as usize % (changes.len() + 1);
        for (index, change) in changes.into_iter().enumerate() {
            let is_durable = if in_order { index < cut } else { self.random_bool() };
            if is_durable {
                self.persist_names(change);
            }
        }
    }
}

impl Disk {
    pub fn new(seed: u64) -> Self {
        let block = [512, 4096, 512, 16_384][seed as usize % 4];
        Self(Arc::new(Mutex::new(Inner { random: seed, block, ..Inner::default() })))
    }

    /// Returns a disk on which a block becomes garbage if power goes before its sync. Its file system reads from the device.
    pub fn with_torn_blocks(seed: u64) -> Self {
        let disk = Self::new(seed);
        disk.inner().has_torn_blocks = true;
        disk
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fork(&self, seed: u64) -> Self {
        let mut inner = self.inner().clone();
        inner.random = seed;
        Self(Arc::new(Mutex::new(inner)))
    }

    pub fn plan(&self, at: u64, fault: Fault) {
        let mut inner = self.inner();
        (inner.calls, inner.fault) = (0, Some((at, fault)));
    }

    pub fn was_hit(&self) -> bool {
        let inner = self.inner();
        inner.fault.is_some_and(|(at, _)| inner.calls >= at)
    }

    pub fn last_call(&self) -> &'static str {
        self.inner().log.last().copied().unwrap_or("none")
    }

    pub fn call_counts(&self) -> BTreeMap<&'static str, usize> {
        self.inner().log.iter().fold(BTreeMap::new(), |mut counts, call| {
            *counts.entry(*call).or_default() += 1;
            counts
        })
    }

    /// Returns whether all calls fail since a crash.
    pub fn is_off(&self) -> bool {
        self.inner().is_off
    }

    /// Returns whether a call has met the planned fault.
    pub fn has_failed(&self) -> bool {
        let inner = self.inner();
        inner.fault.is_some_and(|(at, _)| at <= inner.calls)
    }

    /// Clears the fault, as if only the failed process had ended. Handles stay valid.
    pub fn forget_fault(&self) {
        let mut inner = self.inner();
        inner.is_off = false;
        inner.fault = None;
    }

    pub fn limit(&self, capacity: Option<usize>) {
        self.inner().capacity = capacity;
    }

    pub fn used(&self) -> usize {
        self.inner().used()
    }

    pub fn write_short(&self, is_short_writing: bool) {
        self.inner().is_short_writing = is_short_writing;
    }

    pub fn kill(&self) {
        let mut inner = self.inner();
        inner.is_off = false;
        inner.fault = None;
        inner.life += 1;
    }

    pub fn lose_power(&self) {
        let mut inner = self.inner();
        inner.persist_some_names();
        let durable_files: BTreeSet<usize> = inner.durable_names.values().copied().collect();
        for content in 0..inner.contents.len() {
            if !durable_files.contains(&content) {
                inner.contents[content] = Content::default();
                continue;
            }
            inner.persist_some(content);
            let content = &mut inner.contents[content];
            content.cache = content.durable_bytes.clone();
            content.dirty.clear();
        }
        inner.names = inner.durable_names.clone();
        drop(inner);
        self.kill();
    }

    pub fn damage(&self, path: &Path, offset: usize, length: usize) {
        let mut inner = self.inner();
        let content = inner.names[path];
        let content = &mut inner.contents[content];
        for bytes in [&mut content.cache, &mut content.durable_bytes] {
            for byte in &mut bytes[offset..offset + length] {
                *byte ^= 0x5A;
            }
        }
    }

    pub fn read(&self, path: &Path) -> Vec<u8> {
        let inner = self.inner();
        inner.contents[inner.names[path]].cache.clone()
    }

    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut inner = self.inner();
        let content = Content { cache: bytes.to_vec(), durable_bytes: bytes.to_vec(), dirty: BTreeSet::new() };
        inner.contents.push(content);
        let number = inner.contents.len() - 1;
        inner.names.insert(path.to_owned(), number);
        inner.durable_names.insert(path.to_owned(), number);
    }

    pub fn lose(&self, path: &Path) {
        let mut inner = self.inner();
        inner.names.remove(path);
        inner.durable_names.remove(path);
    }

    pub fn names(&self) -> Vec<String> {
        let inner = self.inner();
        inner.names.keys().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }
}
