//! Idempotency: what a key was used for, and the answers of repetitions (decisions 1.8). A replay writes nothing.

use super::{Engine, accept, refuse};
use crate::command::{Admission, Answer, Attached, Context, HoldId, Idempotency, Lsn, Reservation};
use crate::idempotency_table::{IdempotencyEntry, KeyPurpose, KeyStamp};
use crate::lobby::NO_ENTRY;
use crate::lobby_table::LobbyRecord;
use crate::refusal::Refusal;
use crate::slot::SlotState;
use crate::slot_use::{PackedSlotUses, SlotUse};
use crate::token::PlayerToken;

/// What is known about a key.
pub(super) enum KeyLookup {
    /// Nothing: the command is to be decided.
    Fresh,
    /// It was used for something else; wait for that.
    Reused(Lsn),
    /// The same command succeeded before.
    IdempotencyEntry(u32),
    /// The same command waits for a lobby.
    Hold(HoldId),
}

impl Engine {
    /// What a find or join under this key got before, or waits for as one more of its requests; None when the key is
    /// not known. Decides nothing.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_admission(&mut self, cx: &mut Context<'_>, idempotency: &Idempotency) -> Answer<Option<Admission>> {
        self.begin_command(cx);
        match self.recall_or_share(Some(idempotency)) {
            Some(answer) => Answer { result: answer.result.map(Some), wait: answer.wait },
            None => accept(None, 0),
        }
    }

    /// What an attach under this key got before, None when the key is not known. Decides nothing.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_attach(&mut self, cx: &mut Context<'_>, idempotency: &Idempotency) -> Answer<Option<Attached>> {
        self.begin_command(cx);
        match self.look_up_key(Some(idempotency)) {
            KeyLookup::Reused(wait) => refuse(Refusal::IdempotencyKeyReused, wait),
            KeyLookup::IdempotencyEntry(entry) => {
                let Answer { result, wait } = self.replay_attach(entry);
                Answer { result: result.map(Some), wait }
            }
            KeyLookup::Fresh | KeyLookup::Hold(_) => accept(None, 0),
        }
    }

    pub(super) fn look_up_key(&self, idempotency: Option<&Idempotency>) -> KeyLookup {
        let Some(idempotency) = idempotency else { return KeyLookup::Fresh };
        if let Some((id, hold)) = self.holds.of_key(&idempotency.key) {
            let is_same = hold.idempotency.is_some_and(|known| known.message == idempotency.message);
            return if is_same { KeyLookup::Hold(id) } else { KeyLookup::Reused(self.lobbies.lsn(hold.lobby)) };
        }
        let stamp = self.stamp(idempotency);
        let Some(number) = self.entries.find(&self.seed, &stamp) else { return KeyLookup::Fresh };
        let entry = self.entries.get(number);
        if self.time.now() >= entry.at() + self.config.idempotency_ms && !self.is_entry_live(number) {
            return KeyLookup::Fresh;
        }
        if entry.is_message(&stamp) {
            KeyLookup::IdempotencyEntry(number)
        } else {
            KeyLookup::Reused(self.lobbies.lsn(entry.slot_use().lobby))
        }
    }

    pub(super) fn stamp(&self, idempotency: &Idempotency) -> KeyStamp {
        KeyStamp::new(idempotency, self.time.now())
    }

    /// The answer of a repeated find or join: the same tokens, whether or not they have ended; 410 once the lobby has.
    pub(super) fn replay_admission(&self, entry: u32) -> Answer<Admission> {
        let slot_use = self.entries.get(entry).slot_use();
        let wait = self.lobbies.lsn(slot_use.lobby);
        let Some(LobbyRecord::Live(lobby)) = self.lobbies.get(slot_use.lobby) else {
            return refuse(Refusal::LobbyStopped, wait);
        };
        match self.tokens_of_entry(entry) {
            Some(tokens) => accept(Admission::Reserved(Reservation { lobby: lobby.id, tokens }), wait),
            // Its key left the ring with a restored backup: the places are as good as gone.
            None => refuse(Refusal::LobbyStopped, wait),
        }
    }

    fn tokens_of_entry(&self, number: u32) -> Option<Vec<String>> {
        let entry = self.entries.get(number);
        let slot_use = entry.slot_use();
        match self.entries.party(&self.seed, number) {
            Some(uses) => uses
                .iter()
                .map(|(slot, generation)| self.token(SlotUse { lobby: slot_use.lobby, slot, generation }, entry.key_id))
                .collect(),
            None => self.token(slot_use, entry.key_id).map(|token| vec![token]),
        }
    }

    /// The token of a use, byte for byte as it was made.
    pub(super) fn token(&self, slot_use: SlotUse, key_id: u16) -> Option<String> {
        let lobby = self.lobbies.live(slot_use.lobby)?.id;
        let token = PlayerToken { key_id, lobby, slot: u32::from(slot_use.slot), generation: slot_use.generation };
        self.config.keys.sign_player(&token)
    }

    /// The answer of a repeated attach.
    pub(super) fn replay_attach(&self, entry: u32) -> Answer<Attached> {
        let number = self.entries.get(entry).slot_use().lobby;
        let wait = self.lobbies.lsn(number);
        let attached = self.lobbies.live(number).and_then(|lobby| {
            let lobby_token = self.config.keys.sign_lobby(lobby.key_id, lobby.id)?;
            Some(Attached { lobby: lobby.id, lobby_token })
        });
        attached.map_or(refuse(Refusal::LobbyStopped, wait), |attached| accept(attached, wait))
    }
}

