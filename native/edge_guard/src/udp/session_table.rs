//! Sessions of one thread, and the choice of the session to evict.
//!
//! The rank of a session is `New`, `Answered` (the backend has replied) or `Established` (the player has sent again after
//! a reply). A spoofed source can reach every rank. So only ranks within a port are compared. Ports are compared by
//! their number of sessions.
//!
//! A full port evicts the least recently used session of its lowest rank. An `Established` session can be evicted only after
//! 10 s without traffic. A full thread chooses the first of these that exists:
//! - A `New` or `Answered` session of the port with most of them, if these are more than 1/16 of all sessions.
//! - An `Established` session of the port with most of them, after 1 s without traffic. If the port of the new session is not
//!   smaller than that port, after 10 s.
//! - A session of the new session's own port, by the rule for a full port.
//!
//! On a wildcard bind, a session also has a local address. If a migrated session has none, it takes the first one that
//! its player uses.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hosting_client_addresses::ClientKey;
use serde::{Deserialize, Serialize};
use slab::Slab;

use super::datagram_rate::DatagramRate;
use super::local_address::LocalAddress;
use super::port_session_counts::PortSessionCounts;
use crate::client_sessions::ClientSession;
use crate::player_sessions::PlayerSession;
use crate::proxy_protocol::NamedAddresses;
use crate::traffic::Traffic;

const IN_USE_MS: u64 = 10_000;

/// Idle time after which a session of the port with most sessions can be evicted for a smaller port.
const IN_USE_LARGEST_PORT_MS: u64 = 1_000;

/// One in this number of sessions may be `New` or `Answered`. If there are more, a thread at its session limit evicts
/// these first.
const UNESTABLISHED_SHARE: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rank {
    #[serde(rename = "begun")]
    New,
    Answered,
    #[serde(rename = "spoken")]
    Established,
}

/// Addresses of a session on the side of the player.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Player {
    /// Sender of the datagrams: the player, or a load balancer. Replies go to this address.
    pub sender: SocketAddr,
    pub local: Option<LocalAddress>,
    /// Addresses in the PROXY header of the first datagram. `None` if headers of this sender are not read.
    pub named: Option<Box<NamedAddresses>>,
}

impl Player {
    /// Returns the address that counts in the limits.
    pub fn client(&self) -> IpAddr {
        self.named.as_ref().map_or(self.sender, |named| named.client).ip()
    }
}

#[derive(Debug)]
pub struct Session {
    pub player: Player,
    pub port: usize,
    pub socket: Arc<OwnedFd>,
    /// Generation of the slab index, which shows whether the index was reused.
    pub generation: u32,
    rank: Rank,
    last_ms: u64,
    last_turn: u64,
    previous: Option<usize>,
    next: Option<usize>,
    /// Neighbours in the queue of its client address. Unused in established sessions.
    address_previous: Option<usize>,
    address_next: Option<usize>,
    pub rate: DatagramRate,
    /// Header in front of each datagram to the backend. Empty if the port sends none.
    pub proxy_header: Box<[u8]>,
    /// Counts the session with the owner of its port.
    pub counted: Option<ClientSession>,
    /// Count of the session at a port that counts players.
    pub player_session: Option<PlayerSession>,
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
    by_sender: HashMap<(usize, SocketAddr), usize>,
    by_local: HashMap<(usize, SocketAddr, LocalAddress), usize>,
    by_address: HashMap<ClientKey, AddressSessions>,
    // For each port and rank, in the order of last use.
    queues: Vec<[SessionQueue; 3]>,
    // The first two ranks, and the highest.
    unestablished: PortSessionCounts,
    established: PortSessionCounts,
    uses: u32,
}

/// Sessions of one client address, with a queue of those that are not established, in the order of their start.
#[derive(Debug, Default)]
struct AddressSessions {
    count: usize,
    unestablished: SessionQueue,
}

#[derive(Debug, Default, Clone, Copy)]
struct SessionQueue {
    first: Option<usize>,
    last: Option<usize>,
}

impl SessionTable {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn address_count(&self, client: IpAddr) -> usize {
        self.by_address.get(&ClientKey::of(client)).map_or(0, |sessions| sessions.count)
    }

    /// Returns the oldest session of a client address that is not established.
    pub fn evictable_of_address(&self, client: IpAddr) -> Option<usize> {
        self.by_address.get(&ClientKey::of(client))?.unestablished.first
    }

