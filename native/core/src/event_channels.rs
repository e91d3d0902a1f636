//! Event channels: player tokens sent to each channel, until they expire.
//!
//! A channel is the keyed hash of a secret that its reader chose.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::codec::{ApplyError, Reader, Writer};
use crate::command::{ChannelId, Id, Lsn, Ms};
use crate::service_time::EXPIRED_DROPPED_PER_ADDED;

/// Maximum number of tokens in one channel. Above it, the oldest token is removed.
const MAX_TOKENS_PER_CHANNEL: usize = 64;
/// Maximum number of tokens in all channels. Above it, the namespace with the most tokens loses the token with its
/// earliest deadline. So a namespace with few tokens keeps all of them.
const MAX_TOKENS: usize = 262_144;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SentToken {
    pub(crate) lobby: u32,
    pub(crate) slot: u16,
    pub(crate) generation: u32,
    pub(crate) key_id: u16,
    pub(crate) ts_ms: u64,
    pub(crate) deadline: Ms,
    /// Namespace of the lobby. The default id for a token from an image of version 3, if the lobby has ended.
    pub(crate) namespace: Id,
}

type Position = (Lsn, u8);
/// Place of a token in the order of channels.
pub(crate) type ChannelPosition = (ChannelId, Position);

#[derive(Default)]
pub(crate) struct EventChannels {
    by_channel: BTreeMap<(ChannelId, Position), SentToken>,
    by_deadline: BTreeSet<(Ms, Position, ChannelId)>,
    by_namespace: BTreeMap<Id, BTreeSet<(Ms, Position, ChannelId)>>,
    /// Number of tokens of each namespace.
    by_count: BTreeSet<(usize, Id)>,
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
            if self.by_channel.len() > MAX_TOKENS {
                self.remove_of_largest_namespace();
            }
        }
    }

    fn insert(&mut self, channel: ChannelId, position: Position, sent: SentToken) {
        // Only a damaged image has two tokens at one position.
        self.remove((channel, position));
        let entry = (sent.deadline, position, channel);
        self.by_deadline.insert(entry);
        self.change_namespace(sent.namespace, |tokens| tokens.insert(entry));
        self.by_channel.insert((channel, position), sent);
    }

    fn remove(&mut self, key: (ChannelId, Position)) {
        if let Some(sent) = self.by_channel.remove(&key) {
            let entry = (sent.deadline, key.1, key.0);
            self.by_deadline.remove(&entry);
            self.change_namespace(sent.namespace, |tokens| tokens.remove(&entry));
        }
    }

    fn change_namespace(
        &mut self,
        namespace: Id,
        change: impl FnOnce(&mut BTreeSet<(Ms, Position, ChannelId)>) -> bool,
    ) {
        let tokens = self.by_namespace.entry(namespace).or_default();
        let before = tokens.len();
        change(tokens);
        let after = tokens.len();
        if after == 0 {
            self.by_namespace.remove(&namespace);
        }
        self.by_count.remove(&(before, namespace));
        if after > 0 {
            self.by_count.insert((after, namespace));
        }
    }

    fn remove_first(&mut self) {
        if let Some((_, position, channel)) = self.by_deadline.first().copied() {
            self.remove((channel, position));
        }
    }

    /// Removes the token with the earliest deadline of the namespace with the most tokens. On a tie of namespaces, of the
    /// one with the largest id.
    fn remove_of_largest_namespace(&mut self) {
        let largest = self.by_count.last().and_then(|(_, namespace)| self.by_namespace.get(namespace));
        if let Some((_, position, channel)) = largest.and_then(|tokens| tokens.first()).copied() {
            self.remove((channel, position));
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

    /// Writes all tokens, with or without their namespaces.
    pub(crate) fn write(&self, has_namespaces: bool, bytes: &mut Vec<u8>, flush: &mut dyn FnMut(&mut Vec<u8>)) {
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
            if has_namespaces {
                w.id(sent.namespace);
            }
            flush(bytes);
        }
    }

    /// Loads tokens. For a token without a namespace, `namespace_of` gets its lobby and LSN.
    pub(crate) fn load(
        &mut self,
        has_namespaces: bool,
        r: &mut Reader<'_>,
        namespace_of: impl Fn(u32, Lsn) -> Option<Id>,
    ) -> Result<(), ApplyError> {
        for _ in 0..r.u32()? {
            let (channel, position) = (r.id()?.0, (r.u64()?, r.u8()?));
            let mut sent = SentToken {
                lobby: r.u32()?,
                slot: r.u16()?,
                generation: r.u32()?,
                key_id: r.u16()?,
                ts_ms: r.u64()?,
                deadline: r.u64()?,
                namespace: Id::default(),
            };
            sent.namespace =
                if has_namespaces { r.id()? } else { namespace_of(sent.lobby, position.0).unwrap_or_default() };
            self.insert(channel, position, sent);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Id = Id([1; 16]);
    const SHORT: Id = Id([2; 16]);

    fn sent(deadline: Ms) -> SentToken {
        sent_by(LONG, deadline)
    }

    fn sent_by(namespace: Id, deadline: Ms) -> SentToken {
        SentToken { lobby: 0, slot: 0, generation: 1, key_id: 1, ts_ms: 0, deadline, namespace }
    }

    fn channel(number: u64) -> ChannelId {
        let mut channel = [0; 16];
        channel[..8].copy_from_slice(&number.to_le_bytes());
        channel
    }

    fn image_of(channels: &EventChannels) -> Vec<u8> {
        let mut bytes = Vec::new();
        channels.write(true, &mut bytes, &mut |_| {});
        bytes
    }

    #[test]
    fn namespace_with_long_deadlines_removes_no_token_of_another() {
        const OTHERS: u64 = 200;
        let mut channels = EventChannels::default();
        for number in 0..OTHERS {
            channels.add(number + 1, 0, core::iter::once((channel(number), sent_by(SHORT, 1_000))));
        }
        let added = OTHERS + MAX_TOKENS as u64;
        for number in OTHERS..added {
            channels.add(number + 1, 0, core::iter::once((channel(number), sent_by(LONG, 1_000_000))));
        }
        assert_eq!(channels.by_channel.len(), MAX_TOKENS);
        assert!((0..OTHERS).all(|number| channels.tokens_of(&channel(number), 0).count() == 1));
        assert_eq!(channels.tokens_of(&channel(OTHERS), 0).count(), 0, "the largest namespace lost its first token");

        let mut loaded = EventChannels::default();
        loaded.load(true, &mut Reader::new(&image_of(&channels)), |_, _| None).expect("a whole image");
        for channels in [&mut channels, &mut loaded] {
            for number in 0..100 {
                let namespace = if number % 2 == 0 { SHORT } else { LONG };
                let token = (channel(added + number), sent_by(namespace, 2_000));
                channels.add(added + number + 1, 0, core::iter::once(token));
            }
        }
        assert_eq!(image_of(&channels), image_of(&loaded), "an engine from an image removes the same tokens");
        assert_eq!(channels.by_namespace[&SHORT].len() as u64, OTHERS + 50);
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
            channels.add(number + 1, 0, core::iter::once((channel(number), sent(number + 5))));
        }
        assert_eq!(channels.by_deadline.len(), MAX_TOKENS);
        assert_eq!(channels.by_channel.len(), MAX_TOKENS);
        assert_eq!(channels.by_deadline.first().map(|(deadline, ..)| *deadline), Some(15));
        channels.drop_expired(Ms::MAX, MAX_TOKENS);
        assert!(channels.by_channel.is_empty() && channels.by_deadline.is_empty());
        assert!(channels.by_namespace.is_empty() && channels.by_count.is_empty());
    }
}
