//! Failed authentications count against the client address.

use hosting_front::ByPlane;
use ipnet::IpNet;

use crate::namespace::{SERVICE_TOKEN, public_token};
use crate::python::{Python, Reply};
use crate::world::{SHORT, Setup, World};

const FAILURES: u32 = 3;

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

fn get(client: &str, target: &str, token: &str) -> String {
    let authorization = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    format!("GET {target} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n{authorization}\r\n")
}

/// Returns the status for a token.
fn status(world: &World, client: &str, target: &str, token: &str) -> u16 {
    world.connect().ask(get(client, target, token)).status
}

#[test]
fn unknown_tokens_of_an_address_are_refused_after_many_failures() {
    const FAILING: &str = "192.0.2.1";
    let world = world();
    assert_eq!(status(&world, "192.0.2.7", "/cloud/games/1", "cloud_good"), 200);
    // The response of a path that needs no token does not tell whether the token is valid.
    assert_eq!(status(&world, "192.0.2.7", "/unknown", "cloud_new"), 200);
    for _ in 0..2 * FAILURES {
        assert_eq!(status(&world, FAILING, "/cloud/games/1", "cloud_other"), 404, "another error is no failure");
        assert_eq!(status(&world, FAILING, "/cloud/games/1", ""), 401, "a missing token is no failure");
    }
    for number in 0..FAILURES {
        assert_eq!(status(&world, FAILING, "/cloud/games/1", &format!("cloud_wrong{number}")), 401);
    }
    while world.control.received().is_some() {}
    for (target, token) in [
        ("/cloud/games/1", "cloud_new"),
        ("/events/live", "cloud_new"),
        ("/unknown", "cloud_new"),
        ("/unknown", "pub_wrong"),
        ("/unknown", "env_wrong"),
    ] {
        let answer = world.connect().ask(get(FAILING, target, token));
        assert_eq!(answer.problem(), (429, "rate_limited_failures", false), "{token}");
    }
    world.control.check_no_request();
    assert_eq!(world.front.take_measurements().1.limited_failures, 5);
    assert_eq!(world.front.take_measurements().1.limited_failures, 0);
    assert_eq!(status(&world, "192.0.2.2", "/cloud/games/1", "cloud_new"), 200);
    assert_eq!(status(&world, FAILING, "/cloud/games/1", "cloud_good"), 200);
    assert_eq!(status(&world, FAILING, "/cloud/games/1", ""), 401);
    // Players behind one address share it with a client that tries wrong tokens. Python decides about their tokens.
    for token in [&*public_token(), SERVICE_TOKEN] {
        assert_eq!(status(&world, FAILING, "/unknown", token), 401);
    }
    world.control.end();
    assert_eq!(status(&world, FAILING, "/cloud/games/1", "cloud_good"), 503);
}

#[test]
fn refused_request_does_not_wait_for_a_permit() {
    // One request of a token runs at a time.
    let requests_max = ByPlane { data: 4, control: 4 };
    let world = World::with(Setup { failures: FAILURES, requests_max, ..Setup::default() });
    world.control.reply_by_test();
    let send = |token: &str| {
        let mut client = world.connect();
        client.send(get("", "/cloud/games/1", token).as_bytes());
        client
    };
    let (mut slow, mut received) = (send("cloud_slow"), world.control.request());
    for number in 0..FAILURES {
        let mut client = send(&format!("cloud_wrong{number}"));
        let mut request = world.control.request();
        request.answer(&request.response("401 Unauthorized", "x-hosting-code: TOKEN_INVALID\r\n", ""));
        assert_eq!(client.read_answer().status, 401);
    }
    assert_eq!(send("cloud_slow").read_answer().problem(), (429, "rate_limited_failures", false));
    received.answer_ok("good");
    assert_eq!(slow.read_answer().status, 200);
}

/// While a database is slow, wrong tokens would cost nothing.
#[test]
fn late_request_with_a_token_counts() {
    let world = World::with(Setup { failures: 1, answer_timeout: SHORT, ..Setup::default() });
    world.control.reply_by_test();
    let ask = || world.connect().ask(get("", "/cloud/games/1", "cloud_x"));
    assert_eq!(ask().status, 504);
    assert_eq!(ask().problem(), (429, "rate_limited_failures", false));
}

#[test]
fn lost_request_with_a_token_counts() {
    let world = world();
    world.control.reply_by_test();
    for _ in 0..FAILURES {
        let mut client = world.connect();
        client.send(get("", "/cloud/games/1", "cloud_x").as_bytes());
        world.control.request();
        drop(client);
        world.control.wait_for_close();
    }
    let answer = world.connect().ask(get("", "/cloud/games/1", "cloud_x"));
    assert_eq!(answer.problem(), (429, "rate_limited_failures", false));
}
