//! HTTP on a port of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::backends::{connect, echo, is_closed, tcp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{ask, get, mirror, read, read_chunk, read_head, server, upgrade, websocket};
use crate::wait::{LONG, wait_for};
use crate::wire::OutcomeKind;

#[test]
fn request_is_forwarded_with_client_headers_only() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let mut player = connect(port);
    let request = "POST /play?x=1 HTTP/1.1\r\nhost: game.example:8080\r\ncontent-length: 4\r\n\
        connection: keep-alive, x-hop\r\nx-hop: 1\r\nkeep-alive: timeout=9\r\nx-forwarded-for: 6.6.6.6\r\n\
        x-own: kept\r\n\r\nbody";
    let answer = ask(&mut player, request).text();
    let lines: Vec<&str> = answer.lines().collect();
    assert_eq!(lines.first(), Some(&"POST /play?x=1 HTTP/1.1"));
    for expected in [
        "host=game.example:8080",
        "x-forwarded-for=127.0.0.1",
        "x-forwarded-proto=http",
        "x-forwarded-host=game.example:8080",
        "x-own=kept",
        "content-length=4",
        "body",
    ] {
        assert!(lines.contains(&expected), "no {expected} in\n{answer}");
    }
    assert!(!answer.contains("x-hop") && !answer.contains("keep-alive"), "{answer}");
}

#[test]
fn connections_are_reused_with_bodies_of_any_length() {
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let port = free_port();
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    let backend = tcp(move |mut stream: TcpStream| {
        count.fetch_add(1, SeqCst);
        while let Some(request) = read(&mut stream) {
            let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
            let chunk = format!("{:x}\r\n", request.body.len());
            stream.write_all(head.as_bytes()).unwrap();
            if !request.body.is_empty() {
                stream.write_all(&[chunk.as_bytes(), &request.body, b"\r\n"].concat()).unwrap();
            }
            stream.write_all(b"0\r\n\r\n").unwrap();
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    for length in [0, 1, 100_000, 5_000_000, 7] {
        let body = "x".repeat(length);
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
        assert_eq!(ask(&mut player, &request).body.len(), length);
    }
    for _ in 0..20 {
        get(&mut connect(port), "a", "/");
    }
    assert_eq!(connections.load(SeqCst), 1, "a connection to the server was not used again");
    assert_eq!(guard.figure("http_requests_total{status=\"2xx\"}"), 25);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let mut player = connect(port);
    let requests: String = (0..50).map(|n| format!("GET /{n} HTTP/1.1\r\nhost: a\r\n\r\n")).collect();
    player.write_all(requests.as_bytes()).unwrap();
    for n in 0..50 {
        assert!(read(&mut player).unwrap().text().starts_with(&format!("GET /{n} ")));
    }
}

#[test]
fn websocket_relays_bytes_both_ways() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(websocket())));
    let mut player = connect(port);
    upgrade(&mut player, "a");
    (0..100).for_each(|n| echo(&mut player, &format!("message {n}")));
    assert_eq!(guard.figure("connections{kind=\"websocket\"}"), 1);
    drop(player);
    guard.wait_for_figure("connections{kind=\"websocket\"}", |open| open == 0);
}

#[test]
fn removed_route_closes_its_websocket() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(websocket())));
    let mut player = connect(port);
    upgrade(&mut player, "a");
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert!(is_closed(&mut player));
    assert_eq!(guard.figure("connections{kind=\"websocket\"}"), 0);
}

#[test]
fn refused_upgrade_is_relayed() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let mut player = connect(port);
    let request = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
    assert_eq!(ask(&mut player, request).status(), 200);
    assert_eq!(get(&mut player, "a", "/again").status(), 200);
}

