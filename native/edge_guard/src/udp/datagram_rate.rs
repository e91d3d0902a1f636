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
        self.begin_second_if_due(now_ms);
        let is_admitted = self.has_room(limit, packets, bytes);
        if is_admitted {
            self.count(packets, bytes);
        }
        is_admitted
    }

    /// Resets the counts if the current second is over. Returns whether it was.
    fn begin_second_if_due(&mut self, now_ms: u64) -> bool {
        let is_over = now_ms.saturating_sub(self.since_ms) >= WINDOW_MS;
        if is_over {
            *self = Self { since_ms: now_ms, packets: 0, bytes: 0 };
        }
        is_over
    }

    fn has_room(&self, limit: RateLimit, packets: usize, bytes: usize) -> bool {
        self.packets + packets <= limit.packets_per_second && self.bytes + bytes <= limit.bytes_per_second
    }

    fn count(&mut self, packets: usize, bytes: usize) {
        self.packets += packets;
        self.bytes += bytes;
    }
}

/// Rate of a port. Half of it is reserved for sessions in which the backend has replied.
///
/// Other sessions may have forged addresses, and a flood of them must not stop a match.
#[derive(Debug, Default, Clone, Copy)]
pub struct PortRate {
    all: DatagramRate,
    /// Part of `all`, in the same second.
    new: DatagramRate,
}

impl PortRate {
    /// Counts packets of one session. Returns false, and counts nothing, if they exceed the limit.
    pub fn admit(&mut self, limit: RateLimit, now_ms: u64, (packets, bytes): (usize, usize), is_new: bool) -> bool {
        if self.all.begin_second_if_due(now_ms) {
            self.new = DatagramRate::default();
        }
        let new_limit = RateLimit {
            packets_per_second: limit.packets_per_second.div_ceil(2),
            bytes_per_second: limit.bytes_per_second.div_ceil(2),
        };
        let is_admitted =
            self.all.has_room(limit, packets, bytes) && (!is_new || self.new.has_room(new_limit, packets, bytes));
        if is_admitted {
            self.all.count(packets, bytes);
            if is_new {
                self.new.count(packets, bytes);
            }
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

    #[test]
    fn new_sessions_get_half_of_a_port() {
        let mut rate = PortRate::default();
        assert!(rate.admit(LIMIT, 5, (5, 100), true));
        assert!(!rate.admit(LIMIT, 5, (1, 0), true), "too many packets of new sessions");
        assert!(rate.admit(LIMIT, 5, (5, 900), false));
        assert!(!rate.admit(LIMIT, 5, (1, 0), false), "too many packets");
        assert!(!rate.admit(LIMIT, 1_005, (1, 501), true), "too many bytes of new sessions");
        assert!(rate.admit(LIMIT, 1_005, (10, 100), false), "half is not reserved for new sessions");
        assert!(!rate.admit(LIMIT, 1_005, (1, 0), true));
        assert!(rate.admit(LIMIT, 2_005, (5, 500), true));
    }
}
