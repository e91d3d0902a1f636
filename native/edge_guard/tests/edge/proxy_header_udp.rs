//! `proxy_header` `required`: the first datagram of a load balancer's session begins with a PROXY header.

use std::net::{SocketAddr, UdpSocket};

use ppp::v2::{Addresses, Header, PROTOCOL_PREFIX};
use serde_json::{Value, json};

use crate::backends::{connect_datagram, echo_datagram, speak_from, udp, udp_echo};
use crate::client_address::with_header;
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::handover::replace;
use crate::proxy_header::required;

const DROPPED: &str = "datagrams_dropped_total{reason=\"proxy_header\"}";
const OVER_THE_LIMIT: &str = "datagrams_dropped_total{reason=\"sessions_per_address\"}";

/// Returns a header with a command, a family with transport, and the rest.
fn header(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
    [PROTOCOL_PREFIX, &[command, family], &length, rest].concat()
}

/// Returns a header that names a client. The server is 203.0.113.1:443, or [2001:db8::443]:443.
fn naming(client: &str) -> Vec<u8> {
    match client.parse().unwrap() {
        SocketAddr::V4(client) => {
            let addresses = [client.ip().octets(), [203, 0, 113, 1]].concat();
            let ports = [client.port().to_be_bytes(), [1, 0xbb]].concat();
            header(0x21, 0x12, &[addresses, ports].concat())
        }
        SocketAddr::V6(client) => {
            let server: std::net::Ipv6Addr = "2001:db8::443".parse().unwrap();
            let addresses = [client.ip().octets(), server.octets()].concat();
            let ports = [client.port().to_be_bytes(), [1, 0xbb]].concat();
            header(0x21, 0x22, &[addresses, ports].concat())
        }
    }
}

fn local() -> Vec<u8> {
    header(0x20, 0, &[])
}

/// Starts a server that replies with the addresses in the header of edge-guard, and with the payload.
fn naming_server() -> SocketAddr {
    udp(|datagram, _| {
        let header = Header::try_from(datagram).unwrap();
        let payload = String::from_utf8_lossy(&datagram[header.as_bytes().len()..]).into_owned();
        let (client, server) = match header.addresses {
            Addresses::IPv4(all) => (
                SocketAddr::from((all.source_address, all.source_port)),
                SocketAddr::from((all.destination_address, all.destination_port)),
            ),
            Addresses::IPv6(all) => (
                SocketAddr::from((all.source_address, all.source_port)),
                SocketAddr::from((all.destination_address, all.destination_port)),
            ),
            other => panic!("{other:?}"),
        };
        Some(format!("{client} at {server}: {payload}").into())
    })
}

#[track_caller]
fn exchange(sender: &UdpSocket, header: &[u8], payload: &[u8]) -> String {
    sender.send(&[header, payload].concat()).unwrap();
    let mut answer = [0; 2_048];
    let length = sender.recv(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

fn served(settings: Value, backend: SocketAddr) -> (EdgeProcess, u16) {
    let guard = EdgeProcess::start_with(settings);
    let port = free_port();
    guard.source.serve_route(&route("a", "udp", port, Some(backend)));
    (guard, port)
}

fn serving_names(settings: Value) -> (EdgeProcess, u16) {
    let guard = EdgeProcess::start_with(settings);
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "udp", port, Some(naming_server()))));
    (guard, port)
}

#[test]
fn first_datagram_names_the_client() {
    for bind in ["127.0.0.1", "0.0.0.0"] {
        let (guard, port) = serving_names(required(json!({"bind": bind})));
        for (client, server) in
            [("198.51.100.7:5000", "203.0.113.1:443"), ("[2001:db8::7]:5000", "[2001:db8::443]:443")]
        {
            let sender = connect_datagram(port);
            let expected = |payload: &str| format!("{client} at {server}: {payload}");
            assert_eq!(exchange(&sender, &naming(client), b"first"), expected("first"));
            assert_eq!(exchange(&sender, b"", b"without a header"), expected("without a header"));
            assert_eq!(exchange(&sender, &naming(client), b"with a header"), expected("with a header"));
            assert_eq!(exchange(&sender, &naming(client), b""), expected(""), "only a header");
            assert_eq!(exchange(&sender, b"", b"PROXY TCP4 1"), expected("PROXY TCP4 1"), "version 1 is data");
        }
        assert_eq!(guard.figure(DROPPED), 0);
        assert_eq!(guard.figure("datagram_sessions"), 2);
    }
}

