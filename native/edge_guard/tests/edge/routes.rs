//! Routes: added, changed, removed, kept over failures of their source, and reported.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

use serde_json::json;

use crate::backends::{
    connect, connect_datagram, echo, echo_datagram, is_closed, tcp_and_udp_echo, tcp_echo, tcp_named, udp_echo,
};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::handover::replace;
use crate::http_client::{get, mirror};
use crate::wait::wait_for;
use crate::wire::{FollowResponse, OutcomeKind, Route};

#[test]
fn route_is_reported_as_listening_once_it_serves() {
    let guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(udp_echo()))]);
    let reported = guard.source.wait_for("a", OutcomeKind::Listening);
    assert_eq!((reported.port_name.as_str(), reported.port), ("game", stream.into()));
    guard.source.wait_for("b", OutcomeKind::Listening);
    echo(&mut connect(stream), "hello");
    echo_datagram(&connect_datagram(datagram), "hello");
    assert_eq!(guard.status()["routes_listening"], 2);
}

#[test]
fn removal_is_reported_after_sockets_and_sessions_are_closed() {
    let guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[
        route("a", "tcp", stream, Some(tcp_echo())),
        Route { port_name: "query".into(), ..route("a", "udp", datagram, Some(udp_echo())) },
    ]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    let mut player = connect(stream);
    echo(&mut player, "before");
    let other = connect_datagram(datagram);
    echo_datagram(&other, "before");
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(is_closed(&mut player), "a session went on");
    assert!(TcpStream::connect(("127.0.0.1", stream)).is_err(), "the port is still open");
    UdpSocket::bind(("127.0.0.1", datagram)).expect("the port is free again");
    assert_eq!(guard.figure("datagram_sessions"), 0);
    assert_eq!(guard.figure("connections{kind=\"tcp\"}"), 0);
}

#[test]
fn slow_save_delays_no_route_and_no_later_change_is_lost() {
    let guard = EdgeProcess::start();
    wait_for("the first save", || (guard.status()["is_kept"] == true).then_some(()));
    // Opening the file blocks until the pipe has a reader.
    let pipe = guard.folder().join("routes.new");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    guard.source.serve_route(&route("a", "tcp", free_port(), Some(tcp_echo())));
    guard.source.serve_route(&route("b", "tcp", free_port(), Some(tcp_echo())));
    assert_eq!(guard.status()["is_kept"], false);
    guard.source.remove(&["a"]);
    wait_for("the removal", || (guard.status()["routes_listening"] == 1).then_some(()));
    assert!(!guard.source.has_outcome("a", OutcomeKind::Removed), "a restart would restore the route");
    let mut reader = std::fs::File::open(&pipe).unwrap();
    std::fs::remove_file(&pipe).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    guard.source.wait_for("a", OutcomeKind::Removed);
    let saved = std::fs::read_to_string(guard.folder().join("routes")).unwrap();
    assert!(saved.contains("\"b\"") && !saved.contains("\"a\""), "{saved}");
}

#[test]
fn removal_of_an_unknown_route_is_reported() {
    let guard = EdgeProcess::start();
    guard.source.remove(&["nobody"]);
    guard.source.wait_for("nobody", OutcomeKind::Removed);
}

#[test]
fn empty_set_and_older_epoch_remove_nothing() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect(port);
    echo(&mut player, "before");
    let epoch = guard.source.with_state(|state| state.epoch);
    let empty = FollowResponse { epoch: epoch + 1, version: 9, is_complete: true, ..FollowResponse::default() };
    guard.source.answer_next(empty);
    guard.source.wait_for_questions(2);
    let other = free_port();
    let older = FollowResponse {
        epoch: epoch - 1,
        version: 1,
        is_complete: true,
        routes: vec![route("b", "tcp", other, Some(tcp_echo()))],
        ..FollowResponse::default()
    };
    guard.source.answer_next(older);
    guard.source.wait_for("b", OutcomeKind::Listening);
    echo(&mut player, "after");
    echo(&mut connect(port), "anew");
    assert!(!guard.source.has_outcome("a", OutcomeKind::Removed));
}

#[test]
fn restore_closes_the_ports_of_before() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect(port);
    echo(&mut player, "before");
    let epoch = guard.source.with_state(|state| state.epoch);
    let restore_id = "first restore".to_owned();
    guard.source.lose("a");
    let restored =
        FollowResponse { epoch: epoch - 1, version: 1, is_complete: true, restore_id, ..FollowResponse::default() };
    guard.source.answer_next(restored);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(is_closed(&mut player), "a session went on");
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "the port is still open");
}

