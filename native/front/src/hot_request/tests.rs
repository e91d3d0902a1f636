//! Plain protobuf messages. The tests of the whole front have the JSON bodies.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn is_plain(operation: Operation, message: &[u8]) -> bool {
    HotRequest::from_proto(operation, message).is_some()
}

fn connected() -> Vec<u8> {
    proto::PlayerConnectedRequest { player_token: "player_x".into() }.encode_to_vec()
}

fn join() -> proto::JoinLobbyRequest {
    proto::JoinLobbyRequest {
        lobby_id: "l".into(),
        party_size: Some(2),
        client_address: Some("::1".into()),
        ..proto::JoinLobbyRequest::default()
    }
}

fn find() -> proto::FindLobbyRequest {
    proto::FindLobbyRequest {
        game_modes: vec!["duel".into(), "solo".into()],
        regions: vec!["eu".into()],
        prevent_auto_create_lobby: Some(false),
        party_size: Some(2),
        client_address: Some("::1".into()),
        ..proto::FindLobbyRequest::default()
    }
}

#[test]
fn fields_are_read() {
    let Some(HotRequest::Connected(connected)) = HotRequest::from_proto(Operation::Connected, &connected()) else {
        panic!("not plain")
    };
    assert_eq!(connected.player_token, "player_x");
    let gone = proto::PlayerDisconnectedRequest { player_token: "player_x".into(), hold_ms: Some(0) }.encode_to_vec();
    let Some(HotRequest::Disconnected(gone)) = HotRequest::from_proto(Operation::Disconnected, &gone) else {
        panic!("not plain")
    };
    assert_eq!((&*gone.player_token, gone.hold_ms), ("player_x", Some(0)));
    let Some(HotRequest::Join(join)) = HotRequest::from_proto(Operation::Join, &join().encode_to_vec()) else {
        panic!("not plain")
    };
    assert_eq!((&*join.lobby_id, join.party_size, join.client_address.as_deref()), ("l", Some(2), Some("::1")));
    let Some(HotRequest::Find(find)) = HotRequest::from_proto(Operation::Find, &find().encode_to_vec()) else {
        panic!("not plain")
    };
    assert_eq!(
        (&find.game_modes[..], find.regions.as_deref()),
        (&["duel".into(), "solo".into()][..], Some(&["eu".into()][..]))
    );
    assert_eq!((find.party_size, find.client_address.as_deref()), (Some(2), Some("::1")));
}

#[test]
fn list_of_a_heartbeat_may_be_missing_or_empty() {
    let tokens = |player_tokens| {
        let message = proto::HeartbeatRequest { player_tokens }.encode_to_vec();
        let Some(HotRequest::Heartbeat(read)) = HotRequest::from_proto(Operation::Heartbeat, &message) else {
            panic!("not plain")
        };
        read.player_tokens
    };
    let list = |tokens: &[&str]| proto::PlayerTokens { tokens: tokens.iter().map(|token| (*token).into()).collect() };
    assert_eq!(tokens(None), None);
    assert_eq!(tokens(Some(list(&[]))), Some(vec![]));
    assert_eq!(tokens(Some(list(&["a", "a"]))), Some(vec!["a".into(), "a".into()]));
}

#[test]
fn fields_may_come_in_any_order() {
    let message = [&b"\x20\x02"[..], b"\x0a\x01l"].concat();
    assert!(is_plain(Operation::Join, &message));
}

#[test]
fn unusual_encodings_are_not_plain() {
    let once = connected();
    let with = |more: &[u8]| [&once[..], more].concat();
    let unusual = [
        ("repeated field", with(&once)),
        ("unknown field", with(b"\x12\x01x")),
        ("unknown number", with(b"\x10\x01")),
        ("unknown group", with(b"\x1b\x1c")),
        ("other wire type", b"\x08\x01".to_vec()),
        ("no text", b"\x0a\x01\xff".to_vec()),
        ("field with its default", b"\x0a\x00".to_vec()),
        ("long length", [&b"\x0a\x88\x00"[..], b"player_x"].concat()),
        ("long key", [&b"\x8a\x00\x08"[..], b"player_x"].concat()),
        ("cut off", once[..once.len() - 1].to_vec()),
        ("field 0", with(b"\x02\x00")),
    ];
    for (name, message) in unusual {
        assert!(!is_plain(Operation::Connected, &message), "{name}");
    }
    let tokens = b"\x0a\x03\x0a\x01a";
    assert!(is_plain(Operation::Heartbeat, tokens));
    assert!(!is_plain(Operation::Heartbeat, &[&tokens[..], tokens].concat()), "repeated message");
    assert!(!is_plain(Operation::Heartbeat, b"\x0a\x05\x0a\x01a\x10\x01"), "unknown field of an inner message");
    for number in [&b"\x20\x81\x00"[..], b"\x20\x82\x80\x80\x80\x10", b"\x20\x01\x20\x01"] {
        assert!(!is_plain(Operation::Join, &[b"\x0a\x01l", number].concat()), "{}", number.escape_ascii());
    }
}

