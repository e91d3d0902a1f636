//! Find and join through the whole front.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_core::{Attach, Attached, Id};
use hosting_matchmaker::{Namespace, Operation, Subject};
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
        assert_eq!((record.operation, record.caller), (operation as usize, Some(Subject::Namespace(NAMESPACE))));
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
fn requests_over_a_rate_limit_are_refused() {
    let most = Limits { tokens: BURST, token_addresses: BURST, client_addresses: BURST, groups: BURST };
    let rows = [
        (SERVICE_TOKEN, Limits { tokens: 2, ..most }, "client"),
        (SERVICE_TOKEN, Limits { token_addresses: 2, ..most }, "address"),
        (&public_token(), Limits { client_addresses: 2, ..most }, "client"),
        (&public_token(), Limits { groups: 2, ..most }, "client_group"),
    ];
    for (token, limits, limit) in rows {
        let world = world_with(limits);
        let mut client = world.connect();
        place(&mut client, &join(token, world.lobby.lobby, ""));
        place(&mut client, &find_duel(token));
        let left = tokens_left(&world.limits);
        for request in [join(token, world.lobby.lobby, ""), find_duel(token)] {
            let answer = world.connect().ask(&request);
            assert_eq!((answer.status, &*answer.code), (429, "RATE_LIMITED"));
            let wait: u32 = answer.header("retry-after").unwrap().parse().unwrap();
            assert!((900..=1_000).contains(&wait), "{wait}");
            let problem: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!(problem["metadata"], json!({ "limit": limit }));
        }
        assert_eq!(tokens_left(&world.limits), left, "a refused request pays nothing");
        let measured = world.front.take_measurements().1;
        let exceeded = measured.operations.iter().map(|counts| counts.rate_limited.iter().sum::<u64>()).sum::<u64>();
        assert_eq!(exceeded, 2);
        world.python.check_no_request();
    }
}

#[test]
fn requests_with_other_tokens_are_refused() {
    let world = world();
    let other = Id([0x12; 16]);
    let without_tokens = Namespace { id: other, service_tokens: vec![], hosts: vec![], ..namespace() };
    world.namespaces.put(Arc::new(without_tokens));
    let rows = [
        (shard::keys(7).sign_public(NAMESPACE, REVOKED_TOKEN_ID), 401, "TOKEN_REVOKED"),
        (shard::keys(7).sign_public(Id([0x13; 16]), Id([0x61; 16])), 401, "TOKEN_INVALID"),
        (shard::keys(8).sign_public(NAMESPACE, Id([0x61; 16])), 401, "TOKEN_INVALID"),
        (world.lobby.lobby_token.clone(), 403, "FORBIDDEN"),
        (world.new_player(), 403, "FORBIDDEN"),
        ("env_other".into(), 401, "TOKEN_INVALID"),
        ("env_".into(), 401, "TOKEN_INVALID"),
        ("a".into(), 401, "TOKEN_INVALID"),
    ];
    for (token, status, code) in rows {
        for request in [join(&token, world.lobby.lobby, ""), find_duel(&token)] {
            let answer = world.connect().ask(&request);
            assert_eq!((answer.status, &*answer.code), (status, code), "{token}");
            assert_eq!(answer.header("www-authenticate"), (status == 401).then_some("Bearer"));
        }
    }
    let of_other = shard::keys(7).sign_public(other, Id([0x61; 16]));
    assert_eq!(world.check_refused(&join(&of_other, world.lobby.lobby, "")), "MATCHMAKER_LOBBY_NOT_FOUND");
    // The operations of lobby servers need the token of a lobby.
    for token in [SERVICE_TOKEN, &public_token()] {
        let request = request_with(token, format!(r#"{{"player_token":"{}"}}"#, world.new_player()));
        assert_eq!(world.check_refused(&request), "FORBIDDEN");
    }
    world.python.check_no_request();
}

/// Python has the mock responses of such a token.
#[test]
fn development_tokens_are_left_to_python() {
    let world = world();
    let token = shard::keys(7).sign_development(NAMESPACE, Id([0x61; 16]), u64::MAX);
    let paid = [0, 0, 1, 1];
    world.check_admitted_to_python(&join(&token, world.lobby.lobby, ""), paid);
    world.check_admitted_to_python(&find_duel(&token), paid);
    assert_eq!(world.pass_reasons(), ["mock_response"; 2]);
}

#[test]
fn namespace_with_admission_is_left_to_python() {
    let world = world();
    put(&world, |namespace| namespace.needs_admission = true);
    for (token, paid) in [(SERVICE_TOKEN, [1, 1, 0, 1]), (&public_token(), [0, 0, 1, 1])] {
        world.check_admitted_to_python(&join(token, world.lobby.lobby, ""), paid);
        world.check_admitted_to_python(&find_duel(token), paid);
    }
    assert_eq!(world.pass_reasons(), ["admission"; 4]);
    put(&world, |_| {});
    place(&mut world.connect(), &find_duel(SERVICE_TOKEN));
    world.namespaces.remove(NAMESPACE);
    assert_eq!(world.check_refused(&find_duel(SERVICE_TOKEN)), "TOKEN_INVALID");
}

/// Cost of a request with the service token.
const PAID: [usize; 4] = [1, 1, 0, 1];

#[test]
fn invalid_captcha_is_left_to_python() {
    const INVALID: &str = r#""captcha":{"token":"a"}"#;
    let world = world();
    world.check_admitted_to_python(&join(SERVICE_TOKEN, world.lobby.lobby, &format!(",{INVALID}")), PAID);
    let find = find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],{INVALID}"#));
    world.check_admitted_to_python(&find, PAID);
    assert_eq!(world.pass_reasons(), ["invalid_request"; 2]);
}

#[test]
fn invalid_fields_are_refused() {
    let world = world();
    for fields in [
        r#""event_channels":["aaaaaaaaaaaaaaaaaaaaaa"]"#,
        r#""party_size":0"#,
        r#""party_size":65"#,
        r#""party_size":-1"#,
        r#""party_size":1.5"#,
        r#""party_size":1.0"#,
        r#""party_size":"1""#,
        r#""client_address":"""#,
        r#""client_address":"192.0.2.1%1""#,
        r#""client_address":"localhost""#,
    ] {
        let join = join(SERVICE_TOKEN, world.lobby.lobby, &format!(",{fields}"));
        let find = find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],{fields}"#));
        assert_eq!([join, find].map(|request| world.check_refused(&request)), ["BODY_INVALID"; 2], "{fields}");
    }
}

