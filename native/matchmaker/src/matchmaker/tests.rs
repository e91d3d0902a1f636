//! Decisions on an engine without a journal.

use std::collections::HashMap;

use hosting_core::{Attach, Engine, EngineConfig, KeyRing};
use sha2::{Digest as _, Sha256};

use super::*;
use crate::authorization::Subject;
use crate::decision::Progress;
use crate::namespaces::{GameMode, Namespace, ServiceToken};
use crate::player_addresses::PlayerAddresses;
use crate::rate_limits::Limit;
use crate::regions::{Region, Regions};

const NAMESPACE: Id = Id([0x11; 16]);
const VERSION: Id = Id([0x22; 16]);
const GROUP: Id = Id([0x33; 16]);
const TOKEN_ID: Id = Id([0x51; 16]);
const LOBBY: Id = Id([0, 1, 2, 3, 4, 5, 0x46, 7, 0x88, 9, 10, 11, 12, 13, 14, 15]);
const LOBBY_TEXT: &str = "00010203-0405-4607-8809-0a0b0c0d0e0f";
const BURST: u32 = 20;
/// Operations on which players wait. They take no `cloud_` tokens.
const PLAYER_OPERATIONS: [Operation; 5] =
    [Operation::Connected, Operation::Disconnected, Operation::Heartbeat, Operation::Join, Operation::Find];
const FIND: &str = r#"{"game_modes":["duel"]}"#;

struct World(Matchmaker);

fn keys() -> KeyRing {
    KeyRing::new(vec![(1, [7; 32])], 1).expect("one key")
}

fn bearer(token: &str) -> Vec<u8> {
    [b"Bearer ", token.as_bytes()].concat()
}

fn service() -> Vec<u8> {
    bearer("env_secret")
}

fn public() -> Vec<u8> {
    bearer(&keys().sign_public(NAMESPACE, Id([0x61; 16])))
}

fn of_lobby() -> Vec<u8> {
    bearer(&keys().sign_lobby(1, LOBBY).expect("a key"))
}

fn namespace() -> Namespace {
    let of_back_end =
        ServiceToken { sha256: Sha256::digest("env_secret").into(), token_id: TOKEN_ID, expires_ms: None };
    Namespace {
        source_limit: 2,
        modes: HashMap::from(["duel", "solo"].map(|name| (name.into(), GameMode::example(8)))),
        hosts: vec!["game.example".into()],
        service_tokens: vec![of_back_end],
        ..Namespace::example(NAMESPACE)
    }
}

impl World {
    /// Returns a matchmaker with one ready lobby.
    fn new() -> World {
        let world = World::with_starting_lobby();
        world.0.shard.run(|engine, context| engine.ready(context, LOBBY)).result.expect("ready");
        world
    }

    fn with_starting_lobby() -> World {
        let world = World::without_lobby();
        let attach = Attach {
            id: LOBBY,
            namespace: NAMESPACE,
            version: VERSION,
            mode: "duel",
            region: "eu",
            tags: &[],
            max_players: 4,
            max_players_direct: 4,
            max_players_party: 4,
            player_token_ttl_ms: 60_000,
            heartbeat_timeout_ms: 0,
            heartbeat_grace_ms: 0,
            is_join_enabled: true,
            ports: &[],
            create_ts_ms: 0,
            lobby_count_max: u32::MAX,
            idempotency: None,
        };
        world.0.shard.run(|engine, context| engine.attach(context, &attach)).result.expect("attached");
        world
    }

    fn without_lobby() -> World {
        let regions = Regions::new(vec![Region::example("eu", (50.0, 8.0))]);
        let addresses = PlayerAddresses {
            job_domain: None,
            advertised: "127.0.0.1".into(),
            node: "127.0.0.1".into(),
            has_certificate: false,
        };
        let matchmaker = Matchmaker {
            shard: Shard::new(Engine::new(EngineConfig::new(1, keys())), None),
            hash: Arc::new(HashKey::new([9; 32])),
            namespaces: Arc::default(),
            limits: ClientLimits::example([BURST; 4]),
            places: Places { regions, addresses },
            lobby_answers: LobbyAnswers::default(),
        };
        matchmaker.namespaces.put(Arc::new(namespace()));
        World(matchmaker)
    }

