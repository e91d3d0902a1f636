//! Find and join through the whole front.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_core::{Attach, Attached, Id};
use hosting_front::{Caller, Namespace, Operation};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::client::{Answer, Client};
use crate::namespace::{BURST, CLIENT_ADDRESS, REVOKED_TOKEN_ID, SERVICE_TOKEN, namespace, public_token, tokens_left};
use crate::shard::{self, NAMESPACE};
use crate::world::{Limits, Setup, World, request_to, request_with, wait_until};

fn put(world: &World, change: impl FnOnce(&mut Namespace)) {
    let mut namespace = namespace();
    change(&mut namespace);
    world.namespaces.put(Arc::new(namespace));
}

fn world() -> World {
    let limits = Limits { tokens: BURST, token_addresses: BURST, client_addresses: BURST, groups: BURST };
    world_with(limits)
}

fn world_with(limits: Limits) -> World {
    let world = World::with(Setup { limits, ..Setup::default() });
    put(&world, |_| {});
    world
}

fn new_lobby<'a>(world: &World, number: u8, change: impl FnOnce(&mut Attach<'a>)) -> Attached {
    let lobby = shard::new_starting_lobby(&world.shard, number, change);
    shard::set_ready(&world.shard, lobby.lobby);
    lobby
}

fn text(id: Id) -> String {
    Uuid::from_bytes(id.0).to_string()
}

