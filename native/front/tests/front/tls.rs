//! HTTP over TLS.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use hosting_front::{ServerCertificate, Timeouts};
use hosting_tls::rustls::version::{TLS12, TLS13};
use hosting_tls::rustls::{ALL_VERSIONS, ClientConfig, ClientConnection, StreamOwned};

use crate::certificates::{Files, host};
use crate::client::Client;
use crate::http2::{ask, connect_over, request, run};
use crate::proxy_headers::proxy_header;
use crate::python::Reply;
use crate::usual_clients::{as_client, headers::USUAL_CLIENTS};
use crate::world::{GET, LIMIT, NEVER, SHORT, Setup, TIMEOUTS, World, wait_until};

const HTTP1: &[&[u8]] = &[b"http/1.1"];

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

/// A front with TLS. The fields are dropped in this order.
struct TlsWorld {
    world: World,
    files: Files,
    certificate: Arc<ServerCertificate>,
}

impl TlsWorld {
    fn new() -> TlsWorld {
        TlsWorld::with(Setup::default())
    }

    fn with(setup: Setup) -> TlsWorld {
        let files = Files::new();
        let certificate = files.read();
        let world = World::with(Setup { certificate: Some(certificate.clone()), ..setup });
        TlsWorld { world, files, certificate }
    }

    fn with_timeouts(timeouts: Timeouts) -> TlsWorld {
        TlsWorld::with(Setup { timeouts, ..Setup::default() })
    }

