//! State of a search for the signing keys that records need.

use std::collections::BTreeSet;

use crate::event_channels::ChannelPosition;

/// Search for the old keys that a record needs.
///
/// The records may change between two steps. A record that is added after the start has a newer key. An old key is never
/// copied to a record that the search has passed. So a key that the search does not find is not needed.
#[derive(Debug, Default)]
pub(super) struct KeySearch {
    /// Keys of the ring at the start, without the signing key.
    pub(super) old_keys: BTreeSet<u16>,
    pub(super) needed_keys: BTreeSet<u16>,
    pub(super) position: SearchPosition,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) enum SearchPosition {
    /// The next slot of a lobby. The lobby itself is read before its first slot.
    Lobby {
        number: u32,
        slot: u32,
    },
    Entry(u32),
    /// The last token that the search has read.
    Channel(Option<ChannelPosition>),
    #[default]
    End,
}
