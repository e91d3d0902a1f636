//! HTTP/1.1 connections to back ends that wait for their next request.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::http1::SendRequest;

use crate::address::Place;

/// Shorter than what common servers wait (5 s), so that theirs is rarely the first word.
const KEPT_FOR: Duration = Duration::from_secs(4);

/// How many wait for one route.
const KEPT_MOST: usize = 1_024;

/// Connections by number of their route, the last one used on top.
#[derive(Debug)]
pub struct Pool<B>(Mutex<HashMap<u64, Vec<Idle<B>>>>);

#[derive(Debug)]
struct Idle<B> {
    sender: SendRequest<B>,
    backend: Place,
    since: Instant,
}

impl<B> Default for Pool<B> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<B> Pool<B> {
    /// One that is good, as far as can be seen.
    pub fn take(&self, route: u64, backend: &Place) -> Option<SendRequest<B>> {
        let mut waiting = self.waiting();
        let all = waiting.get_mut(&route)?;
        while let Some(idle) = all.pop() {
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
        let all = waiting.entry(route).or_default();
        if all.len() < KEPT_MOST {
            all.push(Idle { sender, backend, since: Instant::now() });
        }
    }

    /// Closes those that waited too long.
    pub fn sweep(&self) {
        let now = Instant::now();
        self.waiting().retain(|_, all| {
            all.retain(|idle| !idle.sender.is_closed() && now.duration_since(idle.since) < KEPT_FOR);
            !all.is_empty()
        });
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, Vec<Idle<B>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
