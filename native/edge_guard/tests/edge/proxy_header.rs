//! `proxy_header` `required`: each TCP connection of a load balancer begins with a PROXY header.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use serde_json::{Value, json};

use crate::backends::{connect, echo, is_closed, tcp, tcp_and_udp_echo, tcp_echo};
use crate::client_address::{read_line, stream_server, with_header};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, server};
use crate::tls::{begin_tls, certificate, secure_route, trusting};
use crate::wire::{OutcomeKind, Route};

const V1: &[u8] = b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n";

/// Header of version 2 of the same client.
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc6\x33\x64\x07\xcb\x00\x71\x01\x13\x88\x01\xbb";

/// Header of version 2 with the command `LOCAL`.
const LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

const REFUSED: &str = "connections_refused_total{reason=\"proxy_header\"}";

/// Returns settings that require headers of a load balancer at 127.0.0.1.
pub fn required(more: Value) -> Value {
    let mut settings = json!({"proxies": ["127.0.0.1/32"], "proxy_header": "required"});
    for (name, value) in more.as_object().unwrap() {
        settings[name] = value.clone();
    }
    settings
}

fn connect_with(port: u16, header: &[u8]) -> TcpStream {
    let mut stream = connect(port);
    stream.write_all(header).unwrap();
    stream
}

/// Starts a server that greets each connection, and counts the connections.
fn counted_greeter(connections: &Arc<AtomicU64>) -> SocketAddr {
    let connections = connections.clone();
    tcp(move |mut stream| {
        connections.fetch_add(1, SeqCst);
        let _ = stream.write_all(b"welcome\n");
        let _ = stream.read(&mut [0; 1]);
    })
}

#[test]
fn header_is_required_at_every_kind_of_port() {
    let keys = tempfile::tempdir().unwrap();
    let certificate = certificate(keys.path(), &["localhost", "api.example"]);
    let web = server(|_, _| "page".to_owned());
    let backends = json!([{"hosts": ["api.example"], "address": web, "proxy_protocol": false}]);
    let guard = EdgeProcess::start_with(required(json!({
        "certificates": [certificate], "http": "127.0.0.1:0", "https": "127.0.0.1:0", "backends": backends,
    })));
    let [bytes, sealed, both, plain, secure] = [(); 5].map(|()| free_port());
    let routes: [Route; 5] = [
        route("a", "tcp", bytes, Some(tcp_echo())),
        secure_route("b", "tcp_tls", sealed, tcp_echo()),
        route("c", "tcp_udp", both, Some(tcp_and_udp_echo())),
        route("d", "http", plain, Some(web)),
        secure_route("e", "https", secure, web),
    ];
    guard.source.put(&routes);
    ["a", "b", "c", "d", "e"].iter().for_each(|owner| drop(guard.source.wait_for(owner, OutcomeKind::Listening)));
    let [http, https] = ["http", "https"].map(|name| guard.listener(name).port());
    let config = trusting(keys.path(), &[b"http/1.1"]);
    for header in [V1, V2, LOCAL] {
        [bytes, both].iter().for_each(|port| echo(&mut connect_with(*port, header), "after the header"));
        let stream = connect_with(sealed, header);
        echo(&mut begin_tls(&config, "localhost", stream).unwrap(), "after the header");
        for (port, host) in [(plain, "localhost"), (http, "api.example")] {
            assert_eq!(get(&mut connect_with(port, header), host, "/").text(), "page");
        }
        for (port, host) in [(secure, "localhost"), (https, "api.example")] {
            let mut stream = begin_tls(&config, host, connect_with(port, header)).unwrap();
            assert_eq!(get(&mut stream, host, "/").text(), "page");
        }
    }
    assert_eq!(guard.figure(REFUSED), 0);
    let request = b"GET / HTTP/1.1\r\nhost: api.example\r\n\r\n";
    let client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let openings: [(u16, &[u8]); 7] = [
        (bytes, b"hello"),
        (both, b"hello"),
        (sealed, client_hello),
        (plain, request),
        (http, request),
        (secure, client_hello),
        (https, client_hello),
    ];
    for (index, (port, opening)) in openings.into_iter().enumerate() {
        assert!(is_closed(&mut connect_with(port, opening)), "port {index}");
        guard.wait_for_figure(REFUSED, |refused| refused == index as u64 + 1);
    }
}

#[test]
fn server_that_speaks_first_begins_after_the_header() {
    let guard = EdgeProcess::start_with(required(json!({})));
    let port = free_port();
    guard.source.serve_route(&with_header(route("a", "tcp", port, Some(stream_server()))));
    let mut proxy = connect_with(port, V2);
    assert_eq!(read_line(&mut proxy), "198.51.100.7:5000 at 203.0.113.1:443", "the player was silent");
    let mut health_check = connect_with(port, LOCAL);
    let own = health_check.local_addr().unwrap();
    assert_eq!(read_line(&mut health_check), format!("{own} at 127.0.0.1:{port}"));
}

#[test]
fn connection_without_a_whole_header_reaches_no_server() {
    let guard = EdgeProcess::start_with(required(json!({"timeouts": {"head_ms": 300}})));
    let (port, connections) = (free_port(), Arc::new(AtomicU64::new(0)));
    guard.source.serve_route(&route("a", "tcp", port, Some(counted_greeter(&connections))));
    for (index, begin) in [&b""[..], b"PROX", &V1[..20], &V2[..12], &V2[..27], b"PROXY TCP4 here there 1 2\r\n", b"\n"]
        .into_iter()
        .enumerate()
    {
        let mut open = connect_with(port, begin);
        assert!(is_closed(&mut open), "{begin:?}");
        let ended = connect_with(port, begin);
        // Fails if edge-guard has already closed the connection.
        let _ = ended.shutdown(Shutdown::Write);
        guard.wait_for_figure(REFUSED, |refused| refused == 2 * (index as u64 + 1));
    }
    assert_eq!(connections.load(SeqCst), 0);
    assert_eq!(read_line(&mut connect_with(port, V1)), "welcome");
    assert_eq!(connections.load(SeqCst), 1);
}

#[test]
fn named_clients_count_and_the_load_balancer_does_not() {
    let guard = EdgeProcess::start_with(required(json!({"limits": {"connections_per_address": 1}})));
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    let mut player = connect_with(port, V1);
    echo(&mut player, "first");
    assert!(is_closed(&mut connect_with(port, V2)), "the same client");
    guard.wait_for_figure("connections_refused_total{reason=\"connections_per_address\"}", |refused| refused == 1);
    echo(&mut connect_with(port, b"PROXY TCP4 198.51.100.8 203.0.113.1 5000 443\r\n"), "another client");
    echo(&mut player, "still there");
}

#[test]
fn header_of_another_client_is_data() {
    let settings = json!({"proxies": ["127.7.7.7/32"], "proxy_header": "required"});
    let guard = EdgeProcess::start_with(settings);
    let port = free_port();
    guard.source.serve_route(&route("a", "tcp", port, Some(tcp_echo())));
    echo(&mut connect(port), "no header");
    echo(&mut connect(port), "PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n");
    assert_eq!(guard.figure(REFUSED), 0);
}
