//! Segment pool: prepares segments before the writer needs them, and recycles segments that an image covers.
//! The writer itself never renames or resizes a file.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::batch_queue::BatchQueue;
use crate::error::OpenError;
use crate::files::Access;
use crate::folder::{Folder, Listing};
use crate::options::Options;
use crate::recovery::LogTail;
use crate::segment_format::{self, HEADER_SPACE, Segment};
use crate::segment_reader::SegmentReader;

/// Files beside the prepared segments and the segment in preparation.
///
/// All prepared segments can be used up before the next one is prepared. Also then, the credit has a segment for events that
/// free slots and one for other events.
pub(crate) const SPARE_FILES: usize = 2;
const CLOSED_SEGMENTS_UNTIL_COMPACTION: usize = 4;
pub(crate) const MAX_FREE_SEGMENTS: usize = 6;

pub(crate) struct SegmentPool {
    active: u64,
    pub closed: Vec<u64>,
    /// Files of earlier segments.
    pub free: Vec<PathBuf>,
    /// New files, not filled with zeros.
    pub allocated: VecDeque<NewFile>,
    /// True while the disk space of the segment in preparation is reserved.
    pub is_preparing_secured: bool,
    pub next: u64,
    /// Number of the last new file.
    pub last_new: u64,
}

pub(crate) struct NewFile {
    pub path: PathBuf,
    pub has_reserved_space: bool,
}

pub(crate) enum Spare {
    Free(PathBuf),
    New(NewFile),
}

impl Spare {
    pub fn path(&self) -> &Path {
        match self {
            Spare::Free(path) | Spare::New(NewFile { path, .. }) => path,
        }
    }

    fn is_secured(&self) -> bool {
        matches!(self, Spare::Free(_) | Spare::New(NewFile { has_reserved_space: true, .. }))
    }
}

/// Properties of the segments that this run prepares.
pub(crate) struct NewSegments<'a> {
    pub options: &'a Options,
    pub alignment: u64,
}

impl NewSegments<'_> {
    /// Opens a segment if this build can add batches to it: its header has every event kind, and its alignment is that of
    /// new segments.
    fn open_compatible(&self, folder: &Folder, number: u64) -> Result<Option<Segment>, OpenError> {
        let SegmentReader { header, path, .. } = SegmentReader::open(folder, self.options, number)?;
        if header.alignment != self.alignment || !segment_format::has_all_kinds(&header.kinds, self.options.kinds) {
            return Ok(None);
        }
        let file = folder.open(&path, Access::Write)?;
        Ok(Some(Segment { identity: header.identity, bytes: header.bytes, alignment: header.alignment, file }))
    }
}

impl SegmentPool {
    /// Sorts the files of a folder after recovery into current, ready and free segments.
    ///
    /// The log continues in a new segment if this build cannot add batches to the last one.
    pub fn restore(
        folder: &Folder,
        new_segments: &NewSegments<'_>,
        listing: &Listing,
        first: u64,
        tail: Option<LogTail>,
        queue: &mut BatchQueue,
    ) -> Result<Self, OpenError> {
        let options = new_segments.options;
        // A segment without a whole batch counts as prepared, even if it begins with a torn batch. That batch may not be on the
        // device, so a log that continues after such a segment could seem to end before it.
        let last_used = tail.map_or(0, |tail| if tail.offset > HEADER_SPACE { tail.segment } else { tail.segment - 1 });
        let active = if last_used < first { 0 } else { last_used };
        let mut pool = Self {
            active,
            closed: (first..active).collect(),
            free: Vec::new(),
            allocated: VecDeque::new(),
            is_preparing_secured: false,
            next: first.max(active + 1),
            last_new: 0,
        };
        pool.collect_free(folder, options, listing, first)?;
        if let Some(tail) = tail.filter(|tail| tail.segment == active)
            && let Some(segment) = new_segments.open_compatible(folder, active)?
        {
            queue.fill_from(Arc::new(segment), tail.offset);
        }
        while listing.segments.get(&pool.next) == Some(&options.segment_bytes) {
            let Some(segment) = new_segments.open_compatible(folder, pool.next)? else { break };
            queue.add_ready(Arc::new(segment));
            pool.next += 1;
        }
        // Frees the other segments from the last one on, each durably, so that a crash leaves no gap in the numbers.
        for (&number, &length) in listing.segments.range(pool.next..).rev() {
            pool.free_segment(folder, options, number, length)?;
            folder.sync()?;
        }
        queue.set_secured(pool.secured_count());
        Ok(pool)
    }

    /// Returns the number of files that have space for a segment and are not prepared, at most [`SPARE_FILES`]. The limit
    /// bounds the memory of events that wait for these segments.
    pub fn secured_count(&self) -> usize {
        let allocated = self.allocated.iter().filter(|file| file.has_reserved_space).count();
        (self.free.len() + allocated + usize::from(self.is_preparing_secured)).min(SPARE_FILES)
    }

    /// Returns the number of files that are neither prepared nor in preparation.
    pub fn spare_count(&self) -> usize {
        self.free.len() + self.allocated.len()
    }

    pub fn take_spare(&mut self) -> Option<Spare> {
        let spare = self.free.pop().map(Spare::Free).or_else(|| self.allocated.pop_front().map(Spare::New))?;
        self.is_preparing_secured = spare.is_secured();
        Some(spare)
    }

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
            if length == options.segment_bytes && self.free.len() < MAX_FREE_SEGMENTS {
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
        if length != options.segment_bytes || self.free.len() >= MAX_FREE_SEGMENTS {
            return folder.unlink(&path);
        }
        let free = folder.free(number);
        folder.rename(&path, &free)?;
        self.free.push(free);
        Ok(())
    }

    pub fn set_active(&mut self, number: u64) -> bool {
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
        self.closed.len() >= CLOSED_SEGMENTS_UNTIL_COMPACTION
    }
}
