//! Answers to plain requests, however their bytes arrive.

use std::collections::HashSet;
use std::sync::Barrier;
use std::thread;

use hosting_core::Disconnect;
use hosting_front::code_names;
use hosting_matchmaker::{Operation, Subject};

use crate::client::Client;
use crate::shard::{self, PLAYER_TOKEN_TTL_MS};
use crate::world::{World, request_with};

#[test]
fn plain_request_connects_the_player() {
    let world = World::new();
    let (mut client, request) = (world.connect(), world.request_of_new_player());
    assert_eq!(world.players(), [1, 0]);
    client.send(&request);
    assert_eq!(client.answer(), "OK");
    assert_eq!(world.players(), [0, 1]);
}

#[test]
fn bytes_of_an_answer() {
    let world = World::new();
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    client.end_sending();
    let answer = String::from_utf8(client.rest()).unwrap();
    let rest = answer.strip_prefix("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-ray-id: ").unwrap();
    assert_eq!(&rest[32..], "\r\ncontent-length: 2\r\n\r\n{}");
}

#[test]
fn connection_stays_open_for_further_requests() {
    let world = World::new();
    let mut client = world.connect();
    for connected in 1..=20 {
        client.send(&world.request_of_new_player());
        assert_eq!(client.answer(), "OK");
        assert_eq!(world.players(), [0, connected]);
    }
}

#[test]
fn each_answer_has_its_own_ray_id() {
    let world = World::new();
    let mut client = world.connect();
    client.send(&world.refused_request().repeat(30));
    let ray_ids: HashSet<_> = (0..30).map(|_| client.answer_with_ray_id().1).collect();
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
    let world = World::new();
    let mut client = world.connect();
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
        client.send(&request[at..]);
        assert_eq!(client.answer(), if at == 1 { "OK" } else { "PLAYER_TOKEN_CONSUMED" }, "split at {at}");
    }
}

#[test]
fn request_may_come_byte_by_byte() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    for byte in world.request_of_new_player() {
        client.send(&[byte]);
        world.settle(&mut prober);
    }
    assert_eq!(client.answer(), "OK");
}

/// Several HTTP clients send head and body in two writes.
#[test]
fn head_and_body_may_come_in_two_writes() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let request = world.request_of_new_player();
    let head_length = request.windows(4).position(|part| part == b"\r\n\r\n").unwrap() + 4;
    client.send(&request[..head_length]);
    world.settle(&mut prober);
    client.send(&request[head_length..]);
    assert_eq!(client.answer(), "OK");
}

#[test]
fn pipelined_request_may_be_split() {
    let world = World::new();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let requests = [world.request_of_new_player(), world.request_of_new_player()].concat();
    let at = requests.len() * 3 / 4;
    client.send(&requests[..at]);
    assert_eq!(client.answer(), "OK");
    world.settle(&mut prober);
    assert!(!client.has_answer());
    client.send(&requests[at..]);
    assert_eq!(client.answer(), "OK");
}

#[test]
fn client_that_sends_no_more_still_gets_its_answer() {
    let world = World::new();
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    client.end_sending();
    assert_eq!(client.answer(), "OK");
    assert_eq!(client.rest(), b"");
}

#[test]
fn refusals_of_player_tokens() {
    let world = World::new();
    let mut client = world.connect();
    let mut code_of = |request: &[u8]| {
        client.send(request);
        client.answer()
    };
    let (player, removed) = (world.new_player(), world.new_player());
    let other_lobby = shard::new_lobby(&world.shard, 2);
    let of_other_lobby = shard::new_player(&world.shard, other_lobby.lobby);
    let disconnect = Disconnect {
        lobby: world.lobby.lobby,
        player: world.shard.keys().verify_player(&removed),
        hold_ms: None,
        idempotency: None,
    };
    world.shard.execute(|engine, context| engine.disconnected(context, &disconnect)).result.unwrap();

    assert_eq!(code_of(&world.request(&of_other_lobby)), "PLAYER_TOKEN_WRONG_LOBBY");
    assert_eq!(code_of(&world.request(&player)), "OK");
    assert_eq!(code_of(&world.request(&player)), "PLAYER_TOKEN_CONSUMED");
    assert_eq!(code_of(&world.request(&removed)), "PLAYER_REMOVED");
    assert_eq!(code_of(&world.refused_request()), "PLAYER_TOKEN_INVALID");
    let of_unknown_key = shard::player_token(2, 7, world.lobby.lobby);
    assert_eq!(code_of(&world.request(&of_unknown_key)), "PLAYER_TOKEN_INVALID");
    let of_no_slot = shard::player_token(shard::KEY_ID, 7, world.lobby.lobby);
    assert_eq!(code_of(&world.request(&of_no_slot)), "PLAYER_TOKEN_INVALID");
    assert_eq!(world.players(), [0, 1]);
}