    pub fn port_count(&self, port: usize) -> usize {
        self.unestablished.count(port) + self.established.count(port)
    }

    pub fn find(&mut self, port: usize, sender: SocketAddr, local: Option<LocalAddress>) -> Option<usize> {
        if let Some(index) = self.index_of(port, sender, local) {
            return Some(index);
        }
        let local = local?;
        let index = self.by_sender.remove(&(port, sender))?;
        self.all[index].player.local = Some(local);
        self.by_local.insert((port, sender, local), index);
        Some(index)
    }

    /// Returns the index of a sender's session on a port and local address.
    pub fn index_of(&self, port: usize, sender: SocketAddr, local: Option<LocalAddress>) -> Option<usize> {
        match local {
            Some(local) => self.by_local.get(&(port, sender, local)).copied(),
            None => self.by_sender.get(&(port, sender)).copied(),
        }
    }

    pub fn get(&self, index: usize, generation: u32) -> Option<&Session> {
        self.all.get(index).filter(|session| session.generation == generation)
    }

    pub fn at(&self, index: usize) -> &Session {
        &self.all[index]
    }

    pub fn rate(&mut self, index: usize) -> &mut DatagramRate {
        &mut self.all[index].rate
    }

    pub fn set_proxy_header(&mut self, index: usize, header: Box<[u8]>) {
        self.all[index].proxy_header = header;
    }

    pub fn count_with_owner(&mut self, index: usize, traffic: &Traffic) {
        let session = &mut self.all[index];
        session.counted = Some(ClientSession::open(&traffic.sessions, session.player.client()));
    }

    pub fn set_player_session(&mut self, index: usize, session: Option<PlayerSession>) {
        self.all[index].player_session = session;
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Session)> {
        self.all.iter()
    }

    pub fn insert(&mut self, port: usize, player: Player, socket: Arc<OwnedFd>, rank: Rank, now_ms: u64) -> usize {
        self.uses = self.uses.wrapping_add(1);
        let generation = self.uses;
        let (sender, local, client) = (player.sender, player.local, player.client());
        let index = self.all.insert(Session {
            player,
            port,
            socket,
            generation,
            rank,
            last_ms: now_ms,
            last_turn: 0,
            previous: None,
            next: None,
            address_previous: None,
            address_next: None,
            rate: DatagramRate::default(),
            proxy_header: Box::default(),
            counted: None,
            player_session: None,
        });
        match local {
            Some(local) => self.by_local.insert((port, sender, local), index),
            None => self.by_sender.insert((port, sender), index),
        };
        self.by_address.entry(ClientKey::of(client)).or_default().count += 1;
        if rank != Rank::Established {
            self.enqueue_at_address(index);
        }
        if port >= self.queues.len() {
            self.queues.resize(port + 1, [SessionQueue::default(); 3]);
        }
        self.counts_of(rank).add(port);
        self.enqueue(index);
        index
    }

    pub fn record_player_packet(&mut self, index: usize, now_ms: u64) {
        let rank = if self.all[index].rank == Rank::New { Rank::New } else { Rank::Established };
        self.touch(index, rank, now_ms);
    }

    pub fn record_reply(&mut self, index: usize, now_ms: u64) {
        let rank = self.all[index].rank.max(Rank::Answered);
        self.touch(index, rank, now_ms);
    }

    /// Records that a session has data in this loop turn. Returns true if the session also had data in the previous
    /// turn.
    pub fn has_more(&mut self, index: usize, turn: u64) -> bool {
        std::mem::replace(&mut self.all[index].last_turn, turn) + 1 == turn
    }

    pub fn remove(&mut self, index: usize) -> Session {
        self.dequeue(index);
        if self.all[index].rank != Rank::Established {
            self.dequeue_at_address(index);
        }
        let session = self.all.remove(index);
        self.counts_of(session.rank).remove(session.port);
        match session.player.local {
            Some(local) => self.by_local.remove(&(session.port, session.player.sender, local)),
            None => self.by_sender.remove(&(session.port, session.player.sender)),
        };
        let address = ClientKey::of(session.player.client());
        if let Some(sessions) = self.by_address.get_mut(&address) {
            sessions.count -= 1;
            if sessions.count == 0 {
                self.by_address.remove(&address);
            }
        }
        session
    }

