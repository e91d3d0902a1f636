//! Change feed: keys in the order of their last change, for readers that continue after a sequence number.

use std::collections::BTreeMap;

#[derive(Debug)]
pub(crate) struct ChangeFeed<K> {
    sequence: u64,
    forgotten: u64,
    by_key: BTreeMap<K, u64>,
    by_sequence: BTreeMap<u64, K>,
}

impl<K: Copy + Ord> ChangeFeed<K> {
    pub(crate) fn starting_at(sequence: u64) -> ChangeFeed<K> {
        ChangeFeed { sequence, forgotten: 0, by_key: BTreeMap::new(), by_sequence: BTreeMap::new() }
    }

    /// Returns an empty feed. A reader that has not seen the change with the given number gets all keys.
    pub(crate) fn forgetting(forgotten: u64) -> ChangeFeed<K> {
        ChangeFeed { forgotten, ..ChangeFeed::starting_at(0) }
    }

    /// Returns the sequence number of the newest change.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Returns the sequence number of the key's last change, or 0 for an unknown key.
    pub(crate) fn changed_at(&self, key: K) -> u64 {
        self.by_key.get(&key).copied().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Returns the keys in ascending order.
    pub(crate) fn keys(&self) -> impl ExactSizeIterator<Item = K> + '_ {
        self.by_key.keys().copied()
    }

    pub(crate) fn record(&mut self, key: K) {
        self.record_at(self.sequence + 1, key);
    }

    /// Records a change of a key under a sequence number that no other key has.
    pub(crate) fn record_at(&mut self, sequence: u64, key: K) {
        self.remove(key);
        self.by_key.insert(key, sequence);
        let other = self.by_sequence.insert(sequence, key);
        debug_assert!(other.is_none(), "two keys changed under the number {sequence}");
        self.sequence = self.sequence.max(sequence);
    }

    pub(crate) fn remove(&mut self, key: K) {
        if let Some(sequence) = self.by_key.remove(&key) {
            self.by_sequence.remove(&sequence);
        }
    }

    /// Removes a key. A reader that has not seen the last change of this key gets all keys at its next read.
    pub(crate) fn forget(&mut self, key: K) {
        self.forgotten = self.forgotten.max(self.changed_at(key));
        self.remove(key);
    }

    /// Returns true if the last change of a key is after `after`, up to `until`.
    pub(crate) fn has_changes(&self, after: u64, until: u64) -> bool {
        after < until && self.by_sequence.range(after + 1..=until).next().is_some()
    }

    /// Returns `(is complete, keys)`: the keys that changed after `after`, up to `until`.
    ///
    /// If the feed does not know which keys changed, it returns all keys up to `until`, and `is complete` is true. This
    /// happens if `after` is 0, is older than a forgotten change, or is greater than the newest change of this feed.
    pub(crate) fn since(&self, after: u64, until: u64) -> (bool, impl Iterator<Item = K> + '_) {
        let is_complete = after == 0 || after > self.sequence || after < self.forgotten;
        let first = if is_complete { 0 } else { after + 1 };
        let changes = self.by_sequence.range(first..).take_while(move |(sequence, _)| **sequence <= until);
        (is_complete, changes.map(|(_, key)| *key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn since(feed: &ChangeFeed<char>, after: u64, until: u64) -> (bool, String) {
        let (is_complete, keys) = feed.since(after, until);
        (is_complete, keys.collect())
    }

    #[test]
    fn reader_gets_the_last_change_of_each_key_once() {
        let mut feed = ChangeFeed::starting_at(0);
        for (sequence, key) in [(2, 'a'), (3, 'b'), (5, 'c'), (8, 'a')] {
            feed.record_at(sequence, key);
        }
        assert_eq!((feed.sequence(), feed.changed_at('a'), feed.changed_at('z')), (8, 8, 0));
        assert_eq!(since(&feed, 0, u64::MAX), (true, "bca".into()));
        assert_eq!(since(&feed, 3, u64::MAX), (false, "ca".into()));
        assert_eq!(since(&feed, 3, 5), (false, "c".into()), "only up to the limit");
        assert_eq!(since(&feed, 8, 5), (false, String::new()), "a reader beyond the limit");
        assert!(feed.has_changes(3, 5) && !feed.has_changes(5, 7) && !feed.has_changes(8, 5));
        assert_eq!(since(&feed, 9, u64::MAX), (true, "bca".into()), "a number of another feed");
        feed.remove('c');
        feed.remove('z');
        assert_eq!(since(&feed, 3, u64::MAX), (false, "a".into()));
        feed.record('d');
        assert_eq!(since(&feed, 8, u64::MAX), (false, "d".into()));
    }

    #[test]
    fn reader_before_a_forgotten_change_gets_everything() {
        let mut feed = ChangeFeed::starting_at(1);
        for key in ['a', 'b', 'c'] {
            feed.record(key);
        }
        feed.forget('b');
        assert_eq!(since(&feed, 2, u64::MAX), (true, "ac".into()));
        assert_eq!(since(&feed, 3, u64::MAX), (false, "c".into()));
        let mut later = ChangeFeed::forgetting(4);
        later.record_at(9, 'd');
        assert_eq!(since(&later, 3, u64::MAX), (true, "d".into()));
        assert_eq!(since(&later, 4, u64::MAX), (false, "d".into()));
    }
}