    fn change(&self, change: impl FnOnce(&mut Namespace)) {
        let mut changed = namespace();
        change(&mut changed);
        self.0.namespaces.put(Arc::new(changed));
    }

    fn ask(&self, operation: Operation, authorization: &[u8], body: &str) -> Decision {
        self.0.answer(&call(operation, authorization, body)).decision
    }

    fn ask_keyed(&self, operation: Operation, authorization: &[u8], key: &str, body: &str) -> Decision {
        let call = call(operation, authorization, body);
        self.0.answer(&Call { idempotency_key: Some(key.as_bytes()), ..call }).decision
    }

    fn new_player(&self) -> String {
        tokens(self.ask(Operation::Join, &service(), &join())).remove(0)
    }

    /// Returns the tokens left in the buckets of the `env_` token, its address, the client's address and the group.
    fn left(&self) -> [usize; 4] {
        self.0.limits.left(&[NAMESPACE.0, TOKEN_ID.0].concat(), &[192, 0, 2, 1], &GROUP.0)
    }

    fn state(&self) -> (Lsn, [u8; 32], String) {
        let engine = self.0.shard.engine();
        (engine.last_lsn(), engine.durable_hash(), format!("{:?}", engine.namespace_counts()))
    }
}

fn join() -> String {
    format!(r#"{{"lobby_id":"{LOBBY_TEXT}"}}"#)
}

fn confirm(player_token: &str) -> String {
    format!(r#"{{"player_token":"{player_token}"}}"#)
}

fn call<'a>(operation: Operation, authorization: &'a [u8], body: &'a str) -> Call<'a> {
    Call {
        operation,
        authorization: Some(authorization).filter(|header| !header.is_empty()),
        origin: None,
        idempotency_key: None,
        media_type: Some(b"application/json"),
        content_encoding: None,
        coordinates: None,
        client: "192.0.2.1".parse().expect("an address"),
        body: Body::Json(body.as_bytes()),
        progress: Progress::default(),
    }
}

fn tokens(decision: Decision) -> Vec<String> {
    match decision {
        Decision::Answered(Answer { reply: Reply::Placed { tokens, .. }, .. }) => tokens,
        other => panic!("{}", name(&other)),
    }
}

fn error(decision: Decision) -> ServiceError {
    match decision {
        Decision::Refused { error, .. } => *error,
        other => panic!("{}", name(&other)),
    }
}

/// Returns the code, the need, or `OK`.
fn name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Answered(_) => "OK",
        Decision::Refused { error, .. } => error.code.slug(),
        Decision::Needs(need) => need.slug(),
        Decision::Held(_) => "HELD",
    }
}

#[test]
fn needs_cost_one_token_and_change_nothing() {
    let not_ready = World::with_starting_lobby();
    let guarded = World::new();
    guarded.change(|namespace| namespace.needs_admission = true);
    let rows = [
        (&not_ready, Operation::Find, FIND.to_owned(), Need::StartingLobby),
        (&not_ready, Operation::Join, join(), Need::StartingLobby),
        (&World::without_lobby(), Operation::Find, FIND.to_owned(), Need::NewLobby),
        (&guarded, Operation::Find, FIND.to_owned(), Need::Admission),
        (&guarded, Operation::Join, join(), Need::Admission),
        (&guarded, Operation::Join, "{".to_owned(), Need::InvalidRequest),
    ];
    for (world, operation, body, need) in rows {
        for (authorization, taken) in [(service(), [1, 1, 0, 1]), (public(), [0, 0, 1, 1])] {
            for key in [None, Some(&b"key"[..])] {
                let (state, left) = (world.state(), world.left());
                let outcome = world.0.answer(&Call { idempotency_key: key, ..call(operation, &authorization, &body) });
                assert_eq!((name(&outcome.decision), outcome.exceeded), (need.slug(), None));
                assert_eq!(outcome.subject, Some(Subject::Namespace(NAMESPACE)));
                assert_eq!(world.state(), state, "{need:?}");
                let expected: Vec<_> = left.iter().zip(taken).map(|(left, taken)| left - taken).collect();
                assert_eq!(world.left()[..], expected, "{need:?}");
                assert!(need.is_paid());
            }
        }
    }
}

