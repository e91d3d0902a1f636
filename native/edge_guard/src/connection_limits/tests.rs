use super::*;

const FIRST: [u8; 4] = [10, 0, 0, 1];
const SECOND: [u8; 4] = [10, 1, 0, 2];

fn settings(all: usize, route: usize, address: usize) -> LimitSettings {
    let mut settings = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap().limits;
    settings.connections = all;
    settings.connections_per_route = route;
    settings.connections_per_address = address;
    settings
}

fn limits(all: usize, route: usize, address: usize) -> Arc<ConnectionLimits> {
    Arc::new(ConnectionLimits::new(&settings(all, route, address), false))
}

fn silent(limits: &Arc<ConnectionLimits>, client: [u8; 4], route: u64) -> ConnectionPermit {
    limits.admit(Some(client.into()), Destination::Game(route)).unwrap()
}

fn spoken(limits: &Arc<ConnectionLimits>, client: [u8; 4], route: u64) -> ConnectionPermit {
    let permit = silent(limits, client, route);
    permit.record(Speech::Spoken);
    permit
}

fn refusal(limits: &Arc<ConnectionLimits>, client: [u8; 4], route: u64) -> ConnectionRefusal {
    limits.admit(Some(client.into()), Destination::Game(route)).unwrap_err()
}

fn is_open(permit: &ConnectionPermit) -> bool {
    permit.limits.state().get_mut(permit).is_some()
}

#[test]
fn each_limit_refuses_with_its_own_reason() {
    let limits = limits(3, 2, 2);
    let first = spoken(&limits, FIRST, 1);
    let _second = spoken(&limits, FIRST, 1);
    assert_eq!(refusal(&limits, SECOND, 1), ConnectionRefusal::Route);
    assert_eq!(refusal(&limits, FIRST, 2), ConnectionRefusal::Address);
    let _third = spoken(&limits, SECOND, 2);
    assert!(limits.is_full(true));
    assert_eq!(refusal(&limits, SECOND, 2), ConnectionRefusal::All);
    drop(first);
    assert!(is_open(&silent(&limits, SECOND, 1)), "a closed connection frees its permit");
}

#[test]
fn new_connection_replaces_the_oldest_that_never_sent_a_byte() {
    for (all, route, address) in [(3, 9, 9), (9, 3, 9), (9, 9, 3)] {
        let limits = limits(all, route, address);
        let speaks = spoken(&limits, FIRST, 1);
        let listens = silent(&limits, FIRST, 1);
        let is_silent = silent(&limits, FIRST, 1);
        listens.record(Speech::Listening);
        let second = silent(&limits, FIRST, 1);
        assert!(!is_open(&is_silent), "of {all}, {route}, {address}");
        assert!(is_open(&speaks) && is_open(&listens) && is_open(&second));
        second.record(Speech::Spoken);
        let third = spoken(&limits, FIRST, 1);
        assert!(!is_open(&listens) && is_open(&third));
        assert!(limits.admit(Some(FIRST.into()), Destination::Game(1)).is_err(), "all others have sent bytes");
    }
}

#[test]
fn refusal_evicts_nothing() {
    let limits = limits(2, 9, 1);
    let first = spoken(&limits, FIRST, 1);
    let second = silent(&limits, SECOND, 1);
    assert_eq!(refusal(&limits, FIRST, 1), ConnectionRefusal::Address);
    assert!(is_open(&first) && is_open(&second));
}

#[test]
fn replaced_connection_counts_nowhere() {
    let limits = limits(9, 1, 9);
    let replaced = silent(&limits, FIRST, 1);
    let other = silent(&limits, SECOND, 1);
    drop(replaced);
    assert_eq!(limits.state().scopes[ALL].count, 1);
    drop(other);
    let state = limits.state();
    assert_eq!((state.connections.len(), state.by_key.len(), state.scopes.len(), state.silent), (0, 0, 2, 0));
}

#[tokio::test]
async fn task_of_a_replaced_connection_is_aborted() {
    let limits = limits(1, 9, 9);
    let before = silent(&limits, FIRST, 1);
    let task = tokio::spawn(std::future::pending::<()>());
    before.set_task(task.abort_handle());
    let after = silent(&limits, FIRST, 1);
    assert!(task.await.unwrap_err().is_cancelled());
    let _third = silent(&limits, FIRST, 1);
    let late = tokio::spawn(std::future::pending::<()>());
    after.set_task(late.abort_handle());
    assert!(late.await.unwrap_err().is_cancelled(), "replaced before its task was known");
}

