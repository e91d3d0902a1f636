//! Preparation of segments before the writer needs them, and recycling of segments that an image covers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::batch_format::SegmentIdentity;
use crate::error::OpenError;
use crate::files::{Access, FileHandle, write_all_at};
use crate::image;
use crate::journal_core::{JournalCore, Shared};
use crate::mutex::lock;
use crate::segment_format::{self, Segment};
use crate::segment_pool::MAX_FREE_SEGMENTS;
use crate::stats::LastCompaction;

/// Prepared segments beside the current segment: one for events that free slots and one for other events.
const READY_SEGMENTS: usize = 2;
const RETRY: Duration = Duration::from_secs(1);
const ZEROS: usize = 1024 * 1024;
/// Zero bytes that are written to a new file between two syncs. A larger value would delay the syncs of batches.
const ZEROS_PER_SYNC: u64 = 8 * 1024 * 1024;

impl JournalCore {
    /// Prepares one segment. Returns false if enough segments are ready.
    ///
    /// After a failure, at most [`crate::Credit::reserve`] can be submitted until an attempt succeeds.
    pub fn prepare_segment(&self) -> Result<bool, OpenError> {
        let _preparing = lock(&self.preparing);
        let (number, free) = {
            let mut shared = lock(&self.shared);
            if shared.queue.ready_count() >= READY_SEGMENTS {
                return Ok(false);
            }
            (shared.pool.next, shared.pool.free.pop())
        };
        let prepared = self.prepare(number, free);
        let mut shared = lock(&self.shared);
        let result = match prepared {
            Ok(segment) => {
                shared.pool.next = number + 1;
                shared.queue.add_ready(Arc::new(segment));
                shared.preparation_error = None;
                Ok(true)
            }
            Err(error) => {
                shared.preparation_error = Some(error.to_string());
                Err(error)
            }
        };
        self.refresh_credit(&shared);
        if shared.queue.can_take() {
            self.writer_wake.notify_one();
        }
        result
    }

    /// Prepares a segment from a free file or a new file, and names the file when its content is durable.
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

    /// Removes a file with unknown content. Ignores a failure, because a later preparation or opening of the journal
    /// overwrites the file.
    fn discard(&self, path: &Path) {
        let _ = self.folder.files.unlink(path);
    }

    fn write_segment(&self, path: &Path, number: u64, is_new: bool) -> Result<Segment, OpenError> {
        let options = &self.options;
        let salt = self.time_and_random.random().map_err(|error| OpenError::io("make a salt for", path, error))?;
        let identity = SegmentIdentity { shard: options.shard, segment: number, salt };
        let file = self.folder.open(path, if is_new { Access::Create } else { Access::Write })?;
        if is_new {
            self.write_zeros(path, file.as_ref())?;
        }
        let (bytes, alignment) = (options.segment_bytes, self.alignment);
        let header = segment_format::encode_header(&identity, self.epoch, bytes, alignment, options.kinds);
        write_all_at(file.as_ref(), &header, 0).map_err(|error| OpenError::io_at("write", path, 0, error))?;
        file.sync_data().map_err(|error| OpenError::io("sync", path, error))?;
        Ok(Segment { identity, bytes, alignment, file })
    }

    /// Fills a new file with zeros, so that a commit changes neither its length nor its extents.
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

    pub fn recycle_and_record(&self) -> Result<u64, OpenError> {
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
        let mut spare_files = MAX_FREE_SEGMENTS.saturating_sub(lock(&self.shared).pool.free.len());
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
        self.pool_wake.notify_one();
        Ok((position.lsn, image_bytes, freed.len() as u64))
    }
}
