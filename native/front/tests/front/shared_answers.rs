//! Callers with different tokens that share the response to a woken long poll.

use hosting_front::{Changes, Plane, Timeouts};

use crate::client::Client;
use crate::parking::{park_request, world};
use crate::python::{Python, Reply, Request};
use crate::world::{TIMEOUTS, World};

/// Two topics of each token: its own one, and one of all tokens.
fn share(key: &str, request: &Request) -> String {
    let park = format!("x-hosting-park: a.10 news,{0},all\r\n", token(request));
    park + &format!("x-hosting-share: {key} {0},all\r\n", token(request))
}

fn token(request: &Request) -> &str {
    request.header("authorization").unwrap().strip_prefix("Bearer ").unwrap()
}

fn watch(token: &str, headers: &str) -> Vec<u8> {
    format!("GET /events/live HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n{headers}\r\n").into_bytes()
}

/// Parks each request once, with the key `key`. Then answers with its token, as the state after `position`.
fn park_sharing(python: &Python, position: &'static str) {
    python.reply(move |request| {
        Reply::Answer(match request.header("x-hosting-repeat") {
            None => request.response("200 OK", &share("key", request), ""),
            Some(_) => {
                let shared = format!("x-hosting-share: key {position}\r\n");
                request.response("200 OK", &shared, format!("{} {}", token(request), "a".repeat(100)))
            }
        })
    });
}

/// Returns clients with parked requests, each with a token of its own, and a front that has their requests.
fn parked(count: usize, position: &'static str) -> (World, Vec<Client>) {
    let world = world(TIMEOUTS);
    park_sharing(&world.python, position);
    let clients = (0..count).map(|number| park_request(&world, &watch(&format!("env_{number}"), "")).0).collect();
    (world, clients)
}

fn change(world: &World, sequence: u64, topics: &[(&str, u64)]) {
    let topics = topics.iter().map(|(topic, number)| ((*topic).to_owned(), *number)).collect();
    world.front.take_changes(Plane::Data, Changes { run: "a".into(), sequence, topics, is_complete: true });
}

/// Returns the token that each client's response is for.
fn answered(clients: &mut [Client]) -> Vec<String> {
    clients.iter_mut().map(|client| client.read_answer().body.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn two_tokens_share_a_response() {
    let (world, mut clients) = parked(40, "a.11");
    change(&world, 11, &[("news", 11)]);
    let answers: Vec<_> = clients.iter_mut().map(Client::read_answer).collect();
    let first = &answers[0];
    assert!(answers.iter().all(|answer| answer.body == first.body && answer.header("x-hosting-share").is_none()));
    assert!(answers[1..].iter().all(|answer| answer.ray_id != first.ray_id));
    world.python.request();
    world.python.check_no_request();
}

#[test]
fn callers_with_other_keys_or_origins_share_nothing() {
    let (world, mut clients) = parked(1, "a.11");
    clients.push(park_request(&world, &watch("env_1", "Origin: https://b.example\r\n")).0);
    world.python.reply(|request| Reply::Answer(request.response("200 OK", &share("other", request), "")));
    clients.push(park_request(&world, &watch("env_2", "")).0);
    park_sharing(&world.python, "a.11");
    change(&world, 11, &[("news", 11)]);
    assert_eq!(answered(&mut clients), ["env_0", "env_1", "env_2"]);
}

#[test]
fn wait_that_is_over_is_shared_too() {
    let world = world(Timeouts { parked: crate::world::SHORT, ..TIMEOUTS });
    park_sharing(&world.python, "a.10");
    let mut clients: Vec<_> = (0..8).map(|_| world.connect()).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        client.send(&watch(&format!("env_{number}"), ""));
    }
    assert_eq!(answered(&mut clients).len(), 8);
}

#[test]
fn revoked_token_has_a_response_of_its_own() {
    for topics in [&[("env_1", 11)][..], &[("news", 11), ("env_1", 12)], &[("env_1", 11), ("news", 12)]] {
        let (world, mut clients) = parked(3, "a.12");
        world.python.reply(|request| {
            Reply::Answer(match token(request) {
                "env_1" => request.response("401 Unauthorized", "x-hosting-code: TOKEN_REVOKED\r\n", "revoked"),
                token => request.response("200 OK", "x-hosting-share: key a.12\r\n", token),
            })
        });
        change(&world, 12, topics);
        let answer = clients[1].read_answer();
        assert_eq!((answer.status, &*answer.body), (401, "revoked"));
        change(&world, 13, &[("news", 13)]);
        clients.remove(1);
        let answers = answered(&mut clients);
        assert!(["env_0", "env_2"].contains(&&*answers[0]), "{answers:?}");
    }
}

/// The revocation is known only after the response that is newer than it.
#[test]
fn response_after_a_revocation_is_not_shared_with_the_token() {
    let (world, mut clients) = parked(2, "a.12");
    world.python.reply_by_test();
    change(&world, 11, &[("news", 11)]);
    let mut request = world.python.request();
    let leader = token(&request).to_owned();
    let (revoked, number) = if leader == "env_0" { ("env_1", 1) } else { ("env_0", 0) };
    world.python.reply(|request| Reply::Answer(request.response("401 Unauthorized", "", "revoked")));
    let response = request.response("200 OK", "x-hosting-share: key a.12\r\n", &leader);
    request.answer(&response);
    world.settle(&mut world.connect());
    assert!(!clients[0].has_answer() && !clients[1].has_answer(), "the front waits for the change");
    change(&world, 12, &[(revoked, 12)]);
    assert_eq!(clients[number].read_answer().body, "revoked");
    assert_eq!(clients[1 - number].read_answer().body, leader);
}

#[test]
fn others_do_not_take_a_response_without_their_key() {
    let refused = ("401 Unauthorized", "x-hosting-code: TOKEN_REVOKED\r\n");
    let parked_again = ("200 OK", "x-hosting-park: a.99 news\r\nx-hosting-share: key news\r\n");
    for (status, headers) in [("200 OK", ""), ("200 OK", "x-hosting-share: other a.11\r\n"), refused, parked_again] {
        let (world, mut clients) = parked(4, "a.11");
        let mut count = 0;
        world.python.reply(move |request| {
            count += 1;
            let (status, headers) = if count == 1 { (status, headers) } else { ("200 OK", "") };
            Reply::Answer(request.response(status, headers, token(request)))
        });
        change(&world, 11, &[("news", 11)]);
        if headers.contains("park") {
            (0..4).for_each(|_| drop(world.python.request()));
            change(&world, 100, &[("news", 100)]);
        }
        assert_eq!(answered(&mut clients), ["env_0", "env_1", "env_2", "env_3"], "{headers}");
    }
}