#[test]
fn first_datagram_without_a_valid_header_is_dropped() {
    let (guard, port) = served(required(json!({})), udp_echo());
    let ipv4 = &naming("198.51.100.7:5000")[16..];
    let whole = naming("198.51.100.7:5000");
    let health_check = local();
    let datagrams: [&[u8]; 9] = [
        &health_check,
        b"hello",
        b"",
        b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\nhello",
        PROTOCOL_PREFIX,
        &whole[..whole.len() - 1],
        &header(0x21, 0x11, ipv4),
        &header(0x21, 0x00, &[]),
        &header(0x21, 0x12, &ipv4[..11]),
    ];
    let sender = connect_datagram(port);
    for (index, datagram) in datagrams.into_iter().enumerate() {
        sender.send(datagram).unwrap();
        guard.wait_for_figure(DROPPED, |dropped| dropped == index as u64 + 1);
    }
    assert_eq!(guard.figure("datagram_sessions_total"), 0);
    // Values after the addresses belong to the header.
    let values = header(0x21, 0x12, &[ipv4, &[4, 0, 3, 1, 2, 3]].concat());
    assert_eq!(exchange(&sender, &values, b"hello"), "hello");
    assert_eq!(guard.figure("datagram_sessions_total"), 1);
}

#[test]
fn later_datagram_cannot_change_the_client() {
    let (guard, port) = serving_names(required(json!({})));
    let sender = connect_datagram(port);
    let (client, other) = (naming("198.51.100.7:5000"), naming("198.51.100.7:5001"));
    exchange(&sender, &client, b"first");
    let malformed = [PROTOCOL_PREFIX, b"x"].concat();
    for (index, datagram) in [&other, &local(), &malformed, &client[..20].to_vec()].into_iter().enumerate() {
        sender.send(datagram).unwrap();
        guard.wait_for_figure(DROPPED, |dropped| dropped == index as u64 + 1);
        assert_eq!(exchange(&sender, b"", b"next"), "198.51.100.7:5000 at 203.0.113.1:443: next");
    }
    assert_eq!(guard.figure("datagram_sessions_total"), 1);
}

#[test]
fn dropped_datagrams_in_a_burst_leave_the_others_in_order() {
    let (guard, port) = served(required(json!({"workers": 1})), udp_echo());
    let senders = [connect_datagram(port), connect_datagram(port)];
    let clients = [naming("198.51.100.7:5000"), naming("198.51.100.8:5000")];
    senders.iter().zip(&clients).for_each(|(sender, client)| assert_eq!(exchange(sender, client, b"in"), "in"));
    for round in 0..100_u32 {
        for (sender, (own, other)) in senders.iter().zip([(&clients[0], &clients[1]), (&clients[1], &clients[0])]) {
            let datagram = |header: &[u8], text: &str| [header, format!("{round} {text}").as_bytes()].concat();
            for datagram in
                [datagram(own, "one"), datagram(other, "dropped"), datagram(b"", "two"), datagram(own, "three")]
            {
                sender.send(&datagram).unwrap();
            }
        }
        for sender in &senders {
            for text in ["one", "two", "three"] {
                let mut answer = [0; 64];
                let length = sender.recv(&mut answer).unwrap();
                assert_eq!(String::from_utf8_lossy(&answer[..length]), format!("{round} {text}"));
            }
        }
    }
    assert_eq!(guard.figure(DROPPED), 200);
    assert_eq!(guard.figure("datagrams_total{way=\"in\"}"), 602);
}

