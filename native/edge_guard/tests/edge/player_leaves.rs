//! Backends notice that a player leaves before the end of the response.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;

use crate::backends::{connect, tcp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, read, read_chunk, read_head};
use crate::tls::{connect_tls, secure_route, started, trusting};
use crate::wait::LONG;

const HALF_CLOSE_MS: u64 = 100;

/// Time limit of a reaction, much shorter than every timeout in these tests.
const SOON: Duration = Duration::from_secs(5);

#[derive(Debug, PartialEq, Eq)]
enum BackendEvent {
    Request,
    Disconnected,
}

/// Starts a server that sends `answer`, then nothing, and reports the end of its connection.
fn silent_after(answer: &'static str) -> (SocketAddr, Receiver<BackendEvent>) {
    let (event_sender, events) = channel();
    let server = tcp(move |mut stream: TcpStream| {
        while let Some(request) = read(&mut stream) {
            if request.first_line.contains("/quick") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                continue;
            }
            stream.write_all(answer.as_bytes()).unwrap();
            let _ = event_sender.send(BackendEvent::Request);
        }
        let _ = event_sender.send(BackendEvent::Disconnected);
    });
    (server, events)
}

fn silent_route(guard: &EdgeProcess, answer: &'static str) -> (u16, Receiver<BackendEvent>) {
    let port = free_port();
    let (server, events) = silent_after(answer);
    guard.source.serve_route(&route("a", "http", port, Some(server)));
    (port, events)
}

#[track_caller]
fn expect_disconnect(events: &Receiver<BackendEvent>, context: &str) {
    let started = Instant::now();
    assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Disconnected), "{context}");
    assert!(started.elapsed() < SOON, "{context}: after {:?}", started.elapsed());
}

const REQUESTS: [&str; 4] = [
    "GET /find HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET /find HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n",
    "GET /find HTTP/1.0\r\nhost: a\r\n\r\n",
    "POST /find HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody",
];

/// Ways to leave: a reset, an orderly close and a half close.
const DISCONNECTS: [fn(TcpStream) -> Option<TcpStream>; 3] = [
    |player| {
        socket2::SockRef::from(&player).set_linger(Some(Duration::ZERO)).unwrap();
        None
    },
    |_ended| None,
    |player| {
        player.shutdown(Shutdown::Write).unwrap();
        Some(player)
    },
];

#[test]
fn backend_sees_a_waiting_player_leave() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"half_close_ms": HALF_CLOSE_MS}}));
    let (port, events) = silent_route(&guard, "");
    for request in REQUESTS {
        for leave in DISCONNECTS {
            let mut player = connect(port);
            player.write_all(request.as_bytes()).unwrap();
            assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
            let _half = leave(player);
            expect_disconnect(&events, request);
        }
    }
    guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 0);
    assert_eq!(guard.figure("connections_total{kind=\"http\"}"), 12);
}

#[test]
fn backend_sees_a_player_leave_on_a_reused_connection() {
    let guard = EdgeProcess::start_with(json!({"workers": 1, "timeouts": {"half_close_ms": HALF_CLOSE_MS}}));
    let (port, events) = silent_route(&guard, "");
    let mut player = connect(port);
    (0..3).for_each(|_| assert_eq!(get(&mut player, "a", "/quick").status(), 200));
    player.write_all(REQUESTS[0].as_bytes()).unwrap();
    assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
    drop(player);
    expect_disconnect(&events, "it was used before");
    // No other player gets the rest of the response.
    assert_eq!(get(&mut connect(port), "a", "/quick").status(), 200);
}

#[test]
fn backend_sees_a_player_leave_a_silent_stream() {
    const FIRST: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
        9\r\ndata: 1\n\n\r\n";
    let guard = EdgeProcess::start_with(json!({"timeouts": {"half_close_ms": HALF_CLOSE_MS}}));
    let (port, events) = silent_route(&guard, FIRST);
    for leave in DISCONNECTS {
        let mut player = connect(port);
        player.write_all(REQUESTS[0].as_bytes()).unwrap();
        read_head(&mut player).unwrap();
        assert_eq!(read_chunk(&mut player).unwrap(), b"data: 1\n\n");
        assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
        let _half = leave(player);
        expect_disconnect(&events, "after the first event");
    }
    guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 0);
}

