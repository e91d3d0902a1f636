//! Limit of packets and bytes that one session or one port receives from players in a second.

const WINDOW_MS: u64 = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    pub packets_per_second: usize,
    pub bytes_per_second: usize,
}

/// Packets and bytes in the current second. A second begins with the first packet after the end of the last one.
#[derive(Debug, Default, Clone, Copy)]
pub struct DatagramRate {
    since_ms: u64,
    packets: usize,
    bytes: usize,
}

impl DatagramRate {
    /// Counts packets. Returns false, and counts nothing, if they exceed the limit.
    pub fn admit(&mut self, limit: RateLimit, now_ms: u64, packets: usize, bytes: usize) -> bool {
        if now_ms.saturating_sub(self.since_ms) >= WINDOW_MS {
            *self = Self { since_ms: now_ms, packets: 0, bytes: 0 };
        }
        let is_admitted =
            self.packets + packets <= limit.packets_per_second && self.bytes + bytes <= limit.bytes_per_second;
        if is_admitted {
            self.packets += packets;
            self.bytes += bytes;
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RateLimit = RateLimit { packets_per_second: 10, bytes_per_second: 1_000 };

    #[test]
    fn packets_and_bytes_are_limited_in_each_second() {
        let mut rate = DatagramRate::default();
        assert!(rate.admit(LIMIT, 5, 8, 100));
        assert!(!rate.admit(LIMIT, 900, 3, 100), "too many packets");
        assert!(!rate.admit(LIMIT, 900, 1, 901), "too many bytes");
        assert!(rate.admit(LIMIT, 999, 2, 900), "a refused packet does not count");
        assert!(!rate.admit(LIMIT, 999, 1, 0));
        assert!(rate.admit(LIMIT, 1_005, 10, 1_000));
    }
}
