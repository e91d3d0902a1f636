//! Lookup and eviction of sessions.

use std::net::UdpSocket;

use super::*;

fn insert_new(sessions: &mut SessionTable, last: u8, now_ms: u64) -> usize {
    insert_new_at(sessions, 0, last, now_ms)
}

fn insert_new_at(sessions: &mut SessionTable, port: usize, last: u8, now_ms: u64) -> usize {
    let player = Player { sender: SocketAddr::from(([127, 0, 0, last], 1)), local: None, named: None };
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
    sessions.insert(port, player, socket, Rank::New, now_ms)
}

fn insert_established(
    sessions: &mut SessionTable,
    port: usize,
    last_octets: std::ops::Range<u8>,
    now_ms: u64,
) -> Vec<usize> {
    let insert_new = |last| {
        let index = insert_new_at(sessions, port, last, now_ms);
        sessions.record_reply(index, now_ms);
        sessions.record_player_packet(index, now_ms);
        index
    };
    last_octets.map(insert_new).collect()
}

#[test]
fn oldest_session_of_the_lowest_rank_is_evicted_first() {
    let mut sessions = SessionTable::default();
    let established = insert_new(&mut sessions, 1, 0);
    sessions.record_reply(established, 0);
    sessions.record_player_packet(established, 0);
    let record_reply = insert_new(&mut sessions, 2, 0);
    sessions.record_reply(record_reply, 0);
    let first = insert_new(&mut sessions, 3, 1);
    let second = insert_new(&mut sessions, 4, 2);
    sessions.record_player_packet(first, 3);
    for expected in [second, first, record_reply] {
        assert_eq!(sessions.evictable_at_port(0, 100), Some(expected));
        assert_eq!(sessions.evictable_for_port(0, 100), Some(expected));
        sessions.remove(expected);
    }
    for (now_ms, expected) in [(IN_USE_MS - 1, None), (IN_USE_MS, Some(established))] {
        assert_eq!(sessions.evictable_at_port(0, now_ms), expected);
        assert_eq!(sessions.evictable_for_port(0, now_ms), expected);
    }
}

#[test]
fn full_port_evicts_only_its_own_sessions() {
    let mut sessions = SessionTable::default();
    let _other_port_session = insert_new_at(&mut sessions, 1, 1, 0);
    assert_eq!((sessions.port_count(0), sessions.evictable_at_port(0, IN_USE_MS)), (0, None));
    let own = insert_established(&mut sessions, 0, 2..5, 7);
    assert_eq!(sessions.port_count(0), 3);
    assert_eq!(sessions.evictable_at_port(0, IN_USE_MS), None, "they are in use");
    assert_eq!(sessions.evictable_at_port(0, 7 + IN_USE_MS), Some(own[0]));
    sessions.remove(own[0]);
    assert_eq!(sessions.port_count(0), 2);
}

#[test]
fn full_thread_evicts_new_sessions_of_the_largest_port() {
    let mut sessions = SessionTable::default();
    let first = insert_new_at(&mut sessions, 0, 1, 0);
    let new_sessions: Vec<usize> = (2..6).map(|last| insert_new_at(&mut sessions, 1, last, 10)).collect();
    sessions.record_reply(new_sessions[0], 20);
    for expected in [new_sessions[1], new_sessions[2], new_sessions[3]] {
        assert_eq!(sessions.evictable_for_port(0, 100), Some(expected), "not {first}, which is older");
        sessions.remove(expected);
    }
}

#[test]
fn full_thread_evicts_from_a_flood_before_new_players() {
    let mut sessions = SessionTable::default();
    let flood = insert_established(&mut sessions, 0, 0..200, 0);
    let player = flood[0];
    let newcomer = insert_new_at(&mut sessions, 1, 201, 500);
    sessions.record_player_packet(player, 500);
    assert_eq!(sessions.evictable_for_port(2, 999), None, "all sessions are active");
    assert_eq!(sessions.evictable_for_port(1, 999), Some(newcomer), "it is of the same port");
    assert_eq!(sessions.evictable_for_port(2, 1_000), Some(flood[1]), "it is silent for longest");
    assert_eq!(sessions.evictable_for_port(0, 1_000), None, "the flood takes nothing of others");
    assert_eq!(sessions.evictable_for_port(0, IN_USE_MS), Some(flood[1]));
}

#[test]
fn equal_ports_do_not_evict_from_each_other() {
    let mut sessions = SessionTable::default();
    insert_established(&mut sessions, 0, 0..3, 0);
    let larger = insert_established(&mut sessions, 1, 3..7, 0);
    assert_eq!(sessions.evictable_for_port(0, 1_000), Some(larger[0]));
    sessions.remove(larger[0]);
    for port in [0, 1] {
        assert_eq!(sessions.evictable_for_port(port, 1_000), None);
    }
}

