//! Connection limits in total, for game servers, per route and per client network, and the limit of file descriptors.
//!
//! A connection counts in several scopes, and each scope has a limit. If a scope is full, a new connection replaces the
//! oldest connection of this scope that never sent a byte. If there is none, the new connection is refused. Connections
//! that have also received nothing go before those that have received bytes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;
use tokio::task::AbortHandle;

use crate::address::{self, ClientNetwork};
use crate::config::LimitSettings;
use crate::metrics::ConnectionRefusal;

/// One in this number of connections is reserved for the configured backends (API and sites).
const RESERVED_SHARE: usize = 8;

/// One in this number of connections may be silent. So a flood of silent connections leaves descriptors to others.
const SILENT_SHARE: usize = 4;

/// Number of silent connections that is always allowed. Clients may connect in a burst before they speak.
const SILENT_MIN: usize = 1_024;

/// Number of scopes that one connection can count in: all, games, its route, and its networks.
const SCOPES_MAX: usize = 3 + address::NETWORKS_MAX;

const ALL: usize = 0;
const GAMES: usize = 1;

#[derive(Debug)]
pub struct ConnectionLimits(Mutex<State>);

/// Permit for one connection. A drop releases the permit.
#[derive(Debug)]
pub struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    index: usize,
    generation: u64,
}

/// Progress of a connection. A connection that never sent a byte can be replaced by a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speech {
    Silent,
    /// The client has received bytes and sent none, as in protocols in which the server speaks first.
    Listening,
    Spoken,
}

/// Limited resource that a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Port of a game server, by the number of its route.
    Game(u64),
    /// Listener for host names, before the first request selects the route.
    Hosts,
}

#[derive(Debug, Clone, Copy)]
struct Maxima {
    all: usize,
    games: usize,
    route: usize,
    address: usize,
    silent: usize,
}

#[derive(Debug)]
struct State {
    maxima: Maxima,
    reserves_connections: bool,
    connections: Slab<Connection>,
    scopes: Slab<Scope>,
    by_key: HashMap<ScopeKey, usize>,
    silent: usize,
    generations: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ScopeKey {
    All,
    Games,
    Route(u64),
    Network(ClientNetwork),
}

#[derive(Debug)]
struct Scope {
    key: ScopeKey,
    count: usize,
    /// Silent and listening connections, in the order of their admission.
    queues: [Queue; 2],
}

#[derive(Debug, Default, Clone, Copy)]
struct Queue {
    first: Option<usize>,
    last: Option<usize>,
}

#[derive(Debug)]
struct Connection {
    generation: u64,
    speech: Speech,
    scopes: [Option<Membership>; SCOPES_MAX],
    task: Option<AbortHandle>,
}

#[derive(Debug, Clone, Copy)]
struct Membership {
    scope: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

impl ConnectionLimits {
    /// `has_backends` reserves a share of the connections for configured backends.
    #[must_use]
    pub fn new(settings: &LimitSettings, has_backends: bool) -> Self {
        let mut state = State {
            maxima: Maxima::new(settings, has_backends),
            reserves_connections: has_backends,
            connections: Slab::new(),
            scopes: Slab::new(),
            by_key: HashMap::new(),
            silent: 0,
            generations: 0,
        };
        for key in [ScopeKey::All, ScopeKey::Games] {
            state.scopes.insert(Scope { key, count: 0, queues: [Queue::default(); 2] });
        }
        Self(Mutex::new(state))
    }

    /// Changes the limits for new connections.
    pub fn change(&self, settings: &LimitSettings) {
        let mut state = self.state();
        state.maxima = Maxima::new(settings, state.reserves_connections);
    }

    /// Reports whether no connection to this kind of destination can be admitted, not even in place of another one.
    #[must_use]
    pub fn is_full(&self, is_game: bool) -> bool {
        let state = self.state();
        let is_full = |scope| state.is_full(scope) && state.oldest(scope).is_none();
        is_full(ALL) || is_game && is_full(GAMES)
    }

    /// Returns the number of connections that have neither sent nor received a byte.
    #[must_use]
    pub fn silent_count(&self) -> usize {
        self.state().silent
    }

