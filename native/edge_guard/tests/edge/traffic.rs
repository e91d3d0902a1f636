//! Traffic counters of lobbies and servers: exact bytes and packets, over all kinds of ports.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::backends::{connect, connect_datagram, echo, echo_datagram, tcp, tcp_echo, udp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, read_head, upgrade, websocket};
use crate::tls::{connect_tls, secure_route, started, trusting};
use crate::wait::wait_for;
use crate::wire::{OutcomeKind, Route};

const RESPONSE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

/// Returns received and sent bytes, and received and sent packets.
fn traffic(guard: &EdgeProcess, owner: &str) -> Option<[u64; 4]> {
    let page: Value = serde_json::from_str(&guard.ask("GET", "/traffic")).unwrap();
    assert_eq!(page["has_more"], false);
    let owners = page["owners"].as_array().unwrap();
    let found = owners.iter().find(|found| found["owner_id"] == owner)?;
    let names = ["received_bytes", "sent_bytes", "received_packets", "sent_packets"];
    Some(names.map(|name| found[name].as_u64().unwrap()))
}

/// A player may have an answer before the edge counts it.
#[track_caller]
fn wait_for_traffic(guard: &EdgeProcess, owner: &str, expected: [u64; 4]) {
    let mut last = None;
    let reached = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("the traffic", || {
            last = traffic(guard, owner);
            (last == Some(expected)).then_some(())
        });
    }));
    assert!(reached.is_ok(), "{last:?} instead of {expected:?}");
}

/// Starts an HTTP server that counts the bytes of its requests.
fn counting_server() -> (SocketAddr, Arc<AtomicU64>) {
    let received = Arc::new(AtomicU64::new(0));
    let counted = received.clone();
    let address = tcp(move |mut stream: TcpStream| {
        while let Some(head) = read_head(&mut stream) {
            counted.fetch_add(head.len() as u64, SeqCst);
            if stream.write_all(RESPONSE.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, received)
}

#[test]
fn all_ports_of_a_server_are_counted_together() {
    let guard = EdgeProcess::start();
    let (stream, datagram, other) = (free_port(), free_port(), free_port());
    guard.source.put(&[
        route("a", "tcp", stream, Some(tcp_echo())),
        Route { port_name: "query".into(), ..route("a", "udp", datagram, Some(udp_echo())) },
        route("b", "udp", other, Some(udp_echo())),
    ]);
    for owner in ["a", "b"] {
        guard.source.wait_for(owner, OutcomeKind::Listening);
    }
    echo(&mut connect(stream), "hello");
    wait_for_traffic(&guard, "a", [5, 5, 0, 0]);
    for player in [connect_datagram(datagram), connect_datagram(datagram)] {
        for text in ["one", "", "three"] {
            echo_datagram(&player, text);
        }
    }
    wait_for_traffic(&guard, "a", [5 + 16, 5 + 16, 6, 6]);
    wait_for_traffic(&guard, "b", [0; 4]);
}

#[test]
fn proxy_headers_of_datagrams_are_not_counted() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = crate::backends::udp(|datagram, _| Some(datagram.to_vec()));
    guard.source.serve_route(&Route { sends_proxy_header: true, ..route("a", "udp", port, Some(server)) });
    let player = connect_datagram(port);
    player.send(b"hello").unwrap();
    let echoed = player.recv(&mut [0; 100]).unwrap() as u64;
    assert!(echoed > 5, "with the header");
    wait_for_traffic(&guard, "a", [5, echoed, 1, 1]);
}

#[test]
fn http_is_counted_as_the_server_receives_it() {
    let (guard, keys) = started();
    let (plain, secure, (server, received)) = (free_port(), free_port(), counting_server());
    guard.source.put(&[
        route("a", "http", plain, Some(server)),
        Route { port_name: "secure".into(), ..secure_route("a", "https", secure, server) },
    ]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    let answer_bytes = RESPONSE.len() as u64;
    let mut player = connect(plain);
    for _ in 0..2 {
        assert_eq!(get(&mut player, "game", "/play").text(), "hello");
    }
    wait_for_traffic(&guard, "a", [received.load(SeqCst), 2 * answer_bytes, 0, 0]);
    let mut player =
        wait_for("a TLS connection", || connect_tls(&trusting(keys.path(), &[]), "localhost", secure).ok());
    assert_eq!(get(&mut player, "localhost", "/play").text(), "hello");
    wait_for_traffic(&guard, "a", [received.load(SeqCst), 3 * answer_bytes, 0, 0]);
}

#[test]
fn tls_is_counted_without_its_overhead() {
    let (guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&secure_route("a", "tcp_tls", port, tcp_echo()));
    let mut player = connect_tls(&trusting(keys.path(), &[]), "localhost", port).unwrap();
    echo(&mut player, "hello");
    wait_for_traffic(&guard, "a", [5, 5, 0, 0]);
}

#[test]
fn upgraded_connections_are_counted() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(websocket())));
    let mut player = connect(port);
    upgrade(&mut player, "game");
    let mut before = [0; 4];
    wait_for("the upgrade is counted", || {
        before = traffic(&guard, "a")?;
        (before[0] > 0 && before[1] > 0).then_some(())
    });
    echo(&mut player, "hello");
    wait_for_traffic(&guard, "a", [before[0] + 5, before[1] + 5, 0, 0]);
}

#[test]
fn counters_outlive_a_changed_backend_and_the_end() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    echo(&mut connect(port), "before");
    let other = tcp_echo();
    guard.source.put(&[route("a", "tcp", port, Some(other))]);
    guard.source.wait_for_backend("a", Some(other));
    let mut player = connect(port);
    echo(&mut player, "after");
    wait_for_traffic(&guard, "a", [11, 11, 0, 0]);
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert_eq!(traffic(&guard, "a"), Some([11, 11, 0, 0]), "the last values can still be read");
}

#[test]
fn backends_of_the_configuration_are_not_counted() {
    let guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    let page: Value = serde_json::from_str(&guard.ask("GET", "/traffic")).unwrap();
    assert_eq!(page["owners"], json!([]));
}