    pub fn evictable_at_port(&self, port: usize, now_ms: u64) -> Option<usize> {
        self.oldest_unestablished(port).or_else(|| self.longest_idle(port, now_ms, IN_USE_MS))
    }

    pub fn evictable_for_port(&self, port: usize, now_ms: u64) -> Option<usize> {
        if self.unestablished.total() * UNESTABLISHED_SHARE > self.len() {
            return self.oldest_unestablished(self.unestablished.largest()?);
        }
        let in_largest_port = || {
            let largest = self.established.largest()?;
            let is_smaller = self.port_count(port) < self.established.count(largest);
            self.longest_idle(largest, now_ms, if is_smaller { IN_USE_LARGEST_PORT_MS } else { IN_USE_MS })
        };
        in_largest_port().or_else(|| self.evictable_at_port(port, now_ms))
    }

    pub fn idle(&self, now_ms: u64, idle_ms: u64) -> Vec<usize> {
        let is_idle = |index: &usize| now_ms.saturating_sub(self.all[*index].last_ms) >= idle_ms;
        let queue_heads = self.queues.iter().flatten().map(|queue| queue.first);
        let idle_of = |first: Option<usize>| {
            std::iter::successors(first.filter(is_idle), move |index| self.all[*index].next.filter(is_idle))
        };
        queue_heads.flat_map(idle_of).collect()
    }

    fn oldest_unestablished(&self, port: usize) -> Option<usize> {
        let first = |rank: Rank| self.queues.get(port)?[rank as usize].first;
        first(Rank::New).or_else(|| first(Rank::Answered))
    }

    fn longest_idle(&self, port: usize, now_ms: u64, idle_ms: u64) -> Option<usize> {
        let first = self.queues.get(port)?[Rank::Established as usize].first;
        first.filter(|index| now_ms.saturating_sub(self.all[*index].last_ms) >= idle_ms)
    }

    fn counts_of(&mut self, rank: Rank) -> &mut PortSessionCounts {
        if rank == Rank::Established { &mut self.established } else { &mut self.unestablished }
    }

    fn touch(&mut self, index: usize, rank: Rank, now_ms: u64) {
        let session = &mut self.all[index];
        session.last_ms = now_ms;
        let (port, previous) = (session.port, session.rank);
        if previous == rank && self.queues[port][rank as usize].last == Some(index) {
            return;
        }
        self.dequeue(index);
        if previous != rank {
            self.counts_of(previous).remove(port);
            self.counts_of(rank).add(port);
            if rank == Rank::Established {
                self.dequeue_at_address(index);
            }
            self.all[index].rank = rank;
        }
        self.enqueue(index);
    }

    fn enqueue(&mut self, index: usize) {
        let Session { port, rank, .. } = self.all[index];
        let queue = &mut self.queues[port][rank as usize];
        let previous = queue.last.replace(index);
        match previous {
            Some(previous) => self.all[previous].next = Some(index),
            None => queue.first = Some(index),
        }
        self.all[index].previous = previous;
        self.all[index].next = None;
    }

    fn enqueue_at_address(&mut self, index: usize) {
        let sessions = self.by_address.entry(ClientKey::of(self.all[index].player.client())).or_default();
        let previous = sessions.unestablished.last.replace(index);
        match previous {
            Some(previous) => self.all[previous].address_next = Some(index),
            None => sessions.unestablished.first = Some(index),
        }
        self.all[index].address_previous = previous;
    }

    fn dequeue_at_address(&mut self, index: usize) {
        let Session { ref player, address_previous, address_next, .. } = self.all[index];
        let Some(sessions) = self.by_address.get_mut(&ClientKey::of(player.client())) else { return };
        match address_previous {
            Some(previous) => self.all[previous].address_next = address_next,
            None => sessions.unestablished.first = address_next,
        }
        match address_next {
            Some(next) => self.all[next].address_previous = address_previous,
            None => sessions.unestablished.last = address_previous,
        }
    }

    fn dequeue(&mut self, index: usize) {
        let Session { port, rank, previous, next, .. } = self.all[index];
        match previous {
            Some(previous) => self.all[previous].next = next,
            None => self.queues[port][rank as usize].first = next,
        }
        match next {
            Some(next) => self.all[next].previous = previous,
            None => self.queues[port][rank as usize].last = previous,
        }
    }
}

#[cfg(test)]
mod tests;
