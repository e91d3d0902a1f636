//! Idle HTTP/1.1 connections to backends, stored for later requests: in a pool for all players, or for one player only.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use crate::address::BackendAddress;

/// Maximum idle time of a connection, shorter than the keep-alive timeout of common servers (5 s).
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// Maximum number of idle backend connections in the process. The connection limits do not count them.
const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// The pools store at most one idle connection for this many allowed connections.
const IDLE_SHARE: usize = 8;

/// Pool of idle backend connections by route number. `take` returns the most recently used connection.
#[derive(Debug)]
pub struct BackendPool<B> {
    state: Mutex<PoolState<B>>,
    idle_max: usize,
}

#[derive(Debug)]
struct PoolState<B> {
    by_route: HashMap<u64, Vec<IdleConnection<B>>>,
    count: usize,
}

#[derive(Debug)]
struct IdleConnection<B> {
    sender: SendRequest<B>,
    backend: BackendAddress,
    since: Instant,
}

impl<B> IdleConnection<B> {
    fn new(sender: SendRequest<B>, backend: BackendAddress) -> Self {
        Self { sender, backend, since: Instant::now() }
    }

    fn is_reusable(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < IDLE_LIMIT
    }
}

impl<B> BackendPool<B> {
    #[must_use]
    pub fn for_each_thread(threads: usize, connections: usize) -> Self {
        let state = PoolState { by_route: HashMap::new(), count: 0 };
        Self {
            state: Mutex::new(state),
            idle_max: IDLE_CONNECTIONS_MAX.min(connections / IDLE_SHARE).div_ceil(threads),
        }
    }

    pub fn take(&self, route: u64, backend: &BackendAddress) -> Option<SendRequest<B>> {
        let mut state = self.lock();
        let PoolState { by_route, count } = &mut *state;
        let all = by_route.get_mut(&route)?;
        while let Some(idle) = all.pop() {
            *count -= 1;
            if idle.backend == *backend && idle.is_reusable() {
                return Some(idle.sender);
            }
        }
        None
    }

    pub fn put(&self, route: u64, backend: BackendAddress, sender: SendRequest<B>) {
        if sender.is_closed() {
            return;
        }
        let mut state = self.lock();
        let PoolState { by_route, count } = &mut *state;
        if *count < self.idle_max {
            *count += 1;
            by_route.entry(route).or_default().push(IdleConnection::new(sender, backend));
        }
    }

    pub fn sweep(&self) {
        let mut state = self.lock();
        let PoolState { by_route, count } = &mut *state;
        by_route.retain(|_, all| {
            all.retain(IdleConnection::is_reusable);
            !all.is_empty()
        });
        *count = by_route.values().map(Vec::len).sum();
    }

    fn lock(&self) -> MutexGuard<'_, PoolState<B>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Idle backend connection that began with a PROXY header for one player. Only this player may use it.
///
/// The connection limits count two file descriptors for each player: the player's connection and one backend
/// connection. So at most one idle connection is stored.
#[derive(Debug)]
pub struct DedicatedConnection<B>(Mutex<Option<(u64, IdleConnection<B>)>>);

impl<B> Default for DedicatedConnection<B> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<B> DedicatedConnection<B> {
    /// Returns the idle connection if it is open and leads to this backend of the route. Otherwise closes it.
    pub fn take(&self, route: u64, backend: &BackendAddress) -> Option<SendRequest<B>> {
        let (idle_route, idle) = self.lock().take()?;
        (idle_route == route && idle.backend == *backend && idle.is_reusable()).then_some(idle.sender)
    }

    pub fn put(&self, route: u64, backend: BackendAddress, sender: SendRequest<B>) {
        *self.lock() = Some((route, IdleConnection::new(sender, backend)));
    }

    pub fn sweep(&self) {
        self.lock().take_if(|(_, idle)| !idle.is_reusable());
    }

    fn lock(&self) -> MutexGuard<'_, Option<(u64, IdleConnection<B>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
