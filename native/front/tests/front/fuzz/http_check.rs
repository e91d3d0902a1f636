//! Sends bytes as one connection to a front, and checks its responses against a second reader of the same bytes.
//!
//! Each complete request has one response, in order. It is the answer of the engine, an error of the front, or the echo of
//! the request by Python. An echo must have the method, target, headers and body that the second reader finds.
//!
//! Bytes that begin with the preface of HTTP/2 get valid frames, with at most one response for each stream.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread;
use std::time::Duration;

use hosting_front::Received;
use serde_json::Value;

use crate::fuzz::request_model::{self, Next, Request};
use crate::fuzz::response_reader::{Response, take_response};
use crate::fuzz::server_frames::ServerFrames;
use crate::python::{self, Reply};
use crate::world::{
    BODY_BYTES_MAX, FILE_BYTES_MAX, HEADERS_BYTES_MAX, LIMIT, Limits, Setup, URL_BYTES_MAX, World, wait_until,
};

/// Stands for the token of a lobby in an input.
const LOBBY_TOKEN: &[u8] = b"LOBBY_TOKEN";
/// Stands for the token of a player of that lobby.
const PLAYER_TOKEN: &[u8] = b"PLAYER_TOKEN";
/// Longest request that the front reads itself.
const PLAIN_BYTES_MAX: usize = 8 * 1024;
const HOT_PATHS: [&str; 5] = [
    "/matchmaker/players/connected",
    "/matchmaker/players/disconnected",
    "/matchmaker/lobbies/heartbeat",
    "/matchmaker/lobbies/join",
    "/matchmaker/lobbies/find",
];
/// Time without a frame after which HTTP/2 requests count as not answered.
const QUIET: Duration = Duration::from_millis(10);
/// Turns of other threads after which the front has probably read the first part of an input.
const TURNS: usize = 20;

pub struct Checker {
    world: World,
    /// Gets the inputs of HTTP/2. Their end cancels requests, which Python may receive later.
    http2_world: World,
    player_token: String,
}

impl Checker {
    pub fn new() -> Checker {
        let (world, http2_world) = (world(), world());
        let player_token = world.new_player();
        Checker { world, http2_world, player_token }
    }

    /// Checks one connection with a pause after some of its bytes.
    pub fn check(&self, input: &[u8], split: usize) {
        let sent = self.with_tokens(input);
        check_plain(&sent);
        let (requests, rest, length) = read_all(&sent);
        let is_http2 = matches!(rest, Next::Http2);
        let world = if is_http2 { &self.http2_world } else { &self.world };
        let mut connection = TcpStream::connect(world.address).unwrap();
        connection.set_read_timeout(Some(LIMIT)).unwrap();
        connection.set_nodelay(true).unwrap();
        send(&mut connection, &sent, split % (sent.len() + 1));
        if is_http2 {
            check_frames(&mut connection);
        } else {
            self.check_responses(&mut connection, &requests, sent[length..].trim_ascii_start().starts_with(b"HEAD "));
        }
        drop(connection);
        wait_until(|| world.budget.count() == 0);
        let is_free = || (world.bodies.held_bytes(), world.unread_answers.held_bytes()) == (0, 0);
        // A request that is passed on is a task, which may end after its connection.
        wait_until(is_free);
        world.front.take_measurements();
        while world.python.received().or_else(|| world.control.received()).is_some() {}
    }

    fn with_tokens(&self, input: &[u8]) -> Vec<u8> {
        let lobby_token = self.world.lobby.lobby_token.as_bytes();
        replaced(&replaced(input, LOBBY_TOKEN, lobby_token), PLAYER_TOKEN, self.player_token.as_bytes())
    }