#[test]
fn unrequested_upgrade_is_a_bad_gateway() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let backend = tcp(|mut stream: TcpStream| {
        while read(&mut stream).is_some() {
            let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: other\r\n\r\n";
            stream.write_all(head.as_bytes()).unwrap();
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    assert_eq!(get(&mut connect(port), "a", "/").status(), 502);
}

#[test]
fn http10_client_without_host_is_served_by_port() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let mut player = connect(port);
    let answer = ask(&mut player, "GET /old HTTP/1.0\r\n\r\n").text();
    assert!(answer.contains(&format!("host=127.0.0.1:{port}\n")), "{answer}");
    assert!(is_closed(&mut player));
}

fn problem_of(route_to: Option<std::net::SocketAddr>, timeouts: Value) -> (u16, Value) {
    let guard = EdgeProcess::start_with(json!({"timeouts": timeouts}));
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, route_to));
    let answer = get(&mut connect(port), "a", "/");
    assert_eq!(answer.header("content-type"), "application/problem+json");
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status());
    (answer.status(), problem["code"].clone())
}

#[test]
fn missing_backend_is_reported_as_a_problem() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert_eq!(problem_of(None, json!({})), (502, "SERVER_NOT_THERE".into()));
    assert_eq!(problem_of(Some(gone), json!({})), (502, "SERVER_UNREACHABLE".into()));
    let breaks = tcp(|mut stream: TcpStream| drop(stream.read(&mut [0; 1])));
    assert_eq!(problem_of(Some(breaks), json!({})), (502, "SERVER_UNREACHABLE".into()));
    let silent = tcp(|mut stream: TcpStream| while matches!(stream.read(&mut [0; 64]), Ok(1..)) {});
    assert_eq!(problem_of(Some(silent), json!({"response_ms": 100})), (504, "SERVER_LATE".into()));
}

#[test]
fn closed_pooled_connection_is_retried() {
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let port = free_port();
    // Answers one request on each connection, and closes it without notice.
    let backend = tcp(|mut stream: TcpStream| {
        if read(&mut stream).is_some() {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    for _ in 0..50 {
        assert_eq!(get(&mut player, "a", "/").status(), 200);
    }
}

#[test]
fn slow_head_is_cut_off_and_slow_backend_is_not() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"head_ms": 300, "keep_alive_ms": 60_000}}));
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
    let mut slow_server = connect(port);
    slow_server.write_all(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    let mut silent = connect(port);
    let mut second = connect(port);
    get(&mut second, "a", "/");
    second.write_all(b"GET / HT").unwrap();
    let mut slow_client = connect(port);
    slow_client.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n").unwrap();
    slow_client.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    wait_for("the slow client is disconnected", || match slow_client.read(&mut [0; 1]) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            let _ = slow_client.write_all(b"x-a: b\r\n");
            None
        }
        ended => {
            assert!(!matches!(ended, Ok(1)), "it was answered");
            Some(())
        }
    });
    for cut in [&mut silent, &mut second] {
        assert!(is_closed(cut));
    }
    sender.send(()).unwrap();
    assert_eq!(read(&mut slow_server).unwrap().text(), "done");
}

