//! Limits of the connection budget, for each network of clients and for all.

use super::*;

fn client(address: &str) -> ClientKey {
    ClientKey::of(address.parse().expect("an address"))
}

/// Admits connections of a client that has sent a byte, until the budget refuses one. Tries at most 100.
fn fill(budget: &ConnectionBudget, client: Option<ClientKey>) -> Vec<Admission> {
    (0..100).map_while(|_| budget.admit(client).filter(Admission::keep)).collect()
}

#[test]
fn one_client_has_at_most_half_of_all() {
    for (most, of_client) in [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (10, 5), (usize::MAX, 100)] {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let admitted = fill(&ConnectionBudget::new(most), Some(client(address)));
            assert_eq!(admitted.len(), of_client, "{address} of {most}");
        }
    }
}

#[test]
fn network_leaves_connections_to_others() {
    for (networks, admitted) in [
        ((|n: u16| format!("2001:db8::{n:x}:1:1:1")) as fn(u16) -> String, 32),
        (|n| format!("2001:db8:0:{n:x}::1"), 48),
        (|n| format!("2001:db8:0:{n:x}00::1"), 56),
        (|n| format!("2001:db8:{n:x}::1"), 62),
        (|n| format!("192.0.2.{n}"), 56),
        (|n| format!("192.0.{n}.1"), 62),
        (|n| format!("192.{n}.0.1"), 64),
    ] {
        let budget = ConnectionBudget::new(64);
        let attacker: Vec<_> = (1..100).flat_map(|n| fill(&budget, Some(client(&networks(n))))).collect();
        assert_eq!(attacker.len(), admitted, "{}", networks(1));
        let other = fill(&budget, Some(client("198.51.100.1")));
        assert_eq!(other.len(), (64 - admitted).min(32));
    }
}

#[test]
fn connection_without_client_counts_only_towards_the_total() {
    let budget = ConnectionBudget::new(10);
    let admitted = fill(&budget, None);
    assert_eq!((admitted.len(), budget.count()), (10, 10));
    assert!(budget.admit(Some(client("192.0.2.1"))).is_none());
}

#[test]
fn budget_of_none_admits_none() {
    let budget = ConnectionBudget::new(0);
    assert!(budget.admit(None).is_none() && budget.admit(Some(client("192.0.2.1"))).is_none());
}

#[test]
fn dropped_admission_leaves() {
    let (budget, client) = (ConnectionBudget::new(10), Some(client("192.0.2.1")));
    let mut admitted = fill(&budget, client);
    admitted.pop();
    assert_eq!(budget.count(), 4);
    assert_eq!(fill(&budget, client).len(), 1);
    drop(admitted);
    assert_eq!(budget.count(), 0);
}

#[test]
fn introduced_connection_counts_for_its_client_and_once_for_all() {
    let budget = ConnectionBudget::new(10);
    let mut admitted = fill(&budget, None);
    let [one, other] = ["192.0.2.1", "198.51.100.1"].map(|address| Peer::Client(address.parse().expect("an address")));
    let introduced = admitted.iter_mut().filter_map(|admission| admission.introduce(one).then_some(())).count();
    assert_eq!((introduced, budget.count()), (5, 10));
    assert!(admitted.last_mut().expect("10 of them").introduce(other));
    admitted.remove(0);
    let mut next = budget.admit(None).expect("a place is free");
    assert!(next.introduce(one));
}

#[tokio::test]
async fn new_connection_replaces_the_oldest_that_never_sent_a_byte() {
    let (budget, client) = (ConnectionBudget::new(4), Some(client("192.0.2.1")));
    let [kept, silent] = [0; 2].map(|_| budget.admit(client).expect("a place is free"));
    assert!(kept.keep());
    let (of_kept, of_silent) = (kept.replaced(), silent.replaced());
    let new = budget.admit(client).expect("the place of the silent one");
    of_silent.await;
    tokio::select! {
        biased;
        () = of_kept => panic!("it has sent a byte"),
        () = std::future::ready(()) => {}
    }
    assert!(!silent.keep() && new.keep() && kept.keep());
    assert!(budget.admit(client).is_none(), "both have sent a byte");
    assert_eq!(budget.count(), 2);
}
