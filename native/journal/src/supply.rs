//! Where segments come from and go to: pre-writing, taking into use, closing, and recycling after an image.
//! Everything here happens beside the writer; the writer itself never changes a file's name or length.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::batch::Home;
use crate::error::OpenError;
use crate::files::{Access, FileHandle, write_all_at};
use crate::folder::{Folder, Listing};
use crate::image;
use crate::journal::{Core, lock};
use crate::options::Options;
use crate::queue::Queue;
use crate::recovery::{Tail, is_reusable};
use crate::segment::{self, Segment};
use crate::stats::LastCompaction;

/// Prepared segments beside the one in use: one is the reserve, so the second is the credit of new places.
const READY_WANTED: usize = 2;
/// Closed segments from which on a compaction is worth its work.
const COMPACTION_DUE: usize = 4;
/// Files kept for use again; more are removed.
const FREE_KEPT: usize = 6;
/// Pause before preparing a segment is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes per write of zeros.
const ZEROS: usize = 1024 * 1024;
/// Bytes of zeros after which a running journal's batches get their turn at the disk.
const ZEROS_PER_SYNC: u64 = 8 * 1024 * 1024;

/// Numbers and files of segments that are not prepared.
pub(crate) struct Shelf {
    /// The segment of the last batch, 0 before the first.
    active: u64,
    /// Full segments that no image covers, oldest first.
    pub closed: Vec<u64>,
    /// Whole pre-written files that have no number.
    pub free: Vec<PathBuf>,
    /// Number of the segment that is prepared next.
    next: u64,
}

impl Shelf {
    /// Sorts the files of a folder after recovery: the tail goes on, later segments are ready, covered ones are free.
    /// The second value is the tail's number if its header does not name all kinds of this build, so that after the
    /// first batch, which has no events, its rest must be left alone.
    pub fn restore(
        folder: &Folder,
        options: &Options,
        listing: &Listing,
        first: u64,
        tail: Option<Tail>,
        queue: &mut Queue,
    ) -> Result<(Self, Option<u64>), OpenError> {
        let active = tail.map_or(0, |tail| tail.segment);
        let mut shelf = Self { active, closed: (first..active).collect(), free: Vec::new(), next: first };
        shelf.collect_free(folder, options, listing, first)?;
        let Some(tail) = tail else { return Ok((shelf, None)) };
        let mut last = listing.segments.last_key_value().map_or(active, |(&number, _)| number);
        // From the end, and each durable before the next: a segment is never missing below another.
        while last > active && is_reusable(folder, options, last)? != (true, true) {
            shelf.free_segment(folder, options, last, listing.segments[&last])?;
            folder.sync()?;
            last -= 1;
        }
        queue.fill_from(Arc::new(open_segment(folder, options, active)?), tail.offset);
        let is_named = is_reusable(folder, options, active)?.0;
        for number in active + 1..=last {
            queue.add_ready(Arc::new(open_segment(folder, options, number)?));
        }
        shelf.next = last + 1;
        Ok((shelf, (!is_named).then_some(active)))
    }

    /// Takes covered segments and files that were free already; removes what cannot be used.
    fn collect_free(
        &mut self,
        folder: &Folder,
        options: &Options,
        listing: &Listing,
        first: u64,
    ) -> Result<(), OpenError> {
        for name in &listing.unfinished {
            folder.unlink(&folder.path.join(name))?;
        }
        for (&number, &length) in &listing.free {
            let path = folder.free(number);
            if length == options.segment_bytes && self.free.len() < FREE_KEPT {
                self.free.push(path);
            } else {
                folder.unlink(&path)?;
            }
        }
        for (&number, &length) in listing.segments.range(..first) {
            self.free_segment(folder, options, number, length)?;
        }
        folder.sync()
    }