    /// Admits a silent connection, or returns the limit that it would exceed.
    ///
    /// `client` is `None` for a trusted proxy, which has no limit per client.
    pub fn admit(
        self: &Arc<Self>,
        client: Option<IpAddr>,
        destination: Destination,
    ) -> Result<ConnectionPermit, ConnectionRefusal> {
        let mut state = self.state();
        let mut keys = vec![];
        keys.extend(client.into_iter().flat_map(address::client_networks).map(ScopeKey::Network));
        match destination {
            Destination::Game(route) => keys.extend([ScopeKey::Route(route), ScopeKey::Games, ScopeKey::All]),
            Destination::Hosts => keys.push(ScopeKey::All),
        }
        state.make_room(&keys)?;
        if state.silent >= state.maxima.silent
            && let Some(oldest) = state.scopes[ALL].queues[Speech::Silent as usize].first
        {
            state.evict(oldest);
        }
        state.generations += 1;
        let generation = state.generations;
        let connection = Connection { generation, speech: Speech::Silent, scopes: [None; SCOPES_MAX], task: None };
        let index = state.connections.insert(connection);
        state.silent += 1;
        keys.into_iter().for_each(|key| state.join(index, key));
        drop(state);
        Ok(ConnectionPermit { limits: self.clone(), index, generation })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionPermit {
    /// Sets the task that is aborted if another connection replaces this one.
    pub fn set_task(&self, task: AbortHandle) {
        let mut state = self.limits.state();
        match state.get_mut(self) {
            Some(connection) => connection.task = Some(task),
            None => task.abort(),
        }
    }

    /// Counts the connection for a client that a PROXY header names.
    pub fn count_client(&self, client: IpAddr) -> Result<(), ConnectionRefusal> {
        let keys: Vec<_> = address::client_networks(client).map(ScopeKey::Network).collect();
        self.count_in(&keys)
    }

    /// Counts the connection as one to game servers, when its first request selects such a route.
    pub fn count_game(&self) -> Result<(), ConnectionRefusal> {
        self.count_in(&[ScopeKey::Games])
    }

    /// Records that the client has sent (`Spoken`) or received (`Listening`) bytes.
    pub fn record(&self, speech: Speech) {
        let mut state = self.limits.state();
        if state.get_mut(self).is_some_and(|connection| connection.speech < speech) {
            state.set_speech(self.index, speech);
        }
    }

    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.limits.state().get_mut(self).is_some_and(|connection| connection.speech == Speech::Silent)
    }

    fn count_in(&self, keys: &[ScopeKey]) -> Result<(), ConnectionRefusal> {
        let mut state = self.limits.state();
        let Some(connection) = state.get_mut(self) else { return Err(ConnectionRefusal::All) };
        let memberships = connection.scopes;
        let is_counted =
            |key: &ScopeKey| memberships.iter().flatten().any(|membership| state.scopes[membership.scope].key == *key);
        let missing: Vec<_> = keys.iter().copied().filter(|key| !is_counted(key)).collect();
        state.make_room(&missing)?;
        missing.into_iter().for_each(|key| state.join(self.index, key));
        Ok(())
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.limits.state();
        if state.get_mut(self).is_some() {
            state.remove(self.index);
        }
    }
}

impl Maxima {
    fn new(settings: &LimitSettings, has_backends: bool) -> Self {
        let all = settings.connections;
        Self {
            all,
            games: if has_backends { (all - all / RESERVED_SHARE).max(1) } else { all },
            route: settings.connections_per_route,
            address: settings.connections_per_address,
            silent: (all / SILENT_SHARE).max(SILENT_MIN),
        }
    }
}

impl State {
    fn get_mut(&mut self, permit: &ConnectionPermit) -> Option<&mut Connection> {
        self.connections.get_mut(permit.index).filter(|connection| connection.generation == permit.generation)
    }

    fn limit(&self, key: ScopeKey) -> (usize, ConnectionRefusal) {
        match key {
            ScopeKey::All => (self.maxima.all, ConnectionRefusal::All),
            ScopeKey::Games => (self.maxima.games, ConnectionRefusal::All),
            ScopeKey::Route(_) => (self.maxima.route, ConnectionRefusal::Route),
            ScopeKey::Network(network) => {
                (self.maxima.address.saturating_mul(network.weight()), ConnectionRefusal::Address)
            }
        }
    }

    fn find(&self, key: ScopeKey) -> Option<usize> {
        match key {
            ScopeKey::All => Some(ALL),
            ScopeKey::Games => Some(GAMES),
            _ => self.by_key.get(&key).copied(),
        }
    }

    fn is_full(&self, scope: usize) -> bool {
        self.scopes[scope].count >= self.limit(self.scopes[scope].key).0
    }

    fn oldest(&self, scope: usize) -> Option<usize> {
        let [silent, listening] = &self.scopes[scope].queues;
        silent.first.or(listening.first)
    }

    /// Evicts connections until each of these scopes has room for another one. Evicts none if it has to refuse.
    fn make_room(&mut self, keys: &[ScopeKey]) -> Result<(), ConnectionRefusal> {
        let full: Vec<usize> =
            keys.iter().filter_map(|key| self.find(*key)).filter(|scope| self.is_full(*scope)).collect();
        for scope in &full {
            if self.oldest(*scope).is_none() {
                return Err(self.limit(self.scopes[*scope].key).1);
            }
        }
        for scope in full {
            // An eviction for a narrow scope may have made room in a wider one, or removed the scope.
            if self.scopes.get(scope).is_some_and(|_| self.is_full(scope))
                && let Some(oldest) = self.oldest(scope)
            {
                self.evict(oldest);
            }
        }
        Ok(())
    }

    fn evict(&mut self, index: usize) {
        if let Some(task) = self.remove(index).task {
            task.abort();
        }
    }