#[test]
fn fields_that_need_python_are_not_plain() {
    let is_plain_join = |change: fn(&mut proto::JoinLobbyRequest)| {
        let mut message = join();
        change(&mut message);
        is_plain(Operation::Join, &message.encode_to_vec())
    };
    assert!(is_plain_join(|_| {}));
    assert!(!is_plain_join(|join| join.captcha = Some(proto::Captcha::default())));
    assert!(!is_plain_join(|join| join.verification_data = Some(vec![])));
    assert!(!is_plain_join(|join| join.rejoin_token = Some(String::new())));
    assert!(!is_plain_join(|join| join.event_channels = vec![String::new()]));
    let is_plain_find = |change: fn(&mut proto::FindLobbyRequest)| {
        let mut message = find();
        change(&mut message);
        is_plain(Operation::Find, &message.encode_to_vec())
    };
    assert!(is_plain_find(|_| {}));
    assert!(!is_plain_find(|find| find.captcha = Some(proto::Captcha::default())));
    assert!(!is_plain_find(|find| find.verification_data = Some(vec![])));
    assert!(!is_plain_find(|find| find.max_players = Some(0)));
    assert!(!is_plain_find(|find| drop(find.tags.insert(String::new(), String::new()))));
    assert!(!is_plain_find(|find| find.event_channels = vec![String::new()]));
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter)
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(text(), 0..4)
}

/// Returns an object without the fields that are null.
fn fields(object: Value) -> Vec<u8> {
    let Value::Object(mut object) = object else { panic!("no object") };
    object.retain(|_, value| !value.is_null());
    Value::Object(object).to_string().into_bytes()
}

fn check_same(operation: Operation, message: &impl Message, object: Value) {
    let (message, body) = (message.encode_to_vec(), fields(object));
    let of_message = HotRequest::from_proto(operation, &message);
    assert!(of_message.is_some());
    assert_eq!(of_message, HotRequest::from_json(operation, &body));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_encodings_of_a_request_are_read_the_same(
        one in text(),
        number in prop::option::of(any::<u32>()),
        address in prop::option::of(text()),
        lists in (texts(), texts(), prop::option::of(texts())),
        is_prevented in prop::option::of(any::<bool>()),
    ) {
        let message = proto::PlayerConnectedRequest { player_token: one.clone() };
        check_same(Operation::Connected, &message, json!({"player_token": one}));
        let message = proto::PlayerDisconnectedRequest { player_token: one.clone(), hold_ms: number };
        check_same(Operation::Disconnected, &message, json!({"player_token": one, "hold_ms": number}));
        let (game_modes, regions, tokens) = lists;
        let player_tokens = tokens.clone().map(|tokens| proto::PlayerTokens { tokens });
        let message = proto::HeartbeatRequest { player_tokens };
        check_same(Operation::Heartbeat, &message, json!({"player_tokens": tokens}));
        let object = json!({"lobby_id": one, "party_size": number, "client_address": address});
        let client_address = address.clone();
        let message = proto::JoinLobbyRequest { lobby_id: one, party_size: number, client_address, ..Default::default() };
        check_same(Operation::Join, &message, object);
        let object = json!({
            "game_modes": game_modes, "regions": regions, "party_size": number, "client_address": address,
            "prevent_auto_create_lobby": is_prevented,
        });
        let message = proto::FindLobbyRequest {
            game_modes, regions, party_size: number, client_address: address, prevent_auto_create_lobby: is_prevented,
            ..Default::default()
        };
        check_same(Operation::Find, &message, object);
    }
}
