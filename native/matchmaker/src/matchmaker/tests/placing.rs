//! Decisions that reserve slots.

use hosting_core::CreationPolicy;
use prost::Message as _;

use super::*;
use crate::decision::Held;

#[test]
fn admitted_players_are_placed() {
    let world = World::new();
    world.change(|namespace| namespace.needs_admission = true);
    let authorization = service();
    let asked = |operation, body: &str, modes: &[&str]| {
        let modes: Vec<String> = modes.iter().map(|mode| (*mode).to_owned()).collect();
        let progress = Progress { is_paid: true, admitted_modes: Some(&modes), ..Progress::default() };
        name(&world.0.answer(&Call { progress, ..call(operation, &authorization, body) }).decision)
    };
    assert_eq!(asked(Operation::Join, &join(), &[]), "OK");
    let both = r#"{"game_modes":["solo","duel"],"prevent_auto_create_lobby":true}"#;
    assert_eq!(asked(Operation::Find, both, &["duel"]), "OK");
    assert_eq!(
        asked(Operation::Find, both, &["solo"]),
        "MATCHMAKER_NO_AVAILABLE_LOBBIES",
        "a mode that is not admitted"
    );
}

/// A player solves no captcha for a join that cannot succeed.
#[test]
fn impossible_join_is_refused_before_the_admission() {
    let world = World::new();
    world.change(|namespace| namespace.needs_admission = true);
    let party = |size: u32| format!(r#"{{"lobby_id":"{LOBBY_TEXT}","party_size":{size}}}"#);
    let state = world.state();
    assert_eq!(name(&world.ask(Operation::Join, &service(), &party(4))), Need::Admission.slug());
    assert_eq!(name(&world.ask(Operation::Join, &service(), &party(5))), "BODY_INVALID");
    let unknown = join().replace("00010203", "00010204");
    assert_eq!(name(&world.ask(Operation::Join, &service(), &unknown)), "MATCHMAKER_LOBBY_NOT_FOUND");
    assert_eq!(world.state(), state);
}

#[test]
fn players_wait_for_a_starting_lobby_if_they_may() {
    let world = World::with_starting_lobby();
    let authorization = service();
    let held = |operation, body: &str, key: Option<&str>| {
        let progress = Progress { creation: Some(CreationPolicy::Prevented), ..Progress::default() };
        let call = Call { progress, ..call(operation, &authorization, body) };
        let decision = world.0.answer(&Call { idempotency_key: key.map(str::as_bytes), ..call }).decision;
        let Decision::Held(Held { hold, lobby }) = decision else { panic!("{}", name(&decision)) };
        assert_eq!(lobby, Some(LOBBY));
        hold
    };
    let of_find = held(Operation::Find, FIND, Some("key"));
    assert_ne!(held(Operation::Join, &join(), None), of_find);
    assert_eq!(held(Operation::Find, FIND, Some("key")), of_find, "a repetition shares the wait");
    // Neither a changed configuration nor a new rule ends the wait of a repetition.
    world.change(|namespace| namespace.needs_admission = true);
    assert_eq!(held(Operation::Find, FIND, Some("key")), of_find);
    world.change(|namespace| drop(namespace.modes.remove("duel")));
    assert_eq!(held(Operation::Find, FIND, Some("key")), of_find);
    world.0.shard.run(|engine, context| engine.ready(context, LOBBY)).result.expect("ready");
    let resolved = world.0.shard.engine().take_resolved_holds();
    let outcome = resolved.into_iter().find(|one| one.hold == of_find).expect("an outcome").outcome;
    let Decision::Answered(answer) = world.0.placed(outcome.result, outcome.wait) else { panic!("no response") };
    assert!(matches!(answer.reply, Reply::Placed { tokens, .. } if tokens.len() == 1));
}

#[test]
fn placement_describes_a_request_that_waits() {
    let world = World::without_lobby();
    let authorization = service();
    let body = r#"{"game_modes":["solo","duel"],"verification_data":{"a": 1},"client_address":"192.0.2.9"}"#;
    let call = Call { idempotency_key: Some(b"key"), ..call(Operation::Find, &authorization, body) };
    let placement = world.0.placement(&call).expect("valid");
    assert_eq!((placement.modes, placement.regions), (vec!["solo".to_owned(), "duel".into()], vec!["eu".to_owned()]));
    assert_eq!(placement.client.credential, Credential::Service(TOKEN_ID));
    let message = proto::FindLobbyRequest::decode(&*placement.message).expect("a message");
    assert_eq!(message.verification_data.as_deref(), Some(&br#"{"a": 1}"#[..]));
    // A message that Python has decoded has the same idempotency.
    let checked = Call { body: Body::Checked(&placement.message), ..call };
    let idempotency = placement.idempotency.expect("a key");
    let again = world.0.placement(&checked).expect("valid").idempotency.expect("a key");
    assert_eq!((again.key, again.message), (idempotency.key, idempotency.message));
    world.change(|namespace| drop(namespace.modes.remove("duel")));
    assert_eq!(world.0.placement(&checked).err().map(|error| error.code), Some(Code::MatchmakerGameModeNotFound));
}

#[test]
fn repeated_placement_gets_its_first_response() {
    let world = World::new();
    for (operation, body, other) in [
        (Operation::Find, FIND.to_owned(), r#"{"game_modes":["duel"],"regions":["eu"]}"#.to_owned()),
        (Operation::Join, join(), format!(r#"{{"lobby_id":"{LOBBY_TEXT}","party_size":1}}"#)),
    ] {
        let first = tokens(world.ask_keyed(operation, &service(), operation.slug(), &body));
        let state = world.state();
        assert_eq!(tokens(world.ask_keyed(operation, &service(), operation.slug(), &body)), first);
        assert_eq!(name(&world.ask_keyed(operation, &service(), operation.slug(), &other)), "IDEMPOTENCY_KEY_REUSED");
        // A repetition needs neither the configuration nor a further admission.
        for change in [
            |namespace: &mut Namespace| namespace.needs_admission = true,
            |namespace: &mut Namespace| drop(namespace.modes.remove("duel")),
        ] {
            world.change(change);
            assert_eq!(tokens(world.ask_keyed(operation, &service(), operation.slug(), &body)), first);
            assert_eq!(
                name(&world.ask_keyed(operation, &service(), operation.slug(), &other)),
                "IDEMPOTENCY_KEY_REUSED"
            );
        }
        world.change(|_| {});
        assert_eq!(world.state(), state);
        let of_other_caller = tokens(world.ask_keyed(operation, &public(), operation.slug(), &body));
        assert_ne!(of_other_caller, first, "each caller has its own keys");
    }
}

#[test]
fn holder_of_a_service_token_names_the_player() {
    let world = World::new();
    let with_address = |address: &str| format!(r#"{{"game_modes":["duel"],"client_address":"{address}"}}"#);
    for _ in 0..2 {
        assert_eq!(name(&world.ask(Operation::Find, &service(), &with_address("192.0.2.7"))), "OK");
    }
    let limited = world.ask(Operation::Find, &service(), &with_address("192.0.2.7"));
    assert_eq!(name(&limited), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE");
    assert_eq!(name(&world.ask(Operation::Find, &service(), FIND)), "OK", "no address, no limit");
    let problem = FieldProblem::new(&["client_address"], "not-allowed", Some("is for env_ tokens only"));
    let expected = ServiceError::from(Code::BodyInvalid).with_problem(problem);
    assert_eq!(error(world.ask(Operation::Find, &public(), &with_address("192.0.2.7"))), expected);
}

#[test]
fn players_of_public_tokens_count_by_their_address() {
    let world = World::new();
    let asked = |client: &str| {
        let authorization = public();
        let call = call(Operation::Find, &authorization, FIND);
        name(&world.0.answer(&Call { client: client.parse().expect("an address"), ..call }).decision)
    };
    assert_eq!([asked("2001:db8::1"), asked("2001:db8::2")], ["OK"; 2]);
    assert_eq!(asked("2001:db8::3"), "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE", "one network of 64 bits");
    assert_eq!(asked("2001:db8:0:1::3"), "OK");
}

#[test]
fn refusals_of_the_engine_are_answers() {
    let world = World::new();
    let rows = [
        (Operation::Find, service(), r#"{"game_modes":["solo"],"prevent_auto_create_lobby":true}"#.to_owned()),
        (Operation::Join, public(), join().replace("00010203", "00010204")),
        (Operation::Join, service(), join().replace('}', r#","party_size":5}"#)),
        (Operation::Connected, of_lobby(), confirm("player_x")),
        (Operation::Heartbeat, of_lobby(), r#"{"player_tokens":["player_x"]}"#.to_owned()),
    ];
    let codes = rows.map(|(operation, authorization, body)| name(&world.ask(operation, &authorization, &body)));
    let expected = [
        "MATCHMAKER_NO_AVAILABLE_LOBBIES",
        "MATCHMAKER_LOBBY_NOT_FOUND",
        "BODY_INVALID",
        "PLAYER_TOKEN_INVALID",
        "BODY_INVALID",
    ];
    assert_eq!(codes, expected);
}

#[test]
fn party_gets_a_token_for_each_player() {
    let world = World::new();
    let channels = format!(r#","party_size":3,"event_channels":["{}"]}}"#, "c".repeat(22));
    let placed = tokens(world.ask(Operation::Join, &service(), &join().replace('}', &channels)));
    assert_eq!(placed.len(), 3);
    let rejoin = join().replace('}', &format!(r#","rejoin_token":"{}"}}"#, placed[0]));
    assert_eq!(tokens(world.ask(Operation::Join, &service(), &rejoin)).len(), 1);
}
