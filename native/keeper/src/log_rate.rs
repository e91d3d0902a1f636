//! Rate limit of the program's output, in lines and bytes.
//!
//! The limit is a token bucket of ten seconds. When it is empty, all output is dropped until it holds one second again.
//! So a flood gives one second of lines, then one line that says how much was dropped, about once a second.

use std::fmt;
use std::time::Duration;

const BURST_S: u64 = 10;
const UNLIMITED: u64 = u64::MAX / BURST_S;

pub struct LogRate {
    lines: Bucket,
    bytes: Bucket,
    refilled_at: Duration,
    dropping_until: Option<Duration>,
    dropped: DroppedOutput,
}

/// Output that is not in the log because of its rate limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedOutput {
    pub lines: u64,
    pub bytes: u64,
}

impl DroppedOutput {
    pub fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.bytes += other.bytes;
    }
}

impl fmt::Display for DroppedOutput {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lines, bytes } = self;
        write!(formatter, "[{lines} lines with {bytes} bytes dropped: the log has a rate limit]")
    }
}

struct Bucket {
    per_s: u64,
    /// Tokens times 10^6. Negative after the output that emptied the bucket.
    micro_tokens: i128,
}

impl Bucket {
    fn new(per_s: u64) -> Self {
        let per_s = if per_s == 0 { UNLIMITED } else { per_s.min(UNLIMITED) };
        Self { per_s, micro_tokens: i128::from(per_s * BURST_S) * 1_000_000 }
    }

    fn refill(&mut self, time: Duration) {
        let full = i128::from(self.per_s * BURST_S) * 1_000_000;
        let added = i128::from(self.per_s) * i128::from(time.as_micros().min(1 << 40) as i64);
        self.micro_tokens = full.min(self.micro_tokens + added);
    }

    /// Takes tokens. Returns the time until one second's worth is there again if the bucket is empty now.
    fn take(&mut self, tokens: u64) -> Option<Duration> {
        self.micro_tokens -= i128::from(tokens) * 1_000_000;
        (self.micro_tokens <= 0).then(|| {
            let missing = i128::from(self.per_s) * 1_000_000 - self.micro_tokens;
            Duration::from_micros((missing / i128::from(self.per_s)).min(1 << 40) as u64 + 1)
        })
    }
}

impl LogRate {
    /// Creates a full bucket. A limit of 0 is no limit.
    pub fn new(lines_per_s: u64, bytes_per_s: u64, now: Duration) -> Self {
        Self {
            lines: Bucket::new(lines_per_s),
            bytes: Bucket::new(bytes_per_s),
            refilled_at: now,
            dropping_until: None,
            dropped: DroppedOutput::default(),
        }
    }

    /// Reports whether a chunk of output may be logged. The chunk that empties the bucket is still logged.
    pub fn admits(&mut self, chunk: &[u8], now: Duration) -> bool {
        if self.dropping_until.is_some_and(|until| now < until) {
            return false;
        }
        self.dropping_until = None;
        let time = now.saturating_sub(self.refilled_at);
        self.refilled_at = now;
        self.lines.refill(time);
        self.bytes.refill(time);
        let wait = self.lines.take(line_count(chunk)).max(self.bytes.take(chunk.len() as u64));
        self.dropping_until = wait.map(|wait| now + wait);
        true
    }

    pub fn is_dropping(&self, now: Duration) -> bool {
        self.dropping_until.is_some_and(|until| now < until)
    }

    pub fn count_dropped(&mut self, lines: u64, bytes: usize) {
        self.dropped.add(DroppedOutput { lines, bytes: bytes as u64 });
    }

    /// Returns the time of the next report, or `None` if nothing was dropped.
    pub fn report_at(&self) -> Option<Duration> {
        (self.dropped.bytes > 0).then(|| self.dropping_until.unwrap_or_default())
    }

    /// Returns the dropped output of a report, and forgets that output.
    pub fn take_report(&mut self) -> Option<DroppedOutput> {
        let dropped = std::mem::take(&mut self.dropped);
        (dropped.bytes > 0).then_some(dropped)
    }
}

pub fn line_count(chunk: &[u8]) -> u64 {
    chunk.iter().map(|&byte| u64::from(byte == b'\n')).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn burst_of_ten_seconds_is_admitted_and_then_a_second_at_a_time() {
        let mut rate = LogRate::new(10, 0, at(0));
        let admitted = (0..200).filter(|_| rate.admits(b"line\n", at(0))).count();
        assert_eq!(admitted, 100);
        assert!(rate.is_dropping(at(0)) && !rate.admits(b"line\n", at(999)));
        let admitted = (0..200).filter(|_| rate.admits(b"line\n", at(1_001))).count();
        assert!((10..=11).contains(&admitted), "{admitted}");
        assert!(rate.admits(b"line\n", at(1_000_000)));
        let admitted = (0..200).filter(|_| rate.admits(b"line\n", at(1_000_000))).count();
        assert_eq!(admitted, 99, "a pause refills no more than the burst");
    }

    #[test]
    fn bytes_are_limited_too() {
        let mut rate = LogRate::new(0, 1_000, at(0));
        assert!(rate.admits(&[b'x'; 60_000], at(0)), "the chunk that empties the bucket");
        assert!(!rate.admits(b"x", at(50_999)), "50 s of debt and a second");
        assert!(rate.admits(b"x", at(51_001)));
    }

    #[test]
    fn zero_is_no_limit() {
        let mut rate = LogRate::new(0, 0, at(0));
        assert!((0..1_000).all(|_| rate.admits(&[b'\n'; 65_536], at(0))));
        assert_eq!(rate.report_at(), None);
    }

    #[test]
    fn report_counts_what_was_dropped_since_the_last_one() {
        let mut rate = LogRate::new(1, 0, at(0));
        assert!(rate.admits(&[b'\n'; 20], at(0)));
        rate.count_dropped(3, 40);
        rate.count_dropped(1, 2);
        assert_eq!(rate.report_at(), Some(at(11_000) + Duration::from_micros(1)));
        let report = rate.take_report().expect("dropped");
        assert_eq!(report.to_string(), "[4 lines with 42 bytes dropped: the log has a rate limit]");
        assert_eq!((rate.take_report(), rate.report_at()), (None, None));
    }
}