    fn free_segment(&mut self, folder: &Folder, options: &Options, number: u64, length: u64) -> Result<(), OpenError> {
        let path = folder.segment(number);
        if length != options.segment_bytes || self.free.len() >= FREE_KEPT {
            return folder.unlink(&path);
        }
        let free = folder.free(number);
        folder.rename(&path, &free)?;
        self.free.push(free);
        Ok(())
    }

    /// Notes that the writer goes to a segment; whether that is another one than before.
    pub fn write_to(&mut self, number: u64) -> bool {
        if self.active == number {
            return false;
        }
        if self.active != 0 {
            self.closed.push(self.active);
        }
        self.active = number;
        true
    }

    pub fn is_compaction_due(&self) -> bool {
        self.closed.len() >= COMPACTION_DUE
    }
}

fn open_segment(folder: &Folder, options: &Options, number: u64) -> Result<Segment, OpenError> {
    let reader = crate::reader::SegmentReader::open(folder, options, number)?;
    let file = folder.open(&reader.path, Access::Write)?;
    Ok(Segment { home: reader.header.home, bytes: reader.header.bytes, file })
}

impl Core {
    /// Prepares one segment if fewer are ready than wanted; whether one was. A failure takes the credit of new places
    /// until an attempt succeeds.
    pub fn supply_one(&self) -> Result<bool, OpenError> {
        let _one_at_a_time = lock(&self.supplying);
        let (number, free) = {
            let mut shared = lock(&self.shared);
            if shared.queue.ready_count() >= READY_WANTED {
                return Ok(false);
            }
            (shared.shelf.next, shared.shelf.free.pop())
        };
        let prepared = self.prepare(number, free);
        let mut shared = lock(&self.shared);
        let result = match prepared {
            Ok(segment) => {
                shared.shelf.next = number + 1;
                shared.queue.add_ready(Arc::new(segment));
                shared.supply_stall = None;
                Ok(true)
            }
            Err(error) => {
                shared.supply_stall = Some(error.to_string());
                Err(error)
            }
        };
        self.refresh_credit(&shared);
        if shared.queue.can_take() {
            self.writer_wake.notify_one();
        }
        result
    }

    /// Makes a segment from a free file, or from nothing. It gets its name when it is whole and durable.
    fn prepare(&self, number: u64, free: Option<PathBuf>) -> Result<Segment, OpenError> {
        let is_new = free.is_none();
        let path = free.unwrap_or_else(|| self.folder.unfinished("segment"));
        let result = self.write_segment(&path, number, is_new).and_then(|segment| {
            let name = self.folder.segment(number);
            self.folder.rename(&path, &name)?;
            self.folder.sync().inspect_err(|_| self.discard(&name))?;
            Ok(segment)
        });
        result.inspect_err(|_| self.discard(&path))
    }

    /// Removes a file of which nobody knows how much of it is on disk. If that fails too, the next attempt or start
    /// overwrites it.
    fn discard(&self, path: &Path) {
        let _ = self.folder.files.unlink(path);
    }

    fn write_segment(&self, path: &Path, number: u64, is_new: bool) -> Result<Segment, OpenError> {
        let options = &self.options;
        let salt = self.machine.random().map_err(|error| OpenError::io("make a salt for", path, error))?;
        let home = Home { shard: options.shard, segment: number, salt };
        let file = self.folder.open(path, if is_new { Access::Create } else { Access::Write })?;
        if is_new {
            self.write_zeros(path, file.as_ref())?;
        }
        let header = segment::encode_header(&home, self.epoch, options.segment_bytes, options.kinds);
        write_all_at(file.as_ref(), &header, 0).map_err(|error| OpenError::io_at("write", path, 0, error))?;
        file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
        Ok(Segment { home, bytes: options.segment_bytes, file })
    }

