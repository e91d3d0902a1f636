//! Preparation of segments before the writer needs them, and recycling of segments that an image covers.
//!
//! To fill a new file with zeros takes as long as the disk is busy, but to reserve its space takes almost no time. So the
//! credit counts a file from then on, and a slow disk delays events instead of refusing them.

use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::batch_format::SegmentIdentity;
use crate::error::OpenError;
use crate::files::{Access, BYTES_PER_SYNC, FileHandle, write_all_at};
use crate::image;
use crate::journal_core::{JournalCore, Shared};
use crate::mutex::lock;
use crate::segment_format::{self, Segment};
use crate::segment_pool::{MAX_FREE_SEGMENTS, NewFile, SPARE_FILES, Spare};
use crate::stats::LastCompaction;

/// Segments beside the current segment: one for events that free slots and one for other events.
const READY_SEGMENTS: usize = 2;
const RETRY: Duration = Duration::from_secs(1);
const ZEROS: usize = 1024 * 1024;

impl JournalCore {
    /// Prepares one segment. Returns false if enough segments are ready.
    ///
    /// After a failure, at most [`crate::Credit::reserve`] can be submitted until an attempt succeeds.
    pub fn prepare_segment(&self) -> Result<bool, OpenError> {
        let _preparing = lock(&self.preparing);
        let allocated = self.allocate_missing();
        let prepared = self.prepare_next();
        let result = allocated.and(prepared);
        let mut shared = lock(&self.shared);
        shared.preparation_error = result.as_ref().err().map(OpenError::to_string);
        self.refresh_credit(&shared);
        result
    }

    /// Creates new files with reserved space for the next segment and [`SPARE_FILES`] more, if a segment is missing.
    ///
    /// Fails only if the disk has no space for [`READY_SEGMENTS`].
    fn allocate_missing(&self) -> Result<(), OpenError> {
        loop {
            let number = {
                let mut shared = lock(&self.shared);
                if shared.queue.ready_count() >= READY_SEGMENTS || shared.pool.spare_count() > SPARE_FILES {
                    return Ok(());
                }
                shared.pool.last_new += 1;
                shared.pool.last_new
            };
            let allocated = self.allocate(number);
            let mut shared = lock(&self.shared);
            match allocated {
                Ok(file) => shared.pool.allocated.push_back(file),
                Err(_) if shared.queue.ready_count() + shared.pool.spare_count() >= READY_SEGMENTS => return Ok(()),
                Err(error) => return Err(error),
            }
            self.refresh_secured(&mut shared);
        }
    }

    fn allocate(&self, number: u64) -> Result<NewFile, OpenError> {
        let path = self.folder.unfinished(&format!("segment-{number:012}"));
        let file = self.folder.open(&path, Access::Create)?;
        let allocated = file.allocate(self.options.segment_bytes).inspect_err(|_| self.discard(&path));
        let has_reserved_space = allocated.map_err(|error| OpenError::io("allocate", &path, error))?;
        Ok(NewFile { path, has_reserved_space })
    }

    fn refresh_secured(&self, shared: &mut Shared) {
        shared.queue.set_secured(shared.pool.secured_count());
        self.refresh_credit(shared);
    }

    fn prepare_next(&self) -> Result<bool, OpenError> {
        let (number, spare) = {
            let mut shared = lock(&self.shared);
            if shared.queue.ready_count() >= READY_SEGMENTS {
                return Ok(false);
            }
            let Some(spare) = shared.pool.take_spare() else { return Ok(false) };
            (shared.pool.next, spare)
        };
        let prepared = self.prepare(number, &spare);
        let mut shared = lock(&self.shared);
        shared.pool.is_preparing_secured = false;
        let result = prepared.map(|segment| {
            shared.pool.next = number + 1;
            shared.queue.add_ready(Arc::new(segment));
            true
        });
        self.refresh_secured(&mut shared);
        if shared.queue.can_take() {
            self.writer_wake.notify_one();
        }
        result
    }

    /// Prepares a segment from a file, and names the file when its content is durable.
    fn prepare(&self, number: u64, spare: &Spare) -> Result<Segment, OpenError> {
        let path = spare.path();
        let result = self.write_segment(spare, number).and_then(|segment| {
            let name = self.folder.segment(number);
            self.folder.rename(path, &name)?;
            self.folder.sync().inspect_err(|_| self.discard(&name))?;
            Ok(segment)
        });
        result.inspect_err(|_| self.discard(path))
    }

    /// Removes a file with unknown content. Ignores a failure, because a later preparation or opening of the journal
    /// overwrites the file.
    fn discard(&self, path: &Path) {
        let _ = self.folder.files.unlink(path);
    }

