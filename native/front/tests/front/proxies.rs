//! Addresses of clients behind proxies and behind edge-guard, and their shares of the connections.

use hosting_front::Timeouts;
use ipnet::IpNet;

use crate::client::Client;
use crate::proxy_headers::{local_header, proxy_header};
use crate::python::Request;
use crate::world::{GET, SHORT, Setup, TIMEOUTS, World, wait_until};

/// Returns a connection of edge-guard for a client.
pub fn edge_client(world: &World, address: [u8; 4]) -> Client {
    let mut client = Client::connect_unix(&world.edge_socket);
    client.send(&proxy_header(address));
    client
}

fn trusted() -> Vec<IpNet> {
    vec!["127.0.0.0/8".parse().unwrap(), "10.0.0.0/8".parse().unwrap()]
}

fn behind_proxies(has_proxy_headers: bool) -> World {
    World::with(Setup { proxies: trusted(), has_proxy_headers, ..Setup::default() })
}

fn ask(world: &World, client: &mut Client, lines: &str) -> Request {
    assert_eq!(client.ask(format!("GET /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n")).status, 200);
    world.python.request()
}

#[test]
fn edge_guard_names_the_client_of_a_connection() {
    let world = World::new();
    let mut client = edge_client(&world, [192, 0, 2, 1]);
    for _ in 0..2 {
        let request = ask(&world, &mut client, "X-Forwarded-For: 192.0.2.9\r\nX-Coords: 1, 2\r\n");
        assert_eq!(request.header("x-hosting-client"), Some("192.0.2.1"));
        assert!(!request.has("x-forwarded-for") && !request.has("x-coords"));
    }
    assert_eq!(client.ask(world.request_of_new_player()).body, "{}");
    assert_eq!(world.budget.count(), 1);
    drop(client);
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn connection_of_edge_guard_without_a_header_is_closed() {
    let world = World::new();
    let mut client = Client::connect_unix(&world.edge_socket);
    client.send(GET);
    assert_eq!(client.rest(), b"");
    world.python.check_no_request();
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn connection_of_edge_guard_without_a_first_byte_is_closed() {
    let world = World::with(Setup { timeouts: Timeouts { receive: SHORT, ..TIMEOUTS }, ..Setup::default() });
    assert_eq!(edge_client(&world, [192, 0, 2, 1]).rest(), b"");
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn proxy_header_names_the_client_of_a_connection() {
    let world = behind_proxies(true);
    let header = proxy_header([192, 0, 2, 1]);
    for at in [0, 7] {
        let mut client = world.connect();
        client.send(&header[..at]);
        world.settle(&mut behind(&world));
        client.send(&header[at..]);
        let request = ask(&world, &mut client, "X-Forwarded-For: 192.0.2.9\r\nX-Coords: 1, 2\r\n");
        assert_eq!(request.header("x-hosting-client"), Some("192.0.2.1"));
        assert!(!request.has("x-coords"));
    }
    let mut client = world.connect();
    assert_eq!(client.ask([header, world.request_of_new_player()].concat()).code, "OK");
}

/// Returns a client with a PROXY header.
fn behind(world: &World) -> Client {
    let mut client = world.connect();
    client.send(&proxy_header([192, 0, 2, 7]));
    client
}

#[test]
fn proxy_behind_a_proxy_names_the_client_of_each_request() {
    let world = behind_proxies(true);
    for (header, own) in [(proxy_header([10, 0, 0, 1]), "10.0.0.1"), (local_header(), "127.0.0.1")] {
        let mut client = world.connect();
        client.send(&header);
        let request = ask(&world, &mut client, "X-Forwarded-For: 192.0.2.9\r\nX-Coords: 1, 2\r\n");
        assert_eq!((request.header("x-hosting-client"), request.header("x-coords")), (Some("192.0.2.9"), Some("1, 2")));
        assert_eq!(ask(&world, &mut client, "").header("x-hosting-client"), Some(own));
    }
}

#[test]
fn connection_of_a_proxy_without_its_header_is_closed() {
    let world = behind_proxies(true);
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    assert_eq!(client.rest(), b"");
    assert_eq!(world.players(), [1, 0]);
}

#[test]
fn client_that_is_no_proxy_cannot_send_a_proxy_header() {
    for proxies in [Vec::new(), vec!["10.0.0.0/8".parse().unwrap()]] {
        let world = World::with(Setup { proxies, has_proxy_headers: true, ..Setup::default() });
        let mut client = world.connect();
        client.send(&[&proxy_header([192, 0, 2, 1]), GET].concat());
        assert_eq!(client.read_answer().problem(), (400, "not_http", true));
        assert_eq!(client.rest(), b"");
        world.python.check_no_request();
        assert_eq!(ask(&world, &mut world.connect(), "").header("x-hosting-client"), Some("127.0.0.1"));
    }
}

#[test]
fn trusted_proxy_names_the_client_of_each_request() {
    let world = behind_proxies(false);
    let mut client = world.connect();
    for (lines, expected) in [
        ("X-Forwarded-For: 192.0.2.9\r\nX-Forwarded-For: 192.0.2.1, 10.0.0.1\r\n", "192.0.2.1"),
        ("X-Forwarded-For: unknown\r\n", "127.0.0.1"),
        ("Forwarded: for=192.0.2.1\r\n", "127.0.0.1"),
        ("", "127.0.0.1"),
    ] {
        let request = ask(&world, &mut client, &format!("{lines}X-Coords: 48.1, 11.5\r\n"));
        assert_eq!(request.header("x-hosting-client"), Some(expected), "{lines}");
        assert_eq!(request.header("x-coords"), Some("48.1, 11.5"));
        assert!(!request.has("x-forwarded-for") && !request.has("forwarded"));
    }
}

#[test]
fn client_has_half_of_the_connections_and_a_proxy_all() {
    let setup = |proxies, has_proxy_headers| Setup { budget: 4, proxies, has_proxy_headers, ..Setup::default() };
    let open = |world: &World, header: &[u8], count: usize| -> Vec<Client> {
        let mut clients: Vec<_> = (0..count).map(|_| world.connect()).collect();
        for client in &mut clients {
            client.send(header);
            assert_eq!(client.ask(GET).status, 200);
        }
        clients
    };
    let is_refused = |world: &World, header: &[u8]| {
        let mut client = world.connect();
        client.send(header);
        client.rest().is_empty()
    };
    let world = World::with(setup(Vec::new(), false));
    let mut clients = open(&world, b"", 2);
    assert!(is_refused(&world, b""));
    clients.pop();
    wait_until(|| world.budget.count() == 1);
    open(&world, b"", 1);

    let world = World::with(setup(trusted(), false));
    let _clients = open(&world, b"", 4);
    assert!(is_refused(&world, b""));

    let world = World::with(setup(trusted(), true));
    let header = proxy_header([192, 0, 2, 1]);
    let _clients = open(&world, &header, 2);
    assert!(is_refused(&world, &header));
    wait_until(|| world.budget.count() == 2);
    let _others = (open(&world, &proxy_header([192, 0, 2, 2]), 1), open(&world, &local_header(), 1));
    assert!(is_refused(&world, b""));
}

#[test]
fn body_budget_counts_the_client_that_a_proxy_names() {
    let world = World::with(Setup { proxies: trusted(), bodies_bytes_max: 2 << 20, ..Setup::default() });
    let head = |client: &str, bytes: usize| {
        let token = "Authorization: Bearer env_a\r\n";
        format!(
            "POST /cloud/files HTTP/1.1\r\nHost: a\r\n{token}X-Forwarded-For: {client}\r\nContent-Length: {bytes}\r\n\r\n"
        )
    };
    let body = "a".repeat(1 << 20);
    let mut client = world.connect();
    client.send((head("192.0.2.1", 1 << 20) + &body[1..]).as_bytes());
    wait_until(|| world.bodies.held_bytes() == (1 << 20) - 1);
    let other = head("192.0.2.1", 200_000) + &body[..200_000];
    assert_eq!(world.connect().ask(other).problem(), (503, "overloaded_bodies", true));
    assert_eq!(world.connect().ask(head("192.0.2.2", 200_000) + &body[..200_000]).status, 200);
}