/// Fields that were left to Python in earlier versions.
#[test]
fn further_fields_are_answered() {
    let world = world();
    let tagged = new_lobby(&world, 2, |attach| (attach.region, attach.tags) = ("eu", &[("map", "desert"), ("x", "")]));
    let mut client = world.connect();
    let token = token_of(&place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, "")));
    let again = format!(r#","rejoin_token":"{token}""#);
    assert_ne!(token_of(&place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, &again))), token);
    assert_eq!(world.players(), [1, 0]);
    let channels = r#","party_size":2,"event_channels":["aaaaaaaaaaaaaaaaaaaaaa"]"#;
    place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, channels));
    for fields in
        [r#""event_channels":[]"#, r#""event_channels":null"#, r#""client_address":null"#, r#""party_size":null"#]
    {
        place(&mut client, &join(SERVICE_TOKEN, world.lobby.lobby, &format!(",{fields}")));
        place(&mut client, &find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],{fields}"#)));
    }
    for fields in [r#""tags":{"map":"desert"}"#, r#""tags":{"x":"","map":"desert"},"max_players":8"#] {
        let request = find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],"regions":["eu"],{fields}"#));
        assert_eq!(lobby_of(&place(&mut client, &request)), text(tagged.lobby));
    }
    world.python.check_no_request();
}

#[test]
fn other_bodies_of_join_are_refused() {
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
        assert_eq!(world.check_refused(&request_to("lobbies/join", SERVICE_TOKEN, body)), "BODY_INVALID");
    }
}

#[test]
fn other_bodies_of_find_are_refused() {
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
        format!(r#"{{"game_modes":[{}]}}"#, many.join(",")),
        r#"{"game_modes":["duel"],"regions":["Local"]}"#.into(),
        r#"{"game_modes":["duel"],"prevent_auto_create_lobby":1}"#.into(),
    ];
    for body in bodies {
        assert_eq!(world.check_refused(&request_to("lobbies/find", SERVICE_TOKEN, body)), "BODY_INVALID");
    }
}