    fn join(&mut self, index: usize, key: ScopeKey) {
        let scope = self.find(key).unwrap_or_else(|| {
            let scope = self.scopes.insert(Scope { key, count: 0, queues: [Queue::default(); 2] });
            self.by_key.insert(key, scope);
            scope
        });
        self.scopes[scope].count += 1;
        let Some(slot) = self.connections[index].scopes.iter().position(Option::is_none) else { return };
        self.connections[index].scopes[slot] = Some(Membership { scope, previous: None, next: None });
        self.enqueue(index, slot);
    }

    fn remove(&mut self, index: usize) -> Connection {
        for slot in 0..SCOPES_MAX {
            self.dequeue(index, slot);
        }
        let connection = self.connections.remove(index);
        self.silent -= usize::from(connection.speech == Speech::Silent);
        for Membership { scope, .. } in connection.scopes.iter().flatten() {
            self.scopes[*scope].count -= 1;
            if self.scopes[*scope].count == 0 && *scope > GAMES {
                self.by_key.remove(&self.scopes.remove(*scope).key);
            }
        }
        connection
    }

    fn set_speech(&mut self, index: usize, speech: Speech) {
        for slot in 0..SCOPES_MAX {
            self.dequeue(index, slot);
        }
        self.silent -= usize::from(self.connections[index].speech == Speech::Silent);
        self.connections[index].speech = speech;
        for slot in 0..SCOPES_MAX {
            self.enqueue(index, slot);
        }
    }

    fn enqueue(&mut self, index: usize, slot: usize) {
        let Connection { speech, scopes, .. } = &self.connections[index];
        let (speech, Some(membership)) = (*speech, scopes[slot]) else { return };
        if speech == Speech::Spoken {
            return;
        }
        let previous = self.scopes[membership.scope].queues[speech as usize].last.replace(index);
        match previous {
            Some(previous) => self.membership(previous, membership.scope).next = Some(index),
            None => self.scopes[membership.scope].queues[speech as usize].first = Some(index),
        }
        *self.membership(index, membership.scope) = Membership { previous, next: None, ..membership };
    }

    fn dequeue(&mut self, index: usize, slot: usize) {
        let Connection { speech, scopes, .. } = &self.connections[index];
        let (speech, Some(Membership { scope, previous, next })) = (*speech, scopes[slot]) else { return };
        if speech == Speech::Spoken {
            return;
        }
        match previous {
            Some(previous) => self.membership(previous, scope).next = next,
            None => self.scopes[scope].queues[speech as usize].first = next,
        }
        match next {
            Some(next) => self.membership(next, scope).previous = previous,
            None => self.scopes[scope].queues[speech as usize].last = previous,
        }
    }

    /// Returns the place of a connection in one of its scopes. A connection has a handful of scopes.
    fn membership(&mut self, index: usize, scope: usize) -> &mut Membership {
        let memberships = self.connections[index].scopes.iter_mut().flatten();
        memberships.into_iter().find(|membership| membership.scope == scope).expect("a queued connection is a member")
    }
}

/// Raises the limit of file descriptors. Returns settings that fit the new limit, and this limit.
///
/// A connection needs two descriptors, and a UDP session needs one. If there are too few, connections and UDP sessions
/// get half each.
#[must_use]
pub fn fit_descriptors(settings: &LimitSettings) -> (LimitSettings, u64) {
    let needed_descriptors = needed_descriptors(settings) + RESERVED_DESCRIPTORS;
    let available = raise_descriptors(needed_descriptors);
    (fit_to_descriptors(settings, available), available)
}

/// Descriptors reserved for routes, pooled connections, pipes and the process itself.
const RESERVED_DESCRIPTORS: u64 = 8_192;

fn needed_descriptors(settings: &LimitSettings) -> u64 {
    2 * settings.connections as u64 + settings.datagram_sessions as u64
}

fn fit_to_descriptors(settings: &LimitSettings, available: u64) -> LimitSettings {
    let free =
        usize::try_from(available.saturating_sub(RESERVED_DESCRIPTORS.min(available / 10))).unwrap_or(usize::MAX);
    // Connections or UDP sessions get more than half if the others need less.
    let for_connections = (2 * settings.connections).min(free.saturating_sub(settings.datagram_sessions).max(free / 2));
    LimitSettings {
        connections: (for_connections / 2).max(1),
        datagram_sessions: settings.datagram_sessions.min(free - for_connections).max(1),
        ..settings.clone()
    }
}

fn raise_descriptors(needed_descriptors: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 1_024;
        }
        if limit.rlim_max < needed_descriptors {
            // Only privileged processes may raise the hard limit.
            let raised = libc::rlimit { rlim_cur: needed_descriptors, rlim_max: needed_descriptors };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                return needed_descriptors;
            }
        }
        let raised_soft = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised_soft) == 0 {
            raised_soft.rlim_cur
        } else {
            limit.rlim_cur
        }
    }
}

#[cfg(test)]
mod tests;