impl Engine {
    pub(super) fn store_disconnect_key(&mut self, slot_use: SlotUse, stamp: Option<&KeyStamp>) {
        if let Some(stamp) = stamp {
            self.put_entry(stamp, KeyPurpose::Disconnected, slot_use, 0, PackedSlotUses(&[]));
        }
    }

    /// Remembers a key; what it was used for before is over.
    pub(super) fn put_entry(
        &mut self,
        stamp: &KeyStamp,
        purpose: KeyPurpose,
        slot_use: SlotUse,
        key_id: u16,
        uses: PackedSlotUses<'_>,
    ) -> u32 {
        if let Some(known) = self.entries.find(&self.seed, stamp) {
            self.drop_entry(known);
        }
        if let Some(entries) = self.lobbies.entries_mut(slot_use.lobby) {
            *entries += 1;
        }
        self.entries.insert(&self.seed, IdempotencyEntry::new(stamp, purpose, slot_use, key_id), uses)
    }

    /// Drops an entry whose time has passed and that no use keeps any more.
    pub(super) fn drop_entry_if_over(&mut self, entry: u32) {
        if entry != NO_ENTRY && self.entries.get(entry).at() <= self.entries_up_to && !self.is_entry_live(entry) {
            self.drop_entry(entry);
        }
    }

    pub(super) fn drop_entry(&mut self, entry: u32) {
        if let Some(entries) = self.lobbies.entries_mut(self.entries.get(entry).slot_use().lobby) {
            *entries -= 1;
        }
        self.entries.remove(&self.seed, entry);
    }

    /// True while what the entry stands for goes on: a use of its places, or its lobby.
    pub(super) fn is_entry_live(&self, entry: u32) -> bool {
        let slot_use = self.entries.get(entry).slot_use();
        match self.entries.get(entry).purpose() {
            Some(KeyPurpose::Slots(_)) => match self.entries.party(&self.seed, entry) {
                Some(uses) => uses
                    .iter()
                    .any(|(slot, generation)| self.is_use_live(SlotUse { lobby: slot_use.lobby, slot, generation })),
                None => self.is_use_live(slot_use),
            },
            Some(KeyPurpose::Attach) => self.lobbies.live(slot_use.lobby).is_some(),
            Some(KeyPurpose::Connected) => self.is_use_live(slot_use),
            Some(KeyPurpose::Disconnected) | None => false,
        }
    }

    pub(super) fn is_use_live(&self, slot_use: SlotUse) -> bool {
        let any = [SlotState::Reserved, SlotState::Connected, SlotState::Kept];
        self.locate(slot_use, &any).is_ok()
    }
}