    fn check_responses(&self, connection: &mut TcpStream, requests: &[Request], is_rest_head: bool) {
        let (mut received, mut echoes) = (Vec::new(), 0);
        for request in requests {
            let response = read_response(connection, &mut received, request.method == "HEAD");
            echoes += usize::from(check_response(request, &response));
            if response.is_last() {
                let _ = connection.shutdown(Shutdown::Write);
                read_until_end(connection, &mut received);
                assert!(received.is_empty(), "bytes after the last response: {}", received.escape_ascii());
                return self.check_passed(echoes, requests);
            }
        }
        let _ = connection.shutdown(Shutdown::Write);
        read_until_end(connection, &mut received);
        // An error of an invalid request has a body, also if its method is HEAD.
        let mut response = take_response(&mut received, false);
        if is_rest_head {
            response = response.or_else(|| take_response(&mut received, true));
        }
        if let Some(response) = response {
            // A preflight is answered before its body.
            let is_early = is_rest_head || response.status == 204;
            assert!(response.is_last() && (is_early || is_problem(&response)), "an answer without a request");
        }
        assert!(received.is_empty(), "bytes after the last response: {}", received.escape_ascii());
        self.check_passed(echoes, requests);
    }

    /// Checks that Python got no other request.
    fn check_passed(&self, echoes: usize, requests: &[Request]) {
        let received = || self.world.python.received().or_else(|| self.world.control.received());
        let passed: Vec<_> = std::iter::from_fn(received).collect();
        assert_eq!(passed.len(), echoes, "requests without an answer of Python");
        for passed in &passed {
            let is_sent = |request: &&Request| request.method == passed.method && request.body == passed.body;
            let of_client: Vec<_> = requests.iter().filter(is_sent).flat_map(|request| &request.headers).collect();
            assert_eq!(passed.header("x-hosting-client"), Some("127.0.0.1"));
            for (name, value) in &passed.headers {
                let is_own = ["x-hosting-client", "x-hosting-ray", "content-length"].contains(&name.as_str())
                    || (&**name, &**value) == ("x-hosting-admitted", "1")
                    // A request of HTTP/1.0 may have no host.
                    || (&**name, &**value) == ("host", "python");
                let is_sent = |header: &&(String, Vec<u8>)| header.0 == *name && lossy(&header.1) == *value;
                assert!(is_own || of_client.iter().any(is_sent), "{name}: {value}");
            }
        }
    }
}

fn check_frames(connection: &mut TcpStream) {
    let mut received = Vec::new();
    // The end of the client's bytes cancels its requests.
    connection.set_read_timeout(Some(QUIET)).unwrap();
    let _ = connection.read_to_end(&mut received);
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    let _ = connection.shutdown(Shutdown::Write);
    read_until_end(connection, &mut received);
    // A request before the preface is answered in HTTP/1.0 or HTTP/1.1.
    if !received.starts_with(b"HTTP/1.") {
        ServerFrames::default().take(&received);
    }
}

fn world() -> World {
    let limits = Limits::of(u32::MAX);
    let world = World::with(Setup { limits, failures: u32::MAX, ..Setup::default() });
    for python in [&world.python, &world.control] {
        python.reply(|request| Reply::Answer(echoed(request)));
    }
    world
}

/// Returns the complete requests, what follows them, and the number of their bytes.
fn read_all(bytes: &[u8]) -> (Vec<Request>, Next, usize) {
    let (mut requests, mut at) = (Vec::new(), 0);
    loop {
        match request_model::read(&bytes[at..]) {
            Next::Request(request) => {
                at += request.length;
                requests.push(request);
            }
            rest => return (requests, rest, at),
        }
    }
}

/// Checks that a request which the front reads itself means the same to the second reader, and that a part of it is partial.
fn check_plain(bytes: &[u8]) {
    let Received::Plain(plain) = Received::read(bytes, PLAIN_BYTES_MAX) else { return };
    let Next::Request(request) = request_model::read(bytes) else { panic!("plain, but no request") };
    assert_eq!((&*request.method, request.target.as_deref()), ("POST", Some(HOT_PATHS[plain.operation as usize])));
    assert_eq!((&*request.body, request.length), (plain.body, plain.length));
    let head = &plain.head;
    for (name, value) in [
        ("authorization", head.authorization),
        ("origin", head.origin),
        ("idempotency-key", head.idempotency_key),
        ("content-type", head.media_type),
        ("x-forwarded-for", head.forwarded_for),
        ("x-coords", head.coordinates),
        ("traceparent", head.traceparent),
    ] {
        assert_eq!(request.values(name), Vec::from_iter(value), "{name}");
    }
    assert!(request.values("transfer-encoding").is_empty() && request.values("expect").is_empty());
    assert_eq!(request.values("host").len(), 1);
    assert_eq!(Received::read(&bytes[..plain.length], PLAIN_BYTES_MAX), Received::Plain(plain));
    for end in (0..request.length).step_by(17) {
        assert_eq!(Received::read(&bytes[..end], PLAIN_BYTES_MAX), Received::Partial);
    }
}