#[test]
fn connection_limit_is_released_when_a_player_leaves() {
    let guard = EdgeProcess::start_with(
        json!({"limits": {"connections_per_route": 1}, "timeouts": {"half_close_ms": HALF_CLOSE_MS}}),
    );
    let (port, events) = silent_route(&guard, "");
    for _ in 0..5 {
        let mut player = connect(port);
        player.write_all(REQUESTS[0].as_bytes()).unwrap();
        assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request), "a disconnected player still takes the place");
        drop(player);
        expect_disconnect(&events, "the only one");
        guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 0);
    }
    assert_eq!(guard.figure("connections_refused_total{reason=\"connections_per_route\"}"), 0);
}

#[test]
fn backend_sees_a_player_leave_during_a_body() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"half_close_ms": HALF_CLOSE_MS}}));
    let port = free_port();
    let (event_sender, events) = channel();
    let server = tcp(move |mut stream: TcpStream| {
        read_head(&mut stream).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        let _ = event_sender.send(BackendEvent::Request);
        while matches!(stream.read(&mut [0; 64]), Ok(1..)) {}
        let _ = event_sender.send(BackendEvent::Disconnected);
    });
    guard.source.serve_route(&route("a", "http", port, Some(server)));
    let mut player = connect(port);
    player.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nbody").unwrap();
    assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
    drop(player);
    expect_disconnect(&events, "with a part of the body");
    guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 0);
}

#[test]
fn backend_sees_a_player_leave_over_tls() {
    let (guard, keys) = started();
    let port = free_port();
    let (server, events) = silent_after("");
    guard.source.serve_route(&secure_route("a", "https", port, server));
    for says_goodbye in [false, true] {
        let mut player = connect_tls(&trusting(keys.path(), &[b"http/1.1"]), "localhost", port).unwrap();
        player.write_all(b"GET /find HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
        if says_goodbye {
            player.conn.send_close_notify();
            player.flush().unwrap();
        }
        drop(player);
        expect_disconnect(&events, "over TLS");
    }
    guard.wait_for_figure("connections{kind=\"https\"}", |open| open == 0);
}

#[test]
fn backend_sees_one_cancelled_http2_request() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"half_close_ms": HALF_CLOSE_MS}}));
    let (port, events) = silent_route(&guard, "");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let ask = |path| Request::get(format!("http://a{path}")).body(String::new()).unwrap();
        let answer = tokio::spawn(sender.send_request(ask("/find")));
        let events = tokio::task::spawn_blocking(move || {
            assert_eq!(events.recv_timeout(LONG), Ok(BackendEvent::Request));
            events
        });
        let events = events.await.unwrap();
        answer.abort();
        tokio::task::spawn_blocking(move || expect_disconnect(&events, "over HTTP/2")).await.unwrap();
        assert_eq!(sender.send_request(ask("/quick")).await.unwrap().status(), 200, "the other streams continue");
    });
}

#[test]
fn half_closed_player_gets_its_response() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"half_close_ms": LONG.as_millis() as u64}}));
    let port = free_port();
    let (half_closed, go_on) = channel();
    let go_on = std::sync::Arc::new(std::sync::Mutex::new(go_on));
    let server = crate::http_client::server(move |request, _| {
        go_on.lock().unwrap().recv_timeout(LONG).unwrap();
        request.text() + " received"
    });
    guard.source.serve_route(&route("a", "http", port, Some(server)));
    for request in REQUESTS {
        let mut player = connect(port);
        player.write_all(request.as_bytes()).unwrap();
        player.shutdown(Shutdown::Write).unwrap();
        half_closed.send(()).unwrap();
        let answer = read(&mut player).expect(request);
        assert!(answer.status() == 200 && answer.text().ends_with("received"), "{request}: {answer:?}");
        assert_eq!(player.read(&mut [0; 1]).unwrap(), 0, "{request}");
    }
}
