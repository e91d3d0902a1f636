//! HTTP/1.1 connections to back ends that wait for their next request: shared by all players, or a player's own.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use crate::address::BackendAddress;

/// Shorter than what common servers wait (5 s), so that theirs is rarely the first word.
const IDLE_LIMIT: Duration = Duration::from_secs(4);

/// How many wait at all threads, of all routes together: each is an open file that no limit counts.
const IDLE_CONNECTIONS_MAX: usize = 1_024;

/// Of the connections that there may be, at most this part: where few files may be open, less is set apart.
const IDLE_SHARE: usize = 8;

/// Connections for whoever asks next, by number of their route, the last one used on top.
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

    /// As far as can be seen.
    fn is_good(&self) -> bool {
        !self.sender.is_closed() && self.since.elapsed() < IDLE_LIMIT
    }
}

impl<B> BackendPool<B> {
    /// That of one of so many threads, which have so many connections together.
    #[must_use]
    pub fn for_each_thread(threads: usize, connections: usize) -> Self {
        let waiting = PoolState { by_route: HashMap::new(), count: 0 };
        Self {
            waiting: Mutex::new(waiting),
            most: IDLE_CONNECTIONS_MAX.min(connections / IDLE_SHARE).div_ceil(threads),
        }
    }

    /// One that is good, as far as can be seen.
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

    /// One whose request has been answered.
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

    /// Closes those that waited too long.
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

/// The connection that a player's connection has for its next request, and nobody else: its back end was told who the
/// player is.
///
/// It is one, because a player's connection is counted as two open files: itself, and one to a back end. HTTP/1.1 needs
/// no more. What HTTP/2 asks for at once takes a permit for each request, which ends with the answer, and so do these
/// connections.
#[derive(Debug)]
pub struct DedicatedConnection<B>(Mutex<Option<(u64, IdleConnection<B>)>>);

impl<B> Default for DedicatedConnection<B> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<B> DedicatedConnection<B> {
    /// The one that waits, if it is of this route and good. Any other is closed: whoever asks needs its place.
    pub fn take(&self, route: u64, backend: &BackendAddress) -> Option<SendRequest<B>> {
        let (of, idle) = self.waiting().take()?;
        (of == route && idle.backend == *backend && idle.is_good()).then_some(idle.sender)
    }

    /// The one whose request has been answered, in the place of the one before.
    pub fn put(&self, route: u64, backend: BackendAddress, sender: SendRequest<B>) {
        *self.waiting() = Some((route, IdleConnection::new(sender, backend)));
    }

    /// Closes it if it waited too long.
    pub fn sweep(&self) {
        self.waiting().take_if(|(_, idle)| !idle.is_good());
    }

    fn waiting(&self) -> MutexGuard<'_, Option<(u64, IdleConnection<B>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
