//! Idempotency: what a key was used for, and the answers of repetitions (decisions 1.8). A replay writes nothing.

use super::{Engine, accept, refuse};
use crate::command::{Answer, Attached, Context, HoldId, Idempotency, Lsn, Placed, Reservation};
use crate::error::Refusal;
use crate::event::Place;
use crate::idempotency::Stamp;
use crate::lobbies::Known;
use crate::token::PlayerToken;

/// What is known about a key.
pub(super) enum Recalled {
    /// Nothing: the command is to be decided.
    Fresh,
    /// It was used for something else; wait for that.
    Reused(Lsn),
    /// The same command succeeded before.
    Entry(u32),
    /// The same command waits for a lobby.
    Hold(HoldId),
}

impl Engine {
    /// What a find or join under this key got before, or waits for as one more of its requests; None when the key is
    /// not known. Decides nothing.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_places(&mut self, cx: &mut Context<'_>, idempotency: &Idempotency) -> Answer<Option<Placed>> {
        self.begin(cx);
        match self.recall_placed(Some(idempotency)) {
            Some(answer) => Answer { result: answer.result.map(Some), wait: answer.wait },
            None => accept(None, 0),
        }
    }

    /// What an attach under this key got before, None when the key is not known. Decides nothing.
    ///
    /// Refusals: `IdempotencyKeyReused`, `LobbyStopped`.
    pub fn recall_attach(&mut self, cx: &mut Context<'_>, idempotency: &Idempotency) -> Answer<Option<Attached>> {
        self.begin(cx);
        match self.recall(Some(idempotency)) {
            Recalled::Reused(wait) => refuse(Refusal::IdempotencyKeyReused, wait),
            Recalled::Entry(entry) => {
                let Answer { result, wait } = self.replay_attached(entry);
                Answer { result: result.map(Some), wait }
            }
            Recalled::Fresh | Recalled::Hold(_) => accept(None, 0),
        }
    }

    pub(super) fn recall(&self, idempotency: Option<&Idempotency>) -> Recalled {
        let Some(idempotency) = idempotency else { return Recalled::Fresh };
        if let Some((id, hold)) = self.holds.of_key(&idempotency.key) {
            let is_same = hold.idempotency.is_some_and(|known| known.message == idempotency.message);
            return if is_same { Recalled::Hold(id) } else { Recalled::Reused(self.lobbies.lsn(hold.lobby)) };
        }
        let stamp = self.stamp(idempotency);
        let Some(number) = self.entries.find(&self.seed, &stamp) else { return Recalled::Fresh };
        let entry = self.entries.get(number);
        if self.time.now() >= entry.at() + self.config.idempotency_ms && !self.is_entry_live(number) {
            return Recalled::Fresh;
        }
        if entry.is_message(&stamp) {
            Recalled::Entry(number)
        } else {
            Recalled::Reused(self.lobbies.lsn(entry.place().lobby))
        }
    }

    pub(super) fn stamp(&self, idempotency: &Idempotency) -> Stamp {
        Stamp::new(idempotency, self.time.now())
    }

    /// The answer of a repeated find or join: the same tokens, whether or not they have ended; 410 once the lobby has.
    pub(super) fn replay_placed(&self, entry: u32) -> Answer<Placed> {
        let place = self.entries.get(entry).place();
        let wait = self.lobbies.lsn(place.lobby);
        let Some(Known::Live(lobby)) = self.lobbies.known(place.lobby) else {
            return refuse(Refusal::LobbyStopped, wait);
        };
        match self.tokens_of_entry(entry) {
            Some(tokens) => accept(Placed::Reserved(Reservation { lobby: lobby.id, tokens }), wait),
            // Its key left the ring with a restored backup: the places are as good as gone.
            None => refuse(Refusal::LobbyStopped, wait),
        }
    }

    fn tokens_of_entry(&self, number: u32) -> Option<Vec<String>> {
        let entry = self.entries.get(number);
        let place = entry.place();
        match self.entries.party(&self.seed, number) {
            Some(uses) => uses
                .iter()
                .map(|(slot, generation)| self.token(Place { lobby: place.lobby, slot, generation }, entry.key_id))
                .collect(),
            None => self.token(place, entry.key_id).map(|token| vec![token]),
        }
    }

    /// The token of a use, byte for byte as it was made.
    pub(super) fn token(&self, place: Place, key_id: u16) -> Option<String> {
        let lobby = self.lobbies.live(place.lobby)?.id;
        let token = PlayerToken { key_id, lobby, slot: u32::from(place.slot), generation: place.generation };
        self.config.keys.sign_player(&token)
    }

    /// The answer of a repeated attach.
    pub(super) fn replay_attached(&self, entry: u32) -> Answer<Attached> {
        let number = self.entries.get(entry).place().lobby;
        let wait = self.lobbies.lsn(number);
        let attached = self.lobbies.live(number).and_then(|lobby| {
            let lobby_token = self.config.keys.sign_lobby(lobby.key_id, lobby.id)?;
            Some(Attached { lobby: lobby.id, lobby_token })
        });
        attached.map_or(refuse(Refusal::LobbyStopped, wait), |attached| accept(attached, wait))
    }
}
