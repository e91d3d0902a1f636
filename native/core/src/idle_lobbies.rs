//! Groups of starting and empty lobbies, by namespace, version, mode and region.
//!
//! A group without lobbies stays, with its names, until a reader has read it.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Id, Ms};

/// Key of the lobbies of one namespace, version, mode and region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LobbyGroupKey {
    // The `u32` fields are numbers of the engine, not ids.
    pub(crate) namespace: u32,
    pub(crate) version: Id,
    pub(crate) mode: u32,
    pub(crate) region: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdleState {
    /// The lobby has players, is stopping, is a trial, or is a starting private or attached lobby.
    NotIdle,
    /// A public managed lobby is starting without players.
    Starting,
    /// The lobby is ready and empty since this time.
    Empty(Ms),
}

/// Value of `Lobby::empty_since` after an idle lobby got players.
pub(crate) const OCCUPIED: Ms = Ms::MAX;

#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) starting: u32,
    pub(crate) live: u32,
    /// Number of managed lobbies that ended as `StartTimeout` or `Silent` since the last `take_changed_idle_groups`.
    pub(crate) failed: u32,
    pub(crate) empty: BTreeSet<(Ms, u32)>,
}

impl Group {
    fn is_vacant(&self) -> bool {
        self.live == 0 && self.starting == 0 && self.empty.is_empty()
    }
}

#[derive(Debug, Default)]
pub(crate) struct IdleLobbies {
    groups: BTreeMap<LobbyGroupKey, Group>,
    touched: BTreeSet<LobbyGroupKey>,
    pub(crate) stale: Vec<u32>,
}

impl IdleLobbies {
    pub(crate) fn group(&self, key: &LobbyGroupKey) -> Option<&Group> {
        self.groups.get(key)
    }

    pub(crate) fn of_namespace(&self, namespace: u32) -> impl Iterator<Item = &LobbyGroupKey> {
        let first = LobbyGroupKey { namespace, version: Id::default(), mode: 0, region: 0 };
        self.groups.range(first..).map(|(key, _)| key).take_while(move |key| key.namespace == namespace)
    }

    pub(crate) fn has(&self, key: &LobbyGroupKey) -> bool {
        self.groups.contains_key(key)
    }

    /// Moves a lobby from one state to another, and adds `live` to the group's number of live lobbies.
    pub(crate) fn shift(&mut self, key: LobbyGroupKey, lobby: u32, from: IdleState, to: IdleState, live: i32) {
        let group = self.groups.entry(key).or_default();
        match from {
            IdleState::NotIdle => {}
            IdleState::Starting => group.starting -= 1,
            IdleState::Empty(since) => {
                group.empty.remove(&(since, lobby));
            }
        }
        match to {
            IdleState::NotIdle => {}
            IdleState::Starting => group.starting += 1,
            IdleState::Empty(since) => {
                group.empty.insert((since, lobby));
            }
        }
        group.live = group.live.saturating_add_signed(live);
        self.touched.insert(key);
    }

    pub(crate) fn count_failed(&mut self, key: LobbyGroupKey) {
        let group = self.groups.entry(key).or_default();
        group.failed = group.failed.saturating_add(1);
        self.touched.insert(key);
    }

    pub(crate) fn clear_failed(&mut self, key: &LobbyGroupKey) {
        if let Some(group) = self.groups.get_mut(key) {
            group.failed = 0;
        }
    }

    pub(crate) fn drop_vacant(&mut self, key: &LobbyGroupKey) -> bool {
        self.groups.get(key).is_some_and(Group::is_vacant) && self.groups.remove(key).is_some()
    }

    pub(crate) fn clear(&mut self) -> impl Iterator<Item = LobbyGroupKey> + use<> {
        core::mem::take(self).groups.into_keys()
    }

    pub(crate) fn touch(&mut self, key: LobbyGroupKey) {
        self.touched.insert(key);
    }

    /// Returns true if groups may have changed since the last [`Self::take_changed_idle_groups`].
    pub(crate) fn are_groups_changed(&self) -> bool {
        !(self.stale.is_empty() && self.touched.is_empty())
    }

    pub(crate) fn take_changed_idle_groups(&mut self) -> BTreeSet<LobbyGroupKey> {
        core::mem::take(&mut self.touched)
    }
}
