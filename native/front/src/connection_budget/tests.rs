//! Limits of the connection budget, for each client and for all.

use super::*;

fn client(address: &str) -> ClientKey {
    ClientKey::of(address.parse().expect("an address"))
}

fn v4(last: u8) -> ClientKey {
    ClientKey::V4([192, 0, 2, last])
}

fn budget(most: usize) -> Arc<ConnectionBudget> {
    Arc::new(ConnectionBudget::new(most))
}

/// Returns how many further connections of a client the budget admits.
fn count_admitted(budget: &ConnectionBudget, client: Option<ClientKey>) -> usize {
    (0..100).take_while(|_| budget.enter(client)).count()
}

#[test]
fn ipv4_address_is_one_client() {
    assert_eq!(client("192.0.2.1"), v4(1));
    assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
    assert_eq!(client("192.0.2.1").as_bytes(), [192, 0, 2, 1]);
}

#[test]
fn ipv4_mapped_address_is_the_ipv4_client() {
    assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
}

#[test]
fn ipv6_network_of_64_bits_is_one_client() {
    assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff:ffff:ffff:ffff"));
    assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
    assert_eq!(client("2001:db8:1:2::1").as_bytes(), [0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2]);
    assert_ne!(client("::1"), client("127.0.0.1"));
}

#[test]
fn client_survives_its_bytes() {
    for known in [client("192.0.2.1"), client("2001:db8:1:2::1"), client("::")] {
        assert_eq!(ClientKey::from_bytes(known.as_bytes()), Some(known));
    }
    for length in [0, 1, 3, 5, 7, 9, 16] {
        assert_eq!(ClientKey::from_bytes(&vec![0; length]), None, "{length} bytes");
    }
}

#[test]
fn one_client_has_at_most_half_of_all() {
    for (most, of_client) in [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (10, 5)] {
        assert_eq!(count_admitted(&budget(most), Some(v4(1))), of_client, "of {most}");
    }
}

#[test]
fn all_clients_share_the_total() {
    let budget = budget(10);
    assert_eq!(count_admitted(&budget, Some(v4(1))), 5);
    assert_eq!(count_admitted(&budget, Some(v4(2))), 5);
    assert_eq!(count_admitted(&budget, Some(v4(3))), 0);
    assert_eq!(budget.count(), 10);
}

#[test]
fn connection_without_client_counts_only_towards_the_total() {
    let budget = budget(10);
    assert_eq!(count_admitted(&budget, None), 10);
    assert!(!budget.enter(Some(v4(1))));
}

#[test]
fn budget_of_none_admits_none() {
    assert_eq!(count_admitted(&budget(0), None), 0);
    assert_eq!(count_admitted(&budget(0), Some(v4(1))), 0);
}

#[test]
fn unlimited_budget() {
    assert_eq!(count_admitted(&budget(usize::MAX), Some(v4(1))), 100);
}

#[test]
fn leaving_frees_the_place_of_the_client() {
    let budget = budget(10);
    assert_eq!(count_admitted(&budget, Some(v4(1))), 5);
    budget.leave(Some(v4(1)));
    assert_eq!(budget.count(), 4);
    assert_eq!(count_admitted(&budget, Some(v4(1))), 1);
    for _ in 0..5 {
        budget.leave(Some(v4(1)));
    }
    assert_eq!(budget.count(), 0);
    assert!(budget.open.lock().by_client.is_empty(), "a client without connections takes no memory");
}

#[test]
fn refused_connection_takes_no_place() {
    let budget = budget(4);
    assert_eq!(count_admitted(&budget, Some(v4(1))), 2);
    assert!(!budget.enter(Some(v4(1))));
    assert_eq!(budget.count(), 2);
    assert_eq!(count_admitted(&budget, None), 2);
    assert!(!budget.enter(Some(v4(2))));
    assert!(!budget.open.lock().by_client.contains_key(&v4(2)));
}

#[test]
fn introduced_connection_counts_for_its_client_and_once_for_all() {
    let budget = budget(10);
    assert_eq!(count_admitted(&budget, None), 10);
    let introduced = (0..10).take_while(|_| budget.introduce(v4(1))).count();
    assert_eq!((introduced, budget.count()), (5, 10));
    assert!(budget.introduce(v4(2)), "another client");
    budget.leave(Some(v4(1)));
    assert_eq!(budget.count(), 9);
    assert!(budget.introduce(v4(1)));
}

#[test]
fn connection_that_was_not_introduced_leaves_without_its_client() {
    let budget = budget(2);
    assert!(budget.enter(None) && budget.introduce(v4(1)) && budget.enter(None));
    assert!(!budget.introduce(v4(1)));
    budget.leave(None);
    assert_eq!(budget.count(), 1);
    assert!(!budget.introduce(v4(1)), "the first connection still counts");
}

#[test]
fn dropped_admission_leaves() {
    let budget = budget(2);
    let admission = budget.admit(Some(v4(1)));
    assert!(admission.is_some() && budget.admit(Some(v4(1))).is_none());
    assert_eq!(budget.count(), 1);
    drop(admission);
    assert_eq!(budget.count(), 0);
    assert!(budget.admit(Some(v4(1))).is_some());
}
