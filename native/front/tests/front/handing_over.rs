//! Connections that the front leaves to Python.

use std::time::{Duration, Instant};

use hosting_front::{ClientKey, HandedOver};
use ipnet::IpNet;

use crate::client::Client;
use crate::shard;
use crate::world::{Setup, World, request_with, wait_until};

const LOOPBACK: ClientKey = ClientKey::V4([127, 0, 0, 1]);
const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// Checks that a connection works in both directions, and that its first unread bytes are these.
fn check_connection(handed_over: HandedOver, client: &mut Client, unread: &[u8]) {
    assert_eq!(handed_over.unread.escape_ascii().to_string(), unread.escape_ascii().to_string());
    let mut python = Client::of(handed_over.stream);
    python.send(&response("OK"));
    assert_eq!(client.answer(), "OK");
    client.send(&response("next"));
    assert_eq!(python.answer(), "next");
}

/// Returns a response like those of the front.
fn response(code: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 {code}\r\nx-ray-id: {}\r\ncontent-length: 0\r\n\r\n", "0".repeat(32)).into_bytes()
}

fn blocking(handed_over: HandedOver) -> HandedOver {
    handed_over.stream.set_nonblocking(false).unwrap();
    handed_over
}

#[test]
fn other_requests_are_left_to_python_with_their_bytes() {
    let world = World::new();
    let usual = String::from_utf8(world.request_of_new_player()).unwrap();
    let requests = [
        String::from_utf8(GET.to_vec()).unwrap(),
        "G".into(),
        "\0".into(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
        usual.replace("players/connected", "lobbies/ready"),
        usual.replace("POST", "PUT"),
        usual.replace("Host:", "Idempotency-Key: 1\r\nHost:"),
        usual.replace("Host:", "Connection: close\r\nHost:"),
        usual.replace("Host: localhost\r\n", ""),
        usual.replace("Bearer", "bearer"),
        usual.replace("\r\n", "\n"),
    ];
    for request in requests {
        let mut client = world.connect();
        client.send(request.as_bytes());
        check_connection(blocking(world.handed_over()), &mut client, request.as_bytes());
    }
    assert_eq!(world.players(), [1, 0]);
}

#[test]
fn wrong_lobby_token_is_left_to_python() {
    let world = World::new();
    let of_other_key = shard::keys(8).sign_lobby(1, world.lobby.lobby).unwrap();
    let lobby_token = &world.lobby.lobby_token;
    let tokens = [
        of_other_key,
        world.new_player(),
        lobby_token[..lobby_token.len() - 1].into(),
        format!("{lobby_token}A"),
        format!(" {lobby_token}"),
        "a".into(),
    ];
    for token in tokens {
        let body = format!(r#"{{"player_token":"{}"}}"#, world.new_player());
        let (mut client, request) = (world.connect(), request_with(&token, body));
        client.send(&request);
        assert!(world.handed_over().unread == request, "{token}");
    }
}

#[test]
fn admission_goes_to_python() {
    let world = World::new();
    let mut client = world.connect();
    client.send(GET);
    let admission = world.handed_over().admission.expect("a client that is not a proxy is counted");
    assert_eq!(world.budget.count(), 1);
    assert_eq!(admission.hand_over(), Some(LOOPBACK));
    assert_eq!(world.budget.count(), 1);
    world.budget.leave(Some(LOOPBACK));
    assert_eq!(world.budget.count(), 0);
}

#[test]
fn connection_that_python_drops_leaves_the_budget() {
    let world = World::new();
    let mut client = world.connect();
    client.send(GET);
    let handed_over = world.handed_over();
    assert_eq!(world.budget.count(), 1);
    drop(handed_over);
    assert_eq!(world.budget.count(), 0);
    assert_eq!(client.rest(), b"");
}

#[test]
fn answers_come_before_the_connection_is_left_to_python() {
    let world = World::new();
    let plain = [world.request_of_new_player(), world.refused_request()].concat();
    let unread = [GET, &world.request_of_new_player()].concat();
    let mut client = world.connect();
    client.send(&[plain, unread.clone()].concat());
    let handed_over = blocking(world.handed_over());
    assert!(client.has_answer());
    assert_eq!(client.answers(2), ["OK", "PLAYER_TOKEN_INVALID"]);
    assert!(!client.has_answer(), "the request behind the other one is Python's");
    assert_eq!(world.players(), [1, 1]);
    check_connection(handed_over, &mut client, &unread);
}

#[test]
fn connection_with_undurable_answers_is_not_yet_left_to_python() {
    let (world, _) = World::stepped();
    let (mut client, mut prober) = (world.connect(), world.connect());
    client.send(&[&world.request_of_new_player(), GET].concat());
    wait_until(|| world.players() == [0, 1]);
    world.settle(&mut prober);
    assert!(!world.has_handed_over() && !client.has_answer());
    world.commit();
    let handed_over = blocking(world.handed_over());
    assert!(client.has_answer());
    assert_eq!(client.answer(), "OK");
    check_connection(handed_over, &mut client, GET);
}

#[test]
fn other_request_after_answered_ones_is_left_to_python() {
    let world = World::new();
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    assert_eq!(client.answer(), "OK");
    client.send(GET);
    check_connection(blocking(world.handed_over()), &mut client, GET);
}

#[test]
fn all_parts_of_a_split_request_are_unread() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let usual = String::from_utf8(world.request_of_new_player()).unwrap();
    let (head, _) = usual.split_once("\r\n\r\n").unwrap();
    let request = format!("{head}\r\nCookie: a=b\r\n\r\n").into_bytes();
    for part in request.chunks(50) {
        assert!(!world.has_handed_over());
        client.send(part);
        world.settle(&mut prober);
    }
    check_connection(blocking(world.handed_over()), &mut client, &request);
}

#[test]
fn long_request_is_left_to_python_before_its_end() {
    let world = World::new();
    let request = world.request_with_body("a".repeat(100_000));
    let mut client = world.connect();
    client.send(&request);
    let handed_over = blocking(world.handed_over());
    let mut received = handed_over.unread;
    client.end_sending();
    received.extend(Client::of(handed_over.stream).rest());
    assert!(received == request, "{} of {} bytes", received.len(), request.len());
}

#[test]
fn partial_request_is_left_to_python_after_a_second() {
    let world = World::new();
    let request = world.request_of_new_player();
    let (mut client, started) = (world.connect(), Instant::now());
    client.send(&request[..request.len() - 1]);
    let handed_over = blocking(world.handed_over());
    assert!(started.elapsed() > Duration::from_millis(900));
    assert_eq!(world.players(), [1, 0]);
    check_connection(handed_over, &mut client, &request[..request.len() - 1]);
}

#[test]
fn partial_request_behind_an_answered_one_is_left_to_python() {
    let world = World::new();
    let (request, part) = (world.request_of_new_player(), &b"POST /match"[..]);
    let mut client = world.connect();
    client.send(&[&request, part].concat());
    assert_eq!(client.answer(), "OK");
    check_connection(blocking(world.handed_over()), &mut client, part);
}

/// A client that sends a byte now and then must not hold a connection of the front for hours.
#[test]
fn slow_request_is_left_to_python_although_bytes_come() {
    let world = World::new();
    let request = world.request_of_new_player();
    let mut client = world.connect();
    let mut sent = 0;
    let handed_over = loop {
        assert!(sent < 80, "the front still waits for the rest");
        client.send(&request[sent..][..1]);
        sent += 1;
        if let Some(handed_over) = world.handed_over_within(Duration::from_millis(100)) {
            break blocking(handed_over);
        }
    };
    assert!(sent > 1 && handed_over.unread == request[..handed_over.unread.len()]);
}

/// Each request has its own second for its rest.
#[test]
fn client_that_sends_requests_in_parts_is_answered() {
    let world = World::new();
    let request = world.refused_request();
    let (first, rest) = request.split_at(1);
    let (mut client, started) = (world.connect(), Instant::now());
    client.send(first);
    while started.elapsed() < Duration::from_millis(1_200) {
        client.send(&[rest, first].concat());
        assert_eq!(client.answer(), "PLAYER_TOKEN_INVALID");
    }
    assert!(!world.has_handed_over());
}

fn trusted() -> Vec<IpNet> {
    vec!["127.0.0.0/8".parse().unwrap()]
}

#[test]
fn connection_of_a_trusted_proxy_is_answered_and_counts_for_no_client() {
    let world = World::with(Setup { proxies: trusted(), ..Setup::default() });
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    assert_eq!(client.answer(), "OK");
    client.send(GET);
    let handed_over = blocking(world.handed_over());
    assert!(handed_over.admission.is_none());
    assert_eq!(world.budget.count(), 0);
    check_connection(handed_over, &mut client, GET);
}

#[test]
fn connection_with_a_proxy_header_is_handed_over_with_the_header() {
    const HEADER: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\0\x01\0\x02";
    let world = World::with(Setup { proxies: trusted(), has_proxy_headers: true, ..Setup::default() });
    let mut client = world.connect();
    client.send(&HEADER[..7]);
    client.send(&HEADER[7..]);
    client.send(&world.request_of_new_player());
    assert_eq!(client.answer(), "OK");
    client.send(GET);
    let handed_over = blocking(world.handed_over());
    assert!(handed_over.admission.is_none());
    check_connection(handed_over, &mut client, &[HEADER, GET].concat());
}

#[test]
fn connection_of_a_proxy_without_its_header_is_closed() {
    let world = World::with(Setup { proxies: trusted(), has_proxy_headers: true, ..Setup::default() });
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    assert_eq!(client.rest(), b"");
}

#[test]
fn client_outside_the_networks_of_proxies_is_answered() {
    let networks = ["10.0.0.0/8", "127.0.0.2/32", "::/0"];
    let proxies = networks.map(|network| network.parse().unwrap()).to_vec();
    let world = World::with(Setup { proxies, ..Setup::default() });
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    assert_eq!(client.answer(), "OK");
}

#[test]
fn queue_is_readable_while_it_has_connections() {
    let world = World::new();
    assert!(!world.has_handed_over());
    assert!(world.front.handed_over().take().is_empty());
    for count in [1, 3, 1] {
        let mut clients: Vec<_> = (0..count).map(|_| world.connect()).collect();
        clients.iter_mut().for_each(|client| client.send(GET));
        world.settle(&mut world.connect());
        assert!(world.has_handed_over());
        assert_eq!(world.front.handed_over().take().len(), count);
        assert!(!world.has_handed_over());
    }
}
