use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scope {
    All,
    /// One of several services of the server.
    Service(u8),
    Client(u8),
}

/// Limits of all connections, of a service, and of a client.
struct Scopes(usize, usize, usize);

impl ConnectionScopes for Scopes {
    type Scope = Scope;
    const ALL: Scope = Scope::All;

    fn limit(&self, scope: Scope) -> usize {
        match scope {
            Scope::All => self.0,
            Scope::Service(_) => self.1,
            Scope::Client(_) => self.2,
        }
    }
}

type Limits = Arc<ConnectionLimits<Scopes>>;
type Permit = ConnectionPermit<Scopes>;

fn limits(all: usize, service: usize, client: usize) -> Limits {
    Arc::new(ConnectionLimits::new(Scopes(all, service, client)))
}

fn admit(limits: &Limits, client: u8, service: u8) -> Result<Permit, Scope> {
    limits.admit([Scope::Client(client), Scope::Service(service)])
}

fn silent(limits: &Limits, client: u8, service: u8) -> Permit {
    admit(limits, client, service).unwrap()
}

fn spoken(limits: &Limits, client: u8, service: u8) -> Permit {
    let permit = silent(limits, client, service);
    assert!(permit.record(Speech::Spoken));
    permit
}

fn is_open(permit: &Permit) -> bool {
    permit.limits.0.lock().connections.contains_key(&permit.number)
}

#[test]
fn full_scope_without_a_silent_connection_refuses() {
    let limits = limits(3, 2, 2);
    let first = spoken(&limits, 1, 1);
    let _second = spoken(&limits, 1, 1);
    assert_eq!(admit(&limits, 2, 1).unwrap_err(), Scope::Service(1));
    assert_eq!(admit(&limits, 1, 2).unwrap_err(), Scope::Client(1));
    let _third = spoken(&limits, 2, 2);
    assert!(limits.is_full(Scope::All));
    assert_eq!(admit(&limits, 3, 3).unwrap_err(), Scope::All);
    drop(first);
    assert!(is_open(&silent(&limits, 2, 1)), "a closed connection frees its place");
}

#[test]
fn new_connection_replaces_the_oldest_that_never_sent_a_byte() {
    for (all, service, client) in [(3, 9, 9), (9, 3, 9), (9, 9, 3)] {
        let limits = limits(all, service, client);
        let speaks = spoken(&limits, 1, 1);
        let listens = silent(&limits, 1, 1);
        let is_silent = silent(&limits, 1, 1);
        assert!(listens.record(Speech::Listening));
        let second = silent(&limits, 1, 1);
        assert!(!is_open(&is_silent), "of {all}, {service}, {client}");
        assert!(is_open(&speaks) && is_open(&listens) && is_open(&second));
        assert!(second.record(Speech::Spoken));
        let third = spoken(&limits, 1, 1);
        assert!(!is_open(&listens) && is_open(&third));
        assert!(admit(&limits, 1, 1).is_err(), "all others have sent bytes");
    }
}

#[test]
fn refusal_replaces_nothing() {
    let limits = limits(2, 9, 1);
    let first = spoken(&limits, 1, 1);
    let second = silent(&limits, 2, 1);
    assert_eq!(admit(&limits, 1, 1).unwrap_err(), Scope::Client(1));
    assert!(is_open(&first) && is_open(&second));
}

#[test]
fn replaced_connection_counts_nowhere() {
    let limits = limits(9, 1, 9);
    let replaced = silent(&limits, 1, 1);
    let other = silent(&limits, 2, 1);
    assert!(!replaced.record(Speech::Spoken));
    assert_eq!(replaced.count_in([Scope::Client(3)]), Err(Scope::All));
    drop(replaced);
    assert_eq!(limits.count(), 1);
    drop(other);
    let state = limits.0.lock();
    assert!(state.connections.is_empty() && state.counts.is_empty());
    assert_eq!(state.silent, 0);
}

#[test]
fn replaced_connection_learns_of_it() {
    let limits = limits(1, 9, 9);
    let record = |permit: &Permit| {
        let is_replaced = Arc::new(AtomicBool::new(false));
        let recorded = is_replaced.clone();
        permit.on_replaced(move || recorded.store(true, Ordering::Relaxed));
        is_replaced
    };
    let before = silent(&limits, 1, 1);
    let is_replaced = record(&before);
    let after = silent(&limits, 1, 1);
    assert!(is_replaced.load(Ordering::Relaxed));
    let speaking = spoken(&limits, 1, 1);
    assert!(record(&after).load(Ordering::Relaxed), "replaced before");
    let is_replaced = record(&speaking);
    assert!(admit(&limits, 1, 1).is_err());
    drop(speaking);
    assert!(!is_replaced.load(Ordering::Relaxed));
}

#[test]
fn silent_connections_are_a_bounded_share() {
    let limits = limits(9_000, 9_000, 9_000);
    let first = silent(&limits, 1, 1);
    let _others: Vec<_> = (1..2_250).map(|_| silent(&limits, 2, 1)).collect();
    assert!(is_open(&first));
    let _one_more = silent(&limits, 2, 1);
    assert!(!is_open(&first), "the oldest one goes");
    assert_eq!(limits.silent_count(), 2_250);
}

#[test]
fn connection_counts_in_a_later_scope_once() {
    let limits = limits(9, 9, 1);
    let _direct = spoken(&limits, 1, 1);
    let proxied = limits.admit([]).unwrap();
    assert_eq!(proxied.count_in([Scope::Client(1)]), Err(Scope::Client(1)));
    assert_eq!(proxied.count_in([Scope::Client(2)]), Ok(()));
    assert_eq!(proxied.count_in([Scope::Client(2)]), Ok(()));
    assert!(proxied.record(Speech::Spoken));
    assert_eq!(admit(&limits, 2, 1).unwrap_err(), Scope::Client(2));
}

#[test]
fn changed_limits_apply_to_new_connections_only() {
    let limits = limits(9, 9, 2);
    let permits = [spoken(&limits, 1, 1), spoken(&limits, 1, 1)];
    limits.change(|scopes| scopes.2 = 1);
    assert!(permits.iter().all(is_open), "both continue");
    assert_eq!(admit(&limits, 1, 1).unwrap_err(), Scope::Client(1));
    limits.change(|scopes| *scopes = Scopes(3, 9, 3));
    let _third = spoken(&limits, 1, 1);
    assert_eq!(admit(&limits, 2, 1).unwrap_err(), Scope::All);
    drop(permits);
    assert!(admit(&limits, 1, 1).is_ok());
}