fn join(token: &str, lobby: Id, more: &str) -> Vec<u8> {
    request_to("lobbies/join", token, format!(r#"{{"lobby_id":"{}"{more}}}"#, text(lobby)))
}

fn find(token: &str, fields: &str) -> Vec<u8> {
    request_to("lobbies/find", token, format!("{{{fields}}}"))
}

fn find_duel(token: &str) -> Vec<u8> {
    find(token, r#""game_modes":["duel"]"#)
}

/// Sends a request that the front must answer with reserved slots.
fn place(client: &mut Client, request: &[u8]) -> Value {
    client.send(request);
    let Answer { code, body, .. } = client.read_answer();
    assert_eq!(code, "OK");
    serde_json::from_str(&body).unwrap()
}

fn lobby_of(response: &Value) -> String {
    response["lobby"]["lobby_id"].as_str().unwrap().to_owned()
}

fn token_of(response: &Value) -> String {
    response["player"]["token"].as_str().unwrap().to_owned()
}

#[test]
fn join_and_find_reserve_a_slot() {
    let world = world();
    let mut client = world.connect();
    for token in [SERVICE_TOKEN, &public_token()] {
        for request in [join(token, world.lobby.lobby, ""), find_duel(token)] {
            let [reserved, connected] = world.players();
            let response = place(&mut client, &request);
            let player = json!({ "token": token_of(&response) });
            let region = json!({ "region_id": "local", "display_name": "Local" });
            let lobby = json!({ "lobby_id": text(world.lobby.lobby), "region": region, "ports": {}, "player": player });
            assert_eq!(response, json!({ "lobby": lobby, "ports": {}, "player": player }));
            assert_eq!(world.players(), [reserved + 1, connected]);
            client.send(&world.request(&token_of(&response)));
            assert_eq!(client.answer(), "OK", "the token admits its player");
            assert_eq!(world.players(), [reserved, connected + 1]);
        }
    }
}

#[test]
fn requests_of_one_connection_are_answered_in_order() {
    let world = world();
    let mut client = world.connect();
    let token = public_token();
    client.send(&[join(&token, world.lobby.lobby, ""), world.refused_request(), find_duel(SERVICE_TOKEN)].concat());
    assert_eq!(client.answers(3), ["OK", "PLAYER_TOKEN_INVALID", "OK"]);
    assert_eq!(world.players(), [2, 0]);
}

#[test]
fn answer_waits_for_its_event() {
    let (world, _) = World::stepped();
    put(&world, |_| {});
    let (mut client, mut prober) = (world.connect(), world.connect());
    for (reserved, request) in [(1, join(SERVICE_TOKEN, world.lobby.lobby, "")), (2, find_duel(SERVICE_TOKEN))] {
        client.send(&request);
        wait_until(|| world.players() == [reserved, 0]);
        world.settle(&mut prober);
        assert!(!client.has_answer());
        world.commit();
        assert_eq!(client.answer(), "OK");
    }
}

#[test]
fn party_gets_a_token_for_each_player() {
    let world = world();
    let mut client = world.connect();
    for request in [
        join(SERVICE_TOKEN, world.lobby.lobby, r#","party_size":3"#),
        find(SERVICE_TOKEN, r#""game_modes":["duel"],"party_size":3"#),
    ] {
        let before = world.players();
        let response = place(&mut client, &request);
        let players = response["players"].as_array().unwrap();
        assert_eq!(players.len(), 3);
        assert_eq!(players[0], response["player"]);
        assert_eq!(response["lobby"]["player"], response["player"]);
        for player in players {
            client.send(&world.request(player["token"].as_str().unwrap()));
            assert_eq!(client.answer(), "OK");
        }
        assert_eq!(world.players(), [before[0], before[1] + 3]);
    }
    let alone = place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, r#","party_size":1"#));
    assert_eq!(alone.get("players"), None);
}

#[test]
fn find_takes_the_fullest_lobby_of_all_modes() {
    let world = world();
    let other = new_lobby(&world, 2, |attach| attach.mode = "solo");
    let mut client = world.connect();
    world.new_player();
    let both = find(SERVICE_TOKEN, r#""game_modes":["solo","duel"]"#);
    assert_eq!(lobby_of(&place(&mut client, &both)), text(world.lobby.lobby));
    (0..5).for_each(|_| drop(shard::new_player(&world.shard, other.lobby)));
    assert_eq!(lobby_of(&place(&mut client, &both)), text(other.lobby));
}

#[test]
fn find_tries_regions_in_their_order() {
    let world = world();
    let in_eu = new_lobby(&world, 2, |attach| attach.region = "eu");
    let mut client = world.connect();
    let mut found = |regions: &str| {
        let request = find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],"regions":{regions}"#));
        lobby_of(&place(&mut client, &request))
    };
    assert_eq!(found(r#"["eu","local"]"#), text(in_eu.lobby));
    assert_eq!(found(r#"["us","local","eu"]"#), text(world.lobby.lobby));
    assert_eq!(found("[]"), text(world.lobby.lobby), "the first region");
}

#[test]
fn other_spellings_of_a_plain_body_are_answered() {
    let world = world();
    let mut client = world.connect();
    for fields in [
        r#" "game_modes" : [ "du\u0065l" ] "#,
        r#""game_modes":["duel"],"prevent_auto_create_lobby":true"#,
        r#""game_modes":["duel"],"prevent_auto_create_lobby":false,"regions":["local"],"party_size":8"#,
    ] {
        assert_eq!(lobby_of(&place(&mut client, &find(SERVICE_TOKEN, fields))), text(world.lobby.lobby), "{fields}");
    }
}

#[test]
fn measurements_name_the_operation_and_the_namespace() {
    let (world, _) = World::stepped();
    put(&world, |_| {});
    let mut client = world.connect();
    for (reserved, operation, request) in [
        (1, Operation::Join, join(SERVICE_TOKEN, world.lobby.lobby, "")),
        (2, Operation::Find, find_duel(SERVICE_TOKEN)),
    ] {
        client.send(&request);
        wait_until(|| world.players() == [reserved, 0]);
        // Each request that takes longer than 100 ms has a record.
        let executed = Instant::now();
        wait_until(|| executed.elapsed() > Duration::from_millis(101));
        world.commit();
        let (code, ray_id) = client.answer_with_ray_id();
        assert_eq!(code, "OK");
        let (_, measured) = world.front.take_measurements();
        let counts: Vec<_> = measured.operations.iter().map(|counts| counts.codes[0]).collect();
        assert_eq!(counts[..Operation::ALL.len()], Operation::ALL.map(|one| u64::from(one == operation)));
        let [record] = &measured.records[..] else { panic!("{} records", measured.records.len()) };
        assert_eq!((record.operation, record.caller), (operation as usize, Some(Caller::Namespace(NAMESPACE))));
        assert_eq!((record.code, &record.ray_id.digits()[..]), (0, ray_id.as_bytes()));
    }
}

#[test]
fn admitted_requests_count_towards_the_rate_limits() {
    let world = world();
    let mut client = world.connect();
    assert_eq!(tokens_left(&world.limits), [20; 4]);
    place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, ""));
    assert_eq!(tokens_left(&world.limits), [19, 19, 20, 19]);
    place(&mut client, &find_duel(&public_token()));
    assert_eq!(tokens_left(&world.limits), [19, 19, 19, 18]);
}

#[test]
fn requests_over_a_rate_limit_are_left_to_python() {
    let most = Limits { tokens: BURST, token_addresses: BURST, client_addresses: BURST, groups: BURST };
    let rows = [
        (SERVICE_TOKEN, Limits { tokens: 2, ..most }),
        (SERVICE_TOKEN, Limits { token_addresses: 2, ..most }),
        (&public_token(), Limits { client_addresses: 2, ..most }),
        (&public_token(), Limits { groups: 2, ..most }),
    ];
    for (token, limits) in rows {
        let world = world_with(limits);
        let mut client = world.connect();
        place(&mut client, &join(token, world.lobby.lobby, ""));
        place(&mut client, &find_duel(token));
        world.check_left_to_python(&join(token, world.lobby.lobby, ""));
        world.check_left_to_python(&find_duel(token));
    }
}

#[test]
fn requests_with_other_tokens_are_left_to_python() {
    let world = world();
    let other = Id([0x12; 16]);
    world.namespaces.put(Arc::new(Namespace { id: other, service_tokens: vec![], ..namespace() }));
    let tokens = [
        shard::keys(7).sign_public(NAMESPACE, REVOKED_TOKEN_ID),
        shard::keys(7).sign_public(Id([0x13; 16]), Id([0x61; 16])),
        shard::keys(8).sign_public(NAMESPACE, Id([0x61; 16])),
        shard::keys(7).sign_public(other, Id([0x61; 16])),
        shard::keys(7).sign_development(NAMESPACE, Id([0x61; 16]), u64::MAX),
        world.lobby.lobby_token.clone(),
        world.new_player(),
        "env_other".into(),
        "env_".into(),
        "a".into(),
    ];
    for token in tokens {
        world.check_left_to_python(&join(&token, world.lobby.lobby, ""));
        world.check_left_to_python(&find_duel(&token));
    }
    // The answered operations of lobby servers need the token of a lobby.
    for token in [SERVICE_TOKEN, &public_token()] {
        world.check_left_to_python(&request_with(token, format!(r#"{{"player_token":"{}"}}"#, world.new_player())));
    }
}

#[test]
fn namespace_with_admission_is_left_to_python() {
    let world = world();
    put(&world, |namespace| namespace.needs_admission = true);
    for token in [SERVICE_TOKEN, &public_token()] {
        world.check_left_to_python(&join(token, world.lobby.lobby, ""));
        world.check_left_to_python(&find_duel(token));
    }
    put(&world, |_| {});
    place(&mut world.connect(), &find_duel(SERVICE_TOKEN));
    world.namespaces.remove(NAMESPACE);
    world.check_left_to_python(&find_duel(SERVICE_TOKEN));
}

/// Fields of both operations that Python refuses, or that need more than the engine.
const OTHER_FIELDS: [&str; 24] = [
    r#""unknown":1"#,
    r#""":1"#,
    r#""captcha":{"token":"a"}"#,
    r#""captcha":null"#,
    r#""verification_data":{}"#,
    r#""event_channels":[]"#,
    r#""event_channels":["aaaaaaaaaaaaaaaaaaaaaa"]"#,
    r#""rejoin_token":"player_a""#,
    r#""rejoin_token":null"#,
    r#""tags":{}"#,
    r#""tags":{"map":"desert"}"#,
    r#""max_players":4"#,
    r#""party_size":0"#,
    r#""party_size":65"#,
    r#""party_size":-1"#,
    r#""party_size":1.5"#,
    r#""party_size":1.0"#,
    r#""party_size":"1""#,
    r#""party_size":null"#,
    r#""party_size":1,"party_size":1"#,
    r#""client_address":"""#,
    r#""client_address":"192.0.2.1%1""#,
    r#""client_address":"localhost""#,
    r#""client_address":null"#,
];

#[test]
fn other_fields_are_left_to_python() {
    let world = world();
    for fields in OTHER_FIELDS {
        world.check_left_to_python(&join(SERVICE_TOKEN, world.lobby.lobby, &format!(",{fields}")));
        world.check_left_to_python(&find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],{fields}"#)));
    }
}

#[test]
fn other_bodies_of_join_are_left_to_python() {
    let world = world();
    let id = text(new_lobby(&world, 0xab, |_| {}).lobby);
    let bodies = [
        String::new(),
        "{}".into(),
        "[]".into(),
        format!(r#"["{id}"]"#),
        format!(r#"{{"lobby_id":"{}"}}"#, id.to_uppercase()),
        format!(r#"{{"lobby_id":"{}"}}"#, id.replace('-', "")),
        format!(r#"{{"lobby_id":"{{{id}}}"}}"#),
        format!(r#"{{"lobby_id":"urn:uuid:{id}"}}"#),
        format!(r#"{{"lobby_id":" {id}"}}"#),
        format!(r#"{{"lobby_id":"{}"}}"#, &id[1..]),
        format!(r#"{{"lobby_id":["{id}"]}}"#),
        format!(r#"{{"lobbyId":"{id}"}}"#),
        r#"{"lobby_id":null}"#.into(),
        r#"{"lobby_id":""}"#.into(),
    ];
    for body in bodies {
        world.check_left_to_python(&request_to("lobbies/join", SERVICE_TOKEN, body));
    }
}

#[test]
fn other_bodies_of_find_are_left_to_python() {
    let world = world();
    let many: Vec<_> = (0..33).map(|number| format!(r#""mode-{number}""#)).collect();
    let bodies = [
        String::new(),
        "{}".into(),
        r#"[["duel"]]"#.into(),
        r#"{"game_modes":null}"#.into(),
        r#"{"game_modes":"duel"}"#.into(),
        r#"{"game_modes":[]}"#.into(),
        r#"{"game_modes":[1]}"#.into(),
        r#"{"game_modes":["duel","duel"]}"#.into(),
        r#"{"game_modes":["duel","unknown"]}"#.into(),
        r#"{"game_modes":["duel","hidden"]}"#.into(),
        r#"{"game_modes":["duel","eu-only"]}"#.into(),
        r#"{"game_modes":["duel","solo"],"party_size":2}"#.into(),
        r#"{"game_modes":["duel"],"party_size":9}"#.into(),
        format!(r#"{{"game_modes":[{}]}}"#, many.join(",")),
        r#"{"game_modes":["duel"],"regions":null}"#.into(),
        r#"{"game_modes":["duel"],"regions":["local","local"]}"#.into(),
        r#"{"game_modes":["duel"],"regions":["local","unknown"]}"#.into(),
        r#"{"game_modes":["duel"],"prevent_auto_create_lobby":null}"#.into(),
        r#"{"game_modes":["duel"],"prevent_auto_create_lobby":1}"#.into(),
    ];
    for body in bodies {
        world.check_left_to_python(&request_to("lobbies/find", SERVICE_TOKEN, body));
    }
}

#[test]
fn lobby_that_takes_no_player_at_once_is_left_to_python() {
    let world = world();
    let starting = shard::new_starting_lobby(&world.shard, 2, |attach| attach.region = "eu");
    let full = new_lobby(&world, 3, |attach| {
        (attach.max_players, attach.max_players_direct, attach.max_players_party) = (1, 1, 1);
        attach.region = "us";
    });
    shard::new_player(&world.shard, full.lobby);
    let no_join = new_lobby(&world, 4, |attach| attach.is_join_enabled = false);
    let closed = new_lobby(&world, 5, |_| {});
    world.shard.execute(|engine, context| engine.set_closed(context, closed.lobby, true)).result.unwrap();
    let ended = new_lobby(&world, 6, |_| {});
    world.shard.execute(|engine, context| engine.detach(context, &[NAMESPACE], ended.lobby)).result.unwrap();
    let other_namespace = new_lobby(&world, 7, |attach| attach.namespace = Id([0x12; 16]));
    let other_lobbies = [&starting, &full, &no_join, &closed, &ended, &other_namespace].map(|lobby| lobby.lobby);
    for lobby in other_lobbies.into_iter().chain([shard::lobby_id(99)]) {
        world.check_left_to_python(&join(SERVICE_TOKEN, lobby, ""));
    }
    world.check_left_to_python(&join(SERVICE_TOKEN, new_lobby(&world, 8, small_party).lobby, r#","party_size":3"#));
    for regions in [r#"["eu"]"#, r#"["us"]"#, r#"["eu","local"]"#] {
        // A starting lobby of an earlier region is better than a ready one of a later region.
        world.check_left_to_python(&find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],"regions":{regions}"#)));
    }
    world.check_left_to_python(&find(SERVICE_TOKEN, r#""game_modes":["solo"]"#));
}

fn small_party(attach: &mut Attach<'_>) {
    attach.max_players_party = 2;
}

/// Reserves all slots that a client address may have, as Python does.
fn use_up(world: &World, address: &[u8]) {
    let source = world.hash.source(NAMESPACE, address);
    (0..8).for_each(|_| drop(shard::new_player_of(&world.shard, world.lobby.lobby, source)));
}

#[test]
fn limit_of_a_client_address_includes_the_slots_from_python() {
    let world = world();
    use_up(&world, &CLIENT_ADDRESS);
    let token = public_token();
    world.check_left_to_python(&join(&token, world.lobby.lobby, ""));
    world.check_left_to_python(&find_duel(&token));
    let mut client = world.connect();
    place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, ""));
    place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, r#","client_address":"192.0.2.1""#));
}

#[test]
fn client_address_of_a_service_token_is_counted() {
    let world = world();
    use_up(&world, &[192, 0, 2, 1]);
    use_up(&world, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 1]);
    let with = |address: &str| join(SERVICE_TOKEN, world.lobby.lobby, &format!(r#","client_address":"{address}""#));
    for address in ["192.0.2.1", "::ffff:192.0.2.1", "::FFFF:c000:201", "2001:db8:0:1::1", "2001:DB8:0:1:ffff::"] {
        world.check_left_to_python(&with(address));
    }
    let mut client = world.connect();
    for address in ["192.0.2.2", "2001:db8:0:2::1", "2001:db8:0:3::"] {
        place(&mut client, &with(address));
    }
}

#[test]
fn client_address_needs_a_service_token() {
    let world = world();
    let address = r#""client_address":"192.0.2.1""#;
    world.check_left_to_python(&join(&public_token(), world.lobby.lobby, &format!(",{address}")));
    world.check_left_to_python(&find(&public_token(), &format!(r#""game_modes":["duel"],{address}"#)));
}

#[test]
fn slots_of_public_clients_count_for_their_address() {
    let world = world();
    let mut client = world.connect();
    let token = public_token();
    for _ in 0..4 {
        place(&mut client, &join(&token, world.lobby.lobby, ""));
        place(&mut client, &find_duel(&token));
    }
    world.check_left_to_python(&find_duel(&token));
}
