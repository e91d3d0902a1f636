use std::sync::Arc;

use hosting_client_addresses::Speech;

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
    Arc::new(ConnectionLimits::new(Maxima::new(&settings(all, route, address), false)))
}

fn admit(
    limits: &Arc<ConnectionLimits>,
    client: [u8; 4],
    destination: Destination,
) -> Result<ConnectionPermit, ConnectionRefusal> {
    let permit = limits.admit(scopes(Some(client.into()), destination))?;
    permit.record(Speech::Spoken);
    Ok(permit)
}

fn admit_to_game(
    limits: &Arc<ConnectionLimits>,
    client: [u8; 4],
    route: u64,
) -> Result<ConnectionPermit, ConnectionRefusal> {
    admit(limits, client, Destination::Game(route))
}

#[test]
fn each_limit_refuses_with_its_own_reason() {
    let limits = limits(3, 2, 2);
    let _first = admit_to_game(&limits, FIRST, 1).unwrap();
    let _second = admit_to_game(&limits, FIRST, 1).unwrap();
    assert_eq!(admit_to_game(&limits, SECOND, 1).unwrap_err(), ConnectionRefusal::Route);
    assert_eq!(admit_to_game(&limits, FIRST, 2).unwrap_err(), ConnectionRefusal::Address);
    let _third = admit_to_game(&limits, SECOND, 2).unwrap();
    assert_eq!(admit_to_game(&limits, SECOND, 2).unwrap_err(), ConnectionRefusal::All);
}

#[test]
fn games_leave_a_share_to_configured_backends() {
    let limits = Arc::new(ConnectionLimits::new(Maxima::new(&settings(16, 99, 99), true)));
    let games: Vec<_> = (0..14).map(|_| admit_to_game(&limits, FIRST, 1).unwrap()).collect();
    assert_eq!(admit_to_game(&limits, SECOND, 2).unwrap_err(), ConnectionRefusal::All);
    assert!(limits.is_full(Scope::Games) && !limits.is_full(Scope::All));
    let by_host = admit(&limits, SECOND, Destination::Hosts).unwrap();
    assert_eq!(by_host.count_in([Scope::Games]), Err(Scope::Games), "a lobby by host name is a game as well");
    drop(games);
    assert_eq!(by_host.count_in([Scope::Games]), Ok(()));
}

#[test]
fn trusted_proxy_has_no_limit_per_client() {
    let limits = limits(9, 9, 1);
    let proxied: Vec<_> = (0..9).map_while(|_| limits.admit(scopes(None, Destination::Game(1))).ok()).collect();
    assert_eq!(proxied.len(), 9);
}

#[test]
fn reloaded_settings_keep_the_reserve() {
    let limits = Arc::new(ConnectionLimits::new(Maxima::new(&settings(99, 99, 99), true)));
    limits.change(|maxima| maxima.change(&settings(8, 99, 99)));
    let games = (0..9).map_while(|_| admit_to_game(&limits, FIRST, 1).ok()).collect::<Vec<_>>();
    assert_eq!(games.len(), 7);
}

#[test]
fn wider_networks_have_wider_limits() {
    let limits = limits(999, 999, 2);
    let mut held = Vec::new();
    let mut admitted = |addresses: &mut dyn Iterator<Item = String>| {
        addresses
            .map_while(|address| {
                let permit = limits.admit(scopes(Some(address.parse().unwrap()), Destination::Hosts)).ok()?;
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
