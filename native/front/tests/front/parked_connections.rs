//! Connections with a parked request, which leave hyper until the response.

use std::time::Duration;

use hosting_front::{Plane, Timeouts};

use crate::client::Client;
use crate::parking::{WATCH, changes, park, park_request, parked, world};
use crate::proxies::edge_client;
use crate::python::Reply;
use crate::world::{GET, NEVER, SHORT, Setup, TIMEOUTS, World, wait_until};

const LARGE_BYTES: usize = 16 << 20;

fn wake(world: &World, sequence: u64) {
    world.front.take_changes(Plane::Data, changes("a", sequence, &["one"], true));
}

/// Returns a client with a request like [`WATCH`] that is parked.
fn parked_with(world: &World, line: &str, headers: &str) -> Client {
    park_request(world, format!("{line}\r\nHost: a\r\n{headers}\r\n").as_bytes()).0
}

#[test]
fn requests_behind_a_parked_one_are_answered_in_order() {
    for is_sent_before in [true, false] {
        let world = world(TIMEOUTS);
        let large = format!("POST /b HTTP/1.1\r\nHost: a\r\nContent-Length: 5000\r\n\r\n{}", "b".repeat(5_000));
        let rest = [GET, &world.refused_request(), large.as_bytes(), GET].concat();
        let mut client = if is_sent_before {
            park_request(&world, &[WATCH, &rest].concat()).0
        } else {
            let mut client = parked(&world).0;
            client.send(&rest);
            client
        };
        world.settle(&mut world.connect());
        world.python.check_no_request();
        assert!(!client.has_answer());
        world.python.reply(|request| Reply::Answer(request.response("200 OK", "", &request.target)));
        wake(&world, 11);
        assert_eq!(client.read_answer().body, "/events/live?after=a.10");
        assert_eq!(client.read_answer().body, "/a");
        assert_eq!(client.read_answer().status, 400);
        assert_eq!([client.read_answer().body, client.read_answer().body], ["/b", "/a"]);
        assert_eq!(world.python.targets(4), ["/events/live?after=a.10", "/a", "/b", "/a"]);
    }
}

#[test]
fn connection_serves_all_kinds_of_requests_after_a_parked_one() {
    let world = world(TIMEOUTS);
    let mut client = world.connect();
    for (wait, topic, sequence) in [("a.10 one", "one", 11), ("a.10 two", "two", 12), ("a.10 three", "three", 13)] {
        park(&world.python, wait);
        client.send(WATCH);
        wait_until(|| world.parked() == 1);
        world.front.take_changes(Plane::Data, changes("a", sequence, &[topic], true));
        assert_eq!(client.read_answer().body, "changed");
        assert_eq!(client.ask(world.refused_request()).code, "PLAYER_TOKEN_INVALID");
        world.python.reply_with("200 OK", "", "passed");
        assert_eq!(client.ask(GET).body, "passed");
    }
    assert_eq!((world.parked(), world.budget.count()), (0, 1));
}

#[test]
fn connection_of_edge_guard_goes_on_after_a_parked_request() {
    let world = world(TIMEOUTS);
    let mut client = edge_client(&world, [192, 0, 2, 1]);
    client.send(WATCH);
    wait_until(|| world.parked() == 1);
    world.python.reply(|request| {
        Reply::Answer(request.response("200 OK", "", request.header("x-hosting-repeat").unwrap_or("passed")))
    });
    client.send(GET);
    wake(&world, 11);
    assert_eq!(client.read_answer().body, "changed");
    assert_eq!(client.read_answer().body, "passed");
    assert_eq!(client.ask(GET).body, "passed");
}

#[test]
fn rare_parked_requests_are_answered_like_others() {
    for (line, headers, version, is_last) in [
        ("GET /events/live HTTP/1.0", "Connection: keep-alive\r\n", "HTTP/1.0", true),
        ("GET /events/live HTTP/1.1", "Connection: Close\r\n", "HTTP/1.1", true),
        ("HEAD /events/live HTTP/1.1", "", "HTTP/1.1", false),
        ("POST /events/live HTTP/1.1", "", "HTTP/1.1", false),
    ] {
        let world = world(TIMEOUTS);
        let mut client = parked_with(&world, line, headers);
        wake(&world, 11);
        let status = format!("{version} 200 OK");
        assert_eq!(client.line(), status);
        let head: Vec<String> = (0..).map(|_| client.line()).take_while(|line| !line.is_empty()).collect();
        let is_head = line.starts_with("HEAD");
        assert_eq!(head.iter().filter(|line| *line == "content-length: 7").count(), 1, "{head:?}");
        if !is_head {
            assert_eq!(client.bytes(7), b"changed");
        }
        if is_last {
            assert_eq!(client.rest(), b"");
        } else {
            world.python.reply_with("200 OK", "", "passed");
            assert_eq!(client.ask(GET).body, "passed");
        }
    }
}