#[test]
fn removal_by_an_older_epoch_is_ignored() {
    let guard = EdgeProcess::start();
    let (first, second) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", first, Some(tcp_echo())), route("b", "tcp", second, Some(tcp_echo()))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let mut players = [connect(first), connect(second)];
    players.iter_mut().for_each(|player| echo(player, "before"));
    let epoch = guard.source.with_state(|state| state.epoch);
    // A removal of an unknown owner is reported, which shows that the request was received.
    let removed = ["a", "b", "nobody"].map(str::to_owned).to_vec();
    let older = FollowResponse { epoch: epoch - 1, version: 9, removed, ..FollowResponse::default() };
    guard.source.answer_next(FollowResponse { is_complete: true, ..older.clone() });
    guard.source.wait_for("nobody", OutcomeKind::Removed);
    let removed = ["a", "b", "nobody else"].map(str::to_owned).to_vec();
    guard.source.answer_next(FollowResponse { version: 10, removed, ..older });
    guard.source.wait_for("nobody else", OutcomeKind::Removed);
    players.iter_mut().for_each(|player| echo(player, "after"));
    echo(&mut connect(first), "anew");
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    let [cut, stays] = &mut players;
    assert!(is_closed(cut), "a session went on");
    echo(stays, "still here");
    assert!(!guard.source.has_outcome("b", OutcomeKind::Removed));
}

#[test]
fn complete_set_of_a_new_epoch_removes_missing_routes() {
    let mut guard = EdgeProcess::start();
    let (first, second) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", first, Some(tcp_echo())), route("b", "tcp", second, Some(tcp_echo()))]);
    guard.source.wait_for("b", OutcomeKind::Listening);
    guard.source.kill();
    guard.source.lose("a");
    guard.source.start();
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(TcpStream::connect(("127.0.0.1", first)).is_err());
    echo(&mut connect(second), "still here");
}

#[test]
fn sessions_survive_restarts_of_the_source() {
    let mut guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(udp_echo()))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let mut streams: Vec<TcpStream> = (0..100).map(|_| connect(stream)).collect();
    let datagrams: Vec<UdpSocket> = (0..100).map(|_| connect_datagram(datagram)).collect();
    for death in 0..10 {
        guard.source.kill();
        streams.iter_mut().for_each(|stream| echo(stream, &format!("death {death}")));
        datagrams.iter().for_each(|socket| echo_datagram(socket, &format!("death {death}")));
        guard.source.forget_outcomes();
        guard.source.start();
        // The source may have lost all outcomes, so they are reported again.
        guard.source.wait_for("a", OutcomeKind::Listening);
        guard.source.wait_for("b", OutcomeKind::Listening);
    }
    streams.iter_mut().for_each(|stream| echo(stream, "at the end"));
    datagrams.iter().for_each(|socket| echo_datagram(socket, "at the end"));
    assert_eq!(guard.figure("datagram_sessions_total"), 100, "a session was begun anew");
    assert_eq!(guard.figure("connections_total{kind=\"tcp\"}"), 100);
}

#[test]
fn start_serves_the_saved_routes_without_the_source() {
    let mut guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(udp_echo()))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    // Another thread saves them, after the outcome.
    let has_both = |text: &String| [stream, datagram].iter().all(|port| text.contains(&port.to_string()));
    wait_for("the routes are saved", || std::fs::read_to_string(guard.folder().join("routes")).ok().filter(has_both));
    guard.source.kill();
    guard.kill();
    guard.restart();
    echo(&mut connect(stream), "alone");
    echo_datagram(&connect_datagram(datagram), "alone");
    assert_eq!(guard.status()["is_connected"], false);
    guard.source.forget_outcomes();
    guard.source.start();
    guard.source.wait_for("a", OutcomeKind::Listening);
}

#[test]
fn removed_routes_stay_removed_after_a_restart() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    let has_none = |text: &String| !text.contains(&port.to_string());
    wait_for("the removal is saved", || std::fs::read_to_string(guard.folder().join("routes")).ok().filter(has_none));
    guard.source.kill();
    guard.kill();
    guard.restart();
    assert_eq!(guard.status()["routes_listening"], 0);
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
}

#[test]
fn damaged_route_file_is_set_aside() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    guard.kill();
    std::fs::write(guard.folder().join("routes"), "{").unwrap();
    guard.restart();
    wait_for("the route is back", || TcpStream::connect(("127.0.0.1", port)).ok());
    assert!(guard.folder().join("routes.damaged").exists());
}

