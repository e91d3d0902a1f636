//! Counters of the journal, as plain values for whoever renders metrics.

use crate::Lsn;
use crate::queue::Credit;

/// Upper bounds, inclusive, of the buckets for events per batch; one more bucket holds what is above.
pub const BATCH_EVENT_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384];

/// Upper bounds, inclusive, of the buckets for the time of one write and sync, in nanoseconds: 50 µs to 1 s.
pub const SYNC_NS_BOUNDS: [u64; 13] = [
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    500_000_000,
    1_000_000_000,
];

/// A histogram over fixed bounds. Counts are per bucket, not cumulative.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Inclusive upper bounds.
    pub bounds: &'static [u64],
    /// One count per bound, and one for what is above the last.
    pub counts: Vec<u64>,
    /// Sum of everything observed, in the unit of the bounds.
    pub sum: u64,
}

impl Histogram {
    pub(crate) fn new(bounds: &'static [u64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0 }
    }

    pub(crate) fn observe(&mut self, value: u64) {
        self.counts[self.bounds.partition_point(|&bound| bound < value)] += 1;
        self.sum += value;
    }

    /// How many values were observed.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// How the last compaction ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastCompaction {
    /// An image was taken over.
    Succeeded {
        /// Last event in the image.
        lsn: Lsn,
        /// Length of the image in bytes.
        image_bytes: u64,
        /// Segments that it freed.
        segments: u64,
    },
    /// No image, and why.
    Failed {
        /// The reason, for a person.
        reason: String,
    },
}

/// What the journal has done and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Durable batches of this run, empty ones included.
    pub batches: u64,
    /// Durable events of this run.
    pub events: u64,
    /// Bytes written to segments by this run's batches, framing included.
    pub bytes: u64,
    /// Syncs of batches of this run.
    pub syncs: u64,
    /// Events per batch; empty batches (heartbeats) are not counted.
    pub batch_events: Histogram,
    /// Time from the start of a batch's write to the end of its sync, in nanoseconds.
    pub sync_ns: Histogram,
    /// Age of the oldest submission that is not durable, in nanoseconds; 0 without one.
    pub oldest_pending_ns: u64,
    /// Last submitted event.
    pub last_lsn: Lsn,
    /// Last durable event.
    pub durable_lsn: Lsn,
    /// Epoch of this run.
    pub epoch: u64,
    /// Prepared segments that wait for use.
    pub segments_ready: u64,
    /// Pre-written files without a number.
    pub segments_free: u64,
    /// Full segments that no image covers.
    pub segments_closed: u64,
    /// Bytes that can still be submitted.
    pub credit: Credit,
    /// Whether the last attempt to prepare a segment or to write an image failed for want of room or otherwise: new
    /// places get no credit.
    pub is_stalled: bool,
    /// Why, if it is.
    pub stall_reason: Option<String>,
    /// How the last compaction of this run ended.
    pub last_compaction: Option<LastCompaction>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_belongs_below_it() {
        let mut histogram = Histogram::new(&BATCH_EVENT_BOUNDS);
        for value in [1, 2, 3, 4, 16_384, 16_385] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts, [1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((histogram.count(), histogram.sum), (6, 32_779));
    }
}