#[test]
fn answer_has_the_headers_of_the_front() {
    let world = world(TIMEOUTS);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers =
        format!("Origin: https://b.example\r\nTraceparent: 00-{trace}-00f067aa0ba902b7-01\r\nContent-Length: 0\r\n");
    let mut client = parked_with(&world, "GET /events/live HTTP/1.1", &headers);
    wake(&world, 11);
    let answer = client.read_answer();
    assert_eq!((&*answer.ray_id, answer.header("access-control-allow-origin")), (trace, Some("*")));
    assert_eq!(answer.header("connection"), None);
    assert_eq!(world.counts().iter().filter(|row| row.1 == "OK").map(|row| row.2).sum::<u64>(), 1);
}

#[test]
fn connection_without_keep_alive_closes_after_a_parked_request() {
    let world =
        World::with(Setup { timeouts: Timeouts { keep_alive: Duration::ZERO, ..TIMEOUTS }, ..Setup::default() });
    world.front.take_changes(Plane::Data, changes("a", 10, &[], false));
    park(&world.python, "a.10 one");
    let (mut client, _) = parked(&world);
    client.send(GET);
    wake(&world, 11);
    let answer = client.read_answer();
    assert_eq!((&*answer.body, answer.header("connection")), ("changed", Some("close")));
    assert_eq!(client.rest(), b"");
    world.python.request();
    world.python.check_no_request();
}

#[test]
fn parked_request_is_not_slow_and_its_connection_idle_afterwards() {
    let world = world(Timeouts { receive: SHORT, keep_alive: SHORT, ..TIMEOUTS });
    let (mut client, _) = parked(&world);
    let started = std::time::Instant::now();
    wait_until(|| started.elapsed() > 3 * SHORT);
    wake(&world, 11);
    assert_eq!(client.read_answer().body, "changed");
    assert_eq!(client.rest(), b"");
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn stop_answers_a_parked_request_and_no_later_one() {
    let world = world(TIMEOUTS);
    let (mut client, _) = parked(&world);
    client.send(GET);
    world.front.stop(NEVER);
    let answer = client.read_answer();
    assert_eq!((&*answer.body, answer.header("connection")), ("expired", Some("close")));
    assert_eq!(client.rest(), b"");
    world.python.request();
    world.python.check_no_request();
}

#[test]
fn client_that_does_not_read_the_answer_is_disconnected() {
    let world = world(Timeouts { slow_reader: SHORT, ..TIMEOUTS });
    let (client, _) = parked(&world);
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", "a".repeat(LARGE_BYTES))));
    wake(&world, 11);
    wait_until(|| world.budget.count() == 0);
    drop(client);
}

/// The earlier response is not lost when the next request is parked.
#[test]
fn request_behind_a_large_answer_is_parked() {
    let world = world(TIMEOUTS);
    world.python.reply(|request| {
        Reply::Answer(match (&*request.target, request.header("x-hosting-repeat")) {
            ("/a", _) => request.response("200 OK", "", "a".repeat(LARGE_BYTES)),
            (_, None) => request.response("200 OK", "x-hosting-park: a.10 one\r\n", ""),
            (_, Some(held)) => request.response("200 OK", "", held),
        })
    });
    let mut client = world.connect();
    client.send(&[GET, WATCH].concat());
    assert_eq!(client.read_answer().body.len(), LARGE_BYTES);
    wait_until(|| world.parked() == 1);
    wake(&world, 11);
    assert_eq!(client.read_answer().body, "changed");
    assert_eq!(client.ask(GET).body.len(), LARGE_BYTES);
}

/// A client that ends its sending side has left, as for other requests.
#[test]
fn end_of_stream_ends_a_parked_request() {
    let world = world(TIMEOUTS);
    let (client, _) = parked(&world);
    client.end_sending();
    wait_until(|| world.parked() == 0 && world.budget.count() == 0);
    assert_eq!(client.rest(), b"");
}