#[test]
fn occupied_port_is_refused_and_retried() {
    let guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    // A program with SO_REUSEADDR gets no more than others.
    let other_listener = TcpListener::bind(("127.0.0.1", stream)).unwrap();
    let sharing = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    sharing.set_reuse_address(true).unwrap();
    sharing.set_reuse_port(true).unwrap();
    sharing.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], datagram)).into()).unwrap();
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(udp_echo()))]);
    let reported = guard.source.wait_for("a", OutcomeKind::Refused);
    assert_eq!(reported.port, u32::from(stream));
    assert!(reported.reason.contains("in use"), "{}", reported.reason);
    guard.source.wait_for("b", OutcomeKind::Refused);
    assert_eq!(guard.figure("routes{state=\"refused\"}"), 2);
    drop((other_listener, sharing));
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    echo(&mut connect(stream), "mine now");
    echo_datagram(&connect_datagram(datagram), "mine now");
}

#[test]
fn refused_route_is_served_on_its_new_port() {
    let guard = EdgeProcess::start();
    let (occupied_port, free) = (free_port(), free_port());
    let _other_listener = TcpListener::bind(("127.0.0.1", occupied_port)).unwrap();
    let backend = tcp_echo();
    guard.source.put(&[route("a", "tcp", occupied_port, Some(backend))]);
    guard.source.wait_for("a", OutcomeKind::Refused);
    guard.source.put(&[route("a", "tcp", free, Some(backend))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    echo(&mut connect(free), "here");
}

#[test]
fn route_without_backend_closes_streams_and_drops_datagrams() {
    let guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", stream, None), route("b", "udp", datagram, None)]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    assert!(is_closed(&mut connect(stream)));
    let early = connect_datagram(datagram);
    early.send(b"too early").unwrap();
    guard.wait_for_figure("datagrams_dropped_total{reason=\"no_backend\"}", |dropped| dropped == 1);
    guard.source.serve_route(&route("a", "tcp", stream, Some(tcp_echo())));
    guard.source.serve_route(&route("b", "udp", datagram, Some(udp_echo())));
    echo(&mut connect(stream), "now");
    wait_for("the datagram port leads to the process", || {
        early.send(b"now").unwrap();
        (early.recv(&mut [0; 8]).ok()? == 3).then_some(())
    });
}

#[test]
fn backend_is_reported_on_change_and_to_a_restarted_source() {
    let mut guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    let (stream, datagram) = (free_port(), free_port());
    let routes = |backends: [Option<SocketAddr>; 3]| {
        let [to_stream, to_datagrams, to_host] = backends;
        let host = Route { host: "c.example".to_owned(), ..route("c", "http", 0, to_host) };
        [route("a", "tcp", stream, to_stream), route("b", "udp", datagram, to_datagrams), host]
    };
    let wait_for_backends = |guard: &EdgeProcess, backends: [Option<SocketAddr>; 3]| {
        let owners = ["a", "b", "c"].into_iter().zip(backends);
        owners.for_each(|(owner, backend)| guard.source.wait_for_backend(owner, backend));
    };
    let mirrors = [tcp_echo(), udp_echo(), mirror()].map(Some);
    for backends in [[None; 3], mirrors, [tcp_echo(), udp_echo(), tcp_echo()].map(Some), [None; 3], mirrors] {
        guard.source.put(&routes(backends));
        wait_for_backends(&guard, backends);
    }
    echo(&mut connect(stream), "led");
    // After the report, not even the first datagram is dropped.
    echo_datagram(&connect_datagram(datagram), "led");
    let mut asking = connect(guard.listener("http").port());
    assert_eq!(get(&mut asking, "c.example", "/").status(), 200);
    guard.source.kill();
    guard.source.forget_outcomes();
    guard.source.start();
    wait_for_backends(&guard, mirrors);
    guard.kill();
    guard.source.forget_outcomes();
    guard.restart();
    wait_for_backends(&guard, mirrors);
}

#[test]
fn changed_backend_keeps_open_streams() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut old = connect(port);
    echo(&mut old, "before");
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_named("second"))));
    let mut name = [0; 6];
    connect(port).read_exact(&mut name).unwrap();
    assert_eq!(&name, b"second");
    echo(&mut old, "after");
}

#[test]
fn invalid_route_is_unserved_with_its_reason() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.put(&[route("bad", "quic", 26_000, None), route("good", "tcp", port, Some(tcp_echo()))]);
    let reported = guard.source.wait_for("bad", OutcomeKind::Unserved);
    assert!(reported.reason.contains("quic"), "{}", reported.reason);
    guard.source.wait_for("good", OutcomeKind::Listening);
    echo(&mut connect(port), "fine");
}

#[test]
fn second_process_in_a_folder_is_refused() {
    let guard = EdgeProcess::start();
    let status = guard.another(&[]).wait().unwrap();
    assert_eq!(status.code(), Some(75));
    guard.wait_until_ready();
    let pid = std::fs::read_to_string(guard.folder().join("LOCK")).unwrap();
    assert_eq!(pid.trim(), guard.child.id().to_string());
}

