//! Clients that a trusted proxy names in the PROXY header of a connection.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use hosting_front::Timeouts;
use hosting_tls::rustls::ALL_VERSIONS;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsConnector;

use crate::certificates::{Files, host};
use crate::grpc::client::Client;
use crate::grpc::world::{DATA_METHOD, World};
use crate::proxy_headers::{local_header, proxy_header};
use crate::world::{LIMIT, SHORT, Setup, TIMEOUTS, wait_until};

const MESSAGE: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
const FORWARDED: &[(&str, &str)] = &[("x-forwarded-for", "192.0.2.9"), ("x-coords", "1,2")];
/// Beginning of an HTTP/2 connection of a client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn setup() -> Setup {
    let proxies = ["127.0.0.0/8", "10.0.0.0/8"].map(|network| network.parse().unwrap()).into();
    Setup { proxies, has_proxy_headers: true, ..Setup::default() }
}

async fn connected(address: SocketAddr, header: &[u8]) -> tokio::net::TcpStream {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(header).await.unwrap();
    stream
}

fn connect(world: &World, header: &[u8]) -> Client {
    Client::over(connected(world.address, header))
}

/// Returns the client address and the coordinates that Python gets.
fn received(world: &World, client: &mut Client) -> (Option<String>, Option<String>) {
    let call = client.start(DATA_METHOD, FORWARDED, MESSAGE);
    let received = world.data.next_call();
    let texts = ["x-hosting-client", "x-coords"].map(|name| received.text(name).map(str::to_owned));
    received.answer(MESSAGE, &[("grpc-status", "0")]);
    assert_eq!(client.finish(call).status(), "0");
    texts.into()
}

/// Waits until the front closes a connection.
fn wait_closed(world: &World, sent: &[u8]) {
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(sent).unwrap();
    let mut received = Vec::new();
    let _ = stream.read_to_end(&mut received);
    assert_eq!(received, b"");
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn proxy_header_names_the_client_of_a_connection() {
    let world = World::with(setup());
    let mut client = connect(&world, &proxy_header([192, 0, 2, 1]));
    for _ in 0..2 {
        assert_eq!(received(&world, &mut client), (Some("192.0.2.1".into()), None));
    }
}

#[test]
fn proxy_behind_a_proxy_names_the_client_of_each_call() {
    let world = World::with(setup());
    for header in [proxy_header([10, 0, 0, 1]), local_header()] {
        let mut client = connect(&world, &header);
        assert_eq!(received(&world, &mut client), (Some("192.0.2.9".into()), Some("1,2".into())));
    }
}

#[test]
fn proxy_header_comes_before_the_handshake() {
    let files = Files::new();
    let world = World::with(Setup { certificate: Some(files.read()), ..setup() });
    let config = files.trusting(&[b"h2"], ALL_VERSIONS);
    let header = proxy_header([192, 0, 2, 1]);
    let mut client = Client::over(async {
        let stream = connected(world.address, &header).await;
        TlsConnector::from(config).connect(host(), stream).await.unwrap()
    });
    assert_eq!(received(&world, &mut client), (Some("192.0.2.1".into()), None));
}

#[test]
fn connection_of_a_proxy_without_its_header_is_closed() {
    let world = World::with(setup());
    wait_closed(&world, PREFACE);
    let world = World::with(Setup { timeouts: Timeouts { receive: SHORT, ..TIMEOUTS }, ..setup() });
    for sent in [&b""[..], &local_header()[..7]] {
        wait_closed(&world, sent);
    }
    assert_eq!(world.counts(), []);
}

#[test]
fn client_that_is_no_proxy_cannot_send_a_proxy_header() {
    let world = World::with(Setup { proxies: Vec::new(), ..setup() });
    let mut client = connect(&world, b"");
    assert_eq!(received(&world, &mut client), (Some("127.0.0.1".into()), None));
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&[&proxy_header([192, 0, 2, 1]), PREFACE].concat()).unwrap();
    let _ = stream.read_to_end(&mut Vec::new());
    assert_eq!(world.counts().len(), 1);
}

#[test]
fn client_that_a_proxy_names_has_half_of_the_connections() {
    let world = World::with(Setup { budget: 2, ..setup() });
    let header = proxy_header([192, 0, 2, 1]);
    let mut client = connect(&world, &header);
    received(&world, &mut client);
    let mut stream = TcpStream::connect(world.address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(&header).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
    wait_until(|| world.budget.count() == 1);
    received(&world, &mut connect(&world, &proxy_header([198, 51, 100, 2])));
}