    fn write_segment(&self, spare: &Spare, number: u64) -> Result<Segment, OpenError> {
        let (options, path) = (&self.options, spare.path());
        let salt = self.time_and_random.random().map_err(|error| OpenError::io("make a salt for", path, error))?;
        let identity = SegmentIdentity { shard: options.shard, segment: number, salt };
        let file = self.folder.open(path, Access::Write)?;
        if let Spare::New(new) = spare {
            self.write_zeros(new, file.as_ref())?;
        }
        let (bytes, alignment) = (options.segment_bytes, self.alignment);
        let header = segment_format::encode_header(&identity, self.epoch, bytes, alignment, options.kinds);
        write_all_at(file.as_ref(), &header, 0).map_err(|error| OpenError::io_at("write", path, 0, error))?;
        file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
        Ok(Segment { identity, bytes, alignment, file })
    }

    /// Fills a new file with zeros, so that a commit changes neither its length nor its extents.
    ///
    /// The end of the journal ends this. If events wait for the segment, it is used without the rest of the zeros.
    fn write_zeros(&self, new: &NewFile, file: &dyn FileHandle) -> Result<(), OpenError> {
        let (path, bytes) = (&new.path, self.options.segment_bytes);
        let zeros = vec![0; ZEROS];
        let mut offset = 0;
        while offset < bytes {
            let size = (ZEROS as u64).min(bytes - offset);
            write_all_at(file, &zeros[..size as usize], offset)
                .map_err(|error| OpenError::io_at("write", path, offset, error))?;
            offset += size;
            let (is_closing, is_awaited) = {
                let shared = lock(&self.shared);
                (shared.is_closing, shared.queue.is_blocked())
            };
            if is_closing && is_awaited && new.has_reserved_space {
                return Ok(());
            }
            if is_closing && !is_awaited {
                let closing = std::io::Error::other("the journal is closing");
                return Err(OpenError::io_at("write", path, offset, closing));
            }
            if offset % BYTES_PER_SYNC == 0 && offset < bytes {
                file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
            }
        }
        Ok(())
    }

    pub fn prepare_segments(&self) {
        loop {
            let is_stalled = self.prepare_segment().is_err();
            let mut shared = lock(&self.shared);
            let is_short = |shared: &Shared| shared.queue.ready_count() < READY_SEGMENTS;
            if is_stalled && !shared.is_closing {
                shared = self.pool_wake.wait_timeout(shared, RETRY).unwrap_or_else(PoisonError::into_inner).0;
            }
            while !is_stalled && !shared.is_closing && !is_short(&shared) {
                shared = self.pool_wake.wait(shared).unwrap_or_else(PoisonError::into_inner);
            }
            if shared.is_closing {
                return;
            }
        }
    }

    /// Removes the new files at the end of the journal. The next opening would remove them, too.
    pub fn discard_new_files(&self) {
        let files = std::mem::take(&mut lock(&self.shared).pool.allocated);
        files.iter().for_each(|file| self.discard(&file.path));
    }

    pub fn recycle_and_record(&self) -> Result<u64, OpenError> {
        let (lsn, image_bytes, segments) = self.recycle_covered()?;
        let mut shared = lock(&self.shared);
        shared.last_compaction = Some(LastCompaction::Succeeded { lsn, image_bytes, segments });
        shared.compactions += 1;
        shared.image_stall = None;
        self.refresh_credit(&shared);
        Ok(segments)
    }

    fn recycle_covered(&self) -> Result<(u64, u64, u64), OpenError> {
        let _recycling = lock(&self.recycling);
        let listing = self.folder.list()?;
        let Some(&newest) = listing.images.last() else {
            return Err(OpenError::Image { path: self.folder.image(0), reason: "no image found".to_owned() });
        };
        let (position, image_bytes) = image::read_position(&self.folder, &self.options, newest)?;
        let durable = self.position.get();
        if position.lsn > durable {
            let reason = format!("it covers event {}, the log ends at {durable}", position.lsn);
            return Err(OpenError::Image { path: self.folder.image(newest), reason });
        }
        // The image's name must be durable before the covered segments are reused.
        self.folder.sync()?;
        let freed: Vec<u64> = {
            let shared = lock(&self.shared);
            shared.pool.closed.iter().copied().filter(|&number| number <= position.segment).collect()
        };
        let mut spare_files = MAX_FREE_SEGMENTS.saturating_sub(lock(&self.shared).pool.spare_count());
        let mut free = Vec::new();
        for number in &freed {
            let is_reused = spare_files > 0 && listing.segments.get(number) == Some(&self.options.segment_bytes);
            if is_reused {
                self.folder.rename(&self.folder.segment(*number), &self.folder.free(*number))?;
                free.push(self.folder.free(*number));
                spare_files -= 1;
            } else if listing.segments.contains_key(number) {
                self.folder.unlink(&self.folder.segment(*number))?;
            }
        }
        for &lsn in listing.images.range(..newest) {
            self.folder.unlink(&self.folder.image(lsn))?;
        }
        // The renames must be durable before a file is reused. A crash could leave new content under the old name.
        self.folder.sync()?;
        let mut shared = lock(&self.shared);
        shared.pool.closed.retain(|number| *number > position.segment);
        shared.pool.free.append(&mut free);
        self.refresh_secured(&mut shared);
        self.pool_wake.notify_one();
        Ok((position.lsn, image_bytes, freed.len() as u64))
    }
}