/// Returns whether Python has answered.
fn check_response(request: &Request, response: &Response) -> bool {
    if response.header("x-echo").is_some() {
        assert_may_pass(request);
        let target = request.target.as_deref().expect("a path");
        let expected = [format!("{} {target} ", request.method).as_bytes(), &request.body].concat();
        let length = response.header("content-length").and_then(|length| length.parse().ok());
        assert_eq!(length, Some(expected.len()));
        assert!(request.method == "HEAD" || response.body == expected, "{}", response.body.escape_ascii());
        return true;
    }
    let is_preflight = request.method == "OPTIONS" && response.status == 204;
    let path = request.target.as_deref().unwrap_or_default();
    let is_hot = request.method == "POST" && HOT_PATHS.contains(&path);
    // A response to HEAD has no body with the name of the problem.
    assert!(is_preflight || is_hot || request.method == "HEAD" || is_problem(response), "{}", response.status);
    false
}

/// Checks that the front has no reason to refuse a request.
fn assert_may_pass(request: &Request) {
    assert!(request.values("host").len() <= 1);
    assert!(request.target.as_ref().is_some_and(|target| target.len() <= URL_BYTES_MAX && target.is_ascii()));
    let headers: usize = request.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
    assert!(headers <= HEADERS_BYTES_MAX);
    let is_file = request.target.as_deref().is_some_and(|target| target.starts_with("/cloud/files"));
    assert!(request.body.len() <= if is_file { FILE_BYTES_MAX } else { BODY_BYTES_MAX });
}

/// Returns whether the response is one of the front's own errors, other than one of a front with a defect.
fn is_problem(response: &Response) -> bool {
    let problem: Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let (Some(code), ray_id) = (problem["code"].as_str(), problem["ray_id"].as_str()) else { return false };
    code != "INTERNAL" && ray_id.is_some() && ray_id == response.header("x-ray-id")
}

fn echoed(request: &python::Request) -> Vec<u8> {
    let start = format!("{} {} ", request.method, request.target);
    request.response("200 OK", "x-echo: yes\r\n", [start.as_bytes(), &request.body].concat())
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn replaced(bytes: &[u8], part: &[u8], by: &[u8]) -> Vec<u8> {
    let mut rest = bytes;
    let mut replaced = Vec::new();
    while let Some(at) = rest.windows(part.len()).position(|window| window == part) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(by);
        rest = &rest[at + part.len()..];
    }
    [&replaced, rest].concat()
}

/// The front may close the connection before it has read all.
fn send(connection: &mut TcpStream, bytes: &[u8], split: usize) {
    let (first, second) = bytes.split_at(split);
    if connection.write_all(first).is_ok() {
        if !first.is_empty() && !second.is_empty() {
            (0..TURNS).for_each(|_| thread::yield_now());
        }
        let _ = connection.write_all(second);
    }
}

fn read_response(connection: &mut TcpStream, received: &mut Vec<u8>, is_head: bool) -> Response {
    let mut buffer = [0; 4096];
    loop {
        if let Some(response) = take_response(received, is_head) {
            return response;
        }
        let count = match connection.read(&mut buffer) {
            // By the timer of the fuzzer.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            outcome => outcome.expect("a response"),
        };
        assert!(count > 0, "the connection ends without a response, after {}", received.escape_ascii());
        received.extend_from_slice(&buffer[..count]);
    }
}

fn read_until_end(connection: &mut TcpStream, received: &mut Vec<u8>) {
    match connection.read_to_end(received) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("the connection stays open: {error}"),
        _ => {}
    }
}
