//! Sessions of one thread, and the choice of the session to evict.
//!
//! The rank of a session is `Begun`, `Answered` (the backend has replied) or `Spoken` (the player has sent again after
//! a reply). A spoofed source can reach every rank. So only ranks within a port are compared. Ports are compared by
//! their number of sessions.
//!
//! A full port evicts the least recently used session of its lowest rank. A `Spoken` session can be evicted only after
//! 10 s without traffic. A full thread chooses the first of these that exists:
//! - A `Begun` or `Answered` session of the port with most of them, if these are more than 1/16 of all sessions.
//! - A `Spoken` session of the port with most of them, after 1 s without traffic. If the port of the new session is not
//!   smaller than that port, after 10 s.
//! - A session of the new session's own port, by the rule for a full port.
//!
//! On a wildcard bind, a session also has a local address. If a migrated session has none, it takes the first one that
//! its player uses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use slab::Slab;

use super::local_address::LocalAddress;
use super::port_counts::PortCounts;
use crate::address::client_key;

const IN_USE_MS: u64 = 10_000;

/// Time without traffic after which the port with most sessions can lose a session to a port with fewer.
const IN_USE_LARGEST_PORT_MS: u64 = 1_000;

/// One in this number of sessions may be new. If more are new, a full thread evicts these first. A session is new until
/// its player answers the backend.
const NEW_SESSION_SHARE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    Begun,
    Answered,
    Spoken,
}

#[derive(Debug)]
pub struct Session {
    pub client: SocketAddr,
    pub local: Option<LocalAddress>,
    pub port: usize,
    pub socket: Arc<OwnedFd>,
    /// Generation of the slab index, which shows whether the index was reused.
    pub use_of_place: u32,
    rank: Rank,
    last_ms: u64,
    last_turn: u64,
    before: Option<usize>,
    after: Option<usize>,
}

impl Session {
    pub fn rank(&self) -> Rank {
        self.rank
    }
}

#[derive(Debug, Default)]
pub struct SessionTable {
    all: Slab<Session>,
    // Two maps, so that lookups on single-address ports stay cheap.
    by_client: HashMap<(usize, SocketAddr), usize>,
    by_local: HashMap<(usize, SocketAddr, LocalAddress), usize>,
    by_address: HashMap<IpAddr, usize>,
    // For each port and rank, in the order of last use.
    lines: Vec<[PortQueues; 3]>,
    // The first two ranks, and the highest.
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
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn count_of_address(&self, client: IpAddr) -> usize {
        self.by_address.get(&client_key(client)).copied().unwrap_or(0)
    }

    pub fn count_of_port(&self, port: usize) -> usize {
        self.begun.of(port) + self.spoken.of(port)
    }

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

    /// Returns the index of a player's session on a port and local address.
    pub fn place_of(&self, port: usize, client: SocketAddr, local: Option<LocalAddress>) -> Option<usize> {
        match local {
            Some(local) => self.by_local.get(&(port, client, local)).copied(),
            None => self.by_client.get(&(port, client)).copied(),
        }
    }

    pub fn get(&self, place: usize, use_of_place: u32) -> Option<&Session> {
        self.all.get(place).filter(|session| session.use_of_place == use_of_place)
    }

    pub fn at(&self, place: usize) -> &Session {
        &self.all[place]
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.all.iter()
    }

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

    pub fn record_player_packet(&mut self, place: usize, now_ms: u64) {
        let rank = if self.all[place].rank == Rank::Begun { Rank::Begun } else { Rank::Spoken };
        self.touch(place, rank, now_ms);
    }

    pub fn record_reply(&mut self, place: usize, now_ms: u64) {
        let rank = self.all[place].rank.max(Rank::Answered);
        self.touch(place, rank, now_ms);
    }

    /// Records that a session has data in this loop turn. Returns true if it also had data in the previous turn.
    pub fn has_more(&mut self, place: usize, turn: u64) -> bool {
        std::mem::replace(&mut self.all[place].last_turn, turn) + 1 == turn
    }

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

    pub fn evictable_at_port(&self, port: usize, now_ms: u64) -> Option<usize> {
        self.oldest_unanswered(port).or_else(|| self.longest_silent(port, now_ms, IN_USE_MS))
    }

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

    pub fn idle(&self, now_ms: u64, idle_ms: u64) -> Vec<usize> {
        let is_idle = |place: &usize| now_ms.saturating_sub(self.all[*place].last_ms) >= idle_ms;
        let firsts = self.lines.iter().flatten().map(|line| line.first);
        let idle_of = |first: Option<usize>| {
            std::iter::successors(first.filter(is_idle), move |place| self.all[*place].after.filter(is_idle))
        };
        firsts.flat_map(idle_of).collect()
    }

    fn oldest_unanswered(&self, port: usize) -> Option<usize> {
        let first = |rank: Rank| self.lines.get(port)?[rank as usize].first;
        first(Rank::Begun).or_else(|| first(Rank::Answered))
    }

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
