//! Recovery: loads the newest image, replays the batches after the image, and finds the end of the log.
//! Accepts a torn last batch and rejects all other damage. Changes no file.

use crate::batch_format::BatchHeader;
use crate::error::OpenError;
use crate::folder::{Folder, Listing};
use crate::image::{Image, ImagePosition};
use crate::lsn::Lsn;
use crate::options::{Options, RecoverableState};
use crate::segment_format::HEADER_SPACE;
use crate::segment_reader::{SegmentEntry, SegmentReader};
use crate::service_clock::ClockRecord;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogCursor {
    pub lsn: Lsn,
    pub sequence: u64,
    pub epoch: u64,
    pub clock: Option<ClockRecord>,
}

pub(crate) struct RecoveryBase {
    pub cursor: LogCursor,
    pub first_segment: u64,
    pub image_lsn: Lsn,
}

impl RecoveryBase {
    fn without_image() -> Self {
        Self { cursor: LogCursor::default(), first_segment: 1, image_lsn: 0 }
    }

    fn from_image(position: &ImagePosition) -> Self {
        Self {
            cursor: LogCursor {
                lsn: position.lsn,
                sequence: position.sequence,
                epoch: position.epoch,
                clock: Some(position.clock),
            },
            first_segment: position.segment + 1,
            image_lsn: position.lsn,
        }
    }

    fn missing_segment(&self, listing: &Listing) -> Option<u64> {
        let last = listing.segments.last_key_value().map_or(0, |(&number, _)| number);
        let is_fresh = listing.segments.is_empty() && self.image_lsn == 0 && self.first_segment == 1;
        let last = if is_fresh { 0 } else { last.max(self.first_segment) };
        (self.first_segment..=last).find(|number| !listing.segments.contains_key(number))
    }
}

/// Loads the newest usable image into an empty state. Skips a damaged image only if the segments of its events exist.
pub(crate) fn load_base(
    folder: &Folder,
    options: &Options,
    listing: &Listing,
    state: &mut dyn RecoverableState,
) -> Result<RecoveryBase, OpenError> {
    let mut damage = None;
    for &lsn in listing.images.iter().rev() {
        match Image::read(folder, options, lsn) {
            Ok(image) => {
                let base = RecoveryBase::from_image(&image.position);
                return match base.missing_segment(listing) {
                    None => image.load(state).map(|()| base),
                    Some(segment) => Err(damage.unwrap_or_else(|| missing(folder, segment))),
                };
            }
            Err(error @ (OpenError::Image { .. } | OpenError::Io { .. })) => damage = damage.or(Some(error)),
            Err(error) => return Err(error),
        }
    }
    let base = RecoveryBase::without_image();
    let is_log_lost = damage.is_some() && listing.segments.is_empty();
    match (base.missing_segment(listing), damage) {
        (None, _) if !is_log_lost => Ok(base),
        (_, Some(damage)) => Err(damage),
        (segment, None) => Err(missing(folder, segment.unwrap_or(1))),
    }
}

fn missing(folder: &Folder, segment: u64) -> OpenError {
    OpenError::MissingSegment { segment, path: folder.segment(segment) }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LogTail {
    pub segment: u64,
    pub offset: u64,
    pub torn_bytes: u64,
}

/// Position of the last valid batch. Only this batch is possibly not synced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastBatch {
    pub segment: u64,
    pub start: u64,
    pub end: u64,
}

pub(crate) struct Replay<'a> {
    pub folder: &'a Folder,
    pub options: &'a Options,
    pub state: &'a mut dyn RecoverableState,
    pub cursor: LogCursor,
    pub batches: u64,
    pub events: u64,
    pub last_batch: Option<LastBatch>,
}

type LogPosition = (u64, u64);

impl<'a> Replay<'a> {
    pub fn new(
        folder: &'a Folder,
        options: &'a Options,
        state: &'a mut dyn RecoverableState,
        cursor: LogCursor,
    ) -> Self {
        Self { folder, options, state, cursor, batches: 0, events: 0, last_batch: None }
    }

    fn open(&self, number: u64) -> Result<SegmentReader, OpenError> {
        SegmentReader::open(self.folder, self.options, number)
    }

    pub fn run_to_end(&mut self, first: u64, last: u64) -> Result<LogTail, OpenError> {
        let mut reader = self.open(first)?;
        let mut log_end = self.apply_whole_batches(&mut reader, None)?;
        for number in first + 1..=last {
            // Only one batch is in flight, so that any batch here proves the segment before to be complete.
            let mut next = self.open(number)?;
            let has_batch = !matches!(next.next()?, SegmentEntry::NoBatch);
            if !has_batch {
                break;
            }
            next.offset = HEADER_SPACE;
            reader = next;
            log_end = self.apply_whole_batches(&mut reader, Some(log_end))?;
        }
        let torn_bytes = reader.torn_bytes()?;
        self.check_nothing_follows(&mut reader, log_end, last)?;
        Ok(LogTail { segment: log_end.0, offset: log_end.1, torn_bytes })
    }

