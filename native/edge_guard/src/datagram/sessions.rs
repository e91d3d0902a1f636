//! Sessions of one thread, and who may stay when there is no room.
//!
//! A session has a rank: it began, the process answered it, or the player spoke again after an answer. An address that
//! only spoofs gets no further than the second, so the oldest of the lowest rank goes first, and a session whose
//! player speaks is never put out for a new one while it is in use.
//!
//! Where a port has all addresses of the machine, a session is also of the one that the player speaks to. One of which
//! that is not known (an older process did not ask) has the first one that the player speaks to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slab::Slab;

use super::local::Local;
use crate::address::source;

/// How long a session of the highest rank counts as in use.
const IN_USE_MS: u64 = 10_000;

/// How much a session is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    /// Something came from this address.
    Begun,
    /// The process answered it.
    Answered,
    /// The player spoke again after an answer.
    Spoken,
}

/// One session.
#[derive(Debug)]
pub struct Session {
    /// The player.
    pub client: SocketAddr,
    /// The address of ours that it speaks to, where a port has several.
    pub local: Option<Local>,
    /// The place of its port in the thread.
    pub port: usize,
    /// Connected to the process.
    pub socket: Arc<OwnedFd>,
    /// Which use of its place it is.
    pub use_of_place: u32,
    rank: Rank,
    last_ms: u64,
    /// The turn in which there was something to read for the last time.
    last_turn: u64,
    before: Option<usize>,
    after: Option<usize>,
}

impl Session {
    /// How much it is worth.
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

/// All sessions of a thread.
#[derive(Debug, Default)]
pub struct Sessions {
    all: Slab<Session>,
    // Without an address of ours, and with one: where ports have one each, nothing is looked up by more than before.
    by_client: HashMap<(usize, SocketAddr), usize>,
    by_local: HashMap<(usize, SocketAddr, Local), usize>,
    of_address: HashMap<IpAddr, usize>,
    // By rank, in the order of their last use.
    lines: [Line; 3],
    uses: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct Line {
    first: Option<usize>,
    last: Option<usize>,
}

impl Sessions {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// How many a client address has.
    pub fn of_address(&self, client: IpAddr) -> usize {
        self.of_address.get(&source(client)).copied().unwrap_or(0)
    }

    /// Whose a datagram of a player at a port is.
    pub fn find(&mut self, port: usize, client: SocketAddr, local: Option<Local>) -> Option<usize> {
        if let Some(place) = self.place_of(port, client, local) {
            return Some(place);
        }
        let local = local?;
        let place = self.by_client.remove(&(port, client))?;
        self.all[place].local = Some(local);
        self.by_local.insert((port, client, local), place);
        Some(place)
    }

    /// Where the session of exactly these is.
    pub fn place_of(&self, port: usize, client: SocketAddr, local: Option<Local>) -> Option<usize> {
        match local {
            Some(local) => self.by_local.get(&(port, client, local)).copied(),
            None => self.by_client.get(&(port, client)).copied(),
        }
    }

    /// The one in a place, if it is the use that is meant.
    pub fn get(&self, place: usize, use_of_place: u32) -> Option<&Session> {
        self.all.get(place).filter(|session| session.use_of_place == use_of_place)
    }

    /// The one in a place that was just found.
    pub fn at(&self, place: usize) -> &Session {
        &self.all[place]
    }

    /// Each of them with its place.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.all.iter()
    }

    /// Begins one; says where.
    pub fn insert(
        &mut self,
        port: usize,
        (client, local): (SocketAddr, Option<Local>),
        socket: Arc<OwnedFd>,
        rank: Rank,
        now_ms: u64,
    ) -> usize {
        self.uses = self.uses.wrapping_add(1);
        let use_of_place = self.uses;
        let place = self.all.insert(Session {
            client,
            local,
            port,
            socket,
            use_of_place,
            rank,
            last_ms: now_ms,
            last_turn: 0,
            before: None,
            after: None,
        });
        match local {
            Some(local) => self.by_local.insert((port, client, local), place),
            None => self.by_client.insert((port, client), place),
        };
        *self.of_address.entry(source(client.ip())).or_default() += 1;
        self.line_up(place);
        place
    }

    /// The player spoke.
    pub fn heard(&mut self, place: usize, now_ms: u64) {
        let rank = if self.all[place].rank == Rank::Begun { Rank::Begun } else { Rank::Spoken };
        self.used(place, rank, now_ms);
    }

    /// The process answered.
    pub fn answered(&mut self, place: usize, now_ms: u64) {
        let rank = self.all[place].rank.max(Rank::Answered);
        self.used(place, rank, now_ms);
    }

    /// There is something to read in this turn; says whether there was in the one before, so that more may wait.
    pub fn has_more(&mut self, place: usize, turn: u64) -> bool {
        std::mem::replace(&mut self.all[place].last_turn, turn) + 1 == turn
    }

