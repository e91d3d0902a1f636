//! Limits: connections over a limit are closed, and others are not affected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::backends::{ask_datagram, connect, connect_datagram, echo, echo_datagram, is_closed, tcp_echo, udp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::wait::{wait_for, wait_until_stable};

fn from(address: [u8; 4], port: u16) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&std::net::SocketAddr::from((address, 0)).into()).unwrap();
    socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(crate::wait::LONG)).unwrap();
    stream
}

#[test]
fn connections_per_address_are_limited() {
    let guard = EdgeProcess::start_with(json!({"limits": {"connections_per_address": 3}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut held: Vec<_> = (0..3).map(|_| connect(port)).collect();
    held.iter_mut().for_each(|stream| echo(stream, "in"));
    assert!(is_closed(&mut connect(port)));
    assert_eq!(guard.figure("connections_refused_total{reason=\"connections_per_address\"}"), 1);
    echo(&mut from([127, 5, 5, 5], port), "another client");
    held.pop();
    wait_for("the place is free", || {
        let mut stream = connect(port);
        stream.write_all(b"x").ok()?;
        (stream.read(&mut [0; 1]).ok()? == 1).then_some(())
    });
}

#[test]
fn connections_per_route_are_limited() {
    let guard = EdgeProcess::start_with(json!({"limits": {"connections_per_route": 2}}));
    let (port, other) = (free_port(), free_port());
    let backend = tcp_echo();
    guard.source.put(&[route("a", "tcp", port, Some(backend)), route("b", "tcp", other, Some(backend))]);
    guard.source.wait_for("a", crate::wire::OutcomeKind::Listening);
    guard.source.wait_for("b", crate::wire::OutcomeKind::Listening);
    let mut held: Vec<_> = (0..2).map(|_| connect(port)).collect();
    held.iter_mut().for_each(|stream| echo(stream, "in"));
    assert!(is_closed(&mut connect(port)));
    echo(&mut connect(other), "in");
    assert_eq!(guard.figure("connections_refused_total{reason=\"connections_per_route\"}"), 1);
}

#[test]
fn connections_above_the_total_limit_wait() {
    let guard = EdgeProcess::start_with(json!({"limits": {"connections": 4}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut held: Vec<_> = (0..4).map(|_| connect(port)).collect();
    held.iter_mut().for_each(|stream| echo(stream, "in"));
    let mut waiting = connect(port);
    guard.wait_for_figure("connections_refused_total{reason=\"connections\"}", |refused| refused > 0);
    held.clear();
    echo(&mut waiting, "at last");
}

#[test]
fn silent_connections_leave_room_for_players_and_the_api() {
    let api = crate::backends::tcp(|mut stream| {
        let _ = stream.read(&mut [0; 4_096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
        let _ = stream.read(&mut [0; 1]);
    });
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [{"hosts": ["api.example"], "address": api, "proxy_protocol": false}],
        "limits": {"connections": 64, "connections_per_address": 256},
    }));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect(port);
    echo(&mut player, "before");
    let silent: Vec<_> = (0..300).map(|n| from([127, 9, (n / 200) as u8, (n % 200) as u8 + 1], port)).collect();
    let started = Instant::now();
    echo(&mut connect(port), "a new player");
    assert!(crate::http_client::get(&mut connect(guard.listener("http").port()), "api.example", "/").text() == "ok");
    // The silent connections alone would end after the 10 s for a first byte.
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    echo(&mut player, "not replaced");
    drop(silent);
}

#[test]
fn game_connections_leave_a_share_to_the_api() {
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [{"hosts": ["api.example"], "address": crate::http_client::mirror(), "proxy_protocol": false}],
        "limits": {"connections": 16},
    }));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut players: Vec<_> = (0..14).map(|_| connect(port)).collect();
    players.iter_mut().for_each(|player| echo(player, "in"));
    let _waits_in_the_kernel = connect(port);
    guard.wait_for_figure("connections_refused_total{reason=\"connections\"}", |refused| refused > 0);
    let mut api = connect(guard.listener("http").port());
    assert_eq!(crate::http_client::get(&mut api, "api.example", "/").status(), 200);
}

#[test]
fn silent_connection_ends_unless_its_server_speaks() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"first_byte_ms": 300}}));
    let (echoes, greets) = (free_port(), free_port());
    guard.source.serve_route(&route("a", "tcp", echoes, Some(tcp_echo())));
    guard.source.serve_route(&route("b", "tcp", greets, Some(crate::backends::tcp_named("welcome"))));
    let mut listens = connect(greets);
    listens.read_exact(&mut [0; 7]).unwrap();
    let mut speaks = connect(echoes);
    echo(&mut speaks, "in");
    let begun = Instant::now();
    assert!(is_closed(&mut connect(echoes)));
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    guard.wait_for_figure("connections_refused_total{reason=\"first_byte\"}", |refused| refused == 1);
    echo(&mut speaks, "stays");
    listens.set_nonblocking(true).unwrap();
    let waits = listens.read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "a client that only listens was closed");
}

