//! Read-only queries: lobbies, lists and counts. Their results may not be durable yet.

use std::ops::Bound;

use super::Engine;
use crate::command::{
    DesiredLobbyChanges, HoldId, Id, ListLobbies, ListedLobby, LobbyPage, LobbyView, ManagedLobbyView, NamespaceCounts,
    PlayerCount, PresenceChanges, Publicity,
};
use crate::lobby::{Lobby, LobbyPhase};
use crate::name_interner::split_tag_symbol;
use crate::port_leases::PortLease;

/// Number of lobbies that one [`Engine::list`] examines.
pub const LISTED_AT_ONCE_MAX: usize = 512;

/// Size of states at which one [`Engine::list`] ends. The last state can exceed it by 64 KiB.
const LISTED_STATE_BYTES_AT_ONCE: usize = 256 * 1024;

impl Engine {
    /// Returns a live lobby.
    pub fn lobby(&self, id: Id) -> Option<LobbyView> {
        let number = self.lobbies.number_of(&self.seed, id)?;
        self.lobbies.live(number).map(|lobby| self.view(lobby))
    }

    /// Returns the namespace of a live lobby or a tombstone.
    pub fn namespace_of_lobby(&self, id: Id) -> Option<Id> {
        self.lobbies.number_of(&self.seed, id).and_then(|number| self.namespace_id_of(number))
    }

    /// Returns a part of the public, ready, open lobbies of a version, oldest first.
    ///
    /// Examines a bounded number of lobbies and copies a bounded number of bytes, because the engine is locked
    /// meanwhile. A part without lobbies can have a next part.
    pub fn list(&self, c: &ListLobbies) -> LobbyPage {
        let mut page = LobbyPage::default();
        let Some(namespace) = self.ledger.namespace_of(&self.seed, c.namespace) else { return page };
        let mut state_bytes = 0;
        let after = (Bound::Excluded(c.after), Bound::Unbounded);
        let mut lobbies = self.ledger.namespaces[namespace as usize].lobbies.range(after);
        for (position, number) in lobbies.by_ref().take(LISTED_AT_ONCE_MAX) {
            page.next = Some(*position);
            let Some(lobby) = self.lobbies.live(*number) else { continue };
            if lobby.version != c.version || !lobby.is_ready || !lobby.is_findable() {
                continue;
            }
            let state = lobby.state.as_deref().filter(|_| c.with_state).map(<[u8]>::to_vec);
            state_bytes += state.as_ref().map_or(0, Vec::len);
            page.lobbies.push(ListedLobby {
                id: lobby.id,
                position: *position,
                mode: self.names.text(lobby.mode).to_owned(),
                region: self.names.text(lobby.region).to_owned(),
                max_players: lobby.limits,
                connected: lobby.counts.connected,
                state,
            });
            if state_bytes >= LISTED_STATE_BYTES_AT_ONCE {
                break;
            }
        }
        page.next = page.next.filter(|_| lobbies.next().is_some());
        page
    }

    /// Returns the versions of the live lobbies of a namespace, ascending.
    pub fn live_versions(&self, namespace: Id) -> Vec<Id> {
        let mut versions: Vec<Id> = self.live_lobbies(namespace).map(|lobby| lobby.version).collect();
        versions.sort_unstable();
        versions.dedup();
        versions
    }

    /// Returns true if a managed lobby of a version is starting and not stopping.
    pub fn has_starting_lobbies(&self, namespace: Id, version: Id) -> bool {
        self.live_lobbies(namespace)
            .filter(|lobby| lobby.version == version)
            .any(|lobby| lobby.managed.is_some() && !lobby.is_ready && !lobby.is_stopping)
    }

    /// Returns the live lobbies of a version, oldest first.
    pub fn lobbies_of_version(&self, namespace: Id, version: Id) -> Vec<Id> {
        self.live_lobbies(namespace).filter(|lobby| lobby.version == version).map(|lobby| lobby.id).collect()
    }

    fn live_lobbies(&self, namespace: Id) -> impl Iterator<Item = &Lobby> {
        let current = self.ledger.namespace_of(&self.seed, namespace);
        let numbers = current.into_iter().flat_map(|current| self.ledger.namespaces[current as usize].lobbies.values());
        numbers.filter_map(|number| self.lobbies.live(*number))
    }

