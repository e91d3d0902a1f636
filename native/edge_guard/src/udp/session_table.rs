//! Sessions of one thread, and who may stay when there is no room.
//!
//! A session has a rank: it began, the process answered it, or the player spoke again after an answer. None of them
//! proves that somebody plays: who spoofs an address hears nothing, but can send a second datagram when a process that
//! answers everybody has answered the first. So a rank counts among sessions of one port, and between ports it counts
//! how many they have.
//!
//! A port that has all that it may have gives the place of the oldest of its lowest rank; one of the highest rank is in
//! use until nothing was passed on for 10 s. Where the thread has all that it may have:
//!
//! - The port that has most of the first two ranks gives the oldest of them.
//! - Where these are few in the whole thread, they are players who just come, and would only push out each other. Then
//!   it is the port that has most of the highest rank, with the one that is silent for longest: for 1 s if the new
//!   one's port has less, so that who floods ports closes no others to new players, and for 10 s if not.
//! - If that one is in use, the new one's port pays itself, as above.
//!
//! A player who was answered and speaks more than once a second is never put out for a new one.
//!
//! Where a port has all addresses of the machine, a session is also of the one that the player speaks to. One of which
//! that is not known (an older process did not ask) has the first one that the player speaks to.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slab::Slab;

use super::local_address::LocalAddress;
use super::port_counts::PortCounts;
use crate::address::client_key;

/// How long a session of the highest rank counts as in use.
const IN_USE_MS: u64 = 10_000;

/// The same for one of the port that has most, when a port that has less needs room.
const IN_USE_LARGEST_PORT_MS: u64 = 1_000;

/// Of so many sessions no more than one is of the first two ranks where nobody floods: players come to stay.
const NEW_SESSION_SHARE: usize = 16;

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
    pub local: Option<LocalAddress>,
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
pub struct SessionTable {
    all: Slab<Session>,
    // Without an address of ours, and with one: where ports have one each, nothing is looked up by more than before.
    by_client: HashMap<(usize, SocketAddr), usize>,
    by_local: HashMap<(usize, SocketAddr, LocalAddress), usize>,
    by_address: HashMap<IpAddr, usize>,
    // Of each port by rank, in the order of their last use.
    lines: Vec<[PortQueues; 3]>,
    // The first two ranks, and the highest: no event of a session that keeps its rank changes these.
    begun: PortCounts,
    spoken: PortCounts,
    uses: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct PortQueues {
    first: Option<usize>,
    last: Option<usize>,
}

impl SessionTable {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// How many a client address has.
    pub fn count_of_address(&self, client: IpAddr) -> usize {
        self.by_address.get(&client_key(client)).copied().unwrap_or(0)
    }

    /// How many a port has.
    pub fn count_of_port(&self, port: usize) -> usize {
        self.begun.of(port) + self.spoken.of(port)
    }

