//! TLS termination: certificates by name, HTTP/2, WebSocket, raw bytes, reload.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::backends::{connect, echo, tcp, tcp_echo};
use crate::edge_process::{EdgeProcess, free_port, route};
use crate::http_client::{get, mirror, upgrade, websocket};
use crate::http2::{ask_by_http2, runtime};
use crate::wait::wait_for;
use crate::wire::{OutcomeKind, Route};

fn certify(folder: &Path, names: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard"));
    assert!(command.arg("ca").arg(folder).args(names).status().unwrap().success());
}

pub fn certificate(folder: &Path, names: &[&str]) -> Value {
    certify(folder, names);
    json!({"server_names": names, "cert": folder.join("server.pem"), "key": folder.join("server.key")})
}

pub fn trusting(folder: &Path, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

pub type TlsStream = StreamOwned<ClientConnection, TcpStream>;

pub fn connect_tls(config: &Arc<ClientConfig>, name: &str, port: u16) -> std::io::Result<TlsStream> {
    begin_tls(config, name, connect(port))
}

pub fn begin_tls(config: &Arc<ClientConfig>, name: &str, stream: TcpStream) -> std::io::Result<TlsStream> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut stream = StreamOwned::new(ClientConnection::new(config.clone(), name).unwrap(), stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

pub fn secure_route(owner: &str, protocol: &str, port: u16, backend: std::net::SocketAddr) -> Route {
    Route { is_tls: true, ..route(owner, protocol, port, Some(backend)) }
}

pub fn started() -> (EdgeProcess, TempDir) {
    let keys = tempfile::tempdir().unwrap();
    let certificate = certificate(keys.path(), &["localhost", "127.0.0.1"]);
    (EdgeProcess::start_with(json!({"certificates": [certificate]})), keys)
}

#[test]
fn tls_is_terminated_and_half_close_relayed() {
    let (guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&secure_route("a", "tcp_tls", port, tcp_echo()));
    // A client of the advertised address sends no server name.
    for name in ["localhost", "127.0.0.1"] {
        let mut player = connect_tls(&trusting(keys.path(), &[]), name, port).unwrap();
        echo(&mut player, "hello");
        let large = vec![5; 1_000_000];
        let mut answer = vec![0; large.len()];
        for (sent, back) in large.chunks(10_000).zip(answer.chunks_mut(10_000)) {
            player.write_all(sent).unwrap();
            player.read_exact(back).unwrap();
        }
        assert!(answer == large);
        player.conn.send_close_notify();
        player.flush().unwrap();
        player.sock.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(player.read(&mut [0; 1]).unwrap(), 0, "the other half did not end in order");
    }
}

#[test]
fn data_before_a_missing_close_notify_is_delivered() {
    let (guard, keys) = started();
    let port = free_port();
    let (event_sender, events) = std::sync::mpsc::channel();
    let server = tcp(move |mut stream: TcpStream| {
        let mut all = Vec::new();
        stream.write_all(b"hello").unwrap();
        let ended = stream.read_to_end(&mut all);
        event_sender.send(ended.map(|length| (length, all.ends_with(b"goodbye")))).unwrap();
    });
    guard.source.serve_route(&secure_route("a", "tcp_tls", port, server));
    let mut player = connect_tls(&trusting(keys.path(), &[]), "localhost", port).unwrap();
    // Unread data would reset the connection.
    player.read_exact(&mut [0; 5]).unwrap();
    player.write_all(&vec![5; 1_000_000]).unwrap();
    player.write_all(b"goodbye").unwrap();
    player.flush().unwrap();
    drop(player);
    assert_eq!(events.recv_timeout(crate::wait::LONG).unwrap().unwrap(), (1_000_007, true));
}

#[test]
fn websocket_over_tls_relays_bytes() {
    let (guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&secure_route("a", "https", port, websocket()));
    let mut player = connect_tls(&trusting(keys.path(), &[b"http/1.1"]), "localhost", port).unwrap();
    upgrade(&mut player, "localhost");
    (0..50).for_each(|n| echo(&mut player, &format!("message {n}")));
}

#[test]
fn http2_over_tls_reaches_http1_backends_concurrently() {
    let (guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&secure_route("a", "https", port, mirror()));
    let config = trusting(keys.path(), &[b"h2", b"http/1.1"]);
    runtime().block_on(async {
        let stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap();
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        ask_by_http2(TokioIo::new(stream), "https").await;
    });
    assert_eq!(guard.figure("http_requests_total{status=\"2xx\"}"), 40);
    assert_eq!(guard.figure("connections_total{kind=\"https\"}"), 1);
}

#[test]
fn certificate_is_selected_by_server_name() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let certificates =
        json!([certificate(first.path(), &["*.lobby.example"]), certificate(second.path(), &["api.example"]),]);
    let backends = json!([{"hosts": ["api.example"], "address": mirror(), "proxy_protocol": false}]);
    let settings = json!({"https": "127.0.0.1:0", "certificates": certificates, "backends": backends});
    let guard = EdgeProcess::start_with(settings);
    let host = "a-game.lobby.example";
    let by_host = Route { host: host.to_owned(), ..secure_route("a", "https", 0, mirror()) };
    guard.source.serve_route(&by_host);
    let port = guard.listener("https").port();
    let mut game = connect_tls(&trusting(first.path(), &[]), host, port).unwrap();
    assert!(get(&mut game, host, "/").text().contains("x-forwarded-proto=https"));
    let mut api = connect_tls(&trusting(second.path(), &[]), "api.example", port).unwrap();
    assert_eq!(get(&mut api, "api.example", "/").status(), 200);
    connect_tls(&trusting(second.path(), &[]), "unknown.example", port).expect_err("no certificate has this name");
    guard.wait_for_figure("connections_refused_total{reason=\"handshake\"}", |refused| refused == 1);
}

#[test]
fn sighup_reloads_certificates_and_keeps_old_ones_on_error() {
    let (mut guard, keys) = started();
    let port = free_port();
    guard.source.serve_route(&secure_route("a", "tcp_tls", port, tcp_echo()));
    let old_authority = trusting(keys.path(), &[]);
    let mut player = connect_tls(&old_authority, "localhost", port).unwrap();
    let renewed = tempfile::tempdir().unwrap();
    let certificate = certificate(renewed.path(), &["localhost"]);
    guard.set("certificates", json!([certificate]));
    guard.signal(libc::SIGHUP);
    let new_authority = trusting(renewed.path(), &[]);
    wait_for("the new certificate is shown", || connect_tls(&new_authority, "localhost", port).ok());
    echo(&mut player, "an earlier connection stays");
    std::fs::write(renewed.path().join("server.pem"), "nothing").unwrap();
    guard.signal(libc::SIGHUP);
    guard.wait_for_figure("failures_total{of=\"certificates\"}", |failures| failures == 1);
    echo(&mut connect_tls(&new_authority, "localhost", port).unwrap(), "still");
}

#[test]
fn tls_route_without_certificate_is_unserved() {
    let guard = EdgeProcess::start();
    guard.source.put(&[secure_route("a", "tcp_tls", free_port(), tcp_echo())]);
    assert!(guard.source.wait_for("a", OutcomeKind::Unserved).reason.contains("no certificate"));
}

#[test]
fn tls_route_of_another_host_is_unserved_until_its_certificate_is_loaded() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let lobbies = certificate(first.path(), &["*.lobby.example"]);
    let mut guard = EdgeProcess::start_with(json!({"https": "127.0.0.1:0", "certificates": [lobbies]}));
    let port = free_port();
    let served = |owner: &str, host: &str| Route {
        host: host.to_owned(),
        server_name: host.to_owned(),
        ..secure_route(owner, "https", 0, mirror())
    };
    let raw = Route { server_name: "play.example".to_owned(), ..secure_route("c", "tcp_tls", port, tcp_echo()) };
    guard.source.put(&[served("a", "one.lobby.example"), served("b", "one.server.example"), raw]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    let reason = |owner| guard.source.wait_for(owner, OutcomeKind::Unserved).reason;
    assert_eq!(reason("b"), "no certificate for one.server.example");
    assert_eq!(reason("c"), "no certificate for play.example");
    let servers = certificate(second.path(), &["*.server.example", "play.example"]);
    guard.set("certificates", json!([lobbies, servers]));
    guard.signal(libc::SIGHUP);
    guard.source.wait_for("b", OutcomeKind::Listening);
    guard.source.wait_for("c", OutcomeKind::Listening);
    echo(&mut connect_tls(&trusting(second.path(), &[]), "play.example", port).unwrap(), "in");
}

#[test]
fn check_names_each_server_name_that_a_certificate_lacks() {
    let keys = tempfile::tempdir().unwrap();
    let mut certificate = certificate(keys.path(), &["api.example", "*.lobby.example", "127.0.0.1"]);
    certificate["server_names"] = json!([
        "api.example",
        "one.lobby.example",
        "*.lobby.example",
        "127.0.0.1",
        "a.b.lobby.example",
        "sites.example"
    ]);
    let guard = EdgeProcess::start_with(json!({"certificates": [certificate]}));
    let check =
        Command::new(env!("CARGO_BIN_EXE_hosting-edge-guard")).arg(guard.config()).arg("--check").output().unwrap();
    assert_eq!(check.status.code(), Some(78));
    let problems = String::from_utf8(check.stderr).unwrap();
    for name in ["a.b.lobby.example", "sites.example"] {
        let problem = format!(
            "certificates.0.server_names: {} has no name {name}; it has ",
            certificate["cert"].as_str().unwrap()
        );
        assert!(problems.contains(&problem), "{problems}");
    }
    let (warnings, others): (Vec<_>, Vec<_>) = problems.lines().partition(|line| line.contains("warning: "));
    assert_eq!(others.len(), 2, "{problems}");
    assert!(matches!(warnings[..], [one] if one.contains("server.pem has no chain: ")), "{problems}");
}

#[test]
fn metric_has_the_end_of_each_certificate() {
    let (guard, _keys) = started();
    let end_s = guard.figure("certificate_end_timestamp_seconds{server_name=\"localhost\"}");
    // rcgen's default is the year 4096.
    assert!(end_s > 60_000_000_000, "{end_s}");
}

#[test]
fn existing_authority_is_reused() {
    let keys = tempfile::tempdir().unwrap();
    certify(keys.path(), &["localhost"]);
    let authority = std::fs::read(keys.path().join("ca.pem")).unwrap();
    let server = std::fs::read(keys.path().join("server.pem")).unwrap();
    certify(keys.path(), &["localhost", "game.example"]);
    assert_eq!(std::fs::read(keys.path().join("ca.pem")).unwrap(), authority);
    assert_ne!(std::fs::read(keys.path().join("server.pem")).unwrap(), server);
    use std::os::unix::fs::PermissionsExt;
    for key in ["ca.key", "server.key"] {
        let mode = std::fs::metadata(keys.path().join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

#[test]
fn slow_tls_handshake_is_cut_off() {
    let keys = tempfile::tempdir().unwrap();
    let certificate = certificate(keys.path(), &["localhost"]);
    let guard = EdgeProcess::start_with(json!({"certificates": [certificate], "timeouts": {"handshake_ms": 200}}));
    let (bytes, requests) = (free_port(), free_port());
    guard
        .source
        .put(&[secure_route("a", "tcp_tls", bytes, tcp_echo()), secure_route("b", "https", requests, mirror())]);
    guard.source.wait_for("a", OutcomeKind::Listening);
    guard.source.wait_for("b", OutcomeKind::Listening);
    for port in [bytes, requests] {
        let mut silent = connect(port);
        silent.write_all(&[22, 3, 1]).unwrap();
        assert!(crate::backends::is_closed(&mut silent));
    }
}
