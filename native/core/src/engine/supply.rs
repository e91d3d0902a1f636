//! What the supply of lobbies and the runtime of ours look at: who is empty, who is to run. Derived, kept up by commands,
//! told when asked (decisions 5.8; `supply`, `wanted`).

use super::Engine;
use crate::command::{EmptyLobby, EndReason, Id, SupplyGroup, Wanted};
use crate::supply::{OCCUPIED, Standing, SupplyKey};

impl Engine {
    /// The groups whose starting or empty lobbies, or their number, changed since the last call.
    pub fn take_touched(&mut self) -> Vec<SupplyGroup> {
        self.settle_supply();
        let touched = self.supply.take_touched();
        let told = touched.iter().map(|key| self.supply_group(key)).collect();
        for key in &touched {
            self.supply.clear_failed(key);
            if self.supply.drop_vacant(key) {
                self.release_names(key);
            }
        }
        told
    }

    /// All groups of a namespace that have lobbies.
    pub fn supply_groups(&mut self, namespace: Id) -> Vec<SupplyGroup> {
        self.settle_supply();
        let Some(namespace) = self.ledger.namespace_of(&self.seed, namespace) else { return Vec::new() };
        self.supply.of_namespace(namespace).map(|key| self.supply_group(key)).collect()
    }

    /// Lobbies of ours that ought to run and what changed of them after a number that was told; 0: all. Decided, durable or
    /// not.
    pub fn wanted_since(&self, after: u64) -> Wanted {
        self.wanted.since(after)
    }

    fn supply_group(&self, key: &SupplyKey) -> SupplyGroup {
        let group = self.supply.group(key);
        let now = self.time.now();
        let empty = group.map(|group| &group.empty).into_iter().flatten().filter_map(|(since, number)| {
            let lobby = self.lobbies.live(*number)?;
            Some(EmptyLobby {
                lobby: lobby.id,
                empty_ms: now.saturating_sub(*since),
                was_used: lobby.slots.used > 0,
                is_findable: lobby.is_public && !lobby.is_closed,
                is_ours: lobby.own.is_some(),
            })
        });
        SupplyGroup {
            namespace: self.ledger.namespaces[key.namespace as usize].id,
            version: key.version,
            mode: self.symbols.text(key.mode).to_owned(),
            region: self.symbols.text(key.region).to_owned(),
            starting: group.map_or(0, |group| group.starting),
            live: group.map_or(0, |group| group.live),
            failed: group.map_or(0, |group| group.failed),
            empty: empty.collect(),
        }
    }

    /// What a lobby is changed, not only who is in it.
    pub(super) fn follow_supply(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        if lobby.own.is_some() {
            self.wanted.put(lobby.id, lobby.is_stopping);
        }
        let key = lobby.supply_key();
        if !lobby.is_supply_dirty {
            lobby.is_supply_dirty = true;
            self.supply.dirty.push(number);
        }
        // Whether it is closed is told of empty ones.
        if self.supply.has(&key) {
            self.supply.touch(key);
        }
    }

    /// Counts every lobby that changed as what it is now.
    fn settle_supply(&mut self) {
        for number in core::mem::take(&mut self.supply.dirty) {
            let now = self.time.now();
            let Some(lobby) = self.lobbies.live_mut(number) else { continue };
            if !lobby.is_supply_dirty {
                continue;
            }
            lobby.is_supply_dirty = false;
            let from = lobby.standing;
            let was_empty = matches!(from, Standing::Empty(_));
            if lobby.counts.players() == 0 && (!was_empty || lobby.empty_since == OCCUPIED) {
                lobby.empty_since = now;
            }
            let to = lobby.supply_standing();
            let is_supplied = !lobby.is_stopping;
            let live = i32::from(is_supplied) - i32::from(lobby.is_supplied);
            lobby.standing = to;
            lobby.is_supplied = is_supplied;
            if from != to || live != 0 {
                let key = lobby.supply_key();
                self.shift_supply(key, number, (from, to), live);
            }
        }
    }

    /// A live lobby is about to end for that reason.
    pub(super) fn leave_supply(&mut self, number: u32, reason: EndReason) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let (key, from) = (lobby.supply_key(), lobby.standing);
        let live = -i32::from(lobby.is_supplied);
        // Nobody reports these: the engine ends them by itself.
        let is_by_time = matches!(reason, EndReason::StartTimeout | EndReason::Silent);
        let has_failed = is_by_time && lobby.own.is_some();
        (lobby.standing, lobby.is_supplied, lobby.is_supply_dirty) = (Standing::Elsewhere, false, false);
        if lobby.own.is_some() {
            self.wanted.remove(lobby.id);
        }
        self.shift_supply(key, number, (from, Standing::Elsewhere), live);
        if has_failed {
            self.supply.note_failed(key);
        }
    }

    /// Forgets all of it, when recovery begins.
    pub(super) fn forget_supply(&mut self) {
        for key in self.supply.clear() {
            self.release_names(&key);
        }
    }

    fn shift_supply(&mut self, key: SupplyKey, number: u32, (from, to): (Standing, Standing), live: i32) {
        if !self.supply.has(&key) {
            for symbol in [key.mode, key.region] {
                let name = self.symbols.bytes(symbol).to_vec();
                self.symbols.acquire(&self.seed, &name);
            }
        }
        self.supply.shift(key, number, from, to, live);
    }

    fn release_names(&mut self, key: &SupplyKey) {
        for symbol in [key.mode, key.region] {
            self.symbols.release(&self.seed, symbol);
        }
    }
}
