//! Journal counters as plain values for metrics.

use crate::batch_queue::Credit;
use crate::lsn::Lsn;

pub const BATCH_EVENT_BOUNDS: [u64; 13] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 4_096, 16_384];

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    pub bounds: &'static [u64],
    pub counts: Vec<u64>,
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

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastCompaction {
    Succeeded { lsn: Lsn, image_bytes: u64, segments: u64 },
    Failed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionFailure {
    pub reason: String,
    /// Pause until the next attempt, in seconds.
    pub retry_s: u64,
}

/// Counters since the opening of the journal, and its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    pub batches: u64,
    pub events: u64,
    pub bytes: u64,
    pub syncs: u64,
    pub batch_events: Histogram,
    pub sync_ns: Histogram,
    /// Age of the oldest submission that is not durable, in nanoseconds. 0 if there is none.
    pub oldest_pending_ns: u64,
    pub last_lsn: Lsn,
    pub durable_lsn: Lsn,
    pub epoch: u64,
    pub segments_ready: u64,
    pub segments_free: u64,
    pub segments_closed: u64,
    pub credit: Credit,
    /// True if the last segment could not be prepared, or the last image did not fit on the disk. The credit is then at
    /// most [`Credit::reserve`].
    pub is_stalled: bool,
    pub stall_reason: Option<String>,
    pub last_compaction: Option<LastCompaction>,
    /// Number of images written.
    pub compactions: u64,
    pub failed_compactions: u64,
    pub last_compaction_failure: Option<CompactionFailure>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_bounds_are_inclusive() {
        let mut histogram = Histogram::new(&BATCH_EVENT_BOUNDS);
        for value in [1, 2, 3, 4, 16_384, 16_385] {
            histogram.observe(value);
        }
        assert_eq!(histogram.counts, [1, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!((histogram.count(), histogram.sum), (6, 32_779));
    }
}
