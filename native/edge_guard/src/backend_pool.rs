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
    waiting: Mutex<PoolState<B>>,
    most: usize,
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

    fn is_good(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < IDLE_LIMIT
    }
}

impl<B> BackendPool<B> {
    #[must_use]
    pub fn for_each_thread(threads: usize, connections: usize) -> Self {
        let waiting = PoolState { by_route: HashMap::new(), count: 0 };
        Self {
            waiting: Mutex::new(waiting),
            most: IDLE_CONNECTIONS_MAX.min(connections / IDLE_SHARE).div_ceil(threads),
        }
    }

    pub fn take(&self, route: u64, backend: &BackendAddress) -> Option<SendRequest<B>> {
        let mut waiting = self.waiting();
        let PoolState { by_route, count } = &mut *waiting;
        let all = by_route.get_mut(&route)?;
        while let Some(idle) = all.pop() {
            *count -= 1;
            if idle.backend == *backend && idle.is_good() {
                return Some(idle.sender);
            }
        }
        None
    }

    pub fn put(&self, route: u64, backend: BackendAddress, sender: SendRequest<B>) {
        if sender.is_closed() {
            return;
        }
        let mut waiting = self.waiting();
        let PoolState { by_route, count } = &mut *waiting;
        if *count < self.most {
            *count += 1;
            by_route.entry(route).or_default().push(IdleConnection::new(sender, backend));
        }
    }

    pub fn sweep(&self) {
        let mut waiting = self.waiting();
        let PoolState { by_route, count } = &mut *waiting;
        by_route.retain(|_, all| {
            all.retain(IdleConnection::is_good);
            !all.is_empty()
        });
        *count = by_route.values().map(Vec::len).sum();
    }

    fn waiting(&self) -> MutexGuard<'_, PoolState<B>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Idle backend connection that began with a PROXY header for one player. Only this player may use it.
///
/// The connection limits count two file descriptors for each player: the player's connection and one backend
/// connection. So at most one idle connection is stored. Concurrent HTTP/2 requests need their own permits.
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
        let (of, idle) = self.waiting().take()?;
        (of == route && idle.backend == *backend && idle.is_good()).then_some(idle.sender)
    }

    pub fn put(&self, route: u64, backend: BackendAddress, sender: SendRequest<B>) {
        *self.waiting() = Some((route, IdleConnection::new(sender, backend)));
    }

    pub fn sweep(&self) {
        self.waiting().take_if(|(_, idle)| !idle.is_good());
    }

    fn waiting(&self) -> MutexGuard<'_, Option<(u64, IdleConnection<B>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
