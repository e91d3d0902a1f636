//! Requests as usual clients send them, by the reader of plain requests and by hyper.

use std::collections::HashMap;

use hosting_front::Received;

use crate::client::Answer;
use crate::namespace::{BURST, HOST, SERVICE_TOKEN, public_token, tokens_left};
use crate::shard;
use crate::world::{Limits, Setup, World, find, request_to};

#[path = "../../src/plain_requests/plain_request/tests/usual_clients.rs"]
pub mod headers;
use headers::{AUTHORIZATION, LENGTH, USUAL_CLIENTS};

/// Changes after which hyper reads a request: header lines, and whether its body comes in chunks.
const BY_HYPER: [(&str, bool); 4] =
    [("Expect: 100-continue\r\n", false), ("", true), ("Connection: close\r\n", false), ("Accept:\ta\r\n", false)];

fn world() -> World {
    World::with(Setup { limits: Limits::of(BURST), ..Setup::default() })
}

/// Returns a request with further header lines.
pub fn with_lines(request: &[u8], lines: &str) -> Vec<u8> {
    let request = String::from_utf8(request.to_vec()).unwrap();
    request.replacen("\r\n\r\n", &format!("\r\n{lines}\r\n"), 1).into_bytes()
}

/// Returns a request with the header lines of a client.
pub fn as_client(request: &[u8], headers: &[&str]) -> Vec<u8> {
    let request = String::from_utf8(request.to_vec()).unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let own = |line: &str| {
        let name = line.split_once(':').unwrap().0;
        let is_named = |own: &&str| own.split_once(':').is_some_and(|(other, _)| other.eq_ignore_ascii_case(name));
        let is_replaced = [AUTHORIZATION, LENGTH].iter().any(is_named);
        if is_replaced { head.lines().find(is_named).unwrap().to_owned() } else { line.to_owned() }
    };
    let lines: Vec<_> = head.lines().take(1).map(str::to_owned).chain(headers.iter().map(|line| own(line))).collect();
    format!("{}\r\n\r\n{body}", lines.join("\r\n")).into_bytes()
}

fn in_chunks(request: &[u8]) -> Vec<u8> {
    let request = String::from_utf8(request.to_vec()).unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let head = head.replace(&format!("Content-Length: {}", body.len()), "Transfer-Encoding: chunked");
    let (first, second) = body.split_at(body.len() / 2);
    let chunk = |part: &str| format!("{:x}\r\n{part}\r\n", part.len());
    format!("{head}\r\n\r\n{}{}0\r\n\r\n", chunk(first), chunk(second)).into_bytes()
}

fn is_plain(request: &[u8]) -> bool {
    matches!(Received::read(request, 8 * 1024), Received::Plain(_))
}

/// Returns a request as hyper has to read it.
fn by_hyper(request: &[u8], (lines, is_chunked): (&str, bool)) -> Vec<u8> {
    let request = with_lines(request, lines);
    if is_chunked { in_chunks(&request) } else { request }
}

/// Asks on a new connection, and skips an answer that asks for the body.
fn ask(world: &World, request: &[u8]) -> Answer {
    let mut client = world.connect();
    client.send(request);
    if request.windows(6).any(|part| part == b"Expect") {
        assert_eq!(client.line(), "HTTP/1.1 100 Continue");
        assert_eq!(client.line(), "");
    }
    client.read_answer()
}

/// Returns what two responses to one request have in common.
fn common(answer: &Answer) -> (u16, &str, HashMap<String, String>) {
    let mut headers = answer.headers.clone();
    headers.retain(|name, _| !["connection", "content-length", "retry-after"].contains(&name.as_str()));
    (answer.status, &answer.code, headers)
}

