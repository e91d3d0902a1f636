//! Idempotent requests: lookup of keys, and replay of stored responses. A replay writes no event.

use super::{Engine, accept, refuse};
use crate::command::{
    Admission, Attached, CommandOutcome, Context, HoldId, Idempotency, ImmediatePlacement, Lsn, Reservation,
};
use crate::idempotency_table::{IdempotencyEntry, KeyPurpose, KeyStamp};
use crate::lobby::NO_ENTRY;
use crate::lobby_table::LobbyRecord;
use crate::refusal::Refusal;
use crate::slot::SlotState;
use crate::slot_use::{EncodedSlotUses, SlotUse};
use crate::token::PlayerToken;

pub(super) enum KeyLookup {
    Fresh,
    /// The key was used with another request. This LSN must be durable before the refusal is sent.
    Reused(Lsn),
    IdempotencyEntry(u32),
    Hold(HoldId),
}

impl Engine {
    /// Returns the stored response of find, join or create. Returns the hold if an earlier request with this key still
    /// waits, and None for an unknown key.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_admission(
        &mut self,
        cx: &mut Context<'_>,
        idempotency: &Idempotency,
    ) -> CommandOutcome<Option<Admission>> {
        self.begin_command(cx);
        match self.recall_or_share(Some(idempotency)) {
            Some(outcome) => CommandOutcome { result: outcome.result.map(Some), wait: outcome.wait },
            None => accept(None, 0),
        }
    }

    /// Returns the stored response like [`Engine::recall_admission`], but does not wait for an earlier request.
    pub fn recall_now(&mut self, cx: &mut Context<'_>, idempotency: &Idempotency) -> Option<ImmediatePlacement> {
        self.begin_command(cx);
        match self.look_up_key(Some(idempotency)) {
            KeyLookup::Fresh => None,
            KeyLookup::Hold(_) => Some(ImmediatePlacement::LobbyStarting),
            KeyLookup::Reused(wait) => Some(ImmediatePlacement::Done(refuse(Refusal::IdempotencyKeyReused, wait))),
            KeyLookup::IdempotencyEntry(entry) => Some(ImmediatePlacement::Done(self.replay_reservation(entry))),
        }
    }

    /// Returns the stored response of attach, or None for an unknown key.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_attach(
        &mut self,
        cx: &mut Context<'_>,
        idempotency: &Idempotency,
    ) -> CommandOutcome<Option<Attached>> {
        self.begin_command(cx);
        match self.look_up_key(Some(idempotency)) {
            KeyLookup::Reused(wait) => refuse(Refusal::IdempotencyKeyReused, wait),
            KeyLookup::IdempotencyEntry(entry) => {
                let CommandOutcome { result, wait } = self.replay_attach(entry);
                CommandOutcome { result: result.map(Some), wait }
            }
            KeyLookup::Fresh | KeyLookup::Hold(_) => accept(None, 0),
        }
    }

    pub(super) fn look_up_key(&self, idempotency: Option<&Idempotency>) -> KeyLookup {
        let Some(idempotency) = idempotency else { return KeyLookup::Fresh };
        if let Some((id, hold)) = self.holds.of_key(&idempotency.key) {
            let is_same_message = hold.idempotency.is_some_and(|original| original.message == idempotency.message);
            return if is_same_message { KeyLookup::Hold(id) } else { KeyLookup::Reused(self.lobbies.lsn(hold.lobby)) };
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

    /// Returns the tokens of the first response, even if their slot uses have ended.
    ///
    /// Refusals: `LobbyStopped`, also if the signing key is missing.
    pub(super) fn replay_reservation(&self, entry: u32) -> CommandOutcome<Reservation> {
        let slot_use = self.entries.get(entry).slot_use();
        let wait = self.lobbies.lsn(slot_use.lobby);
        let Some(LobbyRecord::Live(lobby)) = self.lobbies.get(slot_use.lobby) else {
            return refuse(Refusal::LobbyStopped, wait);
        };
        match self.tokens_of_entry(entry) {
            Some(tokens) => accept(Reservation { lobby: lobby.id, tokens }, wait),
            // A restored backup may lack the signing key.
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

    /// Signs the token of a slot use. Repeated calls return the same text.
    pub(super) fn token(&self, slot_use: SlotUse, key_id: u16) -> Option<String> {
        let lobby = self.lobbies.live(slot_use.lobby)?.id;
        let token = PlayerToken { key_id, lobby, slot: u32::from(slot_use.slot), generation: slot_use.generation };
        self.config.keys.sign_player(&token)
    }

    pub(super) fn replay_attach(&self, entry: u32) -> CommandOutcome<Attached> {
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
            self.put_entry(stamp, KeyPurpose::Disconnected, slot_use, 0, EncodedSlotUses(&[]));
        }
    }

    pub(super) fn put_entry(
        &mut self,
        stamp: &KeyStamp,
        purpose: KeyPurpose,
        slot_use: SlotUse,
        key_id: u16,
        uses: EncodedSlotUses<'_>,
    ) -> u32 {
        if let Some(original) = self.entries.find(&self.seed, stamp) {
            self.drop_entry(original);
        }
        if let Some(entries) = self.lobbies.entries_mut(slot_use.lobby) {
            *entries += 1;
        }
        self.entries.insert(&self.seed, IdempotencyEntry::new(stamp, purpose, slot_use, key_id), uses)
    }

    /// Drops an expired entry, unless its slot uses or its lobby are live.
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