#[test]
fn sighup_applies_limits_and_timeouts_without_closing_connections() {
    let mut guard = EdgeProcess::start_with(json!({
        "workers": 1,
        "limits": {"connections_per_address": 2, "datagram_sessions_per_address": 2},
    }));
    let (bytes, datagrams) = (free_port(), free_port());
    guard.source.serve_route(&route("a", "tcp", bytes, Some(tcp_echo())));
    guard.source.serve_route(&route("b", "udp", datagrams, Some(udp_echo())));
    let mut held = [connect(bytes), connect(bytes)];
    held.iter_mut().for_each(|player| echo(player, "in"));
    assert!(is_closed(&mut connect(bytes)));
    let speakers = [connect_datagram(datagrams), connect_datagram(datagrams), connect_datagram(datagrams)];
    // The second packet of a player confirms its session, which then cannot be replaced.
    speakers[..2].iter().for_each(|player| (0..2).for_each(|_| echo_datagram(player, "in")));
    speakers[2].send(b"one too many").unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"sessions_per_address\"}", |dropped| dropped == 1);

    let (mut limits, times) = (json!({"connections_per_address": 3, "datagram_sessions": 77}), 1_000);
    guard.set("limits", limits.clone());
    guard.set("timeouts", json!({"stream_idle_ms": times, "datagram_idle_ms": times}));
    guard.signal(libc::SIGHUP);
    guard.wait_for_figure("datagram_sessions_max", |most| most == 77);
    assert_eq!(guard.status()["datagram_sessions_max"], 77);
    let mut late = connect(bytes);
    echo(&mut late, "below the limit again");
    assert_eq!(ask_datagram(&speakers[2], "for me, too"), "for me, too");
    assert!(is_closed(&mut late), "a later connection has the new timeout");
    held.iter_mut().for_each(|player| echo(player, "an earlier connection keeps its timeout"));
    guard.wait_for_figure("datagram_sessions_ended_total{reason=\"idle\"}", |ended| ended == 3);

    limits["connections_per_address"] = json!(1);
    limits["datagram_sessions"] = json!(78);
    guard.set("limits", limits.clone());
    guard.signal(libc::SIGHUP);
    guard.wait_for_figure("datagram_sessions_max", |most| most == 78);
    assert!(is_closed(&mut connect(bytes)));
    held.iter_mut().for_each(|player| echo(player, "no connection is closed"));

    limits["connections_per_address"] = json!(0);
    limits["datagram_sessions"] = json!(79);
    guard.set("limits", limits);
    guard.signal(libc::SIGHUP);
    guard.wait_for_figure("failures_total{of=\"certificates\"}", |failures| failures == 1);
    assert_eq!(guard.figure("datagram_sessions_max"), 78, "one mistake, and nothing is taken");
}