    fn open(&self) -> TcpStream {
        let stream = TcpStream::connect(self.world.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Returns a connection to which the front has sent its part of the handshake.
    fn begin_handshake(&self) -> TcpStream {
        let mut stream = self.open();
        let mut client = ClientConnection::new(self.files.trusting(HTTP1, ALL_VERSIONS), host()).unwrap();
        client.write_tls(&mut stream).unwrap();
        assert_eq!(stream.peek(&mut [0]).unwrap(), 1);
        stream
    }

    fn connect(&self) -> TlsClient {
        handshake(self.files.trusting(HTTP1, ALL_VERSIONS), self.open()).unwrap()
    }

    fn settle(&self) {
        wait_until(|| self.world.budget.count() == 0);
        assert_eq!(self.world.counts(), []);
        assert_eq!(ask_over(&mut self.connect(), GET).0, "HTTP/1.1 200 OK");
    }
}

fn handshake(config: Arc<ClientConfig>, stream: TcpStream) -> io::Result<TlsClient> {
    let mut stream = StreamOwned::new(ClientConnection::new(config, host()).unwrap(), stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

/// Returns the status line and the body of a response.
fn ask_over(client: &mut TlsClient, request: impl AsRef<[u8]>) -> (String, String) {
    client.write_all(request.as_ref()).unwrap();
    let mut received = Vec::new();
    loop {
        let mut buffer = [0; 1024];
        let count = client.read(&mut buffer).unwrap();
        assert!(count > 0, "the connection ends in a response");
        received.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&received);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let (_, length) = head.split_once("content-length: ").unwrap();
        if body.len() == length.lines().next().unwrap().parse::<usize>().unwrap() {
            return (head.lines().next().unwrap().to_owned(), body.to_owned());
        }
    }
}

/// Waits until the front closes the connection.
fn wait_closed(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
        _ => {}
    }
}

#[test]
fn requests_are_answered_over_both_versions() {
    let tls = TlsWorld::new();
    for (versions, protocols) in [([&TLS12], HTTP1), ([&TLS13], HTTP1), ([&TLS13], &[])] {
        let mut client = handshake(tls.files.trusting(protocols, &versions), tls.open()).unwrap();
        assert_eq!(client.conn.alpn_protocol(), protocols.first().copied());
        assert_eq!(ask_over(&mut client, tls.world.request_of_new_player()).1, "{}");
        tls.world.python.check_no_request();
        assert_eq!(ask_over(&mut client, GET).1, "/a");
        assert_eq!(tls.world.python.targets(1), ["/a"]);
        assert_eq!(tls.world.counts(), ["connected", "none"].map(|slug| (slug.into(), "OK".into(), 1)));
    }
}

#[test]
fn requests_of_usual_clients_are_answered() {
    let tls = TlsWorld::new();
    for (client, headers) in USUAL_CLIENTS {
        let request = as_client(&tls.world.request_of_new_player(), headers);
        assert_eq!(ask_over(&mut tls.connect(), request).1, "{}", "{client}");
    }
    tls.world.python.check_no_request();
}

#[test]
fn http2_is_agreed_on() {
    let tls = TlsWorld::new();
    run(async {
        let connector = tokio_rustls::TlsConnector::from(tls.files.trusting(&[b"h2", b"http/1.1"], ALL_VERSIONS));
        let stream = tokio::net::TcpStream::connect(tls.world.address).await.unwrap();
        let stream = connector.connect(host(), stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (mut sender, _task) = connect_over(stream).await;
        let body = format!(r#"{{"player_token":"{}"}}"#, tls.world.new_player());
        let mut plain = request(http::Method::POST, "/matchmaker/players/connected", body);
        let token = format!("Bearer {}", tls.world.lobby.lobby_token);
        plain.headers_mut().insert("authorization", token.parse().unwrap());
        assert_eq!(ask(&mut sender, plain).await, (200, "{}".to_owned()));
        tls.world.python.check_no_request();
        assert_eq!(ask(&mut sender, request(http::Method::GET, "/a", "")).await, (200, "/a".to_owned()));
    });
}

#[test]
fn failed_handshakes_close_the_connection() {
    let tls = TlsWorld::new();
    assert!(handshake(tls.files.trusting(&[b"imap"], ALL_VERSIONS), tls.open()).is_err());
    // The client does not trust another certificate, and says so in the handshake.
    assert!(handshake(Files::new().trusting(HTTP1, ALL_VERSIONS), tls.open()).is_err());
    for sent in [GET, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 100], b"\x16\x03\x01\xff\xff"] {
        let mut stream = tls.open();
        stream.write_all(sent).unwrap();
        wait_closed(&mut stream);
    }
    let mut stream = tls.open();
    stream.write_all(b"\x16\x03").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    wait_closed(&mut stream);
    tls.settle();
}

#[test]
fn slow_handshake_times_out() {
    let tls = TlsWorld::with_timeouts(Timeouts { receive: SHORT, ..TIMEOUTS });
    for sent in [&b""[..], b"\x16\x03\x01"] {
        let mut stream = tls.open();
        stream.write_all(sent).unwrap();
        wait_closed(&mut stream);
    }
    wait_until(|| tls.world.budget.count() == 0);
    assert_eq!(tls.world.counts(), []);
}

#[test]
fn handshakes_count_in_the_connection_budget() {
    let tls = TlsWorld::with(Setup { budget: 20, ..Setup::default() });
    let mut served = tls.connect();
    let waiting: Vec<_> = (0..9).map(|_| tls.begin_handshake()).collect();
    for _ in 0..100 {
        wait_closed(&mut tls.open());
    }
    assert_eq!(ask_over(&mut served, GET).1, "/a");
    assert_eq!(tls.world.budget.count(), 10);
    drop((served, waiting));
    tls.world.counts();
    tls.settle();
}

#[test]
fn proxy_header_comes_before_the_handshake() {
    let proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let tls = TlsWorld::with(Setup { proxies, has_proxy_headers: true, ..Setup::default() });
    let mut stream = tls.open();
    stream.write_all(&proxy_header([192, 0, 2, 1])).unwrap();
    let mut client = handshake(tls.files.trusting(HTTP1, ALL_VERSIONS), stream).unwrap();
    assert_eq!(ask_over(&mut client, GET).1, "/a");
    assert_eq!(tls.world.python.request().header("x-hosting-client"), Some("192.0.2.1"));
    assert!(handshake(tls.files.trusting(HTTP1, ALL_VERSIONS), tls.open()).is_err());
}

#[test]
fn edge_guard_connects_without_tls() {
    let tls = TlsWorld::new();
    let mut client = Client::connect_unix(&tls.world.edge_socket);
    client.send(&proxy_header([192, 0, 2, 1]));
    assert_eq!(client.ask(GET).body, "/a");
}

#[test]
fn new_connections_get_a_reloaded_certificate() {
    let tls = TlsWorld::new();
    let (mut open, old) = (tls.connect(), tls.files.trusting(HTTP1, ALL_VERSIONS));
    tls.files.renew();
    tls.certificate.reload(&tls.files.certificate, &tls.files.key).unwrap();
    assert!(handshake(old, tls.open()).is_err());
    assert_eq!(ask_over(&mut tls.connect(), GET).1, "/a");
    assert_eq!(ask_over(&mut open, GET).1, "/a");
}

#[test]
fn wrong_files_leave_the_old_certificate() {
    let tls = TlsWorld::new();
    let (old, end_s) = (tls.files.trusting(HTTP1, ALL_VERSIONS), tls.certificate.end_s());
    let (certificate, key) = (&tls.files.certificate, &tls.files.key);
    let refused = |problem: &str| {
        let error = tls.certificate.reload(certificate, key).unwrap_err();
        assert!(error.contains(problem), "{error}");
    };
    fs::write(key, rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
    refused("key.pem: is not the key of ");
    fs::write(key, "").unwrap();
    refused("key.pem: ");
    fs::write(certificate, "").unwrap();
    refused("cert.pem: has no certificate");
    fs::remove_file(certificate).unwrap();
    refused("cert.pem: ");
    assert!(end_s.is_some() && tls.certificate.end_s() == end_s);
    assert_eq!(ask_over(&mut handshake(old, tls.open()).unwrap(), GET).1, "/a");
}

#[test]
fn connection_without_a_first_byte_is_closed() {
    let tls = TlsWorld::with_timeouts(Timeouts { receive: Duration::from_secs(2), ..TIMEOUTS });
    assert_eq!(tls.connect().read(&mut [0; 1]).unwrap(), 0);
    wait_until(|| tls.world.budget.count() == 0);
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    let tls = TlsWorld::with_timeouts(Timeouts { slow_reader: SHORT, ..TIMEOUTS });
    tls.world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; 24 << 20])));
    let mut client = tls.connect();
    client.write_all(GET).unwrap();
    wait_until(|| tls.world.budget.count() == 0);
}

#[test]
fn stop_ends_idle_connections_and_handshakes() {
    let tls = TlsWorld::with_timeouts(Timeouts { idle_grace: NEVER, ..TIMEOUTS });
    let (mut idle, mut waiting) = (tls.connect(), tls.open());
    assert_eq!(ask_over(&mut idle, GET).1, "/a");
    wait_until(|| tls.world.budget.count() == 2);
    std::thread::scope(|scope| {
        let stopping = scope.spawn(|| tls.world.front.stop(NEVER));
        wait_until(|| TcpStream::connect(tls.world.address).is_err());
        assert_eq!(ask_over(&mut idle, tls.world.request_of_new_player()).1, "{}");
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
        tls.world.front.stop(Duration::ZERO);
        stopping.join().unwrap();
    });
    wait_closed(&mut waiting);
}