#[test]
fn games_leave_a_share_to_configured_backends() {
    let limits = Arc::new(ConnectionLimits::new(&settings(16, 99, 99), true));
    let games: Vec<_> = (0..14).map(|_| spoken(&limits, FIRST, 1)).collect();
    assert_eq!(refusal(&limits, SECOND, 2), ConnectionRefusal::All);
    assert!(limits.is_full(true) && !limits.is_full(false));
    let by_host = limits.admit(Some(SECOND.into()), Destination::Hosts).unwrap();
    by_host.record(Speech::Spoken);
    assert_eq!(by_host.count_game(), Err(ConnectionRefusal::All), "a lobby by host name is a game as well");
    drop(games);
    assert_eq!(by_host.count_game(), Ok(()));
    assert_eq!(by_host.count_game(), Ok(()), "counted once");
    assert_eq!(limits.state().scopes[GAMES].count, 1);
}

#[test]
fn silent_connections_are_a_bounded_share() {
    let limits = limits(9_000, 9_000, 9_000);
    let first = silent(&limits, FIRST, 1);
    let _others: Vec<_> = (1..2_250).map(|_| silent(&limits, SECOND, 1)).collect();
    assert!(is_open(&first));
    let _one_more = silent(&limits, SECOND, 1);
    assert!(!is_open(&first), "the oldest one goes");
    assert_eq!(limits.silent_count(), 2_250);
}

#[test]
fn wider_networks_have_wider_limits() {
    let limits = limits(999, 999, 2);
    let mut held = Vec::new();
    let mut admitted = |addresses: &mut dyn Iterator<Item = String>| {
        addresses
            .map_while(|address| {
                let permit = limits.admit(Some(address.parse().unwrap()), Destination::Hosts).ok()?;
                permit.record(Speech::Spoken);
                held.push(permit);
                Some(())
            })
            .count()
    };
    assert_eq!(admitted(&mut (1..99).map(|n| format!("2001:db8:0:0::{n}"))), 2, "one /64");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("2001:db8:0:{n:x}::1"))), 2, "one /56, with the two before");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("2001:db8:0:{n:x}00::1"))), 4, "one /48");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("2001:db8:{n:x}::1"))), 24, "one /32");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("10.0.0.{n}"))), 8, "one IPv4 /24");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("10.0.{n}.1"))), 24, "one IPv4 /16");
    assert_eq!(admitted(&mut (1..99).map(|n| format!("10.{n}.0.1"))), 98, "others");
}

#[test]
fn client_of_a_proxy_counts_once_it_is_known() {
    let limits = limits(9, 9, 1);
    let _direct = spoken(&limits, FIRST, 1);
    let proxied = limits.admit(None, Destination::Game(1)).unwrap();
    assert_eq!(proxied.count_client(FIRST.into()), Err(ConnectionRefusal::Address));
    assert_eq!(proxied.count_client(SECOND.into()), Ok(()));
    proxied.record(Speech::Spoken);
    assert_eq!(refusal(&limits, SECOND, 1), ConnectionRefusal::Address);
}

#[test]
fn changed_limits_apply_to_new_connections_only() {
    let limits = limits(9, 9, 2);
    let permits = [spoken(&limits, FIRST, 1), spoken(&limits, FIRST, 1)];
    limits.change(&settings(9, 9, 1));
    assert!(permits.iter().all(is_open), "both continue");
    assert_eq!(refusal(&limits, FIRST, 1), ConnectionRefusal::Address);
    limits.change(&settings(3, 9, 3));
    let _third = spoken(&limits, FIRST, 1);
    assert_eq!(refusal(&limits, SECOND, 1), ConnectionRefusal::All);
    drop(permits);
    assert!(limits.admit(Some(FIRST.into()), Destination::Game(1)).is_ok());
}

#[test]
fn scarce_descriptors_are_divided_fairly() {
    let settings = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap().limits;
    let fitting = |connections, datagram_sessions, available| {
        let few = fit_to_descriptors(&LimitSettings { connections, datagram_sessions, ..settings.clone() }, available);
        (few.connections, few.datagram_sessions)
    };
    assert_eq!(fitting(4_000, 1_000, 1_000_000), (4_000, 1_000));
    assert_eq!(fitting(65_536, 16_384, 20_000), (4_500, 9_000));
    assert_eq!(fitting(65_536, 64, 20_000), (8_968, 64));
    assert_eq!(fitting(100, 16_384, 10_000), (100, 8_800));
}