    /// Whose a datagram of a player at a port is.
    pub fn find(&mut self, port: usize, client: SocketAddr, local: Option<LocalAddress>) -> Option<usize> {
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
    pub fn place_of(&self, port: usize, client: SocketAddr, local: Option<LocalAddress>) -> Option<usize> {
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
        (client, local): (SocketAddr, Option<LocalAddress>),
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
        *self.by_address.entry(client_key(client.ip())).or_default() += 1;
        if port >= self.lines.len() {
            self.lines.resize(port + 1, [PortQueues::default(); 3]);
        }
        self.counts_of(rank).add(port);
        self.enqueue(place);
        place
    }

    /// The player spoke.
    pub fn record_player_packet(&mut self, place: usize, now_ms: u64) {
        let rank = if self.all[place].rank == Rank::Begun { Rank::Begun } else { Rank::Spoken };
        self.touch(place, rank, now_ms);
    }

    /// The process answered.
    pub fn record_reply(&mut self, place: usize, now_ms: u64) {
        let rank = self.all[place].rank.max(Rank::Answered);
        self.touch(place, rank, now_ms);
    }

    /// There is something to read in this turn; says whether there was in the one before, so that more may wait.
    pub fn has_more(&mut self, place: usize, turn: u64) -> bool {
        std::mem::replace(&mut self.all[place].last_turn, turn) + 1 == turn
    }

    /// Ends one.
    pub fn remove(&mut self, place: usize) -> Session {
        self.dequeue(place);
        let session = self.all.remove(place);
        self.counts_of(session.rank).take(session.port);
        match session.local {
            Some(local) => self.by_local.remove(&(session.port, session.client, local)),
            None => self.by_client.remove(&(session.port, session.client)),
        };
        let address = client_key(session.client.ip());
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
        session
    }

    /// Who goes to make room for a new one of a port that has all that it may have; none: everybody there is in use.
    pub fn evictable_at_port(&self, port: usize, now_ms: u64) -> Option<usize> {
        self.oldest_unanswered(port).or_else(|| self.longest_silent(port, now_ms, IN_USE_MS))
    }

    /// Who goes to make room for a new one of a port in a thread that has all that it may have; none: everybody is in
    /// use.
    pub fn evictable_for_port(&self, port: usize, now_ms: u64) -> Option<usize> {
        if self.begun.all() * NEW_SESSION_SHARE > self.len() {
            return self.oldest_unanswered(self.begun.largest()?);
        }
        let of_most = || {
            let most = self.spoken.largest()?;
            let has_less = self.count_of_port(port) < self.spoken.of(most);
            self.longest_silent(most, now_ms, if has_less { IN_USE_LARGEST_PORT_MS } else { IN_USE_MS })
        };
        of_most().or_else(|| self.evictable_at_port(port, now_ms))
    }

    /// Those that carried nothing for their time.
    pub fn idle(&self, now_ms: u64, idle_ms: u64) -> Vec<usize> {
        let is_idle = |place: &usize| now_ms.saturating_sub(self.all[*place].last_ms) >= idle_ms;
        let firsts = self.lines.iter().flatten().map(|line| line.first);
        let idle_of = |first: Option<usize>| {
            std::iter::successors(first.filter(is_idle), move |place| self.all[*place].after.filter(is_idle))
        };
        firsts.flat_map(idle_of).collect()
    }

    /// The oldest of the lower of the first two ranks.
    fn oldest_unanswered(&self, port: usize) -> Option<usize> {
        let first = |rank: Rank| self.lines.get(port)?[rank as usize].first;
        first(Rank::Begun).or_else(|| first(Rank::Answered))
    }

    /// The one of the highest rank that is silent for longest, if for so long.
    fn longest_silent(&self, port: usize, now_ms: u64, silent_ms: u64) -> Option<usize> {
        let first = self.lines.get(port)?[Rank::Spoken as usize].first;
        first.filter(|place| now_ms.saturating_sub(self.all[*place].last_ms) >= silent_ms)
    }

    fn counts_of(&mut self, rank: Rank) -> &mut PortCounts {
        if rank == Rank::Spoken { &mut self.spoken } else { &mut self.begun }
    }

    fn touch(&mut self, place: usize, rank: Rank, now_ms: u64) {
        let session = &mut self.all[place];
        session.last_ms = now_ms;
        let (port, before) = (session.port, session.rank);
        if before == rank && self.lines[port][rank as usize].last == Some(place) {
            return;
        }
        self.dequeue(place);
        if before != rank {
            self.counts_of(before).take(port);
            self.counts_of(rank).add(port);
            self.all[place].rank = rank;
        }
        self.enqueue(place);
    }

    fn enqueue(&mut self, place: usize) {
        let Session { port, rank, .. } = self.all[place];
        let line = &mut self.lines[port][rank as usize];
        let before = line.last.replace(place);
        match before {
            Some(before) => self.all[before].after = Some(place),
            None => line.first = Some(place),
        }
        self.all[place].before = before;
        self.all[place].after = None;
    }

    fn dequeue(&mut self, place: usize) {
        let Session { port, rank, before, after, .. } = self.all[place];
        match before {
            Some(before) => self.all[before].after = after,
            None => self.lines[port][rank as usize].first = after,
        }
        match after {
            Some(after) => self.all[after].before = before,
            None => self.lines[port][rank as usize].last = before,
        }
    }
}

#[cfg(test)]
mod tests;