#[test]
fn usual_clients_are_answered_by_the_own_reader_as_by_hyper() {
    for (client, headers) in USUAL_CLIENTS {
        let origin = headers.iter().any(|line| line.starts_with("Origin")).then_some("*");
        for change in BY_HYPER {
            let world = world();
            let with = |request: Vec<u8>, more: &str| with_lines(&as_client(&request, headers), more);
            let forged = shard::player_token(shard::KEY_ID, 8, world.lobby.lobby);
            let player = world.new_player();
            let rows = [
                (with(world.request(&player), "Idempotency-Key: a\r\n"), "OK"),
                (with(world.request(&forged), ""), "PLAYER_TOKEN_INVALID"),
                (with(world.request(&player), "Idempotency-Key: \r\n"), "HEADER_INVALID"),
                (with(world.join(SERVICE_TOKEN), "Idempotency-Key: b\r\n"), "OK"),
                (with(find(&public_token(), "duel"), ""), "OK"),
                (with(find("env_other", "duel"), ""), "TOKEN_INVALID"),
                (with(find("cloud_other", "duel"), ""), "FORBIDDEN"),
                (with(find(SERVICE_TOKEN, "x"), ""), "MATCHMAKER_GAME_MODE_NOT_FOUND"),
            ];
            for (request, code) in &rows {
                let other = by_hyper(request, change);
                assert!(is_plain(request) && !is_plain(&other), "{client}: {}", other.escape_ascii());
                let (own, of_hyper) = (ask(&world, request), ask(&world, &other));
                assert_eq!(own.code, *code, "{client}, {change:?}: {}", request.escape_ascii());
                assert_eq!(common(&own), common(&of_hyper), "{client}, {change:?}: {}", request.escape_ascii());
                assert_eq!(own.header("access-control-allow-origin"), origin, "{client}");
                assert!(!client.starts_with("traced") || own.ray_id == "4bf92f3577b34da6a3ce929d0e0e4736");
            }
            assert_eq!(world.players(), [3, 1], "a repeated request reserves nothing");
            world.python.check_no_request();
        }
    }
}

#[test]
fn repeated_headers_are_read_as_one() {
    let world = world();
    for (name, value, code) in [
        ("Idempotency-Key", "a", "HEADER_INVALID"),
        ("Content-Type", "application/json", "MEDIA_TYPE_UNSUPPORTED"),
        ("Authorization", "Bearer env_secret", "TOKEN_INVALID"),
        ("Accept", "*/*", "OK"),
    ] {
        let line = format!("{name}: {value}\r\n");
        assert_eq!(ask(&world, &with_lines(&find(SERVICE_TOKEN, "duel"), &line.repeat(2))).code, code, "{name}");
    }
    let without_token = String::from_utf8(find("x", "duel")).unwrap().replace("Authorization: Bearer x\r\n", "");
    let origin = format!("Origin: https://{HOST}\r\n");
    let once = with_lines(without_token.as_bytes(), &origin);
    assert!(is_plain(&once));
    assert_eq!(ask(&world, &once).code, "OK");
    assert_eq!(ask(&world, &with_lines(&once, &origin)).code, "TOKEN_MISSING");
    assert_eq!(ask(&world, without_token.as_bytes()).code, "TOKEN_MISSING");
    world.python.check_no_request();
}

#[test]
fn body_with_an_encoding_is_refused() {
    let world = world();
    for (encoding, code) in [("gzip", "MEDIA_TYPE_UNSUPPORTED"), ("identity", "OK")] {
        let request = with_lines(&find(SERVICE_TOKEN, "duel"), &format!("Content-Encoding: {encoding}\r\n"));
        let answer = ask(&world, &request);
        assert_eq!(answer.code, code, "{encoding}");
        assert!(code == "OK" || answer.body.contains("The body has Content-Encoding: gzip."), "{}", answer.body);
    }
    world.python.check_no_request();
}