    /// Applies the valid batches at the start of a segment, and returns the position after them.
    ///
    /// `previous_end` is the end of the log in the previous segment. If the first batch does not continue the log, the error
    /// names that position.
    pub fn apply_whole_batches(
        &mut self,
        reader: &mut SegmentReader,
        mut previous_end: Option<LogPosition>,
    ) -> Result<LogPosition, OpenError> {
        let segment = reader.header.identity.segment;
        loop {
            let batch_position = (segment, reader.offset);
            let failure = match reader.next()? {
                SegmentEntry::NoBatch => return Ok(batch_position),
                SegmentEntry::TornBatch(header) => {
                    self.check_order(&header, previous_end.unwrap_or(batch_position))?;
                    return Ok(batch_position);
                }
                SegmentEntry::Batch(header, payload) => {
                    self.check_order(&header, previous_end.take().unwrap_or(batch_position))?;
                    self.apply(&header, payload).err().map(|reason| (header, reason))
                }
            };
            if let Some((header, reason)) = failure {
                return Err(self.apply_error(reader, batch_position, &header, reason));
            }
            self.last_batch = Some(LastBatch { segment, start: batch_position.1, end: reader.offset });
        }
    }

    /// Fails if the first batch of a segment does not continue the log. The error names `previous_end`, the position where the
    /// log ended.
    pub fn check_begins_after(&self, number: u64, previous_end: LogPosition) -> Result<(), OpenError> {
        let mut reader = self.open(number)?;
        match reader.next()? {
            SegmentEntry::Batch(header, _) | SegmentEntry::TornBatch(header) => self.check_order(&header, previous_end),
            SegmentEntry::NoBatch => Ok(()),
        }
    }

    fn check_order(&self, header: &BatchHeader, position: LogPosition) -> Result<(), OpenError> {
        let (expected, expected_batch) = (self.cursor.lsn + 1, self.cursor.sequence + 1);
        if header.first_lsn == expected && header.sequence == expected_batch && header.epoch >= self.cursor.epoch {
            return Ok(());
        }
        Err(OpenError::Gap {
            segment: position.0,
            offset: position.1,
            expected,
            found: header.first_lsn,
            expected_batch,
            found_batch: header.sequence,
        })
    }

    fn apply(&mut self, header: &BatchHeader, payload: &[u8]) -> Result<(), String> {
        if header.count > 0 {
            self.state.apply(header.first_lsn, header.count, payload, header.clock.service_ms)?;
        }
        self.batches += 1;
        self.events += u64::from(header.count);
        self.cursor.lsn += u64::from(header.count);
        self.cursor.sequence = header.sequence;
        self.cursor.epoch = header.epoch;
        self.cursor.clock = Some(header.clock);
        Ok(())
    }

    fn apply_error(
        &self,
        reader: &SegmentReader,
        position: LogPosition,
        header: &BatchHeader,
        reason: String,
    ) -> OpenError {
        let (segment, offset) = position;
        match self.state.unknown_kind() {
            Some(kind) => {
                let name = reader.header.kinds.iter().find(|(k, _)| *k == kind).map(|(_, name)| name.clone());
                OpenError::UnknownKind { kind, name, segment, offset }
            }
            None => OpenError::Apply { segment, offset, first_lsn: header.first_lsn, reason },
        }
    }

    /// Fails if a batch exists after the end of the log, because acknowledged events would then be missing.
    fn check_nothing_follows(
        &mut self,
        reader: &mut SegmentReader,
        (segment, offset): LogPosition,
        last: u64,
    ) -> Result<(), OpenError> {
        let refuse = |next_segment, next_offset| Err(OpenError::Damaged { segment, offset, next_segment, next_offset });
        if let Some(next_offset) = reader.find_header(offset + reader.header.alignment)? {
            return refuse(segment, next_offset);
        }
        for number in segment + 1..=last {
            let mut later = self.open(number)?;
            if let Some(next_offset) = later.find_header(later.offset)? {
                return refuse(number, next_offset);
            }
        }
        Ok(())
    }
}

pub(crate) fn check_end(folder: &Folder, listing: &Listing, last: Lsn) -> Result<(), OpenError> {
    match listing.images.last() {
        Some(&lsn) if lsn > last => Err(OpenError::EndsEarly { last, path: folder.image(lsn) }),
        _ => Ok(()),
    }
}
