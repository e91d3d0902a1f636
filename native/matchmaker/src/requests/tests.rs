//! Requests in JSON and protobuf, the limits of the contract, and the bytes that identify a repeated request.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::contract::JOIN_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS;
use crate::contract::*;

const LOBBY: &str = "00012233-4455-4677-8899-aabbccddeeff";

fn is_read(operation: Operation, body: Body<'_>) -> bool {
    Request::read(operation, body).is_ok()
}

fn is_json_read(operation: Operation, object: &Value) -> bool {
    is_read(operation, Body::Json(object.to_string().as_bytes()))
}

fn channel(number: usize) -> String {
    format!("{number:0>width$}", width = FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN)
}

fn connected() -> Vec<u8> {
    proto::PlayerConnectedRequest { player_token: "player_x".into() }.encode_to_vec()
}

fn join() -> proto::JoinLobbyRequest {
    proto::JoinLobbyRequest {
        lobby_id: LOBBY.into(),
        party_size: Some(2),
        client_address: Some("::1".into()),
        event_channels: vec!["c".repeat(22)],
        ..proto::JoinLobbyRequest::default()
    }
}

fn find() -> proto::FindLobbyRequest {
    let tags = [("rank", "7"), ("map", "lake"), ("b\u{e4}r", "x")];
    proto::FindLobbyRequest {
        game_modes: vec!["duel".into(), "solo".into()],
        regions: vec!["eu".into()],
        tags: tags.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        max_players: Some(8),
        party_size: Some(2),
        prevent_auto_create_lobby: Some(false),
        client_address: Some("::1".into()),
        event_channels: vec!["c".repeat(22)],
        ..proto::FindLobbyRequest::default()
    }
}