/// The client pays once, however the request reaches Python.
#[test]
fn request_for_python_is_decided_once() {
    let lines = ["", "Expect: 100-continue\r\n", "X-Hosting-Admitted: 1\r\n", "Origin: https://game.example\r\n"];
    for (number, line) in lines.into_iter().enumerate() {
        let world = world();
        // No lobby of this mode exists.
        let request = with_lines(&find(SERVICE_TOKEN, "solo"), line);
        assert_eq!(is_plain(&request), number != 1);
        assert_eq!(ask(&world, &request).body, "/matchmaker/lobbies/find");
        let passed = world.python.request();
        assert_eq!(passed.header("x-hosting-admitted"), Some("1"), "{line}");
        let left = BURST as usize - 1;
        assert_eq!(tokens_left(&world.limits), [left, left, BURST as usize, left], "{line}");
        assert_eq!(world.pass_reasons(), ["new_lobby"]);
        world.python.check_no_request();
    }
}

/// A decided request leaves the reader with the requests behind it, which are decided later.
#[test]
fn reason_belongs_to_one_request() {
    let world = world();
    let needs_lobby = find(SERVICE_TOKEN, "solo");
    let mut client = world.connect();
    client.send(&[find(SERVICE_TOKEN, "duel"), needs_lobby, find(SERVICE_TOKEN, "duel")].concat());
    let answers: Vec<_> = (0..3).map(|_| client.read_answer()).collect();
    assert_eq!(answers[1].body, "/matchmaker/lobbies/find");
    assert!(answers.iter().all(|answer| answer.status == 200) && answers[2].body.contains("lobby_id"));
    let left = BURST as usize - 3;
    assert_eq!(tokens_left(&world.limits), [left, left, BURST as usize, left]);
    assert_eq!((world.players(), world.pass_reasons()), ([2, 0], vec!["new_lobby"]));
}

/// Python takes the rate limits of a request that the front has not admitted.
#[test]
fn client_cannot_say_that_it_is_admitted() {
    let world = world();
    let forged = "X-Hosting-Admitted: 1\r\n";
    let with_query = String::from_utf8(with_lines(&find(SERVICE_TOKEN, "duel"), forged)).unwrap();
    for request in [
        with_query.replace("lobbies/find", "lobbies/find?a=b").into_bytes(),
        format!("GET /events/live HTTP/1.1\r\nHost: a\r\n{forged}\r\n").into_bytes(),
    ] {
        assert_eq!(ask(&world, &request).status, 200);
        assert!(!world.python.request().has("x-hosting-admitted"), "{}", request.escape_ascii());
    }
    assert_eq!(tokens_left(&world.limits), [BURST as usize; 4]);
}

#[test]
fn wrong_tokens_count_as_failed_authentications() {
    for change in [None, Some(BY_HYPER[1])] {
        let world = World::with(Setup { failures: 3, ..Setup::default() });
        let asked = |request: &[u8]| {
            let request = change.map_or(request.to_vec(), |change| by_hyper(request, change));
            let answer = ask(&world, &request);
            (answer.status, answer.problem().1.to_owned(), answer.code)
        };
        let failed =
            [find("env_wrong", "duel"), world.join("pub_wrong"), request_to("lobbies/heartbeat", "lobby_x", "{}")];
        // Neither a missing token nor one of another kind costs a look-up.
        let without_token = String::from_utf8(find("x", "duel")).unwrap().replace("Authorization: Bearer x\r\n", "");
        for _ in 0..5 {
            assert_eq!(asked(without_token.as_bytes()).2, "TOKEN_MISSING");
            assert_eq!(asked(&find("cloud_x", "duel")).2, "FORBIDDEN");
        }
        for request in &failed {
            assert_eq!((asked(request).0, asked(&find(SERVICE_TOKEN, "duel")).0), (401, 200));
        }
        for request in &failed {
            let limited = (429, "rate_limited_failures".to_owned(), "RATE_LIMITED".to_owned());
            assert_eq!(asked(request), limited);
        }
        assert_eq!(asked(&find(SERVICE_TOKEN, "duel")).0, 200, "a valid token");
        assert_eq!(world.front.take_measurements().1.limited_failures, 3);
        world.python.check_no_request();
    }
}
