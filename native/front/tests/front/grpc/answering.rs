//! Calls that the front answers itself.

use std::io::Read;

use flate2::Compression;
use flate2::read::{GzEncoder, ZlibEncoder};
use hosting_front::PassReason;
use hosting_matchmaker::proto;
use uuid::Uuid;

use crate::grpc::client::{bearer, encoded, framed};
use crate::grpc::world::{CONNECTED, FIND, JOIN, MESSAGE_BYTES_MAX, OK, World};
use crate::namespace::{SERVICE_TOKEN, public_token};
use crate::raw_http2::{DATA, END_HEADERS, END_STREAM, connect, frame, headers, preface};
use crate::shard;
use crate::world::{Setup, wait_until};

type Metadata<'a> = Vec<(&'a str, &'a str)>;

pub fn connected(player_token: &str) -> Vec<u8> {
    encoded(&proto::PlayerConnectedRequest { player_token: player_token.into() })
}

fn join(world: &World, party_size: Option<u32>) -> Vec<u8> {
    let lobby_id = Uuid::from_bytes(world.lobby.lobby.0).to_string();
    encoded(&proto::JoinLobbyRequest { lobby_id, party_size, ..proto::JoinLobbyRequest::default() })
}

#[test]
fn refusal_of_the_engine_is_sent_in_trailers() {
    let (world, mut client) = World::connected();
    let (token, player) = (bearer(&world.lobby.lobby_token), world.new_player());
    let metadata = [("authorization", &*token), ("grpc-timeout", "10S"), ("user-agent", "test")];
    for code in ["", "PLAYER_TOKEN_CONSUMED"] {
        let answer = client.call(CONNECTED, &metadata, &connected(&player));
        assert_eq!(answer.code(), code);
        assert_eq!((answer.data == [0; 5], answer.text("x-ray-id").len()), (code.is_empty(), 32));
        assert_eq!(answer.headers["content-type"], "application/grpc");
        assert_eq!(answer.last.contains_key("grpc-status-details-bin"), !code.is_empty());
    }
    let counts = [("connected", "OK", 1), ("connected", "PLAYER_TOKEN_CONSUMED", 1)];
    assert_eq!(world.counts(), counts.map(|(slug, code, count)| (slug.into(), code.into(), count)));
}

#[test]
fn join_and_find_reserve_slots() {
    let (world, mut client) = World::connected();
    let lobby_id = Uuid::from_bytes(world.lobby.lobby.0).to_string();
    let find = encoded(&proto::FindLobbyRequest {
        game_modes: vec!["duel".into()],
        party_size: Some(2),
        ..proto::FindLobbyRequest::default()
    });
    for (path, credentials, message, players) in [
        (JOIN, ("authorization", &*bearer(&public_token())), join(&world, None), 0),
        (JOIN, ("origin", "https://game.example"), join(&world, None), 0),
        (FIND, ("authorization", &*bearer(SERVICE_TOKEN)), find, 2),
    ] {
        let before = world.players();
        let answer = client.call(path, &[credentials], &message);
        assert_eq!(answer.status(), "0", "{}", answer.code());
        let found: proto::FindLobbyResponse = answer.message();
        assert_eq!(found.lobby.clone().unwrap().lobby_id, lobby_id);
        assert_eq!(found.lobby.unwrap().player, found.player);
        assert_eq!(found.players.len(), players);
        assert_eq!(world.players(), [before[0] + players.max(1) as u32, before[1]]);
        let token = bearer(&world.lobby.lobby_token);
        let answer = client.call(CONNECTED, &[("authorization", &token)], &connected(&found.player.unwrap().token));
        assert_eq!(answer.status(), "0", "the token admits its player");
    }
    assert!(!world.data.has_call());
}

