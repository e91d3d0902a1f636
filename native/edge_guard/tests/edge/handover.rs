//! Upgrades: a newer process takes over while players are connected.

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use serde_json::json;

use crate::backends::{ask_datagram, connect, connect_datagram, echo, is_closed, tcp_echo, udp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, server, upgrade, websocket};
use crate::wait::wait_for;
use crate::wire::OutcomeKind;

/// Replaced process, which ends with the test.
pub struct OlderProcess(std::process::Child);

impl OlderProcess {
    fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        self.0.try_wait().unwrap()
    }

    #[track_caller]
    fn assert_ends(&mut self) {
        assert!(wait_for("the older process ends", || self.has_ended()).success());
    }
}

impl Drop for OlderProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Replaces the edge-guard process, and returns the older process.
pub fn replace(guard: &mut EdgeProcess) -> OlderProcess {
    let newer = guard.another(&["--replace"]);
    let older = OlderProcess(std::mem::replace(&mut guard.child, newer));
    guard.wait_until_ready();
    older
}

#[test]
fn sessions_continue_during_a_takeover() {
    let mut guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    let (stream, datagram, web) = (free_port(), free_port(), free_port());
    let session_server = udp(|_, from| Some(from.port().to_string().into()));
    guard.source.put(&[
        route("a", "tcp", stream, Some(tcp_echo())),
        route("b", "udp", datagram, Some(session_server)),
        route("c", "http", web, Some(websocket())),
    ]);
    for owner in ["a", "b", "c"] {
        guard.source.wait_for(owner, OutcomeKind::Listening);
    }
    let mut streams: Vec<TcpStream> = (0..100).map(|_| connect(stream)).collect();
    streams.iter_mut().for_each(|stream| echo(stream, "before"));
    let players: Vec<UdpSocket> = (0..100).map(|_| connect_datagram(datagram)).collect();
    let sessions: Vec<String> = players.iter().map(|player| ask_datagram(player, "who")).collect();
    let mut socket = connect(web);
    upgrade(&mut socket, "c");
    let listener = guard.listener("http");

    let mut older = replace(&mut guard);

    assert_eq!(guard.listener("http"), listener);
    streams.iter_mut().for_each(|stream| echo(stream, "after"));
    echo(&mut socket, "after");
    let after: Vec<String> = players.iter().map(|player| ask_datagram(player, "who")).collect();
    assert_eq!(sessions, after, "a new UDP session was created");
    assert_eq!(guard.figure("datagram_sessions"), 100);
    echo(&mut connect(stream), "new");
    // The newer process is another instance, so it reports every route.
    guard.source.forget_outcomes();
    guard.source.put(&[route("d", "tcp", free_port(), Some(tcp_echo()))]);
    guard.source.wait_for("d", OutcomeKind::Listening);
    assert!(older.has_ended().is_none(), "connections continue in the older process");
    drop((streams, socket));
    older.assert_ends();
}

