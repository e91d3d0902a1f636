//! Consumed mock player tokens of development tokens.
//!
//! A mock token is valid in the hour of its signing and in the next hour. Older tokens are removed.

use std::collections::BTreeSet;

use crate::codec::{Reader, Writer};
use crate::command::Ms;
use crate::journal_event::ApplyError;
use crate::service_time::EXPIRED_DROPPED_PER_ADDED;

const HOUR_MS: u64 = 3_600_000;
/// Maximum number of stored mock player tokens. A further token replaces the oldest.
const MAX_ENTRIES: usize = 100_000;

pub(crate) fn hour_of(at: Ms) -> u32 {
    u32::try_from(at / HOUR_MS).unwrap_or(u32::MAX)
}

pub(crate) fn is_within_lifetime(hour: u32, now: Ms) -> bool {
    let this = hour_of(now);
    hour <= this && this - hour <= 1
}

#[derive(Default)]
pub(crate) struct ConsumedMockTokens {
    used: BTreeSet<(u32, [u8; 16])>,
}

impl ConsumedMockTokens {
    pub(crate) fn is_used(&self, hour: u32, mac: &[u8; 16]) -> bool {
        self.used.contains(&(hour, *mac))
    }

    pub(crate) fn consume(&mut self, hour: u32, at: Ms, mac: [u8; 16]) {
        for _ in 0..EXPIRED_DROPPED_PER_ADDED {
            let is_over = self.used.first().is_some_and(|(oldest, _)| !is_within_lifetime(*oldest, at));
            if !is_over && self.used.len() < MAX_ENTRIES {
                break;
            }
            self.used.pop_first();
        }
        self.used.insert((hour, mac));
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        Writer { bytes }.u32(self.used.len() as u32);
        for (hour, mac) in &self.used {
            let mut w = Writer { bytes };
            w.u32(*hour);
            w.raw(mac);
            flush(bytes);
        }
    }

    pub(crate) fn load(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        for _ in 0..r.u32()? {
            self.used.insert((r.u32()?, r.id()?.0));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mock_token_is_valid_in_its_hour_and_the_next() {
        assert!(is_within_lifetime(5, 5 * HOUR_MS) && is_within_lifetime(5, 7 * HOUR_MS - 1));
        assert!(!is_within_lifetime(5, 7 * HOUR_MS) && !is_within_lifetime(6, 5 * HOUR_MS));
    }

    #[test]
    fn consumed_tokens_are_bounded_and_dropped_after_expiry() {
        let mut mocks = ConsumedMockTokens::default();
        mocks.consume(1, HOUR_MS, [1; 16]);
        mocks.consume(3, 3 * HOUR_MS, [2; 16]);
        assert!(!mocks.is_used(1, &[1; 16]) && mocks.is_used(3, &[2; 16]));
        for number in 0..MAX_ENTRIES as u64 + 5 {
            let mut mac = [9; 16];
            mac[..8].copy_from_slice(&number.to_le_bytes());
            mocks.consume(3, 3 * HOUR_MS, mac);
        }
        assert_eq!(mocks.used.len(), MAX_ENTRIES);
    }
}