#[test]
fn packets_without_a_reply_do_not_raise_the_rank() {
    let mut sessions = SessionTable::default();
    let index = insert_new(&mut sessions, 1, 0);
    (0..9).for_each(|now_ms| sessions.record_player_packet(index, now_ms));
    assert_eq!(sessions.at(index).rank(), Rank::New);
}

#[test]
fn sessions_are_counted_by_address() {
    let mut sessions = SessionTable::default();
    let (index, _other) = (insert_new(&mut sessions, 1, 0), insert_new(&mut sessions, 2, 0));
    let address = IpAddr::from([127, 0, 0, 1]);
    assert_eq!(sessions.address_count(address), 1);
    sessions.remove(index);
    assert_eq!(sessions.address_count(address), 0);
    assert_eq!(sessions.by_address.len(), 1, "addresses without sessions are removed");
}

#[test]
fn idle_sessions_are_found_in_every_rank_and_port() {
    let mut sessions = SessionTable::default();
    let (a, b) = (insert_new(&mut sessions, 1, 0), insert_new(&mut sessions, 2, 0));
    sessions.record_reply(b, 30);
    let c = insert_new_at(&mut sessions, 1, 3, 0);
    let d = insert_new(&mut sessions, 4, 0);
    assert!(sessions.idle(59, 60).is_empty());
    assert_eq!(sessions.idle(60, 60), [a, d, c]);
    [a, d, c].into_iter().for_each(|index| drop(sessions.remove(index)));
    assert!(sessions.idle(60, 60).is_empty());
    assert_eq!(sessions.idle(90, 60), [b]);
}

#[test]
fn more_data_is_expected_only_after_a_readable_turn() {
    let mut sessions = SessionTable::default();
    let index = insert_new(&mut sessions, 1, 0);
    let expected: Vec<bool> = [5, 7, 8, 9, 11].map(|turn| sessions.has_more(index, turn)).into();
    assert_eq!(expected, [false, false, true, true, false]);
}

#[test]
fn reused_slab_index_does_not_match_the_old_session() {
    let mut sessions = SessionTable::default();
    let index = insert_new(&mut sessions, 1, 0);
    let first_use = sessions.at(index).generation;
    sessions.remove(index);
    assert_eq!(insert_new(&mut sessions, 2, 0), index);
    assert!(sessions.get(index, first_use).is_none());
    assert_eq!(sessions.find(0, SocketAddr::from(([127, 0, 0, 1], 1)), None), None);
}

#[test]
fn session_without_local_address_adopts_the_first_one() {
    let mut sessions = SessionTable::default();
    let index = insert_new(&mut sessions, 1, 0);
    let client = sessions.at(index).player.sender;
    let [one, other] = [1, 2].map(|last| Some(LocalAddress { address: IpAddr::from([10, 0, 0, last]), interface: 0 }));
    assert_eq!(sessions.find(0, client, one), Some(index));
    assert_eq!(sessions.at(index).player.local, one);
    assert_eq!([other, None].map(|local| sessions.find(0, client, local)), [None, None]);
    sessions.remove(index);
    assert_eq!(sessions.find(0, client, one), None);
}

#[test]
fn session_counts_for_the_client_that_its_header_names() {
    let mut sessions = SessionTable::default();
    let load_balancer = IpAddr::from([127, 0, 0, 1]);
    let mut insert_named = |port, client: &str| {
        let named = NamedAddresses { client: client.parse().unwrap(), server: "203.0.113.1:443".parse().unwrap() };
        let player = Player { sender: (load_balancer, port).into(), local: None, named: Some(Box::new(named)) };
        let socket = Arc::new(UdpSocket::bind("127.0.0.1:0").unwrap().into());
        sessions.insert(0, player, socket, Rank::New, 0)
    };
    let first = insert_named(1, "[2001:db8::1]:1");
    let second = insert_named(2, "[2001:db8::2]:1");
    insert_named(3, "198.51.100.7:1");
    let network: IpAddr = "2001:db8::3".parse().unwrap();
    assert_eq!(sessions.address_count(network), 2, "a /64 network is one client");
    assert_eq!(sessions.address_count([198, 51, 100, 7].into()), 1);
    assert_eq!((sessions.address_count(load_balancer), sessions.evictable_of_address(load_balancer)), (0, None));
    assert_eq!(sessions.evictable_of_address(network), Some(first));
    sessions.remove(first);
    assert_eq!((sessions.address_count(network), sessions.evictable_of_address(network)), (1, Some(second)));
    sessions.record_reply(second, 1);
    sessions.record_player_packet(second, 1);
    assert_eq!(sessions.evictable_of_address(network), None, "it is established");
    sessions.remove(second);
    assert_eq!(sessions.address_count(network), 0);
}
