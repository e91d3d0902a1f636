//! Failed authentications count against the client address.

use ipnet::IpNet;

use crate::namespace::{SERVICE_TOKEN, public_token};
use crate::python::{Python, Reply};
use crate::world::{SHORT, Setup, World};

const FAILURES: u32 = 3;
/// Requests of one token that the front passes on at once.
const PERMITS: usize = 128;

fn world() -> World {
    let proxies: Vec<IpNet> = vec!["127.0.0.1/32".parse().unwrap()];
    let world = World::with(Setup { failures: FAILURES, proxies, ..Setup::default() });
    for python in [&world.python, &world.control] {
        answer_by_token(python);
    }
    world
}

fn answer_by_token(python: &Python) {
    python.reply(|request| {
        let failed = |code: &str| {
            let code = format!("x-hosting-code: {code}\r\n");
            request.response("401 Unauthorized", &code, "")
        };
        Reply::Answer(match request.header("authorization") {
            Some("Bearer cloud_good" | "Bearer cloud_new") => request.response("200 OK", "", "good"),
            Some("Bearer cloud_other") => request.response("404 Not Found", "x-hosting-code: NOT_FOUND\r\n", ""),
            Some(_) => failed("TOKEN_INVALID"),
            None => failed("TOKEN_MISSING"),
        })
    });
}

/// Returns the status for a token.
fn status(world: &World, client: &str, target: &str, token: &str) -> u16 {
    let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n{authorization}\r\n");
    world.connect().ask(head).status
}

fn fail_often(world: &World) {
    for number in 0..FAILURES {
        assert_eq!(status(world, "192.0.2.1", "/cloud/games/1", &format!("cloud_wrong{number}")), 401);
    }
}

#[test]
fn tokens_of_an_address_are_refused_after_many_failures() {
    let world = world();
    fail_often(&world);
    for target in ["/cloud/games/1", "/events/live", "/unknown"] {
        let head = format!(
            "GET {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 192.0.2.1\r\nAuthorization: Bearer cloud_new\r\n\r\n"
        );
        let answer = world.connect().ask(head);
        assert_eq!(answer.problem(), (429, "rate_limited_failures", false));
    }
    assert_eq!(world.control.targets(FAILURES as usize).len(), FAILURES as usize);
    world.control.check_no_request();
    world.python.check_no_request();
    assert_eq!(world.front.take_measurements().1.limited_failures, 3);
    assert_eq!(world.front.take_measurements().1.limited_failures, 0);
    assert_eq!(status(&world, "192.0.2.2", "/cloud/games/1", "cloud_new"), 200);
}

#[test]
fn token_that_succeeded_is_not_limited() {
    let world = world();
    assert_eq!(status(&world, "192.0.2.7", "/cloud/games/1", "cloud_good"), 200);
    fail_often(&world);
    assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", "cloud_good"), 200);
    // The answer of a path that needs no token does not tell whether the token is valid.
    assert_eq!(status(&world, "192.0.2.7", "/unknown", "cloud_new"), 200);
    assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", "cloud_new"), 429);
}

/// Players behind one address share it with a client that tries wrong tokens.
#[test]
fn valid_tokens_of_players_and_their_back_ends_are_not_limited() {
    let world = world();
    fail_often(&world);
    for token in [&*public_token(), SERVICE_TOKEN] {
        assert_eq!(status(&world, "192.0.2.1", "/unknown", token), 401, "Python decides");
    }
    for token in ["pub_wrong", "env_wrong"] {
        assert_eq!(status(&world, "192.0.2.1", "/unknown", token), 429);
    }
}

#[test]
fn request_without_a_token_is_not_limited_and_is_no_failure() {
    let world = world();
    for _ in 0..2 * FAILURES {
        assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", ""), 401);
    }
    fail_often(&world);
    assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", ""), 401);
}

#[test]
fn other_errors_are_no_failures() {
    let world = world();
    for _ in 0..2 * FAILURES {
        assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", "cloud_other"), 404);
    }
    world.control.end();
    for _ in 0..2 * FAILURES {
        assert_eq!(status(&world, "192.0.2.1", "/cloud/games/1", "cloud_other"), 503);
    }
}

#[test]
fn refused_request_does_not_wait_for_a_permit() {
    let world = World::with(Setup { failures: FAILURES, budget: 1_000, ..Setup::default() });
    world.control.reply_by_test();
    let send = |token: &str| {
        let mut client = world.connect();
        let head = format!("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n\r\n");
        client.send(head.as_bytes());
        client
    };
    let mut slow: Vec<_> = (0..PERMITS).map(|_| send("cloud_slow")).collect();
    let requests: Vec<_> = (0..PERMITS).map(|_| world.control.request()).collect();
    for number in 0..FAILURES {
        let mut client = send(&format!("cloud_wrong{number}"));
        let mut request = world.control.request();
        request.answer(&request.response("401 Unauthorized", "x-hosting-code: TOKEN_INVALID\r\n", ""));
        assert_eq!(client.read_answer().status, 401);
    }
    assert_eq!(send("cloud_slow").read_answer().problem(), (429, "rate_limited_failures", false));
    requests.into_iter().for_each(|mut request| request.answer_ok("good"));
    assert!(slow.iter_mut().all(|client| client.read_answer().status == 200));
}

/// While a database is slow, wrong tokens would cost nothing.
#[test]
fn late_request_with_a_token_counts() {
    let world = World::with(Setup { failures: 1, answer_timeout: SHORT, ..Setup::default() });
    let head = "GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer cloud_x\r\n\r\n";
    world.control.reply_by_test();
    assert_eq!(world.connect().ask(head).status, 504);
    assert_eq!(world.connect().ask(head).problem(), (429, "rate_limited_failures", false));
}

#[test]
fn lost_request_with_a_token_counts() {
    let world = world();
    world.control.reply_by_test();
    for _ in 0..FAILURES {
        let mut client = world.connect();
        client.send(b"GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer cloud_x\r\n\r\n");
        world.control.request();
        drop(client);
        world.control.wait_for_close();
    }
    let answer = world.connect().ask("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer cloud_x\r\n\r\n");
    assert_eq!(answer.problem(), (429, "rate_limited_failures", false));
}