#[test]
fn largest_datagrams_lose_only_their_header() {
    let (_guard, port) = served(required(json!({})), udp_echo());
    let sender = connect_datagram(port);
    let client = naming("[2001:db8::7]:5000");
    let payload: Vec<u8> = (0..65_507 - client.len()).map(|index| (index % 251) as u8).collect();
    for _ in 0..2 {
        sender.send(&[&client[..], &payload].concat()).unwrap();
        let mut answer = vec![0; 65_536];
        let length = sender.recv(&mut answer).unwrap();
        assert!(answer[..length] == payload, "{length} bytes came back");
    }
}

#[test]
fn local_header_makes_the_load_balancer_the_client() {
    for bind in ["127.0.0.1", "0.0.0.0"] {
        let (guard, port) = serving_names(required(json!({"bind": bind})));
        let sender = connect_datagram(port);
        let expected = format!("{} at 127.0.0.1:{port}: hello", sender.local_addr().unwrap());
        assert_eq!(exchange(&sender, &local(), b"hello"), expected);
        assert_eq!(exchange(&sender, &local(), b"hello"), expected);
        assert_eq!(exchange(&sender, b"", b"hello"), expected);
        sender.send(&naming("198.51.100.7:5000")).unwrap();
        guard.wait_for_figure(DROPPED, |dropped| dropped == 1);
    }
}

#[test]
fn headers_of_other_senders_and_optional_headers_are_data() {
    let forged = String::from_utf8_lossy(&naming("1.1.1.1:1")).into_owned();
    let elsewhere = json!({"proxies": ["127.7.7.7/32"], "proxy_header": "required"});
    for settings in [elsewhere, json!({"proxies": ["127.0.0.1/32"]}), json!({"proxy_header": "required"})] {
        let (guard, port) = served(settings, udp_echo());
        let sender = connect_datagram(port);
        for _ in 0..2 {
            assert_eq!(exchange(&sender, &naming("1.1.1.1:1"), b""), forged);
            echo_datagram(&sender, "plain");
        }
        assert_eq!(guard.figure(DROPPED), 0);
    }
}

#[test]
fn sessions_count_for_the_named_client() {
    let limits = json!({"workers": 1, "limits": {"datagram_sessions_per_address": 2}});
    let (guard, port) = served(required(limits), udp_echo());
    let establish = |client: &str| {
        let sender = connect_datagram(port);
        (0..2).for_each(|_| assert_eq!(exchange(&sender, &naming(client), b"in"), "in"));
        sender
    };
    // All addresses of a /64 network are one client.
    let _ipv6 = [establish("[2001:db8::1]:1"), establish("[2001:db8::2]:2")];
    let _ipv4 = [establish("198.51.100.7:1"), establish("198.51.100.7:2")];
    for (index, client) in ["[2001:db8::3]:3", "198.51.100.7:3"].into_iter().enumerate() {
        connect_datagram(port).send(&naming(client)).unwrap();
        guard.wait_for_figure(OVER_THE_LIMIT, |dropped| dropped == index as u64 + 1);
    }
    // The load balancer has no limit of its own.
    let _others: Vec<_> = (1..=20).map(|last| establish(&format!("203.0.113.{last}:1"))).collect();
    establish("[2001:db8:0:1::1]:1");
    assert_eq!(guard.figure(OVER_THE_LIMIT), 2);
    assert_eq!(guard.figure("datagram_sessions"), 25);
}