    /// Writes a file full, so that a commit changes neither its length nor its extents.
    fn write_zeros(&self, path: &Path, file: &dyn FileHandle) -> Result<(), OpenError> {
        let bytes = self.options.segment_bytes;
        file.allocate(bytes).map_err(|error| OpenError::io("allocate", path, error))?;
        let zeros = vec![0; ZEROS];
        let mut offset = 0;
        while offset < bytes {
            let size = (ZEROS as u64).min(bytes - offset);
            write_all_at(file, &zeros[..size as usize], offset)
                .map_err(|error| OpenError::io_at("write", path, offset, error))?;
            offset += size;
            if lock(&self.shared).is_closing {
                let closing = std::io::Error::other("the journal is closing");
                return Err(OpenError::io_at("write", path, offset, closing));
            }
            if offset % ZEROS_PER_SYNC == 0 && offset < bytes {
                file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
            }
        }
        Ok(())
    }

    /// The supply thread.
    pub fn run_supply(&self) {
        loop {
            let is_stalled = self.supply_one().is_err();
            let mut shared = lock(&self.shared);
            let is_wanted = |shared: &crate::journal::Shared| shared.queue.ready_count() < READY_WANTED;
            if is_stalled && !shared.is_closing {
                shared = self.supply_wake.wait_timeout(shared, RETRY).unwrap_or_else(PoisonError::into_inner).0;
            }
            while !is_stalled && !shared.is_closing && !is_wanted(&shared) {
                shared = self.supply_wake.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
            if shared.is_closing {
                return;
            }
        }
    }

    /// Frees what the newest image covers. The image's name is made durable first, so that no crash can leave neither
    /// image nor segments.
    pub fn take_image(&self) -> Result<u64, OpenError> {
        let result = self.recycle_covered();
        let mut shared = lock(&self.shared);
        shared.last_compaction = Some(match &result {
            Ok((lsn, image_bytes, segments)) => {
                LastCompaction::Succeeded { lsn: *lsn, image_bytes: *image_bytes, segments: *segments }
            }
            Err(error) => LastCompaction::Failed { reason: error.to_string() },
        });
        shared.image_stall = None;
        self.refresh_credit(&shared);
        result.map(|(_, _, segments)| segments)
    }

    fn recycle_covered(&self) -> Result<(u64, u64, u64), OpenError> {
        let _one_at_a_time = lock(&self.recycling);
        let listing = self.folder.list()?;
        let Some(&newest) = listing.images.last() else {
            return Err(OpenError::Image { path: self.folder.image(0), reason: "there is none".to_owned() });
        };
        let (covered, image_bytes) = image::read_covered(&self.folder, &self.options, newest)?;
        let durable = self.durable.load(std::sync::atomic::Ordering::Acquire);
        if covered.lsn > durable {
            let reason = format!("it covers event {}, the log ends at {durable}", covered.lsn);
            return Err(OpenError::Image { path: self.folder.image(newest), reason });
        }
        self.folder.sync()?;
        let freed: Vec<u64> = {
            let shared = lock(&self.shared);
            shared.shelf.closed.iter().copied().filter(|&number| number <= covered.segment).collect()
        };
        let mut room = FREE_KEPT.saturating_sub(lock(&self.shared).shelf.free.len());
        let mut free = Vec::new();
        for number in &freed {
            let is_kept = room > 0 && listing.segments.get(number) == Some(&self.options.segment_bytes);
            if is_kept {
                self.folder.rename(&self.folder.segment(*number), &self.folder.free(*number))?;
                free.push(self.folder.free(*number));
                room -= 1;
            } else if listing.segments.contains_key(number) {
                self.folder.unlink(&self.folder.segment(*number))?;
            }
        }
        for &lsn in listing.images.range(..newest) {
            self.folder.unlink(&self.folder.image(lsn))?;
        }
        // Durable before a file is used again: its content must never be found under the old name.
        self.folder.sync()?;
        let mut shared = lock(&self.shared);
        shared.shelf.closed.retain(|number| *number > covered.segment);
        shared.shelf.free.append(&mut free);
        self.supply_wake.notify_one();
        Ok((covered.lsn, image_bytes, freed.len() as u64))
    }
}
