//! Answers to plain requests, however their bytes arrive.

use std::collections::HashSet;

use crate::world::World;

#[test]
fn bytes_of_an_answer() {
    let (world, mut client) = World::connected();
    client.send(&world.request_of_new_player());
    client.end_sending();
    let answer = String::from_utf8(client.rest()).unwrap();
    let rest = answer.strip_prefix("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-ray-id: ").unwrap();
    assert_eq!(&rest[32..], "\r\ncontent-length: 2\r\n\r\n{}");
}

#[test]
fn each_answer_has_its_own_ray_id() {
    let (world, mut client) = World::connected();
    client.send(&world.refused_request().repeat(30));
    let ray_ids: HashSet<_> = (0..30).map(|_| client.read_answer().ray_id).collect();
    assert_eq!(ray_ids.len(), 30);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let world = World::new();
    let (first, second) = (world.request_of_new_player(), world.request_of_new_player());
    let mut client = world.connect();
    client.send(&[&first[..], &first, &world.refused_request(), &second, &first].concat());
    let codes = ["OK", "PLAYER_TOKEN_CONSUMED", "PLAYER_TOKEN_INVALID", "OK", "PLAYER_TOKEN_CONSUMED"];
    assert_eq!(client.answers(5), codes);
    assert_eq!(world.players(), [0, 2]);
}

#[test]
fn pipelined_requests_that_need_several_reads_are_all_answered() {
    let (world, mut client) = World::connected();
    let request = world.refused_request();
    let count = 40_000 / request.len();
    client.send(&request.repeat(count));
    assert_eq!(client.answers(count), vec!["PLAYER_TOKEN_INVALID"; count]);
}

#[test]
fn request_may_be_split_at_every_byte() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let request = world.request_of_new_player();
    for at in 1..request.len() {
        client.send(&request[..at]);
        world.settle(&mut prober);
        assert!(!client.has_answer(), "after {at} bytes");
        assert_eq!(
            client.ask(&request[at..]).code,
            if at == 1 { "OK" } else { "PLAYER_TOKEN_CONSUMED" },
            "split at {at}"
        );
    }
}

#[test]
fn plain_and_passed_request_may_come_byte_by_byte() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let passed = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab".to_vec();
    for request in [world.request_of_new_player(), passed] {
        for byte in request {
            client.send(&[byte]);
            world.settle(&mut prober);
        }
        assert_eq!(client.answer(), "OK");
    }
    assert_eq!(world.python.request().body, b"ab");
}

#[test]
fn pipelined_request_may_be_split() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let requests = [world.request_of_new_player(), world.request_of_new_player()].concat();
    let at = requests.len() * 3 / 4;
    assert_eq!(client.ask(&requests[..at]).code, "OK");
    world.settle(&mut prober);
    assert!(!client.has_answer());
    assert_eq!(client.ask(&requests[at..]).code, "OK");
}

/// Hyper reads such a request, and the engine still answers it.
#[test]
fn unusual_form_of_a_plain_request_is_answered() {
    let world = World::new();
    for (usual, other) in [("POST", "\r\nPOST"), ("Host: localhost\r\n", "Host: localhost\n"), ("Host: l", "Host:\tl")]
    {
        let request = String::from_utf8(world.request_of_new_player()).unwrap().replace(usual, other);
        let answer = world.connect().ask(request);
        assert_eq!((answer.status, &*answer.body), (200, "{}"), "{other:?}");
    }
    assert_eq!(world.players(), [0, 3]);
    world.python.check_no_request();
}