#[test]
fn slow_body_is_cut_off_only_when_it_stalls() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"head_ms": 300, "response_ms": 600}}));
    let port = free_port();
    let (count_sender, count_receiver) = std::sync::mpsc::channel();
    let backend = tcp(move |mut stream: TcpStream| {
        while read_head(&mut stream).is_some() {
            let mut count = 0;
            while let Some(chunk @ [_, ..]) = read_chunk(&mut stream).as_deref() {
                count += chunk.len();
                count_sender.send(count).unwrap();
            }
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n!");
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    let head = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    player.write_all(head).unwrap();
    let started = Instant::now();
    // Each chunk follows the one before. In total they take longer than either timeout.
    for count in 1.. {
        player.write_all(b"1\r\nx\r\n").unwrap();
        assert_eq!(count_receiver.recv_timeout(LONG), Ok(count));
        if started.elapsed() > Duration::from_millis(900) {
            break;
        }
    }
    player.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(read(&mut player).unwrap().text(), "!");
    player.write_all(head).unwrap();
    player.write_all(b"5\r\nit do").unwrap();
    assert_eq!(read(&mut player).unwrap().status(), 408);
    assert!(is_closed(&mut player));
}

#[test]
fn too_large_head_is_refused() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let mut player = connect(port);
    let large = format!("GET / HTTP/1.1\r\nhost: a\r\nx-large: {}\r\n\r\n", "x".repeat(40_000));
    let _ = player.write_all(large.as_bytes());
    // Unread data may reset the connection before the response.
    assert!(read(&mut player).is_none_or(|answer| answer.status() == 431));
    let fits = format!("GET / HTTP/1.1\r\nhost: a\r\nx-large: {}\r\n\r\n", "x".repeat(30_000));
    assert_eq!(ask(&mut connect(port), &fits).status(), 200);
}

#[test]
fn request_with_two_lengths_is_refused() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let request_count = Arc::new(AtomicUsize::new(0));
    let count = request_count.clone();
    let backend = server(move |_, _| {
        count.fetch_add(1, SeqCst);
        String::new()
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    for ambiguous_request in [
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 30\r\n\r\nabc",
        "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: +3\r\n\r\nabc",
    ] {
        let mut player = connect(port);
        player.write_all(ambiguous_request.as_bytes()).unwrap();
        assert!(read(&mut player).is_none_or(|answer| answer.status() == 400), "{ambiguous_request}");
    }
    assert_eq!(request_count.load(SeqCst), 0);
}

#[test]
fn early_response_does_not_block_other_requests() {
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let port = free_port();
    let backend = tcp(|mut stream: TcpStream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while matches!(stream.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
            // Answers the head without waiting for the body.
            if head.ends_with(b"\r\n\r\n") {
                head.clear();
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            }
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut slow = connect(port);
    let partial_request = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\nbegun";
    assert_eq!(ask(&mut slow, partial_request).status(), 200);
    let mut other = connect(port);
    other.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(get(&mut other, "a", "/").status(), 200, "the request waited for the body of another one");
}

#[test]
fn stalled_reader_is_cut_off_and_slow_reader_is_not() {
    const WHOLE: usize = 12_000_000;
    // The backend must begin its response in this time too.
    let guard = EdgeProcess::start_with(json!({"timeouts": {"head_ms": 100, "response_ms": 3_000}}));
    let port = free_port();
    let backend = server(|_, _| "x".repeat(WHOLE));
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    // Small socket buffers, so that a stalled reader blocks the writer.
    let with_room = |size| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(size).unwrap();
        socket.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
        let mut player = TcpStream::from(socket);
        player.set_read_timeout(Some(LONG)).unwrap();
        player.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        player
    };
    let memory = guard.memory();
    let _never: Vec<TcpStream> = (0..7).map(|_| with_room(65_536)).collect();
    let mut slow = with_room(1_000_000);
    let mut buffer = vec![0; 400_000];
    let mut received_bytes = 0;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let guard = &guard;
        scope.spawn(move || {
            // On a busy machine the slow reader may be served first, and its idle connection closed.
            guard.wait_for_figure("connections{kind=\"http\"}", |open| open <= 1);
            let _ = sender.send(());
        });
        // Reads a chunk now and then, for longer in total than the timeout.
        while received_bytes < WHOLE
            && receiver.recv_timeout(Duration::from_millis(150)) == Err(RecvTimeoutError::Timeout)
        {
            received_bytes += slow.read(&mut buffer).unwrap();
        }
    });
    assert!(guard.memory() < memory + 8 * 1024 * 1024, "{} grew to {}: answers wait here", memory, guard.memory());
    while received_bytes < WHOLE {
        let read = slow.read(&mut buffer).unwrap();
        assert!(read > 0, "the reading client was disconnected after {received_bytes} bytes");
        received_bytes += read;
    }
}

#[test]
fn head_response_keeps_its_content_length() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let backend = tcp(|mut stream: TcpStream| {
        while let Some(request) = read(&mut stream) {
            assert!(request.first_line.starts_with("HEAD "));
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 12345\r\netag: x\r\n\r\n").unwrap();
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    for _ in 0..3 {
        player.write_all(b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            player.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.contains("content-length: 12345\r\n") && head.contains("etag: x\r\n"), "{head}");
    }
}
