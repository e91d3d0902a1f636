//! Event channels: player tokens sent to each channel, until they expire.
//!
//! A channel is the keyed hash of a secret that its reader chose.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::codec::{Reader, Writer};
use crate::command::{ChannelId, Lsn, Ms};
use crate::journal_event::ApplyError;
use crate::service_time::EXPIRED_DROPPED_PER_ADDED;

/// Maximum number of tokens in one channel. Above it, the oldest token is removed.
const MAX_TOKENS_PER_CHANNEL: usize = 64;
/// Maximum number of tokens in all channels. Above it, the token with the earliest deadline is removed.
const MAX_TOKENS: usize = 262_144;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentToken {
    pub(crate) lobby: u32,
    pub(crate) slot: u16,
    pub(crate) generation: u32,
    pub(crate) key_id: u16,
    pub(crate) ts_ms: u64,
    pub(crate) deadline: Ms,
}

type Position = (Lsn, u8);
/// Place of a token in the order of channels.
pub(crate) type ChannelPosition = (ChannelId, Position);

#[derive(Default)]
pub(crate) struct EventChannels {
    by_channel: BTreeMap<(ChannelId, Position), SentToken>,
    by_deadline: BTreeSet<(Ms, Position, ChannelId)>,
}

impl EventChannels {
    /// Adds tokens at a time, and drops some expired ones.
    pub(crate) fn add(&mut self, lsn: Lsn, at: Ms, sent: impl Iterator<Item = (ChannelId, SentToken)>) {
        for (index, (channel, one)) in (0u8..).zip(sent) {
            self.drop_expired(at, EXPIRED_DROPPED_PER_ADDED);
            self.insert(channel, (lsn, index), one);
            let channel_tokens = self.by_channel.range((channel, (0, 0))..=(channel, (Lsn::MAX, u8::MAX)));
            let (oldest, count) =
                channel_tokens.fold((None, 0), |(oldest, count), (key, _)| (oldest.or(Some(*key)), count + 1));
            if let Some(oldest) = oldest.filter(|_| count > MAX_TOKENS_PER_CHANNEL) {
                self.remove(oldest);
            }
        }
        while self.by_deadline.len() > MAX_TOKENS {
            self.remove_first();
        }
    }

    fn insert(&mut self, channel: ChannelId, position: Position, sent: SentToken) {
        self.by_deadline.insert((sent.deadline, position, channel));
        self.by_channel.insert((channel, position), sent);
    }

    fn remove(&mut self, key: (ChannelId, Position)) {
        if let Some(sent) = self.by_channel.remove(&key) {
            self.by_deadline.remove(&(sent.deadline, key.1, key.0));
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, position, channel)) = self.by_deadline.pop_first() {
            self.by_channel.remove(&(channel, position));
        }
    }

    fn drop_expired(&mut self, now: Ms, count: usize) {
        for _ in 0..count {
            if self.by_deadline.first().is_none_or(|(deadline, ..)| *deadline > now) {
                return;
            }
            self.remove_first();
        }
    }

    pub(crate) fn tokens_of(&self, channel: &ChannelId, now: Ms) -> impl Iterator<Item = (Lsn, SentToken)> + '_ {
        let channel_tokens = self.by_channel.range((*channel, (0, 0))..=(*channel, (Lsn::MAX, u8::MAX)));
        channel_tokens.filter(move |(_, sent)| sent.deadline > now).map(|((_, (lsn, _)), sent)| (*lsn, *sent))
    }

    /// Returns the tokens of all channels after a place, or all tokens. Some may have expired.
    pub(crate) fn tokens_after(
        &self,
        last: Option<ChannelPosition>,
    ) -> impl Iterator<Item = (ChannelPosition, SentToken)> + '_ {
        let start = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.by_channel.range((start, Bound::Unbounded)).map(|(position, sent)| (*position, *sent))
    }

    pub(crate) fn write(&self, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
        Writer { bytes }.u32(self.by_channel.len() as u32);
        for ((channel, (lsn, index)), sent) in &self.by_channel {
            let mut w = Writer { bytes };
            w.raw(channel);
            w.u64(*lsn);
            w.u8(*index);
            w.u32(sent.lobby);
            w.u16(sent.slot);
            w.u32(sent.generation);
            w.u16(sent.key_id);
            w.u64(sent.ts_ms);
            w.u64(sent.deadline);
            flush(bytes);
        }
    }

    pub(crate) fn load(&mut self, r: &mut Reader<'_>) -> Result<(), ApplyError> {
        for _ in 0..r.u32()? {
            let (channel, position) = (r.id()?.0, (r.u64()?, r.u8()?));
            let sent = SentToken {
                lobby: r.u32()?,
                slot: r.u16()?,
                generation: r.u32()?,
                key_id: r.u16()?,
                ts_ms: r.u64()?,
                deadline: r.u64()?,
            };
            self.insert(channel, position, sent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(deadline: Ms) -> SentToken {
        SentToken { lobby: 0, slot: 0, generation: 1, key_id: 1, ts_ms: 0, deadline }
    }

    #[test]
    fn channel_keeps_its_newest_tokens() {
        let mut channels = EventChannels::default();
        for lsn in 1..=100 {
            channels.add(lsn, 0, [([7; 16], sent(1_000)), ([8; 16], sent(1_000))].into_iter());
        }
        let remaining: Vec<Lsn> = channels.tokens_of(&[7; 16], 0).map(|(lsn, _)| lsn).collect();
        assert_eq!(remaining, (37..=100).collect::<Vec<_>>());
        assert_eq!(channels.by_deadline.len(), channels.by_channel.len());
    }

    #[test]
    fn total_tokens_are_bounded_by_earliest_expiry() {
        let mut channels = EventChannels::default();
        for number in 0..MAX_TOKENS as u64 + 10 {
            let mut channel = [0; 16];
            channel[..8].copy_from_slice(&number.to_le_bytes());
            channels.add(number + 1, 0, core::iter::once((channel, sent(number + 5))));
        }
        assert_eq!(channels.by_deadline.len(), MAX_TOKENS);
        assert_eq!(channels.by_channel.len(), MAX_TOKENS);
        assert_eq!(channels.by_deadline.first().map(|(deadline, ..)| *deadline), Some(15));
        channels.drop_expired(Ms::MAX, MAX_TOKENS);
        assert!(channels.by_channel.is_empty() && channels.by_deadline.is_empty());
    }
}
