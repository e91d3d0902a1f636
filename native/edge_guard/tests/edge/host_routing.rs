//! HTTP by host on one listener: game servers by name, and own backends with the client's address.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use crate::backends::{connect, tcp};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, mirror, read, server};
use crate::wire::{OutcomeKind, Route};

fn by_host(owner: &str, host: &str, backend: std::net::SocketAddr) -> Route {
    Route { host: host.to_owned(), ..route(owner, "http", 0, Some(backend)) }
}

#[test]
fn hosts_are_routed_case_insensitively() {
    let guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    guard.source.put(&[
        by_host("a", "a-game.lobby.local.example", server(|_, _| "first".to_owned())),
        by_host("b", "b-game.lobby.local.example", server(|_, _| "second".to_owned())),
    ]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    let port = guard.listener("http").port();
    // One connection may request several hosts.
    let mut player = connect(port);
    assert_eq!(get(&mut player, "a-game.lobby.local.example", "/").text(), "first");
    assert_eq!(get(&mut player, "B-Game.Lobby.Local.Example:80", "/").text(), "second");
    let unknown = get(&mut player, "c-game.lobby.local.example", "/");
    assert_eq!(unknown.status(), 404);
    guard.source.remove(&["a"]);
    guard.source.wait_for("a", OutcomeKind::Removed);
    assert_eq!(get(&mut player, "a-game.lobby.local.example", "/").status(), 404);
    assert_eq!(get(&mut player, "b-game.lobby.local.example", "/").text(), "second");
}

#[test]
fn host_without_listener_and_duplicate_host_are_unserved() {
    let guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0"}));
    let backend = mirror();
    let tls_route = Route { protocol: "https".to_owned(), ..by_host("s", "s.example", backend) };
    guard.source.put(&[by_host("a", "a.example", backend), tls_route]);
    assert!(guard.source.wait_for("s", OutcomeKind::Unserved).reason.contains("no listener"));
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.put(&[by_host("b", "a.example", backend)]);
    assert!(guard.source.wait_for("b", OutcomeKind::Unserved).reason.contains("another route"));
    guard.source.remove(&["a"]);
    guard.source.wait_for("b", OutcomeKind::Listening);
}

/// Starts a server that responds with the client in the PROXY header.
fn api() -> std::net::SocketAddr {
    tcp(say_client)
}

pub fn say_client(mut stream: impl Read + Write) {
    let mut header = [0; 28];
    if stream.read_exact(&mut header).is_err() {
        return;
    }
    assert_eq!(&header[..16], b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
    let (client, server) = (ip(&header[16..20]), ip(&header[20..24]));
    let (port, own) = (number(&header[24..26]), number(&header[26..28]));
    while let Some(request) = read(&mut stream) {
        let text = format!("{client}:{port} {} at {server}:{own}", request.header("x-forwarded-for"));
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len());
        stream.write_all(head.as_bytes()).unwrap();
    }
}

fn ip(bytes: &[u8]) -> std::net::Ipv4Addr {
    <[u8; 4]>::try_from(bytes).unwrap().into()
}

fn number(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(bytes.try_into().unwrap())
}

#[test]
fn own_backends_receive_the_client_address() {
    let backends = json!([{"hosts": ["api.example", "*.cdn.example"], "address": api()}]);
    let guard = EdgeProcess::start_with(json!({"http": "127.0.0.1:0", "workers": 1, "backends": backends}));
    let port = guard.listener("http").port();
    for _ in 0..3 {
        let mut player = connect(port);
        let own = player.local_addr().unwrap();
        for host in ["api.example", "game.cdn.example"] {
            assert_eq!(get(&mut player, host, "/").text(), format!("{own} 127.0.0.1 at 127.0.0.1:{port}"));
        }
    }
    let from_elsewhere = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    from_elsewhere.bind(&std::net::SocketAddr::from(([127, 7, 7, 7], 0)).into()).unwrap();
    from_elsewhere.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], port)).into()).unwrap();
    let mut player = TcpStream::from(from_elsewhere);
    assert!(get(&mut player, "api.example", "/").text().starts_with("127.7.7.7:"));
}

