//! What events make of idempotency keys: entries come with a use of a place or with a lobby, and stay as long as their time
//! or what they stand for goes on.

use super::Engine;
use crate::event::{Place, Uses};
use crate::idempotency::{Entry, Purpose, Stamp};
use crate::lobby::NO_ENTRY;
use crate::slot::SlotState;

impl Engine {
    pub(super) fn remember_disconnected(&mut self, place: Place, stamp: Option<&Stamp>) {
        if let Some(stamp) = stamp {
            self.put_entry(stamp, Purpose::Disconnected, place, 0, Uses(&[]));
        }
    }

    /// Remembers a key; what it was used for before is over.
    pub(super) fn put_entry(
        &mut self,
        stamp: &Stamp,
        purpose: Purpose,
        place: Place,
        key_id: u16,
        uses: Uses<'_>,
    ) -> u32 {
        if let Some(known) = self.entries.find(&self.seed, stamp) {
            self.drop_entry(known);
        }
        if let Some(entries) = self.lobbies.entries_mut(place.lobby) {
            *entries += 1;
        }
        self.entries.insert(&self.seed, Entry::new(stamp, purpose, place, key_id), uses)
    }

    /// Drops an entry whose time has passed and that no use keeps any more.
    pub(super) fn drop_entry_if_over(&mut self, entry: u32) {
        if entry != NO_ENTRY && self.entries.get(entry).at() <= self.entries_up_to && !self.is_entry_live(entry) {
            self.drop_entry(entry);
        }
    }

    pub(super) fn drop_entry(&mut self, entry: u32) {
        if let Some(entries) = self.lobbies.entries_mut(self.entries.get(entry).place().lobby) {
            *entries -= 1;
        }
        self.entries.remove(&self.seed, entry);
    }

    /// True while what the entry stands for goes on: a use of its places, or its lobby.
    pub(super) fn is_entry_live(&self, entry: u32) -> bool {
        let place = self.entries.get(entry).place();
        match self.entries.get(entry).purpose() {
            Some(Purpose::Places(_)) => match self.entries.party(&self.seed, entry) {
                Some(uses) => uses
                    .iter()
                    .any(|(slot, generation)| self.is_use_live(Place { lobby: place.lobby, slot, generation })),
                None => self.is_use_live(place),
            },
            Some(Purpose::Attach) => self.lobbies.live(place.lobby).is_some(),
            Some(Purpose::Connected) => self.is_use_live(place),
            Some(Purpose::Disconnected) | None => false,
        }
    }

    pub(super) fn is_use_live(&self, place: Place) -> bool {
        let any = [SlotState::Reserved, SlotState::Connected, SlotState::Kept];
        self.locate(place, &any).is_ok()
    }
}