#[test]
fn client_at_its_limit_replaces_its_own_unconfirmed_session() {
    let limits = json!({"workers": 1, "limits": {"datagram_sessions_per_address": 2}});
    let silent_server = udp(|datagram, _| datagram.starts_with(b"play").then(|| b"ok".to_vec()));
    let (guard, port) = served(required(limits), silent_server);
    let other = connect_datagram(port);
    assert_eq!(exchange(&other, &naming("198.51.100.8:1"), b"play"), "ok");
    for source in 1..=10 {
        connect_datagram(port).send(&[&naming(&format!("198.51.100.7:{source}"))[..], b"spoofed"].concat()).unwrap();
    }
    guard.wait_for_figure("datagram_sessions_ended_total{reason=\"displaced\"}", |ended| ended == 8);
    assert_eq!(exchange(&connect_datagram(port), &naming("198.51.100.7:99"), b"play"), "ok", "a late player");
    // The session of the other client is the oldest one, and was not replaced.
    let begun = guard.figure("datagram_sessions_total");
    assert_eq!(exchange(&other, b"", b"play"), "ok");
    assert_eq!(guard.figure("datagram_sessions_total"), begun);
    assert_eq!(guard.figure(OVER_THE_LIMIT), 0);
}

#[test]
fn flood_of_new_clients_leaves_half_of_the_port_rate_to_established_sessions() {
    let limits = json!({"workers": 1, "limits": {"datagram_port_packets_per_second": 40}});
    let (guard, port) = served(required(limits), udp_echo());
    let player = connect_datagram(port);
    let header = naming("198.51.100.7:1");
    (0..2).for_each(|_| assert_eq!(exchange(&player, &header, b"established"), "established"));
    for round in 0..4 {
        let sources: Vec<_> = (0..80).map(|_| connect_datagram(port)).collect();
        for (number, source) in sources.iter().enumerate() {
            source.send(&naming(&format!("203.0.113.{number}:{}", round + 1))).unwrap();
        }
        assert_eq!(exchange(&player, &header, b"within the reserved half"), "within the reserved half");
    }
    assert!(guard.figure("datagrams_dropped_total{reason=\"port_rate\"}") > 0);
}

#[test]
fn newer_process_keeps_the_named_client() {
    let limits = json!({"workers": 1, "limits": {"datagram_sessions_per_address": 1}});
    let (mut guard, port) = serving_names(required(limits));
    let (player, check) = (connect_datagram(port), speak_from("127.0.0.1", port));
    let (client, own) = (naming("198.51.100.7:5000"), check.local_addr().unwrap());
    (0..2).for_each(|_| drop(exchange(&player, &client, b"before")));
    (0..2).for_each(|_| drop(exchange(&check, &local(), b"before")));
    for _ in 0..2 {
        let _older = replace(&mut guard);
        guard.wait_for_figure("datagram_sessions", |sessions| sessions == 2);
        assert_eq!(exchange(&player, b"", b"after"), "198.51.100.7:5000 at 203.0.113.1:443: after");
        assert_eq!(exchange(&player, &client, b"after"), "198.51.100.7:5000 at 203.0.113.1:443: after");
        assert_eq!(exchange(&check, b"", b"after"), format!("{own} at 127.0.0.1:{port}: after"));
        player.send(&naming("198.51.100.8:5000")).unwrap();
        guard.wait_for_figure(DROPPED, |dropped| dropped == 1);
        connect_datagram(port).send(&naming("198.51.100.7:6000")).unwrap();
        guard.wait_for_figure(OVER_THE_LIMIT, |dropped| dropped == 1);
        assert_eq!(guard.figure("datagram_sessions_total"), 0, "the sessions were taken over");
    }
}

#[test]
fn changed_setting_begins_sessions_anew() {
    let (mut guard, port) = served(json!({"proxies": ["127.0.0.1/32"]}), udp_echo());
    let sender = connect_datagram(port);
    echo_datagram(&sender, "without a header");
    guard.set("proxy_header", json!("required"));
    let _older = replace(&mut guard);
    assert_eq!(exchange(&sender, &naming("198.51.100.7:1"), b"in"), "in", "the header is read");
    guard.set("proxy_header", json!("optional"));
    let _newest = replace(&mut guard);
    let forged = String::from_utf8_lossy(&naming("198.51.100.7:1")).into_owned();
    assert_eq!(exchange(&sender, &naming("198.51.100.7:1"), b""), forged);
}
