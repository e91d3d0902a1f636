//! gRPC over TLS.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use hosting_front::Timeouts;
use hosting_matchmaker::proto;
use hosting_tls::rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, StreamOwned};
use tokio_rustls::TlsConnector;

use crate::certificates::{Files, host};
use crate::grpc::client::{Client, bearer, encoded};
use crate::grpc::world::{CONNECTED, DATA_METHOD, World};
use crate::world::{LIMIT, SHORT, Setup, TIMEOUTS};

const MESSAGE: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
const HTTP2: &[&[u8]] = &[b"h2"];

fn with_tls(setup: Setup) -> (World, Files) {
    let files = Files::new();
    (World::with(Setup { certificate: Some(files.read()), ..setup }), files)
}

fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> Client {
    Client::over(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        TlsConnector::from(config).connect(host(), stream).await.unwrap()
    })
}

fn wait_closed(world: &World, sent: &[u8]) {
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(sent).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
}

#[test]
fn calls_are_answered_and_passed() {
    let (world, files) = with_tls(Setup::default());
    let mut client = connect(world.address, files.trusting(HTTP2, ALL_VERSIONS));
    let token = bearer(&world.lobby.lobby_token);
    let message = encoded(&proto::PlayerConnectedRequest { player_token: world.new_player() });
    assert_eq!(client.call(CONNECTED, &[("authorization", &token)], &message).status(), "0");
    assert!(!world.data.has_call());
    let call = client.start(DATA_METHOD, &[], MESSAGE);
    world.data.next_call().answer(MESSAGE, &[("grpc-status", "0")]);
    assert_eq!(client.finish(call).data, MESSAGE);
    let counts = [("live", "OK", 1), ("connected", "OK", 1)];
    let mut counted = world.counts();
    counted.sort_by(|first, second| second.cmp(first));
    assert_eq!(counted, counts.map(|(slug, code, count)| (slug.into(), code.into(), count)));
}

#[test]
fn connection_without_a_handshake_is_closed() {
    let (world, files) =
        with_tls(Setup { timeouts: Timeouts { receive: SHORT, ..TIMEOUTS }, budget: 4, ..Setup::default() });
    for sent in [&b""[..], b"\x16\x03\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        wait_closed(&world, sent);
    }
    // A client that ends the handshake and sends no call has as little time.
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let config = files.trusting(HTTP2, ALL_VERSIONS);
    let mut silent = StreamOwned::new(ClientConnection::new(config, host()).unwrap(), &mut stream);
    silent.flush().unwrap();
    let _ = silent.read_to_end(&mut Vec::new());
    assert_eq!(world.counts(), []);
}

#[test]
fn http1_is_not_agreed_on() {
    let (world, files) = with_tls(Setup::default());
    let mut stream = TcpStream::connect(world.address).unwrap();
    let mut client = ClientConnection::new(files.trusting(&[b"http/1.1"], ALL_VERSIONS), host()).unwrap();
    assert!(client.complete_io(&mut stream).and_then(|_| client.complete_io(&mut stream)).is_err());
}

#[test]
fn handshakes_count_in_the_connection_budget() {
    let (world, files) = with_tls(Setup { budget: 4, ..Setup::default() });
    let mut client = connect(world.address, files.trusting(HTTP2, ALL_VERSIONS));
    let mut waiting = TcpStream::connect(world.address).unwrap();
    let mut handshake = ClientConnection::new(files.trusting(HTTP2, ALL_VERSIONS), host()).unwrap();
    handshake.write_tls(&mut waiting).unwrap();
    // After the front's part of the handshake, no other connection replaces this one.
    assert_eq!(waiting.peek(&mut [0]).unwrap(), 1);
    let call = client.start(DATA_METHOD, &[], MESSAGE);
    world.data.next_call().answer(MESSAGE, &[("grpc-status", "0")]);
    assert_eq!(client.finish(call).status(), "0");
    for _ in 0..20 {
        wait_closed(&world, b"");
    }
}
