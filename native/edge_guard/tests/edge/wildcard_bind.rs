//! UDP on a wildcard bind: replies have the source address that the player uses.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};

use serde_json::json;

use crate::backends::{echo_datagram, udp, udp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::handover::replace;
use crate::wait::LONG;

fn guard(bind: &str, settings: serde_json::Value) -> EdgeProcess {
    let mut all = json!({"bind": bind, "workers": 1});
    settings.as_object().unwrap().iter().for_each(|(name, value)| all[name] = value.clone());
    EdgeProcess::start_with(all)
}

/// Returns a connected socket, which receives from one address only.
fn speak_to(own: &str, address: impl Into<SocketAddr>) -> UdpSocket {
    let player = player(own);
    player.connect(address.into()).unwrap();
    player
}

/// Returns an unconnected socket, which receives from all addresses.
fn player(own: &str) -> UdpSocket {
    let player = UdpSocket::bind(own).unwrap();
    player.set_read_timeout(Some(LONG)).unwrap();
    player
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Returns the global IPv6 addresses of this machine with their interface indexes.
fn ipv6_addresses() -> Vec<(Ipv6Addr, u32)> {
    let all = std::fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let fields = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields
        .map(|fields| {
            let address = u128::from_str_radix(fields[0], 16).unwrap();
            (Ipv6Addr::from_bits(address), u32::from_str_radix(fields[1], 16).unwrap())
        })
        .filter(|(address, _)| !address.is_loopback())
        .collect()
}

#[test]
fn replies_come_from_the_addressed_ipv4_address() {
    for bind in ["0.0.0.0", "::"] {
        let guard = guard(bind, json!({}));
        let port = free_port();
        guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
        let players = ["127.0.0.1", "127.0.0.2", "127.0.0.3"].map(|to| speak_to("127.0.0.1:0", at(to, port)));
        for round in 0..3 {
            // All send before the first reply, so that one batch has all of them.
            for player in &players {
                player.send(&[round]).unwrap();
            }
            for player in &players {
                let mut answer = [0; 8];
                assert_eq!(player.recv(&mut answer).unwrap(), 1, "{bind}");
                assert_eq!(answer[0], round);
            }
        }
        assert_eq!(guard.figure("datagram_sessions"), 3);
    }
}

#[test]
fn replies_come_from_the_addressed_ipv6_address() {
    let guard = guard("::", json!({}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    echo_datagram(&speak_to("[::1]:0", at("::1", port)), "loopback");
    for (address, interface) in ipv6_addresses() {
        if address.is_unicast_link_local() {
            let to = SocketAddrV6::new(address, port, 0, interface);
            echo_datagram(&speak_to("[::]:0", to), &format!("{to}"));
        } else {
            // The kernel alone would choose another source address.
            echo_datagram(&speak_to("[::1]:0", SocketAddr::new(address.into(), port)), &format!("{address}"));
        }
    }
}

#[test]
fn player_at_two_local_addresses_has_two_sessions() {
    let guard = guard("0.0.0.0", json!({"limits": {"datagram_sessions_per_address": 2}}));
    let port = free_port();
    let server = udp(|datagram, from| Some(format!("{} {}", String::from_utf8_lossy(datagram), from.port()).into()));
    guard.source.serve_route(&route("a", "udp", port, Some(server)));
    let player = player("127.0.0.1:0");
    let ask = |to: SocketAddr| {
        player.send_to(b"who", to).unwrap();
        let mut answer = [0; 64];
        let (length, from) = player.recv_from(&mut answer).unwrap();
        assert_eq!(from, to);
        String::from_utf8_lossy(&answer[..length]).into_owned()
    };
    let [one, other] = ["127.0.0.1", "127.0.0.2"].map(|address| at(address, port));
    let first = [ask(one), ask(other)];
    assert_ne!(first[0], first[1]);
    assert_eq!([ask(one), ask(other)], first, "a session was moved");
    assert_eq!(guard.figure("datagram_sessions"), 2);
    player.send_to(b"who", at("127.0.0.3", port)).unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"sessions_per_address\"}", |dropped| dropped == 1);
}

#[test]
fn broadcast_is_answered_from_the_interface_address() {
    let guard = guard("0.0.0.0", json!({}));
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(udp_echo())));
    let player = player("127.0.0.1:0");
    player.set_broadcast(true).unwrap();
    player.send_to(b"anybody?", at("127.255.255.255", port)).unwrap();
    let (length, from) = player.recv_from(&mut [0; 16]).unwrap();
    assert_eq!((length, from.ip()), (8, IpAddr::from([127, 0, 0, 1])));
}

#[test]
fn handover_keeps_the_local_address_of_sessions() {
    let mut guard = guard("0.0.0.0", json!({}));
    let port = free_port();
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(LONG)).unwrap();
    guard.source.serve_route(&route("a", "udp", port, server.local_addr().ok()));
    let player = speak_to("127.0.0.1:0", at("127.0.0.2", port));
    player.send(b"in").unwrap();
    let (_, session) = server.recv_from(&mut [0; 8]).unwrap();
    let _older = replace(&mut guard);
    // The player has not sent since, so the newer process has the address from the handover.
    server.send_to(b"welcome", session).unwrap();
    assert_eq!(player.recv(&mut [0; 8]).unwrap(), 7);
    player.send(b"again").unwrap();
    assert_eq!(server.recv_from(&mut [0; 8]).unwrap(), (5, session));
    assert_eq!(guard.figure("datagram_sessions"), 1);
}
