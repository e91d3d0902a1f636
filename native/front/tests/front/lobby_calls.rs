//! Calls of lobby servers about players that left, and heartbeats.

use hosting_core::Id;

use crate::client::Client;
use crate::shard;
use crate::world::{World, request_to, wait_until};

fn disconnected(world: &World, player_token: &str, more: &str) -> Vec<u8> {
    let body = format!(r#"{{"player_token":"{player_token}"{more}}}"#);
    request_to("players/disconnected", &world.lobby.lobby_token, body)
}

fn heartbeat(world: &World, body: &str) -> Vec<u8> {
    request_to("lobbies/heartbeat", &world.lobby.lobby_token, body)
}

fn heartbeat_with(world: &World, player_tokens: &[&str]) -> Vec<u8> {
    heartbeat(world, &serde_json::json!({ "player_tokens": player_tokens }).to_string())
}

fn code_of(client: &mut Client, request: &[u8]) -> String {
    client.send(request);
    client.answer()
}

fn new_connected_player(world: &World, client: &mut Client) -> String {
    let player = world.new_player();
    assert_eq!(code_of(client, &world.request(&player)), "OK");
    player
}

/// Returns the number of reserved, connected and kept slots.
fn slots(world: &World) -> [u32; 3] {
    let [_, reserved, connected, kept] = world.shard.engine().lobby(world.lobby.lobby).unwrap().players;
    [reserved, connected, kept]
}

/// All threads share the lock.
#[test]
fn tokens_are_verified_before_the_engine_is_locked() {
    let world = World::new();
    let (lobby_token, player) = (&world.lobby.lobby_token, world.new_player());
    let other = if lobby_token.ends_with('A') { "B" } else { "A" };
    let forged = format!("{}{other}", &lobby_token[..lobby_token.len() - 1]);
    let body = format!(r#"{{"player_token":"{player}"}}"#);
    let mut client = world.connect();
    let engine = world.shard.engine();
    client.send(&request_to("players/connected", &forged, &body));
    assert_eq!(client.answer(), "TOKEN_INVALID");
    // The player token is verified before the lock as well, but the engine refuses it.
    client.send(&request_to("players/connected", lobby_token, r#"{"player_token":"malformed"}"#));
    drop(engine);
    assert_eq!(client.answer(), "PLAYER_TOKEN_INVALID");
}

#[test]
fn disconnected_frees_the_slot() {
    let world = World::new();
    let mut client = world.connect();
    let player = new_connected_player(&world, &mut client);
    assert_eq!(code_of(&mut client, &disconnected(&world, &player, "")), "OK");
    assert_eq!(slots(&world), [0; 3]);
    assert_eq!(code_of(&mut client, &disconnected(&world, &player, "")), "OK", "a repeated call");
}

#[test]
fn disconnected_with_a_hold_keeps_the_slot() {
    let world = World::new();
    let mut client = world.connect();
    for (kept, hold_ms) in [(1, 60_000), (2, 600_000)] {
        let player = new_connected_player(&world, &mut client);
        let request = disconnected(&world, &player, &format!(r#","hold_ms":{hold_ms}"#));
        assert_eq!(code_of(&mut client, &request), "OK");
        assert_eq!(slots(&world), [0, 0, kept]);
    }
    let player = new_connected_player(&world, &mut client);
    assert_eq!(code_of(&mut client, &disconnected(&world, &player, r#","hold_ms":0"#)), "OK");
    assert_eq!(slots(&world), [0, 0, 2]);
}

#[test]
fn disconnected_waits_for_its_event() {
    let (world, _) = World::stepped();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let player = world.new_player();
    world.commit();
    client.send(&disconnected(&world, &player, ""));
    wait_until(|| slots(&world) == [0; 3]);
    world.settle(&mut prober);
    assert!(!client.has_answer());
    world.commit();
    assert_eq!(client.answer(), "OK");
}

#[test]
fn disconnected_refuses_wrong_tokens() {
    let world = World::new();
    let mut client = world.connect();
    let other_lobby = shard::new_lobby(&world.shard, 2);
    let of_other_lobby = shard::new_player(&world.shard, other_lobby.lobby);
    let forged = shard::player_token(shard::KEY_ID, 8, world.lobby.lobby);
    for (player, code) in [(of_other_lobby, "PLAYER_TOKEN_WRONG_LOBBY"), (forged, "PLAYER_TOKEN_INVALID")] {
        assert_eq!(code_of(&mut client, &disconnected(&world, &player, "")), code);
        assert_eq!(code_of(&mut client, &disconnected(&world, &player, r#","hold_ms":5"#)), code);
    }
    assert_eq!(shard::players(&world.shard, other_lobby.lobby), [1, 0]);
}

#[test]
fn other_bodies_of_disconnected_are_refused_or_left_to_python() {
    let world = World::new();
    let player = world.new_player();
    for more in [r#","hold_ms":600001"#, r#","hold_ms":-1"#, r#","hold_ms":1.5"#, r#","hold_ms":"1""#] {
        assert_eq!(world.check_refused(&disconnected(&world, &player, more)), "BODY_INVALID");
    }
    for token in ["a", "player_", &player[..player.len() - 1], &player.replacen("player_", "lobby_", 1)] {
        assert_eq!(world.check_refused(&disconnected(&world, token, "")), "PLAYER_TOKEN_INVALID");
    }
    assert_eq!(world.check_refused(&disconnected(&world, "", "")), "BODY_INVALID");
    for body in ["", "{}", "null", &format!(r#"["{player}"]"#), r#"{"player_token":null}"#] {
        let request = request_to("players/disconnected", &world.lobby.lobby_token, body);
        assert_eq!(world.check_refused(&request), "BODY_INVALID");
    }
    let unusual = disconnected(&world, &player, r#","hold_ms":1,"hold_ms":0,"unknown":1"#);
    assert_eq!(world.connect().ask(unusual).code, "OK");
}

#[test]
fn heartbeat_without_a_list_frees_no_slot() {
    let (world, clock) = World::stepped();
    let player = world.new_player();
    world.commit();
    let mut client = world.connect();
    client.send(&world.request(&player));
    wait_until(|| slots(&world) == [0, 1, 0]);
    world.commit();
    assert_eq!(client.answer(), "OK");
    for _ in 0..3 {
        clock.pass(10_000);
        for body in ["{}", " {\n} "] {
            assert_eq!(code_of(&mut client, &heartbeat(&world, body)), "OK");
        }
    }
    assert_eq!(slots(&world), [0, 1, 0]);
}

#[test]
fn heartbeat_frees_players_that_its_list_misses() {
    let (world, clock) = World::stepped();
    let mut client = world.connect();
    let players = [world.new_player(), world.new_player()];
    client.send(&players.each_ref().map(|player| world.request(player)).concat());
    wait_until(|| slots(&world) == [0, 2, 0]);
    world.commit();
    assert_eq!(client.answers(2), ["OK", "OK"]);
    let [present, missing] = players.each_ref().map(String::as_str);
    assert_eq!(code_of(&mut client, &heartbeat_with(&world, &[present, missing])), "OK");
    clock.pass(10_000);
    client.send(&heartbeat_with(&world, &[present]));
    wait_until(|| slots(&world) == [0, 1, 0]);
    world.settle(&mut world.connect());
    assert!(!client.has_answer(), "the freed slot is not durable yet");
    world.commit();
    assert_eq!(client.answer(), "OK");
    client.send(&heartbeat_with(&world, &[]));
    wait_until(|| slots(&world) == [0; 3]);
    world.commit();
    assert_eq!(client.answer(), "OK");
}

/// The list may have tokens of players that left, but no tokens that the lobby never got.
#[test]
fn heartbeat_with_a_wrong_token_is_refused() {
    let world = World::new();
    let mut client = world.connect();
    let (player, left) = (new_connected_player(&world, &mut client), world.new_player());
    assert_eq!(code_of(&mut client, &disconnected(&world, &left, "")), "OK");
    let reserved = world.new_player();
    assert_eq!(code_of(&mut client, &heartbeat_with(&world, &[&player, &left, &reserved])), "OK");
    let other_lobby = shard::new_lobby(&world.shard, 2);
    let wrong = [
        shard::new_player(&world.shard, other_lobby.lobby),
        shard::player_token(shard::KEY_ID, 8, world.lobby.lobby),
        shard::player_token(shard::KEY_ID, 7, world.lobby.lobby),
        world.lobby.lobby_token.clone(),
        "a".into(),
        String::new(),
    ];
    for token in &wrong {
        for (number, request) in
            [(0, heartbeat_with(&world, &[token])), (1, heartbeat_with(&world, &[&player, token, &left]))]
        {
            let answer = world.connect().ask(&request);
            assert_eq!((answer.status, &*answer.code), (400, "BODY_INVALID"));
            let problem: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
            let path = serde_json::json!(["player_tokens", number.to_string(), "invalid"]);
            assert_eq!((&problem["errors"][0]["path"], problem["errors"].as_array().unwrap().len()), (&path, 1));
        }
    }
    assert_eq!(slots(&world), [1, 1, 0]);
}

#[test]
fn other_bodies_of_heartbeat_are_refused_or_left_to_python() {
    let world = World::new();
    for body in ["", r#"{"unknown":1}"#, r#"{"player_tokens":[1],"player_tokens":null}"#] {
        assert_eq!(world.connect().ask(heartbeat(&world, body)).code, "OK", "an empty message");
    }
    for body in [
        "null",
        "[]",
        "[[]]",
        r#"{"player_tokens":"player_a"}"#,
        r#"{"player_tokens":[1]}"#,
        r#"{"player_tokens":[null]}"#,
        r#"{"player_tokens":{"tokens":[]}}"#,
    ] {
        assert_eq!(world.check_refused(&heartbeat(&world, body)), "BODY_INVALID", "{body}");
    }
    world.check_left_to_python(&heartbeat(&world, "{}{}"));
}

#[test]
fn calls_of_an_ended_lobby_are_refused() {
    let world = World::new();
    let (mut client, player) = (world.connect(), world.new_player());
    let namespaces: [Id; 1] = [shard::NAMESPACE];
    world.shard.execute(|engine, context| engine.detach(context, &namespaces, world.lobby.lobby)).result.unwrap();
    assert_eq!(code_of(&mut client, &heartbeat(&world, "{}")), "MATCHMAKER_LOBBY_STOPPED");
    assert_eq!(code_of(&mut client, &heartbeat_with(&world, &[&player])), "MATCHMAKER_LOBBY_STOPPED");
    assert_eq!(code_of(&mut client, &disconnected(&world, &player, "")), "OK");
    let forgotten = shard::keys(7).sign_lobby(shard::KEY_ID, shard::lobby_id(9)).unwrap();
    assert_eq!(code_of(&mut client, &request_to("lobbies/heartbeat", &forgotten, "{}")), "TOKEN_EXPIRED");
}
