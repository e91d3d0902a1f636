//! Who is empty: for each (namespace, version, mode, region) the ready lobbies that nobody is in, and how many start for
//! nobody. Derived. Which of them are too many or too few is the supply's matter, above. A group stays until somebody was
//! told that nothing is in it any more, and keeps the symbols of its key as long.

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{Id, Ms};

/// Symbols and numbers of a group, as in `find::GroupKey`, in an order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct LobbyGroupKey {
    pub(crate) namespace: u32,
    pub(crate) version: Id,
    pub(crate) mode: u32,
    pub(crate) region: u32,
}

/// What a lobby counts as here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdleState {
    /// As nothing: somebody is in it, it is stopping, or it starts for somebody.
    NotIdle,
    /// It starts, public, and nobody waits for it. It may be closed until it is ready.
    Starting,
    /// Ready, and empty since then.
    Empty(Ms),
}

/// In the place of a time: somebody is in it.
pub(crate) const OCCUPIED: Ms = Ms::MAX;

/// The lobbies of a group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) starting: u32,
    pub(crate) live: u32,
    /// Of ours that the engine ended for not doing what they had to, since somebody was told.
    pub(crate) failed: u32,
    pub(crate) empty: BTreeSet<(Ms, u32)>,
}

impl Group {
    fn is_vacant(&self) -> bool {
        self.live == 0 && self.starting == 0 && self.empty.is_empty()
    }
}

/// All groups that have lobbies, and those that changed since somebody asked.
#[derive(Debug, Default)]
pub(crate) struct IdleLobbies {
    groups: BTreeMap<LobbyGroupKey, Group>,
    touched: BTreeSet<LobbyGroupKey>,
    /// Lobbies whose standing may be another.
    pub(crate) dirty: Vec<u32>,
}

impl IdleLobbies {
    pub(crate) fn group(&self, key: &LobbyGroupKey) -> Option<&Group> {
        self.groups.get(key)
    }

    /// The groups of a namespace.
    pub(crate) fn of_namespace(&self, namespace: u32) -> impl Iterator<Item = &LobbyGroupKey> {
        let first = LobbyGroupKey { namespace, version: Id::default(), mode: 0, region: 0 };
        self.groups.range(first..).map(|(key, _)| key).take_while(move |key| key.namespace == namespace)
    }

    pub(crate) fn has(&self, key: &LobbyGroupKey) -> bool {
        self.groups.contains_key(key)
    }

    /// A lobby goes from one standing to another; `live` is how many more the group has that are not stopping.
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

    /// A lobby of the group was ended because it failed.
    pub(crate) fn count_failed(&mut self, key: LobbyGroupKey) {
        let group = self.groups.entry(key).or_default();
        group.failed = group.failed.saturating_add(1);
        self.touched.insert(key);
    }

    /// Somebody was told how many of the group failed.
    pub(crate) fn clear_failed(&mut self, key: &LobbyGroupKey) {
        if let Some(group) = self.groups.get_mut(key) {
            group.failed = 0;
        }
    }

    /// Drops a group in which nothing is any more; true when it was there.
    pub(crate) fn drop_vacant(&mut self, key: &LobbyGroupKey) -> bool {
        self.groups.get(key).is_some_and(Group::is_vacant) && self.groups.remove(key).is_some()
    }

    /// Drops everything; the keys of what there was.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = LobbyGroupKey> + use<> {
        core::mem::take(self).groups.into_keys()
    }

    /// Something of a lobby changed that this does not look at, and its readers do.
    pub(crate) fn touch(&mut self, key: LobbyGroupKey) {
        self.touched.insert(key);
    }

    /// The groups that changed since the last call.
    pub(crate) fn take_changed_idle_groups(&mut self) -> BTreeSet<LobbyGroupKey> {
        core::mem::take(&mut self.touched)
    }
}