#[test]
fn find_against_the_configuration_is_refused() {
    let world = world();
    let rows = [
        (r#""game_modes":["duel","unknown"]"#, 404, "MATCHMAKER_GAME_MODE_NOT_FOUND"),
        (r#""game_modes":["duel"],"regions":["local","unknown"]"#, 404, "MATCHMAKER_REGION_NOT_FOUND"),
        (r#""game_modes":["hidden"]"#, 403, "MATCHMAKER_FIND_DISABLED"),
        (r#""game_modes":["eu-only"]"#, 403, "MATCHMAKER_REGION_NOT_ENABLED"),
        (r#""game_modes":["solo"],"party_size":2"#, 400, "BODY_INVALID"),
        (r#""game_modes":["duel"],"party_size":9"#, 400, "BODY_INVALID"),
        (r#""game_modes":["duel"],"max_players":9"#, 400, "BODY_INVALID"),
    ];
    for (fields, status, code) in rows {
        let answer = world.connect().ask(find(SERVICE_TOKEN, fields));
        assert_eq!((answer.status, &*answer.code), (status, code), "{fields}");
    }
    world.python.check_no_request();
    // A mode that fits is enough.
    let both = find(SERVICE_TOKEN, r#""game_modes":["hidden","eu-only","solo","duel"],"party_size":2"#);
    place(&mut world.connect(), &both);
}

#[test]
fn lobby_that_takes_no_player_refuses() {
    let world = world();
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
    for (lobby, code) in [
        (full.lobby, "MATCHMAKER_LOBBY_FULL"),
        (no_join.lobby, "MATCHMAKER_JOIN_DISABLED"),
        (closed.lobby, "MATCHMAKER_LOBBY_CLOSED"),
        (ended.lobby, "MATCHMAKER_LOBBY_STOPPED"),
        (other_namespace.lobby, "MATCHMAKER_LOBBY_NOT_FOUND"),
        (shard::lobby_id(99), "MATCHMAKER_LOBBY_NOT_FOUND"),
    ] {
        assert_eq!(world.check_refused(&join(SERVICE_TOKEN, lobby, "")), code);
    }
    let party = join(SERVICE_TOKEN, new_lobby(&world, 8, small_party).lobby, r#","party_size":3"#);
    assert_eq!(world.check_refused(&party), "BODY_INVALID");
    let prevented = find(SERVICE_TOKEN, r#""game_modes":["solo"],"prevent_auto_create_lobby":true"#);
    assert_eq!(world.check_refused(&prevented), "MATCHMAKER_NO_AVAILABLE_LOBBIES");
}

#[test]
fn wait_for_a_lobby_is_left_to_python() {
    let world = world();
    let starting = shard::new_starting_lobby(&world.shard, 2, |attach| attach.region = "eu");
    world.check_admitted_to_python(&join(SERVICE_TOKEN, starting.lobby, ""), PAID);
    for regions in [r#"["eu"]"#, r#"["eu","local"]"#] {
        // A starting lobby of an earlier region is better than a ready one of a later region.
        let request = find(SERVICE_TOKEN, &format!(r#""game_modes":["duel"],"regions":{regions}"#));
        world.check_admitted_to_python(&request, PAID);
    }
    assert_eq!(world.pass_reasons(), ["starting_lobby"; 3]);
    world.check_admitted_to_python(&find(SERVICE_TOKEN, r#""game_modes":["duel"],"regions":["us"]"#), PAID);
    world.check_admitted_to_python(&find(SERVICE_TOKEN, r#""game_modes":["solo"]"#), PAID);
    assert_eq!(world.pass_reasons(), ["new_lobby"; 2]);
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
    assert_eq!(world.check_refused(&join(&token, world.lobby.lobby, "")), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE");
    assert_eq!(world.check_refused(&find_duel(&token)), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE");
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
        assert_eq!(world.check_refused(&with(address)), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE");
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
    for request in [
        join(&public_token(), world.lobby.lobby, &format!(",{address}")),
        find(&public_token(), &format!(r#""game_modes":["duel"],{address}"#)),
    ] {
        let answer = world.connect().ask(&request);
        let problem: Value = serde_json::from_str(&answer.body).unwrap();
        let message = "client_address is for env_ tokens only";
        assert_eq!(problem["errors"], json!([{ "path": ["client_address", "not-allowed"], "message": message }]));
        assert_eq!((answer.status, &*answer.code), (400, "BODY_INVALID"));
    }
    world.python.check_no_request();
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
    assert_eq!(world.check_refused(&find_duel(&token)), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE");
}
