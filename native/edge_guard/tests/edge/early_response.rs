//! Responses that a game server gives before it has read the whole request.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use http::Request;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::json;

use crate::backends::{connect, is_closed, tcp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{Message, read, read_head};

/// Ways of a game server to end a connection with unread bytes.
const ENDS: [fn(&TcpStream); 3] = [
    // As Python's http.server does: a FIN, then a reset.
    |stream| drop(stream.shutdown(Shutdown::Write)),
    // A close with unread bytes is a reset.
    |_closed| {},
    |stream| socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap(),
];

fn refusing(end: fn(&TcpStream)) -> SocketAddr {
    tcp(move |mut stream: TcpStream| {
        if read_head(&mut stream).is_some() {
            let _ = stream
                .write_all(b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 11\r\n\r\nlogin first");
            end(&stream);
        }
    })
}

/// Sends the whole body as a blocking client does, and then reads the response.
fn upload(port: u16, length: usize) -> Option<Message> {
    try_upload(port, length).expect("the connection is open until the end of the upload")
}

fn try_upload(port: u16, length: usize) -> std::io::Result<Option<Message>> {
    let mut player = connect(port);
    let head = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
    player.write_all(head.as_bytes())?;
    player.write_all(&vec![b'x'; length])?;
    Ok(read(&mut player))
}

#[test]
fn response_before_the_end_of_an_upload_arrives() {
    let guard = EdgeProcess::start_with(json!({"workers": 1}));
    let ports = ENDS.map(|end| {
        let port = free_port();
        guard.source.serve_route(&route(&port.to_string(), "http", port, Some(refusing(end))));
        port
    });
    for (way, port) in ports.into_iter().enumerate() {
        for length in [10_000, 1_000_000, 5_000_000] {
            for _ in 0..10 {
                let answer = upload(port, length).expect("a response");
                assert_eq!((answer.status(), answer.text().as_str()), (401, "login first"), "{way}, {length} bytes");
            }
        }
    }
}

#[test]
fn response_that_ends_with_the_connection_is_complete_or_broken() {
    let guard = EdgeProcess::start();
    for (is_reset, end) in [(false, ENDS[0]), (true, ENDS[2])] {
        let port = free_port();
        let backend = tcp(move |mut stream: TcpStream| {
            read_head(&mut stream).unwrap();
            let _ = stream.write_all(b"HTTP/1.0 401 Unauthorized\r\n\r\nlogin first");
            end(&stream);
        });
        guard.source.serve_route(&route(&port.to_string(), "http", port, Some(backend)));
        for _ in 0..10 {
            // The end of a broken response also ends the upload.
            let answer = if is_reset { try_upload(port, 1_000_000).ok().flatten() } else { upload(port, 1_000_000) };
            assert!(is_reset || answer.as_ref().is_some_and(|answer| answer.text() == "login first"), "{answer:?}");
            // A part of a response must not look like a whole one.
            assert!(!is_reset || answer.as_ref().is_none_or(|answer| answer.status() == 502), "{answer:?}");
        }
    }
}

#[test]
fn error_of_edge_guard_arrives_at_an_uploading_player() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    guard.source.serve_route(&route("a", "http", port, Some(gone)));
    assert_eq!(upload(port, 5_000_000).expect("a response").status(), 502);
}

#[test]
fn connection_continues_after_the_rest_of_an_upload() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(refusing(ENDS[0]))));
    let mut player = connect(port);
    for _ in 0..3 {
        player.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n").unwrap();
        player.write_all(&[b'x'; 1_000_000]).unwrap();
        assert_eq!(read(&mut player).expect("a response").status(), 401);
    }
}

#[test]
fn player_that_sends_without_end_is_cut_off() {
    let guard = EdgeProcess::start_with(json!({"timeouts": {"head_ms": 200}}));
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(refusing(ENDS[0]))));
    let mut player = connect(port);
    player.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    let mut reader = player.try_clone().unwrap();
    let sending = thread::spawn(move || while player.write_all(b"4\r\nbody\r\n").is_ok() {});
    assert_eq!(read(&mut reader).expect("a response").status(), 401);
    sending.join().unwrap();
}

#[test]
fn player_that_waits_for_a_100_response_is_not_waited_for() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, None));
    let mut player = connect(port);
    player.write_all(b"POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").unwrap();
    assert_eq!(read(&mut player).expect("a response").status(), 502);
    assert!(is_closed(&mut player), "the next request would be read as the body");
}

#[test]
fn response_before_the_end_of_an_http2_upload_arrives() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(refusing(ENDS[0]))));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        for length in [10_000, 5_000_000] {
            let request = Request::post("http://a/").body("x".repeat(length)).unwrap();
            assert_eq!(sender.send_request(request).await.unwrap().status(), 401);
        }
    });
}