#[test]
fn takeover_refuses_no_connection_and_loses_no_datagram() {
    let mut guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    guard.source.put(&[
        route("a", "tcp", stream, Some(tcp_echo())),
        route("b", "udp", datagram, Some(udp(|datagram, _| Some(datagram.to_vec())))),
    ]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let (is_over, connected) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let comers = std::thread::spawn({
        let (is_over, connected) = (is_over.clone(), connected.clone());
        move || {
            while !is_over.load(SeqCst) {
                echo(&mut connect(stream), "let me in");
                connected.fetch_add(1, SeqCst);
            }
        }
    });
    let speakers = std::thread::spawn({
        let is_over = is_over.clone();
        move || {
            let player = connect_datagram(datagram);
            let mut count = 0_u64;
            // Sends the next datagram after the reply to the last, which shows a loss.
            while !is_over.load(SeqCst) {
                crate::backends::echo_datagram(&player, &count.to_string());
                count += 1;
            }
            count
        }
    });
    for _ in 0..3 {
        let before = connected.load(SeqCst);
        let mut older = replace(&mut guard);
        wait_for("comers are served by the newer process", || (connected.load(SeqCst) > before + 20).then_some(()));
        older.assert_ends();
    }
    is_over.store(true, SeqCst);
    comers.join().unwrap();
    assert!(speakers.join().unwrap() > 100);
    assert_eq!(guard.figure("datagram_sessions"), 1);
}

#[test]
fn removal_waits_for_older_processes() {
    let mut guard = EdgeProcess::start();
    let (port, other) = (free_port(), free_port());
    let backend = tcp_echo();
    guard.source.put(&[route("a", "tcp", port, Some(backend)), route("b", "tcp", other, Some(backend))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let mut first = connect(port);
    echo(&mut first, "in the first process");
    let mut oldest = replace(&mut guard);
    let mut second = connect(port);
    let mut stays = connect(other);
    echo(&mut second, "in the second");
    echo(&mut stays, "in the second");
    let mut older = replace(&mut guard);
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(is_closed(&mut first) && is_closed(&mut second));
    oldest.assert_ends();
    echo(&mut stays, "untouched");
    guard.ask("POST", "/stop");
    assert!(wait_for("it ends", || guard.child.try_wait().unwrap()).success());
    older.assert_ends();
}

#[test]
fn older_process_finishes_its_requests() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let receiver = Arc::new(std::sync::Mutex::new(receiver));
    let backend = server(move |request, _| {
        if request.first_line.contains("slow") {
            receiver.lock().unwrap().recv().unwrap();
        }
        "done".to_owned()
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    player.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 1);
    let mut older = replace(&mut guard);
    assert_eq!(get(&mut connect(port), "a", "/quick").text(), "done");
    sender.send(()).unwrap();
    assert_eq!(crate::http_client::read(&mut player).unwrap().text(), "done");
    assert!(is_closed(&mut player), "the next request is the newer process's");
    older.assert_ends();
}

/// Starts a newer process that must fail, and returns its error text.
#[track_caller]
fn fail_to_replace(guard: &EdgeProcess) -> String {
    let mut newer = std::process::Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard"));
    let ended = newer.arg(guard.config()).arg("--replace").output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    String::from_utf8(ended.stderr).unwrap()
}

#[test]
fn failed_takeover_leaves_everything_to_the_older_process() {
    let mut guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    let (stream, datagram) = (free_port(), free_port());
    let session_server = udp(|_, from| Some(from.port().to_string().into()));
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(session_server))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let mut player = connect(stream);
    echo(&mut player, "before");
    let udp_player = connect_datagram(datagram);
    let session = ask_datagram(&udp_player, "who");
    let listener = guard.listener("http");
    let mut failures = 0;
    let mut assert_it_goes_on = |guard: &EdgeProcess, player: &mut TcpStream| {
        failures += 1;
        guard.wait_for_figure("failures_total{of=\"handover\"}", |failed| failed == failures);
        guard.wait_until_ready();
        assert_eq!(guard.listener("http"), listener);
        assert_eq!(get(&mut connect(listener.port()), "nobody", "/").status(), 404);
        assert_eq!(ask_datagram(&udp_player, "who"), session, "a new UDP session was created");
        echo(player, "as before");
        echo(&mut connect(stream), "new");
        let pid = std::fs::read_to_string(guard.folder().join("LOCK")).unwrap();
        assert_eq!(pid.trim(), guard.child.id().to_string());
    };

    // Occupies the address of the host listener.
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let expected_address = held.local_addr().unwrap().to_string();
    guard.set("http", json!(expected_address));
    let output = fail_to_replace(&guard);
    assert!(output.contains(&format!("cannot listen on {expected_address}: ")), "{output}");
    assert_it_goes_on(&guard, &mut player);
    guard.set("http", json!("127.0.0.1:0"));
    // Occupies the path of the new administration socket.
    let in_the_way = guard.folder().join("admin.sock.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let output = fail_to_replace(&guard);
    assert!(output.contains("cannot listen"), "{output}");
    assert_it_goes_on(&guard, &mut player);
    std::fs::remove_dir(&in_the_way).unwrap();

    drop(held);
    guard.set("http", json!(expected_address));
    let mut older = replace(&mut guard);
    assert_eq!(guard.listener("http").to_string(), expected_address);
    assert_eq!(ask_datagram(&udp_player, "who"), session);
    echo(&mut player, "in the older process");
    drop(player);
    older.assert_ends();
}

#[test]
fn newer_process_that_dies_during_the_handover_changes_nothing() {
    let guard = EdgeProcess::start();
    let (stream, datagram) = (free_port(), free_port());
    let session_server = udp(|_, from| Some(from.port().to_string().into()));
    guard.source.put(&[route("a", "tcp", stream, Some(tcp_echo())), route("b", "udp", datagram, Some(session_server))]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let player = connect_datagram(datagram);
    let session = ask_datagram(&player, "who");
    let mut newer = UnixStream::connect(guard.folder().join("admin.sock")).unwrap();
    newer
        .write_all(b"POST /handover HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: hosting-handover\r\n\r\n")
        .unwrap();
    let _ = std::io::Read::read(&mut newer, &mut [0; 16]).unwrap();
    drop(newer);
    guard.wait_for_figure("failures_total{of=\"handover\"}", |failures| failures == 1);
    assert_eq!(ask_datagram(&player, "who"), session);
    echo(&mut connect(stream), "as before");
    guard.source.forget_outcomes();
    guard.source.put(&[route("c", "tcp", free_port(), Some(tcp_echo()))]);
    guard.source.wait_for("c", OutcomeKind::Listening);
}

#[test]
fn newer_process_serves_the_last_routes_without_the_source() {
    let mut guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    guard.source.kill();
    let mut older = replace(&mut guard);
    older.assert_ends();
    echo(&mut connect(port), "alone");
    guard.kill();
    guard.restart();
    echo(&mut connect(port), "from disk");
}

#[test]
fn takeover_of_more_sessions_than_free_descriptors_succeeds() {
    let mut guard = EdgeProcess::start_with(json!({"workers": 1}));
    let port = free_port();
    let session_server = udp(|_, from| Some(from.port().to_string().into()));
    guard.source.serve_route(&route("a", "udp", port, Some(session_server)));
    let players: Vec<UdpSocket> = (0..300).map(|_| connect_datagram(port)).collect();
    let sessions: Vec<String> = players.iter().map(|player| ask_datagram(player, "who")).collect();
    crate::limits::limit_descriptors(guard.child.id(), Some(guard.descriptors() as u64 + 30));
    let mut older = replace(&mut guard);
    guard.wait_for_figure("datagram_sessions", |sessions| sessions == 300);
    let after: Vec<String> = players.iter().map(|player| ask_datagram(player, "who")).collect();
    assert_eq!(sessions, after, "a new UDP session was created");
    older.assert_ends();
}
