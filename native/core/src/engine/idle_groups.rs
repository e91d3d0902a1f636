//! Queries and updates of idle lobby groups, which are derived state.

use super::Engine;
use crate::command::{EmptyLobby, EndReason, Id, IdleLobbyGroup};
use crate::idle_lobbies::LobbyGroupKey;
use crate::idle_lobbies::{IdleState, OCCUPIED};

impl Engine {
    /// Returns the idle lobby groups that changed since the last call.
    pub fn take_changed_idle_groups(&mut self) -> Vec<IdleLobbyGroup> {
        self.apply_idle_changes();
        let touched = self.idle_lobbies.take_changed_idle_groups();
        let groups = touched.iter().map(|key| self.idle_group(key)).collect();
        for key in &touched {
            self.idle_lobbies.clear_failed(key);
            if self.idle_lobbies.drop_vacant(key) {
                self.release_names(key);
                self.ledger.remove_idle_group(&self.seed, key.namespace);
            }
        }
        groups
    }

    /// Returns all idle lobby groups of a namespace.
    pub fn idle_groups(&mut self, namespace: Id) -> Vec<IdleLobbyGroup> {
        self.apply_idle_changes();
        let Some(namespace) = self.ledger.namespace_of(&self.seed, namespace) else { return Vec::new() };
        self.idle_lobbies.of_namespace(namespace).map(|key| self.idle_group(key)).collect()
    }

    fn idle_group(&self, key: &LobbyGroupKey) -> IdleLobbyGroup {
        let group = self.idle_lobbies.group(key);
        let now = self.time.now();
        let empty = group.map(|group| &group.empty).into_iter().flatten().filter_map(|(since, number)| {
            let lobby = self.lobbies.live(*number)?;
            Some(EmptyLobby {
                lobby: lobby.id,
                empty_ms: now.saturating_sub(*since),
                was_used: lobby.slots.used > 0,
                is_findable: lobby.is_public && !lobby.is_closed,
                is_ours: lobby.managed.is_some(),
            })
        });
        IdleLobbyGroup {
            namespace: self.ledger.namespaces[key.namespace as usize].id,
            version: key.version,
            mode: self.names.text(key.mode).to_owned(),
            region: self.names.text(key.region).to_owned(),
            starting: group.map_or(0, |group| group.starting),
            live: group.map_or(0, |group| group.live),
            failed: group.map_or(0, |group| group.failed),
            empty: empty.collect(),
        }
    }

    pub(super) fn update_idle_group(&mut self, number: u32) {
        let Some(lobby) = self.lobbies.live_mut(number) else { return };
        let key = lobby.group_key();
        if !lobby.is_idle_state_stale {
            lobby.is_idle_state_stale = true;
            self.idle_lobbies.stale.push(number);
        }
        // `EmptyLobby::is_findable` may have changed.
        if self.idle_lobbies.has(&key) {
            self.idle_lobbies.touch(key);
        }
    }

    fn apply_idle_changes(&mut self) {
        for number in core::mem::take(&mut self.idle_lobbies.stale) {
            let now = self.time.now();
            let Some(lobby) = self.lobbies.live_mut(number) else { continue };
            if !lobby.is_idle_state_stale {
                continue;
            }
            lobby.is_idle_state_stale = false;
            let from = lobby.idle_state;
            let was_empty = matches!(from, IdleState::Empty(_));
            if lobby.counts.players() == 0 && (!was_empty || lobby.empty_since == OCCUPIED) {
                lobby.empty_since = now;
            }
            let to = lobby.idle_state();
            let is_counted_live = !lobby.is_stopping && !lobby.is_trial();
            let live = i32::from(is_counted_live) - i32::from(lobby.is_counted_live);
            lobby.idle_state = to;
            lobby.is_counted_live = is_counted_live;
            if from != to || live != 0 {
                let key = lobby.group_key();
                self.move_idle_state(key, number, (from, to), live);
            }
        }
    }

    pub(super) fn remove_from_idle_groups(&mut self, number: u32, reason: EndReason) {
        let Some(lobby) = self.lobbies.live_mut(number).filter(|lobby| !lobby.is_trial()) else { return };
        let (key, from) = (lobby.group_key(), lobby.idle_state);
        let live = -i32::from(lobby.is_counted_live);
        // The engine ends these lobbies by timeout, so no runtime reports their failure.
        let is_by_time = matches!(reason, EndReason::StartTimeout | EndReason::Silent);
        let has_failed = is_by_time && lobby.managed.is_some();
        (lobby.idle_state, lobby.is_counted_live, lobby.is_idle_state_stale) = (IdleState::NotIdle, false, false);
        self.move_idle_state(key, number, (from, IdleState::NotIdle), live);
        if has_failed {
            self.idle_lobbies.count_failed(key);
        }
    }

    /// Drops all groups. The caller drops the ledger that counts them.
    pub(super) fn clear_idle_groups(&mut self) {
        for key in self.idle_lobbies.clear() {
            self.release_names(&key);
        }
    }

    fn move_idle_state(&mut self, key: LobbyGroupKey, number: u32, (from, to): (IdleState, IdleState), live: i32) {
        if !self.idle_lobbies.has(&key) {
            for symbol in [key.mode, key.region] {
                let name = self.names.bytes(symbol).to_vec();
                self.names.acquire(&self.seed, &name);
            }
            self.ledger.add_idle_group(key.namespace);
        }
        self.idle_lobbies.shift(key, number, from, to, live);
    }

    fn release_names(&mut self, key: &LobbyGroupKey) {
        for symbol in [key.mode, key.region] {
            self.names.release(&self.seed, symbol);
        }
    }
}