#[test]
fn list_of_a_heartbeat_may_be_missing_or_empty() {
    let tokens = |body: Body<'_>| match Request::read(Operation::Heartbeat, body) {
        Ok(Request::Heartbeat(read)) => read.player_tokens.map(|list| list.tokens),
        other => panic!("{other:?}"),
    };
    assert_eq!(tokens(Body::Json(b"{}")), None);
    assert_eq!(tokens(Body::Json(br#"{"player_tokens":[]}"#)), Some(vec![]));
    assert_eq!(tokens(Body::Json(br#"{"player_tokens":["a","a"]}"#)), Some(vec!["a".into(), "a".into()]));
    assert_eq!(tokens(Body::Proto(b"")), None);
    assert_eq!(tokens(Body::Proto(b"\x0a\x00")), Some(vec![]));
    assert_eq!(tokens(Body::Proto(b"\x0a\x06\x0a\x01a\x0a\x01a")), Some(vec!["a".into(), "a".into()]));
}

#[test]
fn fields_may_come_in_any_order() {
    let message = [&b"\x20\x02\x0a\x24"[..], LOBBY.as_bytes()].concat();
    assert!(is_read(Operation::Join, Body::Proto(&message)));
}

#[test]
fn unusual_encodings_are_read_if_protobuf_allows_them() {
    let once = connected();
    let with = |more: &[u8]| [&once[..], more].concat();
    let unusual = [
        ("repeated field", with(&once)),
        ("unknown field", with(b"\x12\x01x")),
        ("unknown number", with(b"\x10\x01")),
        ("unknown group", with(b"\x1b\x1c")),
        ("other wire type", b"\x08\x01".to_vec()),
        ("no text", b"\x0a\x01\xff".to_vec()),
        ("long length", [&b"\x0a\x88\x00"[..], b"player_x"].concat()),
        ("long key", [&b"\x8a\x00\x08"[..], b"player_x"].concat()),
        ("cut off", once[..once.len() - 1].to_vec()),
        ("field 0", with(b"\x02\x00")),
    ];
    for (name, message) in unusual {
        let is_invalid = matches!(name, "other wire type" | "no text" | "cut off" | "field 0");
        assert_eq!(is_read(Operation::Connected, Body::Proto(&message)), !is_invalid, "{name}");
    }
    assert!(is_read(Operation::Ready, Body::Proto(b"\x10\x01")) && !is_read(Operation::Ready, Body::Proto(b"\x10")));
    let tokens = b"\x0a\x03\x0a\x01a";
    assert!(is_read(Operation::Heartbeat, Body::Proto(tokens)));
    for message in [&[&tokens[..], tokens].concat()[..], b"\x0a\x05\x0a\x01a\x10\x01"] {
        assert!(is_read(Operation::Heartbeat, Body::Proto(message)), "{}", message.escape_ascii());
    }
    for number in [&b"\x20\x81\x00"[..], b"\x20\x82\x80\x80\x80\x10", b"\x20\x01\x20\x01"] {
        let message = [&b"\x0a\x24"[..], LOBBY.as_bytes(), number].concat();
        assert!(is_read(Operation::Join, Body::Proto(&message)), "{}", number.escape_ascii());
    }
}

#[test]
fn unusual_json_is_not_read() {
    for text in [
        "",
        "null",
        "[]",
        r#"["player_x"]"#,
        "{",
        r#"{"player_token":"player_x"} x"#,
        r#"{"player_token":1}"#,
        r#"{"player_token":null}"#,
        "{}",
        r#"{"player_token":""}"#,
        "\u{feff}{}",
    ] {
        assert!(!is_read(Operation::Connected, Body::Json(text.as_bytes())), "{text}");
    }
    for text in [
        " \n{ \"player_token\" : \"player_x\" } ",
        r#"{"player_token":"player_x","other":[{"a":1}]}"#,
        r#"{"player_token":"","player_token":"player_x"}"#,
    ] {
        assert!(is_read(Operation::Connected, Body::Json(text.as_bytes())), "{text}");
    }
    let nested =
        |depth: usize| format!(r#"{{"player_token":"player_x","other":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    assert!(is_read(Operation::Connected, Body::Json(nested(63).as_bytes())));
    assert!(!is_read(Operation::Connected, Body::Json(nested(64).as_bytes())));
}

#[test]
fn captcha_is_one_answer() {
    for captcha in
        [json!({}), json!({"captcha_a": {"client_response": "x"}}), json!({"captcha_b": {"client_response": "x"}})]
    {
        assert!(is_json_read(Operation::Join, &json!({"lobby_id": LOBBY, "captcha": captcha})), "{captcha}");
    }
    let answer = json!({"client_response": "x"});
    for captcha in [
        json!({"captcha_a": {"client_response": ""}}),
        json!({"captcha_a": {}}),
        json!({"captcha_a": answer, "captcha_b": answer}),
        json!({"captcha_c": answer}),
        json!([]),
    ] {
        assert!(!is_json_read(Operation::Find, &json!({"game_modes": ["duel"], "captcha": captcha})), "{captcha}");
    }
}

#[test]
fn verification_data_keeps_its_bytes() {
    let body = format!(r#"{{"lobby_id":"{LOBBY}","verification_data": {{ "n": 18446744073709551616 }} }}"#);
    let Ok(Request::Join(message)) = Request::read(Operation::Join, Body::Json(body.as_bytes())) else { panic!() };
    assert_eq!(message.verification_data.as_deref(), Some(&br#"{ "n": 18446744073709551616 }"#[..]));
    for other in ["[]", "1", "\"x\""] {
        let body = format!(r#"{{"lobby_id":"{LOBBY}","verification_data":{other}}}"#);
        assert!(!is_read(Operation::Join, Body::Json(body.as_bytes())), "{other}");
    }
}

#[test]
fn limits_of_lobby_calls() {
    let disconnected = |hold_ms: usize| json!({"player_token": "player_x", "hold_ms": hold_ms});
    let longest = PLAYER_DISCONNECTED_REQUEST_HOLD_MS_LTE;
    assert!(is_json_read(Operation::Disconnected, &disconnected(0)));
    assert!(is_json_read(Operation::Disconnected, &disconnected(longest)));
    assert!(!is_json_read(Operation::Disconnected, &disconnected(longest + 1)));
    assert!(!is_json_read(Operation::Disconnected, &json!({"player_token": ""})));
    let heartbeat = |count: usize| json!({"player_tokens": vec![""; count]});
    assert!(is_json_read(Operation::Heartbeat, &heartbeat(PLAYER_TOKENS_TOKENS_MAX_ITEMS)));
    assert!(!is_json_read(Operation::Heartbeat, &heartbeat(PLAYER_TOKENS_TOKENS_MAX_ITEMS + 1)));
}

#[test]
fn limits_of_a_join() {
    let is_join = |field: &str, value: Value| {
        let mut object = json!({"lobby_id": LOBBY});
        object[field] = value;
        is_json_read(Operation::Join, &object)
    };
    let upper = LOBBY.to_uppercase();
    let [no_hyphens, braces] = [LOBBY.replace('-', ""), format!("{{{LOBBY}}}")];
    for id in ["", "x", &upper, &LOBBY[1..], &no_hyphens, &braces] {
        assert!(!is_join("lobby_id", json!(id)), "{id}");
    }
    check_party_sizes(JOIN_LOBBY_REQUEST_PARTY_SIZE_GTE..=JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE, |size| {
        is_join("party_size", json!(size))
    });
    check_addresses(|address| is_join("client_address", json!(address)));
    check_channels(Operation::Join, JOIN_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS, json!({"lobby_id": LOBBY}));
    let rejoin = |size| json!({"lobby_id": LOBBY, "rejoin_token": "", "party_size": size});
    assert!(is_join("rejoin_token", json!("player_x")) && is_json_read(Operation::Join, &rejoin(1)));
    assert!(!is_json_read(Operation::Join, &rejoin(2)), "the token of one player");
}

#[test]
fn limits_of_a_find() {
    let is_find = |field: &str, value: Value| {
        let mut object = json!({"game_modes": ["duel"]});
        object[field] = value;
        is_json_read(Operation::Find, &object)
    };
    let names = |count: usize| (0..count).map(|number| format!("mode-{number}")).collect::<Vec<_>>();
    let modes_max = FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS;
    assert!(!is_find("game_modes", json!([])));
    assert!(is_find("game_modes", json!(names(modes_max))));
    assert!(!is_find("game_modes", json!(names(modes_max + 1))));
    assert!(!is_find("game_modes", json!(["duel", "solo", "duel"])), "not unique");
    let longest = FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_MAX_BYTES;
    assert!(is_find("game_modes", json!(["A-z_9".to_owned() + &"x".repeat(longest - 5)])));
    for name in [&"x".repeat(longest + 1), "", "a b", "\u{e4}"] {
        assert!(!is_find("game_modes", json!([name])), "{name}");
    }

    let regions_max = FIND_LOBBY_REQUEST_REGIONS_MAX_ITEMS;
    assert!(is_find("regions", json!([])) && is_find("regions", json!(vec!["eu"; regions_max])));
    assert!(!is_find("regions", json!(vec!["eu"; regions_max + 1])));
    let longest = FIND_LOBBY_REQUEST_REGIONS_ITEMS_MAX_BYTES;
    for region in ["a", "9", "eu-west-1", &"x".repeat(longest)] {
        assert!(is_find("regions", json!([region])), "{region}");
    }
    for region in [&"x".repeat(longest + 1), "", "EU", "eu_1", "-eu", "eu-", "eu--1", "\u{e4}"] {
        assert!(!is_find("regions", json!([region])), "{region}");
    }

    let tags = |count: usize| (0..count).map(|number| (format!("t{number}"), json!(""))).collect::<Value>();
    assert!(is_find("tags", tags(FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS)));
    assert!(!is_find("tags", tags(FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS + 1)));
    let is_tag = |name: &str, value: &str| is_find("tags", json!({name: value}));
    let (name_max, value_max) = (FIND_LOBBY_REQUEST_TAGS_KEYS_MAX_BYTES, FIND_LOBBY_REQUEST_TAGS_VALUES_MAX_BYTES);
    assert!(is_tag(&"n".repeat(name_max), &"v".repeat(value_max)) && is_tag(&"\u{e4}".repeat(name_max / 2), "\n"));
    assert!(!is_tag("", "v") && !is_tag(&"n".repeat(name_max + 1), "v") && !is_tag("n", &"v".repeat(value_max + 1)));
    assert!(!is_tag(&"\u{e4}".repeat(name_max / 2 + 1), ""), "bytes, not characters");

    check_party_sizes(FIND_LOBBY_REQUEST_PARTY_SIZE_GTE..=FIND_LOBBY_REQUEST_PARTY_SIZE_LTE, |size| {
        is_find("party_size", json!(size))
    });
    check_party_sizes(FIND_LOBBY_REQUEST_MAX_PLAYERS_GTE..=FIND_LOBBY_REQUEST_MAX_PLAYERS_LTE, |limit| {
        is_find("max_players", json!(limit))
    });
    check_addresses(|address| is_find("client_address", json!(address)));
    check_channels(Operation::Find, FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS, json!({"game_modes": ["duel"]}));
    assert!(is_find("prevent_auto_create_lobby", json!(true)) && is_find("prevent_auto_create_lobby", json!(null)));
}

fn check_party_sizes(allowed: std::ops::RangeInclusive<usize>, is_valid: impl Fn(usize) -> bool) {
    assert!(is_valid(*allowed.start()) && is_valid(*allowed.end()));
    assert!(!is_valid(*allowed.start() - 1) && !is_valid(*allowed.end() + 1));
}

fn check_addresses(is_valid: impl Fn(&str) -> bool) {
    for address in ["192.0.2.1", "::1", "2001:DB8::1", "::ffff:192.0.2.1"] {
        assert!(is_valid(address), "{address}");
    }
    for address in ["", "192.0.2", "192.0.2.256", "192.0.02.1", "fe80::1%eth0", "localhost", "[::1]", "::1/128", " ::1"]
    {
        assert!(!is_valid(address), "{address}");
    }
}

fn check_channels(operation: Operation, count_max: usize, object: Value) {
    let is_valid = |party_size: Option<usize>, channels: Vec<String>| {
        let mut object = object.clone();
        (object["event_channels"], object["party_size"]) = (json!(channels), json!(party_size));
        is_json_read(operation, &object)
    };
    let channels = |count: usize| (0..count).map(channel).collect::<Vec<_>>();
    assert!(is_valid(None, vec![]) && is_valid(Some(count_max + 1), channels(count_max)));
    assert!(is_valid(Some(3), channels(2)) && !is_valid(Some(3), channels(3)), "one for each other player");
    assert!(!is_valid(None, channels(1)));
    let (shortest, longest) =
        (FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN, FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MAX_LEN);
    for (length, expected) in [(shortest, true), (longest, true), (shortest - 1, false), (longest + 1, false)] {
        assert_eq!(is_valid(Some(2), vec!["A".repeat(length)]), expected, "{length}");
    }
    assert!(!is_valid(Some(2), vec!["a b".repeat(10)]));
}

/// The bytes are those of `SerializeToString(deterministic=True)` of Python, so that a key stored by an earlier version
/// is found again.
#[test]
fn canonical_bytes_are_those_of_python() {
    let channel = "c".repeat(22);
    let find_bytes = |first: &str, last: &str| {
        let before = "\n\u{4}duel\n\u{4}solo\u{12}\u{2}eu";
        let tags =
            "\u{1a}\t\n\u{4}b\u{e4}r\u{12}\u{1}x\u{1a}\u{b}\n\u{3}map\u{12}\u{4}lake\u{1a}\t\n\u{4}rank\u{12}\u{1}7";
        let after = " \u{8}(\0@\u{2}J\u{3}::1R\u{16}";
        format!("{before}{first}{tags}{last}{after}{channel}")
    };
    let mut with_empty_values = find();
    with_empty_values.tags.extend([("z".into(), String::new()), ("a".into(), String::new())]);
    let rows = [
        (
            Request::Connected(proto::PlayerConnectedRequest { player_token: "player_x".into() }),
            "\n\u{8}player_x".into(),
        ),
        (
            Request::Disconnected(proto::PlayerDisconnectedRequest {
                player_token: "player_x".into(),
                hold_ms: Some(0),
            }),
            "\n\u{8}player_x\u{10}\0".to_owned(),
        ),
        (Request::Join(join()), format!("\n${LOBBY} \u{2}2\u{3}::1:\u{16}{channel}")),
        (Request::Find(find()), find_bytes("", "")),
        (
            Request::Find(with_empty_values.clone()),
            find_bytes("\u{1a}\u{5}\n\u{1}a\u{12}\0", "\u{1a}\u{5}\n\u{1}z\u{12}\0"),
        ),
    ];
    for (mut request, expected) in rows {
        let name = format!("{request:?}");
        assert_eq!(
            request.canonical_bytes().escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
        assert_eq!(format!("{request:?}"), name, "the request stays as it was");
    }
}

#[test]
fn canonical_bytes_do_not_depend_on_the_order_of_tags() {
    let bytes = |tags: &str| {
        let body = format!(r#"{{"game_modes":["duel"],"tags":{{{tags}}}}}"#);
        Request::read(Operation::Find, Body::Json(body.as_bytes())).expect("a find").canonical_bytes()
    };
    assert_eq!(bytes(r#""b":"","a":"1""#), bytes(r#""a":"1","b":"""#));
    assert_ne!(bytes(r#""b":"","a":"1""#), bytes(r#""a":"1""#));
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..4)
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9-]{0,4}", "[A-Za-z0-9_-]{22,24}", text()]
}

/// Returns an object without the fields that are null.
fn fields(object: Value) -> Vec<u8> {
    let Value::Object(mut object) = object else { panic!("no object") };
    object.retain(|_, value| !value.is_null());
    Value::Object(object).to_string().into_bytes()
}

/// Checks that both encodings are invalid, or give the same message.
fn check_same(operation: Operation, message: &impl Message, object: Value) {
    let canonical = |body| Request::read(operation, body).ok().map(|mut request| request.canonical_bytes());
    let message = message.encode_to_vec();
    let object = fields(object);
    let of_json = canonical(Body::Json(&object));
    assert_eq!(canonical(Body::Proto(&message)), of_json);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_encodings_of_a_request_are_read_the_same(
        one in text(),
        id in prop_oneof![Just(LOBBY.to_owned()), text()],
        number in prop::option::of(prop_oneof![0..70_u32, any::<u32>()]),
        address in prop::option::of(prop_oneof![Just("::1".to_owned()), text()]),
        rejoin in prop::option::of(text()),
        lists in (
            prop::collection::vec(word(), 0..4),
            prop::collection::vec(word(), 0..4),
            prop::option::of(texts()),
            prop::collection::vec(word(), 0..2),
        ),
        tags in prop::collection::btree_map(text(), "[a-z]{1,3}", 0..3),
        is_prevented in prop::option::of(any::<bool>()),
    ) {
        let message = proto::PlayerConnectedRequest { player_token: one.clone() };
        check_same(Operation::Connected, &message, json!({"player_token": one}));
        let message = proto::PlayerDisconnectedRequest { player_token: one.clone(), hold_ms: number };
        check_same(Operation::Disconnected, &message, json!({"player_token": one, "hold_ms": number}));
        let (game_modes, regions, tokens, event_channels) = lists;
        let player_tokens = tokens.clone().map(|tokens| proto::PlayerTokens { tokens });
        let message = proto::HeartbeatRequest { player_tokens };
        check_same(Operation::Heartbeat, &message, json!({"player_tokens": tokens}));
        let object = json!({
            "lobby_id": id, "party_size": number, "client_address": address, "rejoin_token": rejoin,
            "event_channels": event_channels,
        });
        let message = proto::JoinLobbyRequest {
            lobby_id: id, party_size: number, client_address: address.clone(), rejoin_token: rejoin,
            event_channels: event_channels.clone(), ..Default::default()
        };
        check_same(Operation::Join, &message, object);
        let object = json!({
            "game_modes": game_modes, "regions": regions, "party_size": number, "client_address": address, "tags": tags,
            "max_players": number, "prevent_auto_create_lobby": is_prevented, "event_channels": event_channels,
        });
        let message = proto::FindLobbyRequest {
            game_modes, regions, party_size: number, client_address: address, prevent_auto_create_lobby: is_prevented,
            tags, max_players: number, event_channels, ..Default::default()
        };
        check_same(Operation::Find, &message, object);
    }
}
