//! Rotation of signing keys. The caller stores a new key before the engine signs with it.

use std::collections::BTreeSet;

use super::Engine;
use super::key_search::{KeySearch, SearchPosition};
use crate::event_channels::ChannelPosition;
use crate::idempotency_table::KeyPurpose;
use crate::lobby_table::LobbyRecord;
use crate::token::KeyRingError;

/// Maximum number of records that one step of a key search reads. A step then takes less than 1 ms.
const MAX_RECORDS_PER_STEP: usize = 1_024;

impl Engine {
    /// Adds a key, which signs all new tokens.
    ///
    /// # Errors
    /// [`KeyRingError::DuplicateId`].
    pub fn add_key(&mut self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        self.config.keys.add(id, secret)
    }

    /// Starts a search for the old keys that a record needs.
    pub fn start_key_search(&mut self) {
        let signing_key = self.config.keys.current_id();
        self.key_search = KeySearch {
            old_keys: self.config.keys.ids().into_iter().filter(|id| *id != signing_key).collect(),
            needed_keys: BTreeSet::new(),
            position: SearchPosition::Lobby { number: 0, slot: 0 },
        };
    }

    /// Reads at most 1,024 more records. Returns false at the end of the search.
    pub fn continue_key_search(&mut self) -> bool {
        let mut search = core::mem::take(&mut self.key_search);
        search.position = match search.position {
            SearchPosition::Lobby { number, slot } => self.search_lobbies(&mut search.needed_keys, number, slot),
            SearchPosition::Entry(number) => self.search_entries(&mut search.needed_keys, number),
            SearchPosition::Channel(last) => self.search_channels(&mut search.needed_keys, last),
            SearchPosition::End => SearchPosition::End,
        };
        self.key_search = search;
        !matches!(self.key_search.position, SearchPosition::End)
    }

    /// Returns the old keys that no record needs, ascending. Empty before the end of the search.
    ///
    /// `pub_` and `dev_` tokens have no record, so those of a dropped key become invalid.
    pub fn unused_keys(&self) -> Vec<u16> {
        match self.key_search.position {
            SearchPosition::End => self.key_search.old_keys.difference(&self.key_search.needed_keys).copied().collect(),
            _ => Vec::new(),
        }
    }

    /// Drops one of the [`Engine::unused_keys`]. Returns false for any other key.
    pub fn drop_key(&mut self, id: u16) -> bool {
        self.unused_keys().contains(&id) && self.config.keys.remove(id)
    }

    fn search_lobbies(&self, needed_keys: &mut BTreeSet<u16>, mut number: u32, mut slot: u32) -> SearchPosition {
        let mut records_left = MAX_RECORDS_PER_STEP as u32;
        while records_left > 0 {
            if number >= self.lobbies.end_number() {
                return SearchPosition::Entry(0);
            }
            records_left -= 1;
            match self.lobbies.get(number) {
                Some(LobbyRecord::Live(lobby)) => {
                    needed_keys.insert(lobby.key_id);
                    let end = lobby.slots.used.min(slot.saturating_add(records_left));
                    let slots = (slot..end).filter_map(|slot| lobby.slots.locate(slot));
                    needed_keys.extend(slots.map(|at| self.slots.get(at).key_id));
                    records_left -= end.saturating_sub(slot);
                    if end < lobby.slots.used {
                        slot = end;
                        continue;
                    }
                }
                Some(LobbyRecord::Ended(tombstone)) => needed_keys.extend(tombstone.key_ids.iter().copied()),
                None => {}
            }
            (number, slot) = (number + 1, 0);
        }
        SearchPosition::Lobby { number, slot }
    }

    fn search_entries(&self, needed_keys: &mut BTreeSet<u16>, first: u32) -> SearchPosition {
        let end = self.entries.end_number().min(first.saturating_add(MAX_RECORDS_PER_STEP as u32));
        let entries = (first..end).map(|number| self.entries.get(number));
        let with_token =
            entries.filter(|entry| matches!(entry.purpose(), Some(KeyPurpose::Slots(_) | KeyPurpose::Attach)));
        needed_keys.extend(with_token.map(|entry| entry.key_id));
        if end < self.entries.end_number() { SearchPosition::Entry(end) } else { SearchPosition::Channel(None) }
    }

    fn search_channels(&self, needed_keys: &mut BTreeSet<u16>, mut last: Option<ChannelPosition>) -> SearchPosition {
        let mut is_end = true;
        for (position, sent) in self.event_channels.tokens_after(last).take(MAX_RECORDS_PER_STEP) {
            if sent.deadline > self.time.now() {
                needed_keys.insert(sent.key_id);
            }
            (last, is_end) = (Some(position), false);
        }
        if is_end { SearchPosition::End } else { SearchPosition::Channel(last) }
    }
}
