//! Queue of batches before the write, with their positions in the prepared segments. Does no file operations.
//!
//! Each submission gets its position at once, so that the credit is exact. A batch collects the submissions of one sync
//! period, and lies within one segment. If no segment is prepared in time, batches wait without a position, at most one for
//! each secured file.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::batch_format::{HEADER, framed_bytes};
use crate::lsn::Lsn;
use crate::segment_format::{HEADER_SPACE, Segment, payload_capacity};

/// Bytes that can still be submitted, including batch headers and padding.
///
/// A submission fits if it has at most `total` and at most `largest` bytes. With at most `total - reserve` bytes, it
/// also leaves a segment for events that free slots. Read the credit again before each submission: other submissions,
/// and a heartbeat each second, also use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    pub total: u64,
    /// Bytes kept for events that free slots: the payload of one segment.
    pub reserve: u64,
    /// Largest submission in bytes, limited by the segment length.
    pub largest: u64,
}

pub(crate) struct PendingBatch {
    pub position: Option<(Arc<Segment>, u64)>,
    pub bytes: Vec<u8>,
    pub first_lsn: Lsn,
    pub count: u32,
    pub since_ns: u64,
}

impl PendingBatch {
    fn payload(&self) -> u64 {
        (self.bytes.len() - HEADER) as u64
    }
}

pub(crate) struct BatchQueue {
    pending: VecDeque<PendingBatch>,
    current: Option<(Arc<Segment>, u64)>,
    ready: VecDeque<Arc<Segment>>,
    /// Number of files that are not prepared yet, but have disk space for a segment.
    secured: usize,
    payload: u64,
    /// Bytes kept for the next heartbeat: one batch without events.
    heartbeat_bytes: u64,
    spare_buffer: Vec<u8>,
}

impl BatchQueue {
    pub fn new(segment_bytes: u64, alignment: u64) -> Self {
        Self {
            pending: VecDeque::new(),
            current: None,
            ready: VecDeque::new(),
            secured: 0,
            payload: payload_capacity(segment_bytes, alignment),
            heartbeat_bytes: framed_bytes(0, alignment),
            spare_buffer: Vec::new(),
        }
    }

    pub fn fill_from(&mut self, segment: Arc<Segment>, offset: u64) {
        self.current = Some((segment, offset));
    }

    pub fn add_ready(&mut self, segment: Arc<Segment>) {
        self.ready.push_back(segment);
        // A later, smaller batch must not take the rest of a segment before an earlier one has its position.
        for index in self.pending.len() - self.blocked_count()..self.pending.len() {
            let position = self.assign_position(self.pending[index].payload());
            if position.is_none() {
                return;
            }
            self.pending[index].position = position;
        }
    }

    pub fn set_secured(&mut self, count: usize) {
        self.secured = count;
    }

    pub fn ready_count(&self) -> usize {
        self.ready.len()
    }

    pub fn has_segment(&self) -> bool {
        self.current.is_some() || !self.ready.is_empty()
    }

    fn assign_position(&mut self, payload: u64) -> Option<(Arc<Segment>, u64)> {
        let needed = |segment: &Segment| framed_bytes(payload, segment.alignment);
        let has_room = |(segment, offset): &(Arc<Segment>, u64)| offset + needed(segment) <= segment.bytes;
        if !self.current.as_ref().is_some_and(has_room) {
            let next = self.ready.front()?;
            if HEADER_SPACE + needed(next) > next.bytes {
                return None;
            }
            self.current = self.ready.pop_front().map(|segment| (segment, HEADER_SPACE));
        }
        let (segment, offset) = self.current.as_mut()?;
        let position = (Arc::clone(segment), *offset);
        *offset += needed(segment);
        Some(position)
    }