#[test]
fn holder_of_a_development_token_pays_as_a_client() {
    let world = World::new();
    let token = bearer(&keys().sign_development(NAMESPACE, Id([0x61; 16]), 1 << 50));
    let mut expected = world.left();
    for operation in PLAYER_OPERATIONS {
        let outcome = world.0.answer(&call(operation, &token, "{"));
        assert_eq!(name(&outcome.decision), Need::MockResponse.slug());
        assert_eq!(outcome.subject, Some(Subject::Namespace(NAMESPACE)));
        if operation.callers() == Callers::Clients {
            let [of_token, of_token_address, of_client, of_group] = expected;
            expected = [of_token, of_token_address, of_client - 1, of_group - 1];
        }
        assert_eq!(world.left(), expected);
    }
}

#[test]
fn request_pays_once() {
    let world = World::without_lobby();
    let authorization = public();
    let left = world.left();
    for is_paid in [true, false] {
        let progress = Progress { is_paid, ..Progress::default() };
        let outcome = world.0.answer(&Call { progress, ..call(Operation::Find, &authorization, FIND) });
        assert_eq!(name(&outcome.decision), Need::NewLobby.slug());
        assert_eq!(world.left() == left, is_paid);
    }
}

#[test]
fn invalid_body_of_a_lobby_server_is_left_to_python() {
    let world = World::new();
    for operation in [Operation::Connected, Operation::Disconnected, Operation::Heartbeat] {
        let outcome = world.0.answer(&call(operation, &of_lobby(), "{"));
        assert_eq!((name(&outcome.decision), outcome.subject), ("invalid_request", Some(Subject::Lobby(LOBBY))));
    }
    assert_eq!(world.left(), [BURST as usize; 4], "lobby servers take nothing from the limits of clients");
}

#[test]
fn lobby_server_has_a_limit_of_its_own() {
    let world = World::new();
    let other = bearer(&keys().sign_lobby(1, Id([0x44; 16])).expect("a key"));
    let developer = bearer(&keys().sign_development(NAMESPACE, Id([0x61; 16]), 1 << 50));
    for server in [of_lobby(), other, developer] {
        let exceeded = || world.0.answer(&call(Operation::Heartbeat, &server, "{}")).exceeded;
        assert!((0..BURST).all(|_| exceeded().is_none()));
        assert_eq!(exceeded(), Some(Limit::Lobby));
    }
    let error = error(world.ask(Operation::Ready, &of_lobby(), ""));
    assert_eq!((error.code, error.metadata().collect()), (Code::RateLimited, vec![("limit", "lobby")]));
}