    /// Returns the oldest lobbies that a drain waits for, and the number of all of them: lobbies of this machine, and
    /// others with connected players.
    pub fn lobbies_to_drain(&self, limit: usize) -> (Vec<LobbyView>, usize) {
        let live = (0..self.lobbies.end_number()).filter_map(|number| self.lobbies.live(number));
        let mut lobbies: Vec<&Lobby> =
            live.filter(|lobby| lobby.managed.is_some() || lobby.counts.connected > 0).collect();
        lobbies.sort_unstable_by_key(|lobby| (lobby.create_ts_ms, lobby.number));
        (lobbies.iter().take(limit).map(|lobby| self.view(lobby)).collect(), lobbies.len())
    }

    /// Returns the number of connected players of a namespace by mode and region, sorted by name.
    pub fn player_counts(&self, namespace: Id) -> Vec<PlayerCount> {
        let Some(namespace) = self.ledger.namespace_of(&self.seed, namespace) else { return Vec::new() };
        let mut counts: Vec<PlayerCount> = self
            .ledger
            .tallies_of(namespace)
            .map(|tally| PlayerCount {
                mode: self.names.text(tally.mode).to_owned(),
                region: self.names.text(tally.region).to_owned(),
                player_count: tally.connected,
            })
            .collect();
        counts.sort_unstable_by(|a, b| (&a.mode, &a.region).cmp(&(&b.mode, &b.region)));
        counts
    }

    /// Returns the desired lobbies that changed after a sequence number; 0 returns all.
    pub fn desired_lobbies_since(&self, after: u64) -> DesiredLobbyChanges {
        self.desired_lobbies.since(after)
    }

    /// Returns the namespaces with a changed player or lobby count since change number `after`; 0 returns all.
    pub fn presence_since(&mut self, after: u64) -> PresenceChanges {
        self.ledger.presence_since(after)
    }

    /// Returns the counts of namespaces for metrics: those with lobbies, tombstones or unread idle groups, and a bounded
    /// number of others.
    pub fn namespace_counts(&self) -> Vec<(Id, NamespaceCounts)> {
        let mut all = Vec::with_capacity(self.ledger.namespaces.len() + self.ledger.remembered.len());
        for namespace in &self.ledger.namespaces {
            let mut counts = namespace.counts.clone();
            counts.slots[0] = namespace.capacity - counts.slots[1..].iter().sum::<u64>();
            // A vacant number, or a namespace without lobbies since the start.
            if counts != NamespaceCounts::default() {
                all.push((namespace.id, counts));
            }
        }
        all.extend(self.ledger.remembered.iter().cloned());
        all
    }

    /// Returns the sum of the counts since the start that [`Engine::namespace_counts`] no longer has.
    ///
    /// A namespace with such counts starts at 0 with its next lobby.
    pub fn forgotten_namespace_counts(&self) -> NamespaceCounts {
        self.ledger.forgotten.clone()
    }

    /// Returns for how many namespaces with lobbies, tombstones or idle groups the engine has memory.
    pub fn namespace_capacity(&self) -> usize {
        self.ledger.namespaces.len()
    }

    /// Returns the lobby of a hold, or None if either has ended.
    pub fn lobby_of_hold(&self, hold: HoldId) -> Option<Id> {
        let hold = self.holds.get(hold)?;
        self.lobbies.live(hold.lobby).map(|lobby| lobby.id)
    }

    fn tags_of(&self, lobby: &Lobby) -> Vec<(String, String)> {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let tags = lobby.tags.iter().filter_map(|tag| split_tag_symbol(self.names.bytes(*tag)));
        let mut tags: Vec<_> = tags.map(|(name, value)| (text(name), text(value))).collect();
        tags.sort_unstable();
        tags
    }

    fn view(&self, lobby: &Lobby) -> LobbyView {
        let counts = &lobby.counts;
        LobbyView {
            id: lobby.id,
            namespace: lobby.namespace_id,
            version: lobby.version,
            mode: self.names.text(lobby.mode).to_owned(),
            region: self.names.text(lobby.region).to_owned(),
            ports: lobby.ports.to_vec(),
            max_players: lobby.limits,
            is_open: lobby.phase() == LobbyPhase::Ready,
            is_ready: lobby.is_ready,
            is_closed: lobby.is_closed,
            players: [counts.held, counts.reserved, counts.connected, counts.kept],
            create_ts_ms: lobby.create_ts_ms,
            own: lobby.managed.as_ref().map(|own| {
                let leased = self.leases.live(lobby.id).map(PortLease::leased_ports).unwrap_or_default();
                let lobby_config = (!own.lobby_config.is_empty()).then(|| own.lobby_config.to_vec());
                Box::new(ManagedLobbyView { leased, lobby_config })
            }),
            publicity: if lobby.is_public { Publicity::Public } else { Publicity::Private },
            is_stopping: lobby.is_stopping,
            is_trial: lobby.is_trial(),
            tags: self.tags_of(lobby),
        }
    }
}
