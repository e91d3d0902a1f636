//! gRPC over TLS.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use hosting_matchmaker::proto;
use hosting_tls::rustls::{ALL_VERSIONS, ClientConfig, ClientConnection};
use tokio_rustls::TlsConnector;

use crate::certificates::{Files, host};
use crate::grpc::client::{Client, bearer, encoded};
use crate::grpc::world::{CONNECTED, DATA_METHOD, World};
use crate::world::Setup;

const HTTP2: &[&[u8]] = &[b"h2"];

fn with_tls() -> (World, Files) {
    let files = Files::new();
    (World::with(Setup { certificate: Some(files.read()), ..Setup::default() }), files)
}

fn connect(address: SocketAddr, config: Arc<ClientConfig>) -> Client {
    Client::over(async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        TlsConnector::from(config).connect(host(), stream).await.unwrap()
    })
}

#[test]
fn calls_are_answered_and_passed() {
    let (world, files) = with_tls();
    let mut client = connect(world.address, files.trusting(HTTP2, ALL_VERSIONS));
    let token = bearer(&world.lobby.lobby_token);
    let message = encoded(&proto::PlayerConnectedRequest { player_token: world.new_player() });
    assert_eq!(client.call(CONNECTED, &[("authorization", &token)], &message).status(), "0");
    assert!(!world.data.has_call());
    world.serve(&mut client, DATA_METHOD, &[]);
    let counts = [("live", "OK", 1), ("connected", "OK", 1)];
    let mut counted = world.counts();
    counted.sort_by(|first, second| second.cmp(first));
    assert_eq!(counted, counts.map(|(slug, code, count)| (slug.into(), code.into(), count)));
}

#[test]
fn http1_is_not_agreed_on() {
    let (world, files) = with_tls();
    let mut stream = TcpStream::connect(world.address).unwrap();
    let mut client = ClientConnection::new(files.trusting(&[b"http/1.1"], ALL_VERSIONS), host()).unwrap();
    assert!(client.complete_io(&mut stream).and_then(|_| client.complete_io(&mut stream)).is_err());
}
