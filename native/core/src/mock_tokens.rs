//! Consumed mock player tokens of development tokens.
//!
//! A mock token is valid in the hour of its signing and in the next hour. A used token is stored for this time, because a
//! removed token would be usable again. Above a limit, the engine refuses further tokens instead.

use std::collections::{BTreeMap, BTreeSet};

use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{Id, Ms};
use crate::service_time::EXPIRED_DROPPED_PER_ADDED;

const HOUR_MS: u64 = 3_600_000;
/// Maximum number of used tokens of all groups in their lifetime. Further tokens are refused.
const MAX_ENTRIES: usize = 1_000_000;
/// Maximum number of used tokens of one developer group in their lifetime. Further tokens are refused.
///
/// The share of a group, so that 100 groups together use up `MAX_ENTRIES`.
const MAX_USES_OF_GROUP: u32 = 10_000;

pub(crate) fn hour_of(at: Ms) -> u32 {
    u32::try_from(at / HOUR_MS).unwrap_or(u32::MAX)
}

pub(crate) fn is_within_lifetime(hour: u32, now: Ms) -> bool {
    let this = hour_of(now);
    hour <= this && this - hour <= 1
}

/// Returns the time until tokens of the previous hour expire.
pub(crate) fn time_to_next_hour(now: Ms) -> Ms {
    HOUR_MS - now % HOUR_MS
}

#[derive(Default)]
pub(crate) struct ConsumedMockTokens {
    used: BTreeSet<(u32, [u8; 16])>,
    /// Number of tokens that a group used since the start, by hour of signing. Not durable, because no event names the
    /// group.
    uses_of_groups: BTreeMap<(u32, Id), u32>,
}

impl ConsumedMockTokens {
    pub(crate) fn is_used(&self, hour: u32, mac: &[u8; 16]) -> bool {
        self.used.contains(&(hour, *mac))
    }

    /// Returns whether another token can be stored without removing a token that has not expired.
    pub(crate) fn has_room(&self, group: Id, now: Ms) -> bool {
        let this = hour_of(now);
        let hours = [this.checked_sub(1), Some(this)];
        let uses_of_group: u32 =
            hours.into_iter().flatten().filter_map(|hour| self.uses_of_groups.get(&(hour, group))).sum();
        uses_of_group < MAX_USES_OF_GROUP && (self.used.len() < MAX_ENTRIES || self.is_oldest_over(now))
    }

    fn is_oldest_over(&self, now: Ms) -> bool {
        self.used.first().is_some_and(|(hour, _)| !is_within_lifetime(*hour, now))
    }

    /// Stores a used token and drops some expired ones. Never drops a token in its lifetime, which would be usable again.
    pub(crate) fn consume(&mut self, hour: u32, at: Ms, mac: [u8; 16]) {
        for _ in 0..EXPIRED_DROPPED_PER_ADDED {
            if self.is_oldest_over(at) {
                self.used.pop_first();
            }
        }
        self.used.insert((hour, mac));
    }

    /// Counts a stored token for its group.
    pub(crate) fn count_use(&mut self, group: Id, hour: u32, now: Ms) {
        for _ in 0..EXPIRED_DROPPED_PER_ADDED {
            if self.uses_of_groups.first_key_value().is_some_and(|((hour, _), _)| !is_within_lifetime(*hour, now)) {
                self.uses_of_groups.pop_first();
            }
        }
        *self.uses_of_groups.entry((hour, group)).or_default() += 1;
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

    fn mac(number: u32) -> [u8; 16] {
        let mut mac = [9; 16];
        mac[..4].copy_from_slice(&number.to_le_bytes());
        mac
    }

    #[test]
    fn full_table_drops_only_expired_tokens() {
        const GROUP: Id = Id([1; 16]);
        let mut mocks = ConsumedMockTokens::default();
        for number in 0..MAX_ENTRIES as u32 {
            assert!(mocks.has_room(GROUP, 3 * HOUR_MS));
            mocks.consume(3, 3 * HOUR_MS, mac(number));
        }
        assert!(!mocks.has_room(GROUP, 5 * HOUR_MS - 1));
        assert!((0..MAX_ENTRIES as u32).all(|number| mocks.is_used(3, &mac(number))));
        for number in 0..10 {
            assert!(mocks.has_room(GROUP, 5 * HOUR_MS));
            mocks.consume(5, 5 * HOUR_MS, mac(number));
        }
        assert_eq!(mocks.used.len(), MAX_ENTRIES - 10);
        assert!((0..10).all(|number| mocks.is_used(5, &mac(number))));
    }

    #[test]
    fn uses_of_a_group_count_while_its_tokens_are_valid() {
        let (group, other) = (Id([1; 16]), Id([2; 16]));
        let mut mocks = ConsumedMockTokens::default();
        for number in 0..MAX_USES_OF_GROUP {
            assert!(mocks.has_room(group, 4 * HOUR_MS));
            mocks.count_use(group, 3 + number % 2, 4 * HOUR_MS);
        }
        assert_eq!((mocks.has_room(group, 5 * HOUR_MS - 1), mocks.has_room(other, 5 * HOUR_MS - 1)), (false, true));
        assert!(mocks.has_room(group, 5 * HOUR_MS));
        mocks.count_use(other, 6, 6 * HOUR_MS);
        assert_eq!(mocks.uses_of_groups.len(), 1);
    }
}
