//! Requests that the rules of the matchmaker decide: their responses, measurements, and way to Python.

use hosting_front::code_names;
use hosting_matchmaker::{Operation, Subject};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::namespace::{BURST, SERVICE_TOKEN, public_token, tokens_left};
use crate::shard::NAMESPACE;
use crate::world::{Limits, Setup, World, find, request_to, request_with};

#[test]
fn join_and_find_reserve_a_slot() {
    let (world, mut client) = World::connected();
    for request in [world.join(SERVICE_TOKEN), find(&public_token(), "duel")] {
        let [reserved, connected] = world.players();
        let response: Value = serde_json::from_str(&client.ask(request).body).unwrap();
        let (player, lobby_id) = (&response["player"], Uuid::from_bytes(world.lobby.lobby.0).to_string());
        let region = json!({ "region_id": "local", "display_name": "Local" });
        let lobby = json!({ "lobby_id": lobby_id, "region": region, "ports": {}, "player": player });
        assert_eq!(response, json!({ "lobby": lobby, "ports": {}, "player": player }));
        assert_eq!(world.players(), [reserved + 1, connected]);
        assert_eq!(
            client.ask(world.request(player["token"].as_str().unwrap())).body,
            "{}",
            "the token admits its player"
        );
    }
}

#[test]
fn refusals_have_their_status_headers_and_details() {
    let world = World::with(Setup { limits: Limits { groups: 1, ..Limits::default() }, ..Setup::default() });
    let player = world.new_player();
    let body = format!(r#"{{"player_token":"{player}"}}"#);
    let rows = [
        (find("env_other", "duel"), 401, "TOKEN_INVALID", Value::Null),
        (find(&world.new_player(), "duel"), 403, "FORBIDDEN", Value::Null),
        (request_with(SERVICE_TOKEN, &body), 403, "FORBIDDEN", Value::Null),
        (find(SERVICE_TOKEN, "other"), 404, "MATCHMAKER_GAME_MODE_NOT_FOUND", Value::Null),
        (find(SERVICE_TOKEN, "duel"), 429, "RATE_LIMITED", json!({ "limit": "client_group" })),
        (world.refused_request(), 400, "PLAYER_TOKEN_INVALID", Value::Null),
        (world.request(""), 400, "BODY_INVALID", Value::Null),
    ];
    for (request, status, code, metadata) in rows {
        let answer = world.connect().ask(&request);
        assert_eq!((answer.status, &*answer.code), (status, code), "{}", request.escape_ascii());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
        assert_eq!(answer.header("www-authenticate"), (status == 401).then_some("Bearer"));
        let wait = answer.header("retry-after").map(|wait| wait.parse().unwrap());
        assert_eq!(wait.is_some_and(|wait| (900..=1_000).contains(&wait)), status == 429, "{wait:?}");
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(problem["metadata"], metadata);
        let path = json!(["player_token", "required"]);
        assert_eq!(problem["errors"][0]["path"] == path, code == "BODY_INVALID", "{problem}");
    }
    let measured = world.front.take_measurements().1;
    assert_eq!(measured.operations.iter().flat_map(|counts| counts.rate_limited).sum::<u64>(), 1);
    world.python.check_no_request();
}

#[test]
fn measurements_count_the_answers() {
    let (world, mut client) = World::connected();
    let request = world.request_of_new_player();
    client.send(&[&request[..], &request, &find(SERVICE_TOKEN, "other")].concat());
    let answers: Vec<_> = (0..3).map(|_| client.read_answer()).collect();
    let measured = world.front.take_measurements().1;
    let count = |operation: Operation, code: &str| {
        measured.operations[operation as usize].codes[code_names().position(|known| known == code).unwrap()]
    };
    assert_eq!((count(Operation::Connected, "OK"), count(Operation::Connected, "PLAYER_TOKEN_CONSUMED")), (1, 1));
    assert_eq!(count(Operation::Find, "MATCHMAKER_GAME_MODE_NOT_FOUND"), 1);
    let totals = measured.operations.iter().map(|counts| counts.codes.iter().sum::<u64>());
    assert_eq!(totals.sum::<u64>(), 3);
    assert_eq!(measured.operations.iter().flat_map(|counts| &counts.durations).sum::<u64>(), 3);
    let refused: Vec<_> = measured.records.iter().filter(|record| record.code != 0).collect();
    let callers =
        [(Operation::Connected, Subject::Lobby(world.lobby.lobby)), (Operation::Find, Subject::Namespace(NAMESPACE))];
    assert_eq!(refused.len(), callers.len(), "each refusal has a record");
    for ((record, answer), (operation, caller)) in refused.iter().zip(&answers[1..]).zip(callers) {
        assert_eq!((record.operation, record.caller), (operation as usize, Some(caller)));
        assert_eq!(record.ray_id.digits(), answer.ray_id.as_bytes());
        assert!(record.started <= record.executed && record.executed <= record.ended);
    }
}

#[test]
fn bodies_of_any_length_are_read() {
    let world = World::new();
    for bytes in [8 << 10, 80 << 10, (80 << 10) + 1, 95_000] {
        let body = format!("{{{}}}", " ".repeat(bytes - 2));
        let heartbeat = request_to("lobbies/heartbeat", &world.lobby.lobby_token, body);
        assert_eq!(world.connect().ask(heartbeat).code, "OK", "{bytes}");
    }
    assert!(world.pass_reasons().is_empty());
}

#[test]
fn requests_without_a_decision_reach_python_as_they_were() {
    let world = World::with(Setup { limits: Limits::of(BURST), ..Setup::default() });
    let usual = String::from_utf8(world.request_of_new_player()).unwrap();
    for (request, reason) in [
        (usual.replace("players/connected", "lobbies/ready").into_bytes(), "operation"),
        (usual.replace("POST", "PUT").into_bytes(), "operation"),
        (usual.replace("players/connected", "players/connected?a=b").into_bytes(), "query"),
        (request_with(&world.lobby.lobby_token, b"{\"player_token\":\"\xff\"}"), "invalid_request"),
        (find(SERVICE_TOKEN, "solo"), "new_lobby"),
    ] {
        let state = || {
            let engine = world.shard.engine();
            (engine.last_lsn(), engine.durable_hash(), engine.namespace_counts())
        };
        let (mut client, before, left) = (world.connect(), state(), tokens_left(&world.limits));
        client.send(&request);
        let passed = world.python.request();
        let head = format!("{} {} HTTP/1.1\r\n", passed.method, passed.target);
        assert!(request.starts_with(head.as_bytes()) && request.ends_with(&passed.body), "{}", request.escape_ascii());
        assert!(state() == before, "the engine has changed: {}", request.escape_ascii());
        assert_eq!(tokens_left(&world.limits) == left, reason != "new_lobby", "{reason}");
        assert_eq!((client.read_answer().body, world.pass_reasons()), (passed.target, vec![reason]));
    }
}
