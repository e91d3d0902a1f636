//! Own backends at Unix sockets, reached by host.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use http::Request;
use serde_json::{Value, json};

use crate::backends::{at_socket, connect, echo, is_closed, serve};
use crate::edge_process::EdgeProcess;
use crate::host_routing::say_client;
use crate::http_client::{get, read, upgrade, upgraded_echo};
use crate::http2::{begin, runtime, text_of};
use crate::wait::wait_for;

fn backend(host: &str, path: &Path, has_proxy_header: bool) -> Value {
    json!({"hosts": [host], "address": format!("unix:{}", path.display()), "proxy_protocol": has_proxy_header})
}

fn guard(backends: Value) -> EdgeProcess {
    EdgeProcess::start_with(json!({"http": "127.0.0.1:0", "workers": 1, "backends": backends}))
}

/// Starts a server that responds with the number of its connections so far.
fn count_connections(path: &Path) {
    let count = Arc::new(AtomicUsize::new(0));
    at_socket(path, move |mut stream| {
        let number = count.fetch_add(1, SeqCst) + 1;
        while read(&mut stream).is_some() {
            if write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n{number}").is_err() {
                return;
            }
        }
    });
}

/// Number of all connections and of open connections.
#[derive(Default)]
struct ConnectionCounts {
    total: AtomicUsize,
    open: AtomicUsize,
}

impl ConnectionCounts {
    #[track_caller]
    fn wait_until_open(&self, what: &str, is_expected: impl Fn(usize) -> bool) {
        wait_for(what, || is_expected(self.open.load(SeqCst)).then_some(()));
    }
}

/// Starts a server that reads PROXY headers, and responds when `at_once` connections have arrived.
fn proxied_backend(path: &Path, at_once: usize) -> Arc<ConnectionCounts> {
    let counts = Arc::new(ConnectionCounts::default());
    let all_counts = counts.clone();
    at_socket(path, move |mut stream| {
        all_counts.total.fetch_add(1, SeqCst);
        all_counts.open.fetch_add(1, SeqCst);
        let mut is_there = stream.read_exact(&mut [0; 28]).is_ok();
        while is_there && read(&mut stream).is_some() {
            wait_for("all are here", || (all_counts.total.load(SeqCst) >= at_once).then_some(()));
            is_there = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nin").is_ok();
        }
        all_counts.open.fetch_sub(1, SeqCst);
    });
    counts
}

#[test]
fn proxy_header_has_player_and_listener_addresses() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    at_socket(&path, say_client);
    let guard = guard(json!([backend("api.example", &path, true)]));
    let port = guard.listener("http").port();
    for _ in 0..3 {
        let mut player = connect(port);
        let own = player.local_addr().unwrap();
        for _ in 0..2 {
            let text = get(&mut player, "api.example", "/").text();
            assert_eq!(text, format!("{own} 127.0.0.1 at 127.0.0.1:{port}"));
        }
    }
}

#[test]
fn connections_without_proxy_header_are_shared() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("cdn.sock");
    count_connections(&path);
    let guard = guard(json!([backend("cdn.example", &path, false)]));
    for _ in 0..3 {
        let mut player = connect(guard.listener("http").port());
        assert_eq!(get(&mut player, "cdn.example", "/").text(), "1", "the first one's connection");
    }
}

#[test]
fn upgraded_connection_relays_bytes() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    at_socket(&path, upgraded_echo);
    let guard = guard(json!([backend("api.example", &path, false)]));
    let mut player = connect(guard.listener("http").port());
    upgrade(&mut player, "api.example");
    echo(&mut player, "one");
    echo(&mut player, &"much".repeat(50_000));
    guard.wait_for_figure("connections{kind=\"websocket\"}", |open| open == 1);
    player.shutdown(Shutdown::Write).unwrap();
    assert!(is_closed(&mut player), "the server's end is passed on");
}

#[test]
fn missing_backend_fails_one_request_only() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [backend("api.example", &path, false)],
        "timeouts": {"connect_ms": 300},
    }));
    let mut player = connect(guard.listener("http").port());
    let answer = get(&mut player, "api.example", "/");
    assert_eq!(answer.status(), 502);
    assert!(answer.text().contains("SERVER_UNREACHABLE"), "{}", answer.text());
    count_connections(&path);
    assert_eq!(get(&mut player, "api.example", "/").text(), "1");
}

#[test]
fn restarting_backend_is_waited_for() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    drop(UnixListener::bind(&path).unwrap());
    let guard = guard(json!([backend("api.example", &path, false)]));
    let port = guard.listener("http").port();
    std::thread::scope(|scope| {
        let answer = scope.spawn(|| get(&mut connect(port), "api.example", "/").text().to_owned());
        guard.wait_for_figure("connections{kind=\"http\"}", |open| open == 1);
        assert!(UnixStream::connect(&path).is_err());
        std::fs::remove_file(&path).unwrap();
        count_connections(&path);
        assert_eq!(answer.join().unwrap(), "1");
    });
}

