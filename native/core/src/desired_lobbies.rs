//! Lobbies that the runtime must run or stop, with a change feed. In memory only.

use std::collections::{BTreeMap, VecDeque};

use crate::change_feed::ChangeFeed;
use crate::command::{DesiredLobby, DesiredLobbyChanges, Id};

const MAX_REMEMBERED_ENDS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct DesiredLobbies {
    changes: ChangeFeed<Id>,
    is_stopping: BTreeMap<Id, bool>,
    ended: VecDeque<Id>,
}

impl DesiredLobbies {
    pub(crate) fn new() -> DesiredLobbies {
        let (is_stopping, ended) = (BTreeMap::new(), VecDeque::new());
        DesiredLobbies { changes: ChangeFeed::starting_at(1), is_stopping, ended }
    }

    pub(crate) fn put(&mut self, lobby: Id, is_stopping: bool) {
        if self.is_stopping.insert(lobby, is_stopping) != Some(is_stopping) {
            self.changes.record(lobby);
        }
    }

    pub(crate) fn remove(&mut self, lobby: Id) {
        if self.is_stopping.remove(&lobby).is_none() {
            return;
        }
        self.changes.record(lobby);
        self.ended.push_back(lobby);
        if self.ended.len() > MAX_REMEMBERED_ENDS
            && let Some(oldest) = self.ended.pop_front()
        {
            self.changes.forget(oldest);
        }
    }

    pub(crate) fn since(&self, after: u64) -> DesiredLobbyChanges {
        let (is_complete, changed) = self.changes.since(after, u64::MAX);
        let (mut lobbies, mut removed) = (Vec::new(), Vec::new());
        for lobby in changed {
            match self.is_stopping.get(&lobby) {
                Some(&is_stopping) => lobbies.push(DesiredLobby { lobby, is_stopping }),
                None if !is_complete => removed.push(lobby),
                None => {}
            }
        }
        DesiredLobbyChanges { sequence: self.changes.sequence(), is_complete, lobbies, removed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> Id {
        Id([byte; 16])
    }

    #[test]
    fn reader_gets_lobbies_and_ends_after_its_last_read() {
        let mut desired = DesiredLobbies::new();
        desired.put(id(1), false);
        desired.put(id(2), false);
        let first = desired.since(0);
        assert_eq!((first.is_complete, first.lobbies.len(), first.sequence), (true, 2, 3));
        desired.put(id(1), false);
        assert_eq!(desired.since(3).sequence, 3, "the lobby is the same");
        desired.put(id(1), true);
        desired.remove(id(2));
        desired.remove(id(3));
        let next = desired.since(3);
        assert_eq!((next.is_complete, next.sequence), (false, 5));
        assert_eq!((next.lobbies, next.removed), (vec![DesiredLobby { lobby: id(1), is_stopping: true }], vec![id(2)]));
        assert_eq!(desired.since(0).removed, [], "a complete list needs no ends");
    }

    #[test]
    fn reader_before_a_forgotten_end_gets_everything() {
        let mut desired = DesiredLobbies::new();
        desired.put(id(200), false);
        let early = desired.since(0).sequence;
        for number in 0..=MAX_REMEMBERED_ENDS as u32 {
            let mut lobby = id(7);
            lobby.0[..4].copy_from_slice(&number.to_le_bytes());
            desired.put(lobby, false);
            desired.remove(lobby);
        }
        let all = desired.since(early);
        assert!(all.is_complete);
        assert_eq!((all.lobbies.len(), all.removed.len()), (1, 0));
        assert_eq!(desired.ended.len(), MAX_REMEMBERED_ENDS);
    }
}
