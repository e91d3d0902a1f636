//! Clients that a trusted proxy names in the PROXY header of a connection.

use std::net::SocketAddr;

use hosting_tls::rustls::ALL_VERSIONS;
use tokio::io::AsyncWriteExt as _;
use tokio_rustls::TlsConnector;

use crate::certificates::{Files, host};
use crate::grpc::client::Client;
use crate::grpc::world::{MESSAGE, OK, World};
use crate::proxy_headers::{local_header, proxy_header};
use crate::world::Setup;

const FORWARDED: &[(&str, &str)] = &[("x-forwarded-for", "192.0.2.9"), ("x-coords", "1,2")];

fn setup() -> Setup {
    let proxies = ["127.0.0.0/8", "10.0.0.0/8"].map(|network| network.parse().unwrap()).into();
    Setup { proxies, has_proxy_headers: true, ..Setup::default() }
}

async fn connected(address: SocketAddr, header: &[u8]) -> tokio::net::TcpStream {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(header).await.unwrap();
    stream
}

/// Returns the client address and the coordinates that Python gets.
fn received(world: &World, client: &mut Client) -> (Option<String>, Option<String>) {
    let (call, received) = world.start(client, FORWARDED);
    let texts = ["x-hosting-client", "x-coords"].map(|name| received.text(name).map(str::to_owned));
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(call).status(), "0");
    texts.into()
}

#[test]
fn proxy_header_names_the_client_or_a_further_proxy() {
    let world = World::with(setup());
    let of_client = (Some("192.0.2.1".into()), None);
    let of_proxy = (Some("192.0.2.9".into()), Some("1,2".into()));
    for (header, expected) in [
        (proxy_header([192, 0, 2, 1]), of_client),
        (proxy_header([10, 0, 0, 1]), of_proxy.clone()),
        (local_header(), of_proxy),
    ] {
        let mut client = Client::over(connected(world.address, &header));
        for _ in 0..2 {
            assert_eq!(received(&world, &mut client), expected);
        }
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
