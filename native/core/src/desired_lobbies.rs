//! Lobbies that the runtime must run or stop, with a change feed. In memory only.

use std::collections::BTreeMap;

use crate::command::{DesiredLobby, DesiredLobbyChanges, Id};

const MAX_REMEMBERED_ENDS: usize = 10_000;

#[derive(Debug)]
pub(crate) struct DesiredLobbies {
    sequence: u64,
    by_change: BTreeMap<u64, Id>,
    live: BTreeMap<Id, (u64, bool)>,
    gone: BTreeMap<u64, Id>,
    forgotten: u64,
}

impl DesiredLobbies {
    pub(crate) fn new() -> DesiredLobbies {
        let (by_change, live, gone) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        DesiredLobbies { sequence: 1, by_change, live, gone, forgotten: 0 }
    }

    pub(crate) fn put(&mut self, lobby: Id, is_stopping: bool) {
        if self.live.get(&lobby).is_some_and(|(_, told)| *told == is_stopping) {
            return;
        }
        self.sequence += 1;
        if let Some((before, _)) = self.live.insert(lobby, (self.sequence, is_stopping)) {
            self.by_change.remove(&before);
        }
        self.by_change.insert(self.sequence, lobby);
    }

    pub(crate) fn remove(&mut self, lobby: Id) {
        let Some((before, _)) = self.live.remove(&lobby) else { return };
        self.by_change.remove(&before);
        self.sequence += 1;
        self.gone.insert(self.sequence, lobby);
        if self.gone.len() > MAX_REMEMBERED_ENDS
            && let Some((sequence, _)) = self.gone.pop_first()
        {
            self.forgotten = sequence;
        }
    }

    pub(crate) fn since(&self, after: u64) -> DesiredLobbyChanges {
        let is_complete = after == 0 || after > self.sequence || after < self.forgotten;
        let after = if is_complete { 0 } else { after };
        let told = |(_, lobby): (&u64, &Id)| {
            let is_stopping = self.live.get(lobby).is_some_and(|(_, is_stopping)| *is_stopping);
            DesiredLobby { lobby: *lobby, is_stopping }
        };
        let gone = if is_complete { Vec::new() } else { self.gone.range(after + 1..).map(|(_, id)| *id).collect() };
        DesiredLobbyChanges {
            sequence: self.sequence,
            is_complete,
            lobbies: self.by_change.range(after + 1..).map(told).collect(),
            gone,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(byte: u8) -> Id {
        Id([byte; 16])
    }

    #[test]
    fn reader_gets_each_change_once() {
        let mut wanted = DesiredLobbies::new();
        wanted.put(id(1), false);
        wanted.put(id(2), false);
        let first = wanted.since(0);
        assert!(first.is_complete);
        assert_eq!(first.lobbies.len(), 2);
        assert_eq!(wanted.since(first.sequence).lobbies, []);
        wanted.put(id(1), false);
        assert_eq!(wanted.since(first.sequence).sequence, first.sequence, "nothing is new");
        wanted.put(id(1), true);
        wanted.remove(id(2));
        wanted.remove(id(3));
        let next = wanted.since(first.sequence);
        assert!(!next.is_complete);
        assert_eq!(next.lobbies, [DesiredLobby { lobby: id(1), is_stopping: true }]);
        assert_eq!(next.gone, [id(2)]);
        assert!(wanted.since(next.sequence + 1).is_complete, "a number of somebody else's");
    }

    #[test]
    fn reader_too_far_behind_gets_everything() {
        let mut wanted = DesiredLobbies::new();
        wanted.put(id(200), false);
        let early = wanted.since(0).sequence;
        for number in 0..=MAX_REMEMBERED_ENDS as u32 {
            let mut lobby = id(7);
            lobby.0[..4].copy_from_slice(&number.to_le_bytes());
            wanted.put(lobby, false);
            wanted.remove(lobby);
        }
        let all = wanted.since(early);
        assert!(all.is_complete);
        assert_eq!((all.lobbies.len(), all.gone.len()), (1, 0));
        assert_eq!(wanted.gone.len(), MAX_REMEMBERED_ENDS);
    }
}