#[test]
fn unread_lobbies_count_for_their_client() {
    // The share of one client is 1,000 bytes.
    let (world, mut client) = World::connected_with(Setup { answers_bytes_max: 1_000, ..Setup::default() });
    let token = bearer(&public_token());
    let metadata = [("content-type", "application/grpc"), ("authorization", &token)];
    let call = |number: u32| {
        let (stream, message) = (2 * number + 1, join(&world, None));
        let head = headers(END_HEADERS, stream, "POST", JOIN, &metadata);
        [head, frame(DATA, END_STREAM, stream, &message)].concat()
    };
    let unread = connect(world.address, &[preface(0), (0..10).flat_map(call).collect()].concat());
    wait_until(|| world.unread_answers.held_bytes() >= 1_000);
    let players = world.players();
    let refused = client.call(JOIN, &[("authorization", &token)], &join(&world, None));
    assert_eq!((refused.code(), world.players()), ("OVERLOADED_UNREAD", players));
    // Its response has no content.
    let lobby_token = bearer(&world.lobby.lobby_token);
    let unknown = shard::player_token(shard::KEY_ID, 8, world.lobby.lobby);
    let answer = client.call(CONNECTED, &[("authorization", &lobby_token)], &connected(&unknown));
    assert_eq!(answer.code(), "PLAYER_TOKEN_INVALID");
    drop(unread);
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn many_calls_of_one_connection_are_answered() {
    let (world, mut client) = World::connected();
    let token = bearer(&world.lobby.lobby_token);
    let messages: Vec<_> = (0..50).map(|_| connected(&world.new_player())).collect();
    let calls: Vec<_> =
        messages.iter().map(|message| client.start(CONNECTED, &[("authorization", &token)], message)).collect();
    for call in calls {
        assert_eq!(client.finish(call).status(), "0");
    }
    assert_eq!(world.players(), [0, 50]);
}

#[test]
fn message_may_come_byte_by_byte() {
    let (world, mut client) = World::connected();
    let token = bearer(&world.lobby.lobby_token);
    let mut call = client.open(CONNECTED, &[("authorization", &token)]);
    connected(&world.new_player()).chunks(1).for_each(|byte| call.send(byte));
    call.messages = None;
    assert_eq!(client.finish(call).status(), "0");
    assert_eq!(world.players(), [0, 1]);
}

#[test]
fn metadata_changes_only_the_answer() {
    let (world, mut client) = World::connected();
    let token = bearer(&world.lobby.lobby_token);
    let (usual, player) = (("authorization", &*token), connected(&world.new_player()));
    let key = ("idempotency-key", "x");
    let trace = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let of_other_lobby = bearer("lobby_x");
    let rows: [(Metadata<'_>, &str); 6] = [
        (vec![usual, key, trace, ("x-unknown", "a"), ("data-bin", "AA")], ""),
        (vec![usual, key], ""),
        (vec![usual], "PLAYER_TOKEN_CONSUMED"),
        (vec![usual, key, key], "HEADER_INVALID"),
        (vec![usual, ("idempotency-key", "a b")], "HEADER_INVALID"),
        (vec![("authorization", &of_other_lobby)], "TOKEN_INVALID"),
    ];
    for (number, (metadata, code)) in rows.into_iter().enumerate() {
        let answer = client.call(CONNECTED, &metadata, &player);
        assert_eq!(answer.code(), code, "{metadata:?}");
        assert_eq!(answer.text("x-ray-id") == "0af7651916cd43dd8448eb211c80319c", number == 0);
    }
    let reused = client.call(CONNECTED, &[usual, key], &connected(&world.new_player()));
    assert_eq!(reused.code(), "IDEMPOTENCY_KEY_REUSED");
    assert!(!world.data.has_call());
}

#[test]
fn wrong_tokens_are_counted() {
    let (world, mut client) = World::connected_with(Setup { failures: 2, ..Setup::default() });
    let mut asked =
        |token: &str| client.call(JOIN, &[("authorization", &bearer(token))], &join(&world, None)).code().to_owned();
    assert_eq!([asked("env_a"), asked("env_b")], ["TOKEN_INVALID"; 2]);
    assert_eq!(asked("env_c"), "RATE_LIMITED_FAILURES");
    assert_eq!(asked(SERVICE_TOKEN), "", "a valid token");
    assert_eq!(world.front.take_grpc_measurements().limited_failures, 1);
    assert!(!world.data.has_call());
}

#[test]
fn message_that_python_reads_is_left_to_it() {
    let (world, mut client) = World::connected();
    let token = bearer(&world.lobby.lobby_token);
    let player = connected(&world.new_player());
    let unknown_field = framed(&[&player[5..], b"\x10\x01"].concat());
    let usual = ("authorization", &*token);
    let rows: [(&str, Metadata<'_>, &[u8], &str); 2] = [
        (CONNECTED, vec![usual, ("idempotency-key", "key")], &unknown_field, "invalid_request"),
        (CONNECTED, vec![usual], &framed(b"\x08\x01"), "invalid_request"),
    ];
    for (path, metadata, message, reason) in rows {
        let call = client.start(path, &metadata, message);
        let received = world.data.next_call();
        assert_eq!(received.data(), message);
        let admitted = received.metadata.get("x-hosting-admitted").map(|value| value.to_str().unwrap().to_owned());
        assert_eq!(admitted.as_deref(), Some("1"));
        received.answer_trailers_only(OK);
        assert_eq!(client.finish(call).status(), "0");
        assert_eq!(world.players(), [1, 0], "{metadata:?}");
        let measured = world.front.take_grpc_measurements();
        let passed = measured.operations.iter().flat_map(|counts| PassReason::all().zip(counts.passed));
        let reasons: Vec<_> = passed.filter(|(_, count)| *count > 0).map(|(reason, _)| reason.slug()).collect();
        assert_eq!(reasons, [reason]);
    }
}

/// The words of each message about compression are those of gRPC itself.
#[test]
fn compressed_messages_are_read() {
    let (world, mut client) = World::connected();
    let token = bearer(&world.lobby.lobby_token);
    let mut ask = |encoding: &str, flag: u8, content: &[u8]| {
        let mut message = framed(content);
        message[0] = flag;
        let metadata = [("authorization", &*token), ("grpc-encoding", encoding)];
        let answer = client.call(CONNECTED, &metadata, &message);
        (answer.status().to_owned(), answer.code().to_owned())
    };
    let player = || connected(&world.new_player())[5..].to_vec();
    let gzip = |content: &[u8]| all_of(GzEncoder::new(content, Compression::fast()));
    let deflate = |content: &[u8]| all_of(ZlibEncoder::new(content, Compression::fast()));
    let ok = |(status, _): (String, String)| status == "0";
    assert!(ok(ask("gzip", 1, &gzip(&player()))) && ok(ask("deflate", 1, &deflate(&player()))));
    assert!(ok(ask("gzip", 0, &player())) && ok(ask("identity", 0, &player())), "messages without compression");
    for (encoding, flag, content, expected) in [
        ("unknown", 0, player(), "Error parsing 'grpc-encoding' metadata"),
        ("identity", 1, gzip(&player()), "Compression bit set but no encoding configured"),
        ("gzip", 1, player(), "Decompression failed due to zlib error"),
        ("gzip", 1, gzip(&player())[..20].to_vec(), "Decompression failed due to zlib error"),
    ] {
        assert_eq!(ask(encoding, flag, &content), ("13".into(), expected.into()), "{encoding} {flag}");
    }
    assert_eq!(ask("gzip", 1, &gzip(&vec![0; MESSAGE_BYTES_MAX + 1])).1, "BODY_TOO_LARGE");
    assert!(!world.data.has_call());
}

#[test]
fn messages_about_health_are_read_as_others() {
    let (_world, mut client) = World::connected();
    let unknown = b"\x0a\x04none";
    let mut compressed = framed(&all_of(GzEncoder::new(&unknown[..], Compression::fast())));
    compressed[0] = 1;
    for path in ["/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"] {
        let damaged = client.call(path, &[], &framed(&unknown[..3]));
        assert_eq!((damaged.status(), damaged.text("grpc-message")), ("13", "the message is no HealthCheckRequest"));
    }
    for message in [framed(unknown), compressed] {
        let metadata = [("grpc-encoding", "gzip")];
        assert_eq!(client.call("/grpc.health.v1.Health/Check", &metadata, &message).status(), "5");
    }
}

fn all_of(mut compressed: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    compressed.read_to_end(&mut bytes).unwrap();
    bytes
}