#[test]
fn expired_player_token() {
    let (world, clock) = World::stepped();
    let (mut client, request) = (world.connect(), world.request_of_new_player());
    clock.pass(PLAYER_TOKEN_TTL_MS);
    client.send(&request);
    crate::world::wait_until(|| world.players() == [0, 0]);
    world.commit();
    assert_eq!(client.answer(), "PLAYER_TOKEN_EXPIRED");
}

#[test]
fn token_of_a_forgotten_lobby_is_expired() {
    let world = World::new();
    let forgotten = shard::keys(7).sign_lobby(1, shard::lobby_id(9)).unwrap();
    let mut client = world.connect();
    client.send(&request_with(&forgotten, format!(r#"{{"player_token":"{}"}}"#, world.new_player())));
    assert_eq!(client.answer(), "TOKEN_EXPIRED");
    assert_eq!(world.players(), [1, 0]);
}

#[test]
fn measurements_count_the_answers() {
    let world = World::new();
    let mut client = world.connect();
    let request = world.request_of_new_player();
    client.send(&[&request[..], &request, &request].concat());
    let answers: Vec<_> = (0..3).map(|_| client.answer_with_ray_id()).collect();
    let measured = world.front.take_measurements().1;
    let [connected, others @ ..] = &measured.operations[..] else { panic!("no operations") };
    assert_eq!(others.iter().flat_map(|counts| &counts.codes).sum::<u64>(), 0);
    let count = |code: &str| connected.codes[code_names().position(|known| known == code).unwrap()];
    assert_eq!((count("OK"), count("PLAYER_TOKEN_CONSUMED")), (1, 2));
    assert_eq!(connected.durations.iter().sum::<u64>(), 3);
    let refused: Vec<_> = measured.records.iter().filter(|record| record.code != 0).collect();
    assert_eq!(refused.len(), 2, "each refusal has a record");
    for (record, (_, ray_id)) in refused.iter().zip(&answers[1..]) {
        assert_eq!(
            (record.operation, record.caller),
            (Operation::Connected as usize, Some(Subject::Lobby(world.lobby.lobby)))
        );
        assert_eq!(record.ray_id.digits(), ray_id.as_bytes());
        assert!(record.started <= record.executed && record.executed <= record.ended);
    }
}

fn confirm(mut client: Client, request: &[u8], start: &Barrier) -> String {
    start.wait();
    client.send(request);
    client.answer()
}

#[test]
fn one_of_two_concurrent_confirmations_succeeds() {
    let world = World::new();
    for round in 1..=50 {
        let (request, start) = (world.request_of_new_player(), Barrier::new(2));
        let mut codes = thread::scope(|scope| {
            let clients = [world.connect(), world.connect()];
            let threads = clients.map(|client| scope.spawn(|| confirm(client, &request, &start)));
            threads.map(|thread| thread.join().unwrap())
        });
        codes.sort();
        assert_eq!(codes, ["OK", "PLAYER_TOKEN_CONSUMED"]);
        assert_eq!(world.players(), [0, round]);
    }
}

#[test]
fn other_operations_and_queries_are_left_to_python() {
    let world = World::new();
    let usual = String::from_utf8(world.request_of_new_player()).unwrap();
    for request in [
        usual.replace("players/connected", "lobbies/ready"),
        usual.replace("POST", "PUT"),
        usual.replace("players/connected", "players/connected?a=b"),
    ] {
        world.check_left_to_python(request.as_bytes());
    }
    assert_eq!(world.pass_reasons(), ["query", "operation", "operation"]);
    assert_eq!(world.players(), [1, 0]);
}

#[test]
fn wrong_lobby_tokens_are_refused() {
    let world = World::new();
    let of_other_key = shard::keys(8).sign_lobby(1, world.lobby.lobby).unwrap();
    let lobby_token = &world.lobby.lobby_token;
    let rows = [
        (of_other_key, "TOKEN_INVALID"),
        (world.new_player(), "FORBIDDEN"),
        (lobby_token[..lobby_token.len() - 1].into(), "TOKEN_INVALID"),
        (format!("{lobby_token}A"), "TOKEN_INVALID"),
        ("a".into(), "TOKEN_INVALID"),
    ];
    for (token, code) in rows {
        let request = request_with(&token, format!(r#"{{"player_token":"{}"}}"#, world.new_player()));
        assert_eq!(world.check_refused(&request), code);
    }
    let body = format!(r#"{{"player_token":"{}"}}"#, world.new_player());
    let spaced = request_with(&format!(" {lobby_token}"), body);
    assert_eq!(world.connect().ask(spaced).code, "OK", "more than one space");
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