/// Sets the soft descriptor limit of a process, and returns the hard limit.
pub fn limit_descriptors(pid: u32, now: Option<u64>) -> u64 {
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the process is a child, and both limits outlive the calls.
    unsafe {
        assert_eq!(libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, std::ptr::null(), &raw mut before), 0);
        let after = libc::rlimit { rlim_cur: now.unwrap_or(before.rlim_max), rlim_max: before.rlim_max };
        assert_eq!(libc::prlimit(pid as i32, libc::RLIMIT_NOFILE, &raw const after, std::ptr::null_mut()), 0);
    }
    before.rlim_max
}

#[test]
fn exhausted_descriptors_only_delay_new_connections() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut inside = connect(port);
    echo(&mut inside, "before");
    // Opened before the descriptors run out.
    let mut metrics = guard.connect_metrics();
    // No further descriptor can be opened.
    limit_descriptors(guard.child.id(), Some(3));
    let started = Instant::now();
    let mut late = connect(port);
    wait_for("it was tried again and again", || (metrics.figure("accept_pauses_total") >= 4).then_some(()));
    let waited = started.elapsed();
    assert!(waited >= Duration::from_millis(150), "4 tries in {waited:?}: a loop that does not pause");
    echo(&mut inside, "meanwhile");
    // Unserved and not refused: another port would not help.
    let others = [route("b", "tcp", free_port(), Some(tcp_echo())), route("c", "udp", free_port(), Some(udp_echo()))];
    guard.source.put(&others);
    for owner in ["b", "c"] {
        let report = guard.source.wait_for(owner, crate::wire::OutcomeKind::Unserved);
        assert!(report.reason.contains("open files"), "{}", report.reason);
    }
    limit_descriptors(guard.child.id(), None);
    echo(&mut late, "at last");
    for owner in ["b", "c"] {
        guard.source.wait_for(owner, crate::wire::OutcomeKind::Listening);
    }
}

#[test]
fn connection_with_the_last_descriptor_waits_for_its_backend() {
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let (bytes, requests) = (free_port(), free_port());
    guard.source.put(&[
        route("a", "tcp", bytes, Some(tcp_echo())),
        route("b", "http", requests, Some(crate::http_client::mirror())),
    ]);
    guard.source.wait_for("a", crate::wire::OutcomeKind::Listening);
    guard.source.wait_for("b", crate::wire::OutcomeKind::Listening);
    guard.wait_for_figure("routes_kept", |kept| kept == 1);
    let open = wait_until_stable("nothing is opened or closed any more", || guard.descriptors());
    // One descriptor for each player, and none for their backends.
    let is_free = |number: &u64| !std::path::Path::new(&format!("/proc/{}/fd/{number}", guard.child.id())).exists();
    limit_descriptors(guard.child.id(), (0..).filter(is_free).nth(2));
    let (mut stream, mut request) = (connect(bytes), connect(requests));
    request.write_all(b"GET / HTTP/1.1\r\nhost: b\r\n\r\n").unwrap();
    wait_for("both are inside", || (guard.descriptors() == open + 2).then_some(()));
    stream.set_nonblocking(true).unwrap();
    let waits = stream.read(&mut [0; 1]).unwrap_err();
    assert_eq!(waits.kind(), std::io::ErrorKind::WouldBlock, "the player was sent away");
    stream.set_nonblocking(false).unwrap();
    limit_descriptors(guard.child.id(), None);
    echo(&mut stream, "at last");
    assert_eq!(crate::http_client::read(&mut request).unwrap().status(), 200);
}

#[test]
fn descriptor_limit_is_raised() {
    let guard = EdgeProcess::start_with(json!({"limits": {"connections": 1_000, "datagram_sessions": 500}}));
    let report = guard.status();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", guard.child.id())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let now: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    let most: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    assert_eq!(now, most, "there is more to be had");
    assert_eq!(report["descriptors"], now);
}
