//! Names and numbers of headers, and characters of paths, that game servers and players get.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;

use crate::backends::{connect, tcp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, mirror, read, read_head};
use crate::wait::LONG;

/// Returns the headers that a game server and a player get, through edge-guard.
fn exchanged(request: &str, response: &'static str) -> (String, String) {
    let guard = EdgeProcess::start();
    let port = free_port();
    let (heads, received) = channel();
    let backend = tcp(move |mut stream: TcpStream| {
        heads.send(read_head(&mut stream).unwrap()).unwrap();
        stream.write_all(response.as_bytes()).unwrap();
        let _ = stream.read(&mut [0; 1]);
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    let mut player = connect(port);
    player.write_all(request.as_bytes()).unwrap();
    let answer = read_head(&mut player).unwrap();
    (received.recv_timeout(LONG).unwrap(), answer)
}

#[track_caller]
fn assert_lines(head: &str, lines: &[&str]) {
    let missing: Vec<_> = lines.iter().filter(|line| !head.contains(&format!("\r\n{line}\r\n"))).collect();
    assert!(missing.is_empty(), "no {missing:?} in {head:?}");
}

#[test]
fn header_names_keep_their_case() {
    let (request, response) = exchanged(
        "GET / HTTP/1.1\r\nHoSt: a\r\nX-ID: 1\r\nx-lower: 2\r\nX-Two: 3\r\nx-two: 4\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: 1\r\nx-lower: 2\r\n\r\n",
    );
    assert_lines(&request, &["HoSt: a", "X-ID: 1", "x-lower: 2", "X-Two: 3", "x-two: 4"]);
    assert_lines(&response, &["Content-Length: 0", "ETag: 1", "x-lower: 2"]);
    // Names that edge-guard adds.
    assert_lines(&request, &["X-Forwarded-For: 127.0.0.1", "X-Forwarded-Proto: http", "X-Forwarded-Host: a"]);
    assert!(response.contains("\r\nDate: "), "{response:?}");
}

#[test]
fn header_names_of_an_upgrade_keep_their_case() {
    let (request, response) = exchanged(
        "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: eA==\r\n\
            Sec-WebSocket-Version: 13\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: x\r\n\r\n",
    );
    let both = ["Upgrade: websocket", "Connection: Upgrade"];
    assert_lines(&request, &[&both[..], &["Host: a", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13"]].concat());
    assert_lines(&response, &[&both[..], &["Sec-WebSocket-Accept: x"]].concat());
}

#[test]
fn error_of_edge_guard_has_usual_names_and_is_open_to_web_pages() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, None));
    let mut player = connect(port);
    player.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nOrigin: https://game.example\r\n\r\n").unwrap();
    let head = read_head(&mut player).unwrap();
    assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
    assert_lines(&head, &["Content-Type: application/problem+json", "Access-Control-Allow-Origin: *"]);
}

fn with_headers(count: usize) -> String {
    (0..count).map(|number| format!("x-{number}: 1\r\n")).collect()
}

#[test]
fn response_may_have_a_thousand_headers() {
    let guard = EdgeProcess::start();
    let port = free_port();
    let backend = tcp(|mut stream: TcpStream| {
        while let Some(request) = read(&mut stream) {
            let count = request.first_line.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
            let head = format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", with_headers(count));
            let _ = stream.write_all(head.as_bytes());
        }
    });
    guard.source.serve_route(&route("a", "http", port, Some(backend)));
    for (count, status) in [(99, 200), (100, 200), (999, 200), (1_000, 502)] {
        let answer = get(&mut connect(port), "a", &format!("/{count}"));
        assert_eq!(answer.status(), status, "{count}");
        if status == 200 {
            assert!((0..count).all(|number| answer.headers.contains_key(&format!("x-{number}"))), "{count}");
        } else {
            assert!(answer.text().contains("SERVER_HEADERS_TOO_LARGE"), "{}", answer.text());
        }
    }
    assert_eq!(guard.figure("http_problems_total{reason=\"response_headers\"}"), 1);
}

#[test]
fn request_may_have_a_thousand_headers() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    for (count, status) in [(100, 200), (999, 200), (1_000, 431)] {
        let mut player = connect(port);
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{}\r\n", with_headers(count));
        player.write_all(request.as_bytes()).unwrap();
        let answer = read(&mut player).unwrap();
        assert_eq!(answer.status(), status, "{count}");
        assert!(status != 200 || answer.text().contains(&format!("x-{}=1", count - 1)), "{}", answer.text());
    }
}

#[test]
fn path_in_utf8_is_unchanged_and_other_bytes_are_refused() {
    let guard = EdgeProcess::start();
    let port = free_port();
    guard.source.serve_route(&route("a", "http", port, Some(mirror())));
    let path = "/Größe/日本?q=é&x=%C3%A9";
    assert_eq!(get(&mut connect(port), "a", path).text().lines().next(), Some(&*format!("GET {path} HTTP/1.1")));
    let mut player = connect(port);
    player.write_all(b"GET /Gr\xf6\xdfe HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    assert_eq!(read(&mut player).unwrap().status(), 400, "Latin-1");
}