#[test]
fn full_accept_queue_is_retried() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).unwrap();
    socket.bind(&socket2::SockAddr::unix(&path).unwrap()).unwrap();
    socket.listen(0).unwrap();
    let listener = UnixListener::from(std::os::fd::OwnedFd::from(socket));
    // Fills the accept queue: further connections fail at once.
    let _waiting = UnixStream::connect(&path).unwrap();
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [backend("api.example", &path, false)],
        "timeouts": {"connect_ms": 300},
    }));
    let mut player = connect(guard.listener("http").port());
    let answer = get(&mut player, "api.example", "/");
    assert_eq!(answer.status(), 504, "it was waited for: {}", answer.text());
    serve(listener, |mut stream| {
        while read(&mut stream).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nin").unwrap();
        }
    });
    assert_eq!(get(&mut player, "api.example", "/").text(), "in");
}

#[test]
fn address_limit_applies_before_the_backend() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    at_socket(&path, say_client);
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [backend("api.example", &path, true)],
        "limits": {"connections_per_address": 2},
    }));
    let port = guard.listener("http").port();
    let mut players: Vec<TcpStream> = (0..2).map(|_| connect(port)).collect();
    for player in &mut players {
        assert_eq!(get(player, "api.example", "/").status(), 200);
    }
    assert!(is_closed(&mut connect(port)), "the third of one address");
    players.pop();
    wait_for("a place", || {
        let mut player = connect(port);
        player.write_all(b"GET / HTTP/1.1\r\nhost: api.example\r\n\r\n").ok()?;
        (read(&mut player)?.status() == 200).then_some(())
    });
}

#[test]
fn one_backend_connection_is_kept_after_concurrent_requests() {
    const AT_ONCE: usize = 100;
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    let counts = proxied_backend(&path, AT_ONCE);
    let guard = guard(json!([backend("api.example", &path, true)]));
    let port = guard.listener("http").port();
    runtime().block_on(async {
        let sender = begin::<String>(port).await;
        let ask = || {
            let mut sender = sender.clone();
            let request = Request::get("http://api.example/").body(String::new()).unwrap();
            tokio::spawn(async move { text_of(sender.send_request(request).await.unwrap().into_body()).await })
        };
        let responses: Vec<_> = (0..AT_ONCE).map(|_| ask()).collect();
        for answer in responses {
            assert_eq!(answer.await.unwrap(), "in");
        }
        counts.wait_until_open("no more than the player's connection is counted for", |open| open <= 1);
        assert_eq!(ask().await.unwrap(), "in");
        assert_eq!(counts.total.load(SeqCst), AT_ONCE, "the one that was left is good for the next request");
    });
}

#[test]
fn kept_connection_is_reused_or_closed_by_the_next_request() {
    let test_folder = tempfile::tempdir().unwrap();
    let [api, other, cdn] = ["api.sock", "other.sock", "cdn.sock"].map(|name| test_folder.path().join(name));
    let (of_api, of_other) = (proxied_backend(&api, 1), proxied_backend(&other, 1));
    count_connections(&cdn);
    let guard = guard(json!([
        backend("api.example", &api, true),
        backend("other.example", &other, true),
        backend("cdn.example", &cdn, false),
    ]));
    let mut player = connect(guard.listener("http").port());
    for _ in 0..2 {
        assert_eq!(get(&mut player, "api.example", "/").text(), "in");
    }
    assert_eq!(of_api.total.load(SeqCst), 1, "used again");
    assert_eq!(get(&mut player, "other.example", "/").text(), "in");
    of_api.wait_until_open("it is closed for another backend", |open| open == 0);
    assert_eq!(get(&mut player, "cdn.example", "/").text(), "1");
    of_other.wait_until_open("it made room for one that is shared", |open| open == 0);
}

#[test]
fn idle_kept_connection_is_closed() {
    let test_folder = tempfile::tempdir().unwrap();
    let path = test_folder.path().join("api.sock");
    let counts = proxied_backend(&path, 1);
    let guard = EdgeProcess::start_with(json!({
        "http": "127.0.0.1:0",
        "backends": [backend("api.example", &path, true)],
        "timeouts": {"head_ms": 200},
    }));
    let mut player = connect(guard.listener("http").port());
    assert_eq!(get(&mut player, "api.example", "/").text(), "in");
    counts.wait_until_open("it is closed", |open| open == 0);
    assert_eq!(get(&mut player, "api.example", "/").text(), "in", "the player is where it was");
    assert_eq!(counts.total.load(SeqCst), 2);
}