#[test]
fn invalid_settings_are_all_reported_and_nothing_starts() {
    let test_folder = tempfile::tempdir().unwrap();
    let config = test_folder.path().join("config.json");
    std::fs::write(&config, json!({"folder": "relative", "speed": 1}).to_string()).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard")).arg(&config).output().unwrap();
    let reported = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(78));
    for problem in ["folder: must be an absolute path", "source: is required", "speed: is not a setting"] {
        assert!(reported.contains(problem), "{reported}");
    }
}

#[test]
fn unreadable_certificate_is_an_invalid_setting() {
    let test_folder = tempfile::tempdir().unwrap();
    let config = test_folder.path().join("config.json");
    let run = |settings: serde_json::Value, more: &[&str]| {
        std::fs::write(&config, settings.to_string()).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard"));
        let output = command.arg(&config).args(more).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let folder = test_folder.path().join("edge");
    let valid_config = json!({"folder": folder, "source": test_folder.path().join("source.sock")});
    assert_eq!(run(valid_config.clone(), &["--check"]), (Some(0), String::new()));
    let mut bad = valid_config;
    bad["certificates"] = json!([{"server_names": ["a"], "cert": "/nowhere/a.pem", "key": "/nowhere/a.key"}]);
    for more in [&["--check"][..], &[]] {
        let (code, reported) = run(bad.clone(), more);
        assert_eq!(code, Some(78));
        assert!(reported.contains("certificates.0: /nowhere/a.pem"), "{reported}");
    }
    assert!(!folder.join("routes").exists() && !folder.join("admin.sock").exists());
}

#[test]
fn unbindable_listener_is_named_in_the_last_log_line() {
    let test_folder = tempfile::tempdir().unwrap();
    let config = test_folder.path().join("config.json");
    let occupied_port = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = occupied_port.local_addr().unwrap();
    let settings = json!({"folder": test_folder.path().join("edge"), "source": test_folder.path().join("source.sock"), "http": address});
    std::fs::write(&config, settings.to_string()).unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard")).arg(&config).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let reported = String::from_utf8(output.stderr).unwrap();
    let last = reported.lines().last().unwrap();
    assert!(last.contains(&format!("cannot listen on {address}: Address already in use")), "{reported}");
}

#[test]
fn dual_stack_address_serves_both_families() {
    let guard = EdgeProcess::start_with(json!({"bind": "::"}));
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(udp_echo()))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    for (own, address) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        echo(&mut TcpStream::connect((address, stream)).unwrap(), address);
        let player = UdpSocket::bind(own).unwrap();
        player.connect((address, datagram)).unwrap();
        player.set_read_timeout(Some(crate::wait::LONG)).unwrap();
        echo_datagram(&player, address);
    }
}

#[test]
fn tcp_and_udp_share_a_number_and_a_backend() {
    let mut guard = EdgeProcess::start();
    let (port, backend) = (free_port(), tcp_and_udp_echo());
    guard.source.serve_route(&route("a", "tcp_udp", port, Some(backend)));
    assert_eq!(guard.source.wait_for("a", OutcomeKind::Listening).backend_port, u32::from(backend.port()));
    let (mut stream, datagrams) = (connect(port), connect_datagram(port));
    echo(&mut stream, "stream");
    echo_datagram(&datagrams, "datagram");
    assert_eq!(guard.status()["routes_listening"], 1, "one route");
    let _older = replace(&mut guard);
    echo(&mut connect(port), "after a takeover");
    echo_datagram(&datagrams, "after a takeover");
    assert_eq!(guard.figure("datagram_sessions"), 1, "the session was taken over");
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(is_closed(&mut stream), "a connection went on");
    TcpListener::bind(("127.0.0.1", port)).expect("the TCP port is free again");
    UdpSocket::bind(("127.0.0.1", port)).expect("the UDP port is free again");
}

#[test]
fn tcp_and_udp_are_refused_together() {
    let guard = EdgeProcess::start();
    let port = free_port();
    for is_datagram in [false, true] {
        let stream = (!is_datagram).then(|| TcpListener::bind(("127.0.0.1", port)).unwrap());
        let datagram = is_datagram.then(|| UdpSocket::bind(("127.0.0.1", port)).unwrap());
        guard.source.put(&[route("a", "tcp_udp", port, Some(tcp_and_udp_echo()))]);
        guard.source.wait_for("a", OutcomeKind::Refused);
        if is_datagram {
            assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "half of the route is served");
        }
        drop((stream, datagram));
        guard.source.wait_for("a", OutcomeKind::Listening);
        guard.source.remove(&["a"]);
        guard.source.wait_for("a", OutcomeKind::Removed);
        guard.source.forget_outcomes();
    }
}
