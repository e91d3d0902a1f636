//! Silence of the data plane on a node of a cluster: new sessions are refused, and open ones continue.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::backends::{connect, connect_datagram, echo, echo_datagram, is_closed, tcp_echo, udp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, mirror};
use crate::wait::wait_for;

const SILENCE_MS: u32 = 3_000;

/// Connects until the connection is closed at once.
#[track_caller]
fn wait_until_refused(port: u16) {
    wait_for("a connection is refused", || is_refused(&mut connect(port)).then_some(()));
}

fn is_refused(stream: &mut TcpStream) -> bool {
    // The server echoes this, unless edge-guard has closed the connection.
    stream.write_all(b"x").is_err() || !matches!(stream.read(&mut [0; 1]), Ok(1))
}

#[test]
fn new_sessions_are_refused_after_a_silence_and_open_ones_continue() {
    let mut guard = EdgeProcess::start_with(json!({"silence_ms": SILENCE_MS}));
    let (tcp, udp, http) = (free_port(), free_port(), free_port());
    guard.source.serve_route(&route("a", "tcp", tcp, Some(tcp_echo())));
    guard.source.serve_route(&route("b", "udp", udp, Some(udp_echo())));
    guard.source.serve_route(&route("c", "http", http, Some(mirror())));
    let (mut stream, datagrams, mut browser) = (connect(tcp), connect_datagram(udp), connect(http));
    echo(&mut stream, "before");
    echo_datagram(&datagrams, "before");
    assert_eq!(get(&mut browser, "game", "/").status(), 200);
    guard.source.kill();
    wait_until_refused(tcp);
    assert!(is_closed(&mut connect(http)), "also over HTTP");
    let late = connect_datagram(udp);
    let dropped = "datagrams_dropped_total{reason=\"no_data_plane\"}";
    wait_for("a datagram is dropped", || {
        late.send(b"late").unwrap();
        (guard.figure(dropped) > 0).then_some(())
    });
    echo(&mut stream, "during");
    echo_datagram(&datagrams, "during");
    assert_eq!(get(&mut browser, "game", "/").status(), 200);
    assert!(guard.figure("connections_refused_total{reason=\"no_data_plane\"}") >= 2);
    guard.source.start();
    wait_for("connections are accepted again", || (!is_refused(&mut connect(tcp))).then_some(()));
    echo_datagram(&connect_datagram(udp), "after");
}

#[test]
fn answers_without_changes_are_no_silence() {
    let guard = EdgeProcess::start_with(json!({"silence_ms": SILENCE_MS}));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    // A long poll is shorter than the silence.
    guard.source.wait_for_questions(4);
    echo(&mut connect(port), "hello");
    assert_eq!(guard.figure("connections_refused_total{reason=\"no_data_plane\"}"), 0);
}