#[test]
fn proxy_header_of_both_versions_is_read_at_every_kind_of_port() {
    let settings = json!({"proxies": ["127.0.0.1/32"], "limits": {"connections_per_address": 1}});
    let guard = EdgeProcess::start_with(settings);
    let (bytes, requests) = (free_port(), free_port());
    guard.source.serve_route(&route("a", "tcp", bytes, Some(crate::backends::tcp_echo())));
    guard.source.serve_route(&route("b", "http", requests, Some(crate::http_client::mirror())));
    let v1 = |client: &str| format!("PROXY TCP4 {client} 127.0.0.1 5000 80\r\n").into_bytes();
    let v2 = |last: u8| {
        [&b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\x00\x71"[..], &[last, 127, 0, 0, 1, 19, 136, 0, 80]].concat()
    };
    let mut first = connect(bytes);
    first.write_all(&v1("203.0.113.1")).unwrap();
    crate::backends::echo(&mut first, "the backend sees no header");
    let mut again = connect(bytes);
    again.write_all(&v2(1)).unwrap();
    assert!(crate::backends::is_closed(&mut again), "the named client counts");
    guard.wait_for_figure("connections_refused_total{reason=\"connections_per_address\"}", |refused| refused == 1);
    let mut second = connect(bytes);
    second.write_all(&v2(2)).unwrap();
    crate::backends::echo(&mut second, "another client");
    let mut third = connect(requests);
    third.write_all(&v1("203.0.113.3")).unwrap();
    assert!(get(&mut third, "localhost", "/").text().contains("x-forwarded-for=203.0.113.3\n"));
    let mut wrong = connect(bytes);
    wrong.write_all(b"PROXY TCP4 here there 1 2\r\n").unwrap();
    assert!(crate::backends::is_closed(&mut wrong));
    guard.wait_for_figure("connections_refused_total{reason=\"proxy_header\"}", |refused| refused == 1);
    // Only `proxies` may send the header. For other clients it is data.
    let from_elsewhere = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    from_elsewhere.bind(&std::net::SocketAddr::from(([127, 7, 7, 8], 0)).into()).unwrap();
    from_elsewhere.connect(&std::net::SocketAddr::from(([127, 0, 0, 1], bytes)).into()).unwrap();
    crate::backends::echo(&mut TcpStream::from(from_elsewhere), "PROXY TCP4 1.1.1.1 127.0.0.1 1 2\r\n");
}

#[test]
fn only_trusted_proxies_name_the_client() {
    let backends = json!([{"hosts": ["api.example"], "address": api()}]);
    let settings = json!({"http": "127.0.0.1:0", "backends": backends, "proxies": ["127.0.0.1/32"]});
    let guard = EdgeProcess::start_with(settings);
    let port = guard.listener("http").port();
    let mut proxy = connect(port);
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xcb\x00\x71\x09\x7f\x00\x00\x01\x13\x88\x00\x50";
    proxy.write_all(header).unwrap();
    assert_eq!(get(&mut proxy, "api.example", "/").text(), "203.0.113.9:5000 203.0.113.9 at 127.0.0.1:80");
    // A client that the PROXY header names is not trusted itself.
    let mut proxy = connect(port);
    proxy.write_all(header).unwrap();
    proxy.write_all(b"GET / HTTP/1.1\r\nhost: api.example\r\nx-forwarded-for: 1.1.1.1\r\n\r\n").unwrap();
    assert_eq!(read(&mut proxy).unwrap().text(), "203.0.113.9:5000 203.0.113.9 at 127.0.0.1:80");
    // Without a PROXY header, X-Forwarded-For of the proxy counts.
    let mut proxy = connect(port);
    proxy.write_all(b"GET / HTTP/1.1\r\nhost: api.example\r\nx-forwarded-for: 1.1.1.1, 198.51.100.4\r\n\r\n").unwrap();
    assert!(read(&mut proxy).unwrap().text().contains(" 198.51.100.4 at "));
}
