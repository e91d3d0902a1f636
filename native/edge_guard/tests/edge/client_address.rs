//! PROXY headers that give the player's address to the game server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use ppp::v2::{Addresses, Command, Header, Protocol};
use serde_json::json;

use crate::backends::{connect, connect_datagram, echo, echo_datagram, is_closed, tcp, tcp_and_udp_echo, udp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::handover::replace;
use crate::tls::{connect_tls, secure_route, started, trusting};
use crate::wire::Route;

/// Bytes of a header with two IPv4 addresses.
const HEADER_BYTES: usize = 28;

pub fn with_header(route: Route) -> Route {
    Route { sends_proxy_header: true, ..route }
}

/// Returns the client and the public address in a header, as text.
fn named(header: &[u8], protocol: Protocol) -> String {
    let header = Header::try_from(header).unwrap();
    assert_eq!((header.command, header.protocol), (Command::Proxy, protocol));
    let Addresses::IPv4(all) = header.addresses else { panic!("{header:?}") };
    let client = SocketAddr::from((all.source_address, all.source_port));
    format!("{client} at {}:{}", all.destination_address, all.destination_port)
}

/// Starts a TCP server that sends the addresses of the header and a line end, and then echoes.
pub fn stream_server() -> SocketAddr {
    tcp(|mut stream| {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).unwrap();
        stream.write_all(format!("{}\n", named(&header, Protocol::Stream)).as_bytes()).unwrap();
        let mut buffer = [0; 4_096];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    })
}

/// Starts a UDP server that replies with the addresses of the header, and with the length and the end of the payload.
fn datagram_server() -> SocketAddr {
    udp(|datagram, _| {
        let (header, payload) = datagram.split_at(HEADER_BYTES);
        let end = String::from_utf8_lossy(&payload[payload.len().saturating_sub(8)..]).into_owned();
        Some(format!("{} {} {end}", named(header, Protocol::Datagram), payload.len()).into_bytes())
    })
}

pub fn read_line(stream: &mut impl Read) -> String {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

fn between(client: SocketAddr, port: u16) -> String {
    format!("{client} at 127.0.0.1:{port}")
}

#[test]
fn server_that_speaks_first_gets_the_header_at_once() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "tcp", port, Some(stream_server()))));
    let mut player = connect(port);
    assert_eq!(read_line(&mut player), between(player.local_addr().unwrap(), port), "the player was silent");
    echo(&mut player, "after the header");
}

#[test]
fn route_without_the_setting_has_no_header() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp_udp", port, Some(tcp_and_udp_echo())));
    echo(&mut connect(port), "plain");
    echo_datagram(&connect_datagram(port), "plain");
}

#[test]
fn header_is_in_front_of_decrypted_bytes() {
    let (guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&with_header(secure_route("a", "tcp_tls", port, stream_server())));
    let mut player = connect_tls(&trusting(keys.path(), &[]), "localhost", port).unwrap();
    assert_eq!(read_line(&mut player), between(player.sock.local_addr().unwrap(), port));
    echo(&mut player, "after the header");
}

#[test]
fn header_names_the_client_of_a_trusted_proxy() {
    let guard = EdgeProcess::start_with(json!({"proxies": ["127.0.0.1/32"]}));
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "tcp", port, Some(stream_server()))));
    let mut proxy = connect(port);
    proxy.write_all(b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n").unwrap();
    assert_eq!(read_line(&mut proxy), "198.51.100.7:5000 at 203.0.113.1:443");
    echo(&mut proxy, "and not the proxy");
}

#[test]
fn every_datagram_begins_with_the_header() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "udp", port, Some(datagram_server()))));
    let player = connect_datagram(port);
    let expected = between(player.local_addr().unwrap(), port);
    let check = |payload: &[u8], end: &str| {
        player.send(payload).unwrap();
        let mut answer = [0; 256];
        let length = player.recv(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
        assert_eq!(answer, format!("{expected} {} {end}", payload.len()));
    };
    check(b"first", "first");
    check(b"", "");
    // A player cannot forge a header: its datagram is behind the header of edge-guard.
    check(&[ppp::v2::PROTOCOL_PREFIX, b"forged"].concat(), "T\nforged");
    check(&[b'z'; 60_000], "zzzzzzzz");
    let _older = replace(&mut guard);
    check(b"taken over", "ken over");
    assert_eq!(guard.figure("datagram_sessions"), 1, "the session was taken over");
}

#[test]
fn datagrams_in_one_batch_keep_their_headers() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "udp", port, Some(datagram_server()))));
    let players: Vec<_> = (0..8).map(|_| connect_datagram(port)).collect();
    for round in 0..20 {
        for _ in 0..3 {
            for player in &players {
                player.send(format!("{round}").as_bytes()).unwrap();
            }
        }
        for player in &players {
            for _ in 0..3 {
                let mut answer = [0; 256];
                let length = player.recv(&mut answer).unwrap();
                let expected = between(player.local_addr().unwrap(), port);
                let digits = round.to_string().len();
                assert_eq!(String::from_utf8_lossy(&answer[..length]), format!("{expected} {digits} {round}"));
            }
        }
    }
}

#[test]
fn closed_server_fails_only_its_own_players() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let closed = tcp(|stream: TcpStream| drop(stream));
    guard.source.serve_route(&with_header(route("a", "tcp", port, Some(closed))));
    assert!(is_closed(&mut connect(port)));
}