    /// Appends events to the last batch, or begins a new batch with the time from `now_ns`.
    pub fn push(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8], now_ns: impl FnOnce() -> u64) {
        if let Some(last) = self.pending.back_mut() {
            let merged_payload = last.payload() + bytes.len() as u64;
            let has_room = match (&last.position, &mut self.current) {
                (Some((segment, offset)), Some((_, end))) => {
                    let merged_end = offset + framed_bytes(merged_payload, segment.alignment);
                    let has_room = merged_end <= segment.bytes;
                    if has_room {
                        *end = merged_end;
                    }
                    has_room
                }
                (None, _) => merged_payload <= self.payload,
                _ => false,
            };
            if has_room && last.count.checked_add(count).is_some() {
                last.bytes.extend_from_slice(bytes);
                last.count += count;
                return;
            }
        }
        self.begin(first_lsn, count, bytes, now_ns());
    }

    pub fn begin(&mut self, first_lsn: Lsn, count: u32, bytes: &[u8], since_ns: u64) {
        let mut buffer = std::mem::take(&mut self.spare_buffer);
        buffer.clear();
        buffer.resize(HEADER, 0);
        buffer.extend_from_slice(bytes);
        // While one batch waits for a segment, all later batches wait too, so that the order is kept.
        let position = if self.is_blocked() { None } else { self.assign_position(bytes.len() as u64) };
        self.pending.push_back(PendingBatch { position, bytes: buffer, first_lsn, count, since_ns });
    }

    pub fn take(&mut self) -> Option<PendingBatch> {
        if self.can_take() { self.pending.pop_front() } else { None }
    }

    pub fn can_take(&self) -> bool {
        self.pending.front().is_some_and(|first| first.position.is_some())
    }

    pub fn is_blocked(&self) -> bool {
        self.pending.back().is_some_and(|last| last.position.is_none())
    }

    fn blocked_count(&self) -> usize {
        self.pending.iter().rev().take_while(|batch| batch.position.is_none()).count()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn oldest_since_ns(&self) -> Option<u64> {
        self.pending.front().map(|first| first.since_ns)
    }

    pub fn recycle_buffer(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= 1024 * 1024 {
            self.spare_buffer = buffer;
        }
    }

    pub fn credit(&self) -> Credit {
        let largest = self.payload;
        // Each batch without a position counts as a whole segment.
        let Some(segments) = (self.ready.len() + self.secured).checked_sub(self.blocked_count()) else {
            return Credit { total: 0, reserve: largest, largest };
        };
        // Counts the header of a new batch, because the writer can take the current batch at any time.
        let free = |(segment, offset): &(Arc<Segment>, u64)| {
            let whole_blocks = (segment.bytes - offset) / segment.alignment * segment.alignment;
            whole_blocks.saturating_sub(HEADER as u64)
        };
        let current_bytes = match self.pending.back() {
            Some(last) if last.position.is_none() => self.payload - last.payload(),
            _ => self.current.as_ref().map_or(0, free),
        };
        let total = (current_bytes + segments as u64 * self.payload).saturating_sub(self.heartbeat_bytes);
        Credit { total, reserve: largest, largest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_format::SegmentIdentity;
    use crate::files::FileHandle;
    use proptest::prelude::*;
    use std::io;

    struct NoFile;

    impl FileHandle for NoFile {
        fn length(&self) -> io::Result<u64> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn write_at(&self, _: &[u8], _: u64) -> io::Result<usize> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn sync_data(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
        fn allocate(&self, _: u64) -> io::Result<bool> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    /// Not a multiple of the larger alignment, so that the last bytes of a segment stay unused.
    const BYTES: u64 = 132 * 1024;

    fn alignment() -> impl Strategy<Value = u64> {
        prop_oneof![Just(4_096), Just(16_384)]
    }

    fn segment(number: u64, alignment: u64) -> Arc<Segment> {
        let identity = SegmentIdentity { shard: 1, segment: number, salt: number };
        Arc::new(Segment { identity, bytes: BYTES, alignment, file: Box::new(NoFile) })
    }

    #[derive(Clone, Debug)]
    enum Step {
        Submit(u64),
        SubmitAllBut(u64),
        Write,
        Secure,
        Prepare,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..=300_u64).prop_map(Step::Submit),
            2 => (0..=20_000_u64).prop_map(Step::SubmitAllBut),
            4 => Just(Step::Write),
            2 => Just(Step::Secure),
            1 => Just(Step::Prepare),
        ]
    }

    fn write_all(queue: &mut BatchQueue, mut placed_to: (u64, u64)) -> Result<(u64, u64), TestCaseError> {
        while let Some(batch) = queue.take() {
            let (segment, offset) = batch.position.expect("taken batches have a place");
            prop_assert!((segment.identity.segment, offset) >= placed_to);
            prop_assert_eq!(offset % segment.alignment, 0);
            let end = offset + framed_bytes((batch.bytes.len() - HEADER) as u64, segment.alignment);
            prop_assert!(offset >= HEADER_SPACE && end <= BYTES);
            placed_to = (segment.identity.segment, end);
        }
        Ok(placed_to)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// A submission within the credit fits into the prepared segments and secured files, also after other submissions,
        /// writes and heartbeats.
        #[test]
        fn submission_within_credit_fits_segments(
            alignment in alignment(),
            steps in prop::collection::vec((step(), any::<bool>(), any::<bool>()), 1..80),
        ) {
            let mut queue = BatchQueue::new(BYTES, alignment);
            let (mut segments, mut secured) = (3, 0);
            for number in 1..=segments {
                queue.add_ready(segment(number, alignment));
            }
            let mut placed_to = (0, 0);
            for (step, is_written_meanwhile, is_beaten_meanwhile) in steps {
                let credit = queue.credit();
                let requested = match step {
                    Step::Submit(share) => credit.total * share / 1_000,
                    Step::SubmitAllBut(left) => credit.total.saturating_sub(left),
                    Step::Write => 0,
                    Step::Secure => {
                        secured = (secured + 1).min(3);
                        queue.set_secured(secured);
                        continue;
                    }
                    Step::Prepare => {
                        segments += 1;
                        secured = secured.saturating_sub(1);
                        queue.set_secured(secured);
                        queue.add_ready(segment(segments, alignment));
                        continue;
                    }
                };
                if is_beaten_meanwhile && queue.is_empty() && credit.total > credit.reserve / 2 {
                    queue.begin(1, 0, &[], 0);
                    prop_assert!(queue.blocked_count() <= secured);
                }
                if is_written_meanwhile || matches!(step, Step::Write) {
                    placed_to = write_all(&mut queue, placed_to)?;
                }
                let size = requested.min(credit.largest);
                if size > 0 {
                    queue.push(1, 1, &vec![0; size as usize], || 0);
                    prop_assert!(queue.blocked_count() <= secured, "{} of {:?}", size, credit);
                }
            }
            for number in 1..=secured {
                queue.add_ready(segment(segments + number as u64, alignment));
            }
            prop_assert!(!queue.is_blocked());
            write_all(&mut queue, placed_to)?;
        }

        /// Submissions up to `total - reserve` bytes leave `reserve` bytes of credit, or up to three blocks less.
        #[test]
        fn submissions_above_the_reserve_leave_the_reserve(
            alignment in alignment(),
            secured in 0..3_u64,
            shares in prop::collection::vec(0..=1_000_u64, 1..60),
        ) {
            let mut queue = BatchQueue::new(BYTES, alignment);
            for number in 1..=3 - secured {
                queue.add_ready(segment(number, alignment));
            }
            queue.set_secured(secured as usize);
            for share in shares {
                let credit = queue.credit();
                let size = (credit.total.saturating_sub(credit.reserve) * share / 1_000).min(credit.largest);
                if size > 0 {
                    queue.push(1, 1, &vec![0; size as usize], || 0);
                }
                while queue.take().is_some() {}
                let left = queue.credit();
                prop_assert!(left.total + 3 * alignment >= left.reserve, "{:?}", left);
            }
        }
    }
}
