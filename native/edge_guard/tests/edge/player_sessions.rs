//! Ports that count the sessions of players, and that require a slot.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use crate::edge_process::{EdgeProcess, free_port, route};
use crate::wait::{LONG, wait_for};
use crate::wire::Route;

const CLIENT: [u8; 4] = [127, 0, 0, 1];

fn counted(owner: &str, protocol: &str, port: u16, backend: SocketAddr) -> Route {
    Route { counts_sessions: true, requires_slot: true, ..route(owner, protocol, port, Some(backend)) }
}

/// Starts a TCP server that returns each byte.
fn echo_streams() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

fn echo_datagrams() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, sender)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], sender);
        }
    });
    address
}

/// Connects and exchanges a byte. Returns `None` if edge-guard closes the connection.
fn play(port: u16) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"x").ok()?;
    stream.read_exact(&mut [0]).ok()?;
    Some(stream)
}

#[test]
fn stream_without_a_slot_is_closed() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&counted("a", "tcp", port, echo_streams()));
    assert!(play(port).is_none(), "no reservation");
    guard.wait_for_figure("connections_refused_total{reason=\"no_slot\"}", |refused| refused == 1);
    guard.source.with_state(|state| state.slots.insert(CLIENT.to_vec()));
    let first = wait_for("the address is asked about again", || play(port));
    let second = play(port).expect("two players behind one address");
    guard.source.wait_for_sessions("a", &[(CLIENT.to_vec(), 2)]);
    drop((first, second));
    // Both count for the grace period.
    guard.source.wait_for_sessions("a", &[]);
}

#[test]
fn known_players_go_on_without_the_data_plane() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.with_state(|state| state.slots.insert(CLIENT.to_vec()));
    guard.source.serve_route(&counted("a", "tcp", port, echo_streams()));
    let mut first = play(port).expect("it has a slot");
    guard.source.wait_for_sessions("a", &[(CLIENT.to_vec(), 1)]);
    guard.source.kill();
    first.write_all(b"y").unwrap();
    first.read_exact(&mut [0]).unwrap();
    assert!(play(port).is_some(), "the address is known");
    let other = TcpStream::connect(("127.0.0.1", port));
    drop(other);
    drop(first);
    guard.source.with_state(|state| state.sessions.clear());
    guard.source.start();
    // The ends were kept meanwhile.
    guard.source.wait_for_sessions("a", &[]);
}

#[test]
fn datagrams_wait_for_the_answer() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&counted("a", "udp", port, echo_datagrams()));
    let player = UdpSocket::bind("127.0.0.1:0").unwrap();
    player.connect(("127.0.0.1", port)).unwrap();
    player.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    player.send(b"x").unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"no_slot\"}", |dropped| dropped > 0);
    guard.source.with_state(|state| state.slots.insert(CLIENT.to_vec()));
    wait_for("an answer of the game", || {
        player.send(b"x").unwrap();
        player.recv(&mut [0; 8]).ok()
    });
    guard.source.wait_for_sessions("a", &[(CLIENT.to_vec(), 1)]);
}

#[test]
fn restarted_process_frees_nothing_during_the_grace_period() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.with_state(|state| state.slots.insert(CLIENT.to_vec()));
    guard.source.serve_route(&counted("a", "tcp", port, echo_streams()));
    let _player = play(port).expect("it has a slot");
    wait_for("the process is settled", || guard.source.with_state(|state| state.is_settled).then_some(()));
    guard.kill();
    guard.source.with_state(|state| state.sessions.clear());
    guard.restart();
    guard.source.wait_for_sessions("a", &[]);
    assert!(!guard.source.with_state(|state| state.is_settled), "its players may reconnect");
}

#[test]
fn replacing_process_keeps_the_sessions_of_datagrams() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.with_state(|state| state.slots.insert(CLIENT.to_vec()));
    guard.source.serve_route(&counted("a", "udp", port, echo_datagrams()));
    let player = UdpSocket::bind("127.0.0.1:0").unwrap();
    player.connect(("127.0.0.1", port)).unwrap();
    player.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let exchange = || {
        player.send(b"x").unwrap();
        player.recv(&mut [0; 8]).ok()
    };
    wait_for("an answer of the game", exchange);
    guard.source.with_state(|state| state.slots.clear());
    let newer = guard.another(&["--replace"]);
    let mut older = std::mem::replace(&mut guard.child, newer);
    guard.wait_until_ready();
    wait_for("the game goes on without a new answer", exchange);
    older.kill().unwrap();
    older.wait().unwrap();
}