/// Python describes text that is no JSON, and captchas of another form.
#[test]
fn invalid_bodies_are_refused_or_left_to_python() {
    let with =
        |fields: &str| [join().replace('}', &format!(",{fields}}}")), FIND.replace('}', &format!(",{fields}}}"))];
    let check = |operation: Operation, body: &str, expected: &str| {
        let authorization = if operation.callers() == Callers::Clients { service() } else { of_lobby() };
        assert_eq!(name(&World::new().ask(operation, &authorization, body)), expected, "{operation:?} {body}");
    };
    for (fields, expected) in [
        (r#""party_size":0"#, "BODY_INVALID"),
        (r#""party_size":-1"#, "BODY_INVALID"),
        (r#""party_size":1.0"#, "BODY_INVALID"),
        (r#""party_size":"1""#, "BODY_INVALID"),
        (r#""client_address":"192.0.2.1%1""#, "BODY_INVALID"),
        (r#""event_channels":["aaaaaaaaaaaaaaaaaaaaaa"]"#, "BODY_INVALID"),
        (r#""captcha":{"token":"a"}"#, "invalid_request"),
        (r#""party_size":null,"client_address":null,"event_channels":null,"unknown":1"#, "OK"),
    ] {
        let [join, find] = with(fields);
        check(Operation::Join, &join, expected);
        check(Operation::Find, &find, expected);
    }
    for operation in PLAYER_OPERATIONS {
        let of_empty = if operation == Operation::Heartbeat { "OK" } else { "BODY_INVALID" };
        for (body, expected) in [("", of_empty), ("{}", of_empty), ("null", "BODY_INVALID"), ("[]", "BODY_INVALID")] {
            check(operation, body, expected);
        }
        for no_json in ["{}{}", "{", "{'a':1}", "\u{feff}{}", "a=b", r#"{"player_token":"\ud800"}"#] {
            check(operation, no_json, "invalid_request");
        }
    }
    for (operation, body) in [
        (Operation::Connected, r#"{"player_token":1}"#),
        (Operation::Connected, r#"{"playerToken":"player_a"}"#),
        (Operation::Disconnected, r#"{"player_token":"player_a","hold_ms":600001}"#),
        (Operation::Disconnected, r#"{"player_token":"player_a","hold_ms":1.5}"#),
        (Operation::Heartbeat, r#"{"player_tokens":[null]}"#),
        (Operation::Heartbeat, r#"{"player_tokens":{"tokens":[]}}"#),
        (Operation::Join, r#"{"lobby_id":["a"]}"#),
        (Operation::Find, r#"{"game_modes":"duel"}"#),
        (Operation::Find, r#"{"game_modes":["duel","duel"]}"#),
        (Operation::Find, r#"{"game_modes":["duel"],"prevent_auto_create_lobby":1}"#),
    ] {
        check(operation, body, "BODY_INVALID");
    }
}

#[test]
fn refusal_by_a_rate_limit_takes_nothing() {
    let world = World::new();
    (0..BURST).for_each(|_| drop(world.ask(Operation::Find, &public(), FIND)));
    let (state, left) = (world.state(), world.left());
    // The body and the key of a limited request are not read.
    for (body, key) in [(FIND, None), ("{", None), (FIND, Some(&b" "[..]))] {
        let outcome = world.0.answer(&Call { idempotency_key: key, ..call(Operation::Find, &public(), body) });
        assert_eq!((outcome.exceeded, outcome.subject), (Some(Limit::Client), Some(Subject::Namespace(NAMESPACE))));
        let error = error(outcome.decision);
        let limited = ServiceError::from(Code::RateLimited).with_metadata("limit", "client");
        let wait = error.retry_after_s().expect("a wait");
        assert!((990..=1_000).contains(&wait), "{wait}");
        assert_eq!(error, limited.with_retry_after(wait.into()));
    }
    assert_eq!((world.state(), world.left()), (state, left));
    let group = world.0.answer(&call(Operation::Find, &service(), FIND));
    assert_eq!(group.exceeded, Some(Limit::ClientGroup), "the group has no token left");
}

#[test]
fn wrong_credentials_cost_nothing_and_have_no_subject() {
    let world = World::new();
    for (authorization, code) in [
        (vec![], "TOKEN_MISSING"),
        (bearer("env_other"), "TOKEN_INVALID"),
        (bearer("cloud_x"), "FORBIDDEN"),
        (b"Basic x".to_vec(), "TOKEN_INVALID"),
    ] {
        for operation in PLAYER_OPERATIONS {
            let outcome = world.0.answer(&call(operation, &authorization, "{"));
            let is_lobby_call = !operation.has_content();
            let expected = if is_lobby_call && code == "TOKEN_INVALID" && authorization == bearer("env_other") {
                "FORBIDDEN"
            } else {
                code
            };
            assert_eq!((name(&outcome.decision), outcome.subject), (expected, None), "{operation:?}");
        }
    }
    assert_eq!(world.left(), [BURST as usize; 4]);
}

#[test]
fn origin_pays_as_the_client_of_its_address() {
    let world = World::new();
    let from_page = Call { origin: Some(b"https://game.example"), ..call(Operation::Find, b"", FIND) };
    assert_eq!(name(&world.0.answer(&from_page).decision), "OK");
    let all = BURST as usize;
    assert_eq!(world.left(), [all, all, all - 1, all - 1]);
}

#[test]
fn idempotency_key_has_a_form() {
    let world = World::new();
    let key = |length: usize| "k".repeat(length);
    let asked = |operation, authorization: &[u8], key: &str, body: &str| {
        name(&world.ask_keyed(operation, authorization, key, body))
    };
    for valid in [&key(1), &key(KEY_BYTES_MAX), "!~", "a,b"] {
        assert_eq!(asked(Operation::Heartbeat, &of_lobby(), valid, "{}"), "OK", "{valid}");
    }
    let reason = format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters");
    let problem = FieldProblem::new(&["idempotency-key"], "invalid", Some(&reason));
    let expected = ServiceError::from(Code::HeaderInvalid).with_problem(problem);
    for invalid in ["", &key(KEY_BYTES_MAX + 1), "a b", "a\t", "\u{7f}", "\u{e4}"] {
        let decision = world.ask_keyed(Operation::Heartbeat, &of_lobby(), invalid, "{}");
        assert_eq!(error(decision), expected, "{invalid:?}");
        assert_eq!(asked(Operation::Find, &service(), invalid, "{"), "HEADER_INVALID", "before the body");
    }
}

#[test]
fn media_type_is_json_or_missing() {
    let world = World::new();
    let body = "{}";
    let asked = |media_type: Option<&str>, body: Body<'_>| {
        let authorization = of_lobby();
        let call = call(Operation::Heartbeat, &authorization, "");
        name(&world.0.answer(&Call { media_type: media_type.map(str::as_bytes), body, ..call }).decision)
    };
    let json = Body::Json(body.as_bytes());
    for known in ["application/json", "Application/JSON; charset=utf-8", " application/json ;x"] {
        assert_eq!(asked(Some(known), json), "OK", "{known}");
    }
    assert_eq!(asked(None, json), "OK");
    for other in ["text/plain", "", "application/jsonp", "application/x-www-form-urlencoded"] {
        assert_eq!(asked(Some(other), json), "MEDIA_TYPE_UNSUPPORTED", "{other}");
        assert_eq!(asked(Some(other), Body::Json(b"{")), "MEDIA_TYPE_UNSUPPORTED", "before the body");
    }
    assert_eq!(asked(Some("application/grpc"), Body::Proto(b"")), "OK");
}

#[test]
fn body_has_no_encoding() {
    let world = World::new();
    let authorization = of_lobby();
    for (encoding, expected) in
        [("identity", None), (" Identity ", None), ("gzip", Some("gzip")), ("br, gzip", Some("br, gzip"))]
    {
        let call = Call {
            content_encoding: Some(encoding.as_bytes()),
            body: Body::Json(b"{}"),
            ..call(Operation::Heartbeat, &authorization, "")
        };
        let decision = world.0.answer(&call).decision;
        let Some(named) = expected else {
            assert_eq!(name(&decision), "OK", "{encoding}");
            continue;
        };
        let Decision::Refused { error, .. } = decision else { panic!("{encoding} is not refused") };
        assert_eq!(error.code, Code::MediaTypeUnsupported);
        assert_eq!(error.detail(), format!("The body has Content-Encoding: {named}. Send it without an encoding."));
    }
}

#[test]
fn keys_of_operations_differ() {
    let world = World::new();
    let found = tokens(world.ask_keyed(Operation::Find, &service(), "key", FIND));
    // The hash of the message has the operation, so the key is one of another request.
    let joined = world.ask_keyed(Operation::Join, &service(), "key", &join());
    assert_eq!(name(&joined), "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(tokens(world.ask_keyed(Operation::Find, &service(), "key", FIND)), found);
}

#[test]
fn repeated_confirmation_is_answered_again() {
    let world = World::new();
    let player = world.new_player();
    assert_eq!(name(&world.ask_keyed(Operation::Connected, &of_lobby(), "key", &confirm(&player))), "OK");
    assert_eq!(name(&world.ask_keyed(Operation::Connected, &of_lobby(), "key", &confirm(&player))), "OK");
    assert_eq!(name(&world.ask(Operation::Connected, &of_lobby(), &confirm(&player))), "PLAYER_TOKEN_CONSUMED");
    let other = confirm(&world.new_player());
    let reused = world.ask_keyed(Operation::Connected, &of_lobby(), "key", &other);
    assert_eq!(name(&reused), "IDEMPOTENCY_KEY_REUSED");
    for _ in 0..2 {
        let gone = world.ask_keyed(Operation::Disconnected, &of_lobby(), "gone", &confirm(&player));
        assert_eq!(name(&gone), "OK");
    }
    let gone = world.ask_keyed(Operation::Connected, &of_lobby(), "key", &confirm(&player));
    assert_eq!(name(&gone), "PLAYER_TOKEN_CONSUMED", "the player has left");
}

mod lobby_calls;
mod placing;
