//! HTTP/1.1 connections to back ends that wait for their next request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use crate::address::Place;

/// Shorter than what common servers wait (5 s), so that theirs is rarely the first word.
const KEPT_FOR: Duration = Duration::from_secs(4);

/// How many wait, of all routes together: each is an open file that no limit counts.
const KEPT_MOST: usize = 1_024;

/// Connections by number of their route, the last one used on top.
#[derive(Debug)]
pub struct Pool<B>(Mutex<Waiting<B>>);

#[derive(Debug)]
struct Waiting<B> {
    by_route: HashMap<u64, Vec<Idle<B>>>,
    count: usize,
}

#[derive(Debug)]
struct Idle<B> {
    sender: SendRequest<B>,
    backend: Place,
    since: Instant,
}

impl<B> Default for Pool<B> {
    fn default() -> Self {
        Self(Mutex::new(Waiting { by_route: HashMap::new(), count: 0 }))
    }
}

impl<B> Pool<B> {
    /// One that is good, as far as can be seen.
    pub fn take(&self, route: u64, backend: &Place) -> Option<SendRequest<B>> {
        let mut waiting = self.waiting();
        let Waiting { by_route, count } = &mut *waiting;
        let all = by_route.get_mut(&route)?;
        while let Some(idle) = all.pop() {
            *count -= 1;
            if idle.backend == *backend && !idle.sender.is_closed() && idle.since.elapsed() < KEPT_FOR {
                return Some(idle.sender);
            }
        }
        None
    }

    /// One whose request has been answered.
    pub fn put(&self, route: u64, backend: Place, sender: SendRequest<B>) {
        if sender.is_closed() {
            return;
        }
        let mut waiting = self.waiting();
        let Waiting { by_route, count } = &mut *waiting;
        if *count < KEPT_MOST {
            *count += 1;
            by_route.entry(route).or_default().push(Idle { sender, backend, since: Instant::now() });
        }
    }

    /// Closes those that waited too long.
    pub fn sweep(&self) {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let Waiting { by_route, count } = &mut *waiting;
        by_route.retain(|_, all| {
            all.retain(|idle| !idle.sender.is_closed() && now.duration_since(idle.since) < KEPT_FOR);
            !all.is_empty()
        });
        *count = by_route.values().map(Vec::len).sum();
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting<B>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
