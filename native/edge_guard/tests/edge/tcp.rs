//! Bytes over TCP: half closes, resets, back-pressure, drain.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};

use serde_json::json;

use crate::backends::{connect, echo, is_closed, tcp, tcp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::wait::{wait_for, wait_until_stable};

#[test]
fn half_close_is_relayed_both_ways() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = tcp(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        // The player has closed its half and still receives.
        stream.write_all(format!("{} bytes", all.len()).as_bytes()).unwrap();
    });
    guard.source.serve_route(&route("a", "tcp", port, Some(server)));
    let mut player = connect(port);
    player.write_all(&vec![7; 3_000_000]).unwrap();
    player.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    player.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "3000000 bytes");
    guard.wait_for_figure("connections{kind=\"tcp\"}", |open| open == 0);
    assert_eq!(guard.figure("stream_bytes_total{way=\"in\"}"), 3_000_000);
}

#[test]
fn missing_backend_closes_the_player_at_once() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    guard.source.serve_route(&route("a", "tcp", port, Some(gone)));
    assert!(is_closed(&mut connect(port)));
    guard.wait_for_figure("connections_refused_total{reason=\"backend_unreachable\"}", |refused| refused == 1);
}

#[test]
fn backend_reset_is_relayed_as_reset() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = tcp(|mut stream| {
        let _ = stream.read(&mut [0; 1]);
        socket2::SockRef::from(&stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    });
    guard.source.serve_route(&route("a", "tcp", port, Some(server)));
    let mut player = connect(port);
    player.write_all(b"x").unwrap();
    let broken = player.read(&mut [0; 8]).unwrap_err();
    assert_eq!(broken.kind(), std::io::ErrorKind::ConnectionReset);
}

#[test]
fn slow_reader_applies_back_pressure() {
    const ALL: usize = 64 * 1024 * 1024;
    let guard = EdgeProcess::start();
    let port = free_port();
    let server = tcp(|mut stream| {
        let block = vec![1; 1024 * 1024];
        for _ in 0..ALL / block.len() {
            if stream.write_all(&block).is_err() {
                return;
            }
        }
    });
    guard.source.serve_route(&route("a", "tcp", port, Some(server)));
    let before = guard.memory();
    let mut players: Vec<_> = (0..8).map(|_| connect(port)).collect();
    // Only socket buffers and one pipe hold data.
    guard.wait_for_figure("stream_bytes_total{way=\"out\"}", |moved| moved > 0);
    let last = wait_until_stable("nothing moves any more", || guard.figure("stream_bytes_total{way=\"out\"}"));
    assert!(last < 8 * ALL as u64 / 2, "{last} bytes were accepted without a reader");
    assert!(guard.memory() < before + 8 * 1024 * 1024, "{} grew to {}", before, guard.memory());
    let mut count = 0;
    let mut buffer = vec![0; 1024 * 1024];
    while let Ok(read @ 1..) = players[0].read(&mut buffer) {
        count += read;
    }
    assert_eq!(count, ALL);
}

#[test]
fn idle_stream_ends() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"stream_idle_ms": 200}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect(port);
    echo(&mut player, "and then nothing");
    assert!(is_closed(&mut player));
}

#[test]
fn stop_ends_at_once_and_sigterm_drains() {
    let mut guard = EdgeProcess::start_with(json!({"timeouts": {"drain_ms": 60_000}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect(port);
    echo(&mut player, "before");
    guard.signal(libc::SIGTERM);
    wait_for("new connections are refused", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err().then_some(())
    });
    assert_eq!(guard.status()["is_leaving"], true);
    echo(&mut player, "still here");
    drop(player);
    assert!(wait_for("it ends", || guard.child.try_wait().unwrap()).success());
    guard.restart();
    let mut player = connect(port);
    echo(&mut player, "again");
    guard.ask("POST", "/stop");
    assert!(wait_for("it ends", || guard.child.try_wait().unwrap()).success());
    assert!(is_closed(&mut player));
}