    /// Ends one.
    pub fn remove(&mut self, place: usize) -> Session {
        self.step_out(place);
        let session = self.all.remove(place);
        match session.local {
            Some(local) => self.by_local.remove(&(session.port, session.client, local)),
            None => self.by_client.remove(&(session.port, session.client)),
        };
        let address = source(session.client.ip());
        if let Some(count) = self.of_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.of_address.remove(&address);
            }
        }
        session
    }

    /// Who goes to make room for a new one; none: everybody is in use.
    pub fn displaceable(&self, now_ms: u64) -> Option<usize> {
        let oldest = |rank: Rank| self.lines[rank as usize].first;
        oldest(Rank::Begun).or_else(|| oldest(Rank::Answered)).or_else(|| {
            oldest(Rank::Spoken).filter(|place| now_ms.saturating_sub(self.all[*place].last_ms) >= IN_USE_MS)
        })
    }

    /// One that carried nothing for its time.
    pub fn idle(&self, now_ms: u64, idle_ms: u64) -> Option<usize> {
        (self.lines.iter().filter_map(|line| line.first))
            .find(|place| now_ms.saturating_sub(self.all[*place].last_ms) >= idle_ms)
    }

    fn used(&mut self, place: usize, rank: Rank, now_ms: u64) {
        self.all[place].last_ms = now_ms;
        if self.all[place].rank == rank && self.lines[rank as usize].last == Some(place) {
            return;
        }
        self.step_out(place);
        self.all[place].rank = rank;
        self.line_up(place);
    }

    fn line_up(&mut self, place: usize) {
        let line = &mut self.lines[self.all[place].rank as usize];
        let before = line.last.replace(place);
        match before {
            Some(before) => self.all[before].after = Some(place),
            None => line.first = Some(place),
        }
        self.all[place].before = before;
        self.all[place].after = None;
    }

    fn step_out(&mut self, place: usize) {
        let Session { rank, before, after, .. } = self.all[place];
        match before {
            Some(before) => self.all[before].after = after,
            None => self.lines[rank as usize].first = after,
        }
        match after {
            Some(after) => self.all[after].before = before,
            None => self.lines[rank as usize].last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn begin(sessions: &mut Sessions, last: u8, now_ms: u64) -> usize {
        let client = SocketAddr::from(([127, 0, 0, last], 1));
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
        sessions.insert(0, (client, None), socket, Rank::Begun, now_ms)
    }

    #[test]
    fn the_oldest_of_the_lowest_rank_goes_first() {
        let mut sessions = Sessions::default();
        let spoken = begin(&mut sessions, 1, 0);
        sessions.answered(spoken, 0);
        sessions.heard(spoken, 0);
        let answered = begin(&mut sessions, 2, 0);
        sessions.answered(answered, 0);
        let first = begin(&mut sessions, 3, 1);
        let second = begin(&mut sessions, 4, 2);
        sessions.heard(first, 3);
        for expected in [second, first, answered] {
            assert_eq!(sessions.displaceable(100), Some(expected));
            sessions.remove(expected);
        }
        assert_eq!(sessions.displaceable(100), None, "it is in use");
        assert_eq!(sessions.displaceable(IN_USE_MS), Some(spoken));
    }

    #[test]
    fn speaking_without_an_answer_raises_nobody() {
        let mut sessions = Sessions::default();
        let place = begin(&mut sessions, 1, 0);
        (0..9).for_each(|now_ms| sessions.heard(place, now_ms));
        assert_eq!(sessions.at(place).rank(), Rank::Begun);
    }

    #[test]
    fn sessions_of_an_address_are_counted_while_they_are_there() {
        let mut sessions = Sessions::default();
        let (place, _other) = (begin(&mut sessions, 1, 0), begin(&mut sessions, 2, 0));
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(sessions.of_address(address), 1);
        sessions.remove(place);
        assert_eq!(sessions.of_address(address), 0);
        assert_eq!(sessions.of_address.len(), 1, "who has none is not remembered");
    }

    #[test]
    fn idle_ones_are_found_in_every_rank_and_used_ones_are_not() {
        let mut sessions = Sessions::default();
        let (a, b) = (begin(&mut sessions, 1, 0), begin(&mut sessions, 2, 0));
        sessions.answered(b, 30);
        assert_eq!(sessions.idle(60, 60), Some(a));
        sessions.remove(a);
        assert_eq!(sessions.idle(60, 60), None);
        assert_eq!(sessions.idle(90, 60), Some(b));
    }

    #[test]
    fn more_is_expected_only_of_whom_the_turn_before_had_something() {
        let mut sessions = Sessions::default();
        let place = begin(&mut sessions, 1, 0);
        let expected: Vec<bool> = [5, 7, 8, 9, 11].map(|turn| sessions.has_more(place, turn)).into();
        assert_eq!(expected, [false, false, true, true, false]);
    }

    #[test]
    fn a_place_that_was_used_again_is_not_the_session_before() {
        let mut sessions = Sessions::default();
        let place = begin(&mut sessions, 1, 0);
        let first_use = sessions.at(place).use_of_place;
        sessions.remove(place);
        assert_eq!(begin(&mut sessions, 2, 0), place);
        assert!(sessions.get(place, first_use).is_none());
        assert_eq!(sessions.find(0, SocketAddr::from(([127, 0, 0, 1], 1)), None), None);
    }

    #[test]
    fn a_session_of_no_known_address_of_ours_has_the_first_that_is_spoken_to() {
        let mut sessions = Sessions::default();
        let place = begin(&mut sessions, 1, 0);
        let client = sessions.at(place).client;
        let [one, other] = [1, 2].map(|last| Some(Local { address: IpAddr::from([10, 0, 0, last]), interface: 0 }));
        assert_eq!(sessions.find(0, client, one), Some(place));
        assert_eq!(sessions.at(place).local, one);
        assert_eq!([other, None].map(|local| sessions.find(0, client, local)), [None, None]);
        sessions.remove(place);
        assert_eq!(sessions.find(0, client, one), None);
    }
}
