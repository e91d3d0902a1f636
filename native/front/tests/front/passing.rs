//! Requests and responses between clients and Python.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::python::{Reply, Request};
use crate::world::{HEADERS_BYTES_MAX, Setup, World, wait_until};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Sends the head of a request with further header lines. Returns what Python got.
fn passed(world: &World, lines: &str) -> Request {
    let answer = world.connect().ask(format!("GET /a HTTP/1.1\r\nHost: a\r\n{lines}\r\n"));
    assert_eq!(answer.status, 200, "{lines}");
    let request = world.python.request();
    assert_eq!(request.ray_id(), answer.ray_id);
    request
}

fn names(request: &Request) -> Vec<&str> {
    let mut names: Vec<_> = request.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn request_reaches_python_with_its_method_target_and_body() {
    let (world, mut client) = World::connected();
    let answer = client.ask("PUT /a%20b?c=d&e HTTP/1.1\r\nHost: h:1\r\nContent-Length: 3\r\n\r\nabc");
    assert_eq!((answer.status, &*answer.body), (200, "/a%20b?c=d&e"));
    let request = world.python.request();
    assert_eq!((&*request.method, &*request.target, &*request.body), ("PUT", "/a%20b?c=d&e", &b"abc"[..]));
    assert_eq!((request.header("host"), request.header("content-length")), (Some("h:1"), Some("3")));
    world.control.check_no_request();
}

#[test]
fn operations_of_the_control_plane_reach_its_process() {
    let world = World::new();
    assert_eq!(world.connect().ask("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\n\r\n").body, "/cloud/games/1");
    assert_eq!(world.control.request().target, "/cloud/games/1");
    // Its other paths belong to the data plane, which answers that they do not exist.
    for target in ["/cloud/games//", "/internal/changes", "/"] {
        assert_eq!(world.connect().ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).body, target);
        assert_eq!(world.python.request().target, target);
    }
    world.control.check_no_request();
}

#[test]
fn only_headers_that_python_reads_are_passed() {
    let world = World::new();
    let request = passed(
        &world,
        "Connection: keep-alive, X-One\r\nConnection: user-agent , authorization,Host\r\nConnection: traceparent\r\nKeep-Alive: 5\r\nTE: trailers\r\n\
         Trailer: x\r\nProxy-Connection: a\r\nProxy-Authorization: a\r\nProxy-Authenticate: a\r\nX-One: a\r\n\
         User-Agent: a\r\nX-Hosting-Client: 1.2.3.4\r\nx-hosting-repeat: expired\r\nX-HOSTING-RAY: a\r\nx-hosting-x: a\r\n\
         Forwarded: for=1.2.3.4\r\nX-Forwarded-For: 1.2.3.4\r\nX-Coords: 1, 2\r\nAuthorization: Bearer env_a\r\n\
         Accept: a\r\nSec-Fetch-Mode: cors\r\nIdempotency-Key: k\r\n",
    );
    let kept = ["authorization", "host", "idempotency-key", "x-hosting-client", "x-hosting-ray"];
    assert_eq!(names(&request), kept);
    assert_eq!(request.header("x-hosting-client"), Some("127.0.0.1"));
}

/// Each header was compared with each of ten thousand names.
#[test]
fn many_headers_of_the_connection_take_little_time() {
    let world = World::new();
    let names = format!("Connection: {}\r\n", ",".repeat(HEADERS_BYTES_MAX - 2_000));
    let others: String = (0..120).map(|number| format!("x-{number}: a\r\n")).collect();
    let request = format!("GET /a HTTP/1.1\r\nHost: a\r\n{names}{others}\r\n");
    let mut client = world.connect();
    let times = (0..100).map(|_| {
        let began = Instant::now();
        assert_eq!(client.ask(&request).status, 200);
        began.elapsed()
    });
    // Other programs may delay some of the requests.
    let shortest = times.min().unwrap();
    assert!(shortest < Duration::from_millis(20), "{shortest:?}");
}

#[test]
fn repeated_headers_stay_apart_and_in_order() {
    let world = World::new();
    let request = passed(&world, "Authorization: b\r\nAuthorization: a\r\n");
    let of_name = request.headers.iter().filter(|(name, _)| name == "authorization");
    assert_eq!(of_name.map(|(_, value)| value.as_str()).collect::<Vec<_>>(), ["b", "a"]);
}

#[test]
fn one_valid_trace_is_passed_and_replaces_the_ray_id() {
    let world = World::new();
    let valid = format!("00-{TRACE}-b7ad6b7169203331-01");
    // A client cannot declare its trace as a header of the connection.
    for connection in ["", "Connection: traceparent\r\n"] {
        let request = passed(&world, &format!("{connection}traceparent: {valid}\r\n"));
        assert_eq!((request.header("traceparent"), request.header("x-hosting-ray")), (Some(&*valid), None));
    }
    // Of several headers, Python could read another one than the front.
    let repeated = format!("traceparent: {valid}\r\n").repeat(2);
    for lines in [format!("traceparent: 00-{TRACE}-0000000000000000-01\r\n"), repeated] {
        let request = passed(&world, &lines);
        assert!(!request.has("traceparent") && request.header("x-hosting-ray") != Some(TRACE), "{lines}");
    }
}

#[test]
fn chunked_body_reaches_python_with_its_length() {
    let (world, mut client) = World::connected();
    let answer = client.ask(
        "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: authorization\r\n\r\n\
         3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nAuthorization: Bearer env_a\r\nHost: b\r\n\r\n",
    );
    assert_eq!((answer.status, answer.header("connection")), (200, None));
    let request = world.python.request();
    assert_eq!(request.body, b"abcde");
    assert_eq!(names(&request), ["content-length", "host", "x-hosting-client", "x-hosting-ray"]);
    assert_eq!((request.header("content-length"), request.header("host")), (Some("5"), Some("a")));
    assert_eq!(client.ask("GET /b HTTP/1.1\r\nHost: a\r\n\r\n").body, "/b");
}

#[test]
fn request_with_both_framings_is_the_last_one() {
    for framings in
        ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5"]
    {
        let (world, mut client) = World::connected();
        client.send(format!("POST /a HTTP/1.1\r\nHost: a\r\n{framings}\r\n\r\n0\r\n\r\n").as_bytes());
        client.send(b"GET /b HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = client.read_answer();
        assert_eq!((&*answer.body, answer.header("connection")), ("/a", Some("close")));
        assert_eq!(client.rest(), b"");
        assert_eq!((world.python.request().body, world.front.take_measurements().1.in_flight), (Vec::new(), 0));
        world.python.check_no_request();
    }
}

#[test]
fn response_reaches_the_client_without_internal_headers() {
    let world = World::new();
    world.python.reply_with(
        "429 Too Many Requests",
        "x-hosting-code: RATE_LIMITED\r\nx-hosting-any: a\r\nretry-after: 3\r\nkeep-alive: 1\r\nconnection: keep-alive\r\n\
         content-type: application/json\r\n",
        "{}",
    );
    let mut client = world.connect();
    let answer = client.ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!((answer.status, &*answer.body, &*answer.ray_id), (429, "{}", world.python.request().ray_id()));
    let mut headers: Vec<_> = answer.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    headers.sort();
    assert_eq!(headers, ["content-length: 2", "content-type: application/json", "retry-after: 3"]);
}

#[test]
fn client_that_ignores_retry_after_is_slowed_down_unless_it_is_a_proxy() {
    // Each but the first of them waits for 100 ms.
    const REQUESTS: usize = 11;
    for (is_proxy, is_slow) in [(false, true), (true, false)] {
        let proxies = if is_proxy { vec!["127.0.0.0/8".parse().unwrap()] } else { Vec::new() };
        let world = World::with(Setup { proxies, ..Setup::default() });
        world.python.reply_with("429 Too Many Requests", "x-hosting-code: RATE_LIMITED\r\n", "");
        let (mut client, begun) = (world.connect(), Instant::now());
        client.send(&b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n".repeat(REQUESTS));
        (0..REQUESTS).for_each(|_| assert_eq!(client.read_answer().status, 429));
        assert_eq!(begun.elapsed() >= Duration::from_secs(1), is_slow);
    }
}

#[test]
fn response_in_chunks_reaches_the_client() {
    let world = World::new();
    world.python.reply(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nx-ray-id: {}\r\ntransfer-encoding: chunked\r\n\r\n", request.ray_id());
        Reply::Answer(format!("HTTP/1.1 100 Continue\r\n\r\n{head}3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").into_bytes())
    });
    let mut client = world.connect();
    for _ in 0..2 {
        assert_eq!(client.ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n").body, "abcde");
    }
    assert_eq!(world.python.connections(), 1);
}

#[test]
fn response_to_head_has_no_body() {
    let (world, mut client) = World::connected();
    for _ in 0..2 {
        client.send(b"HEAD /abc HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = client.read_head();
        assert_eq!((head.status, head.header("content-length")), (200, Some("4")));
        assert_eq!(world.python.request().method, "HEAD");
    }
    assert_eq!(client.ask("GET /d HTTP/1.1\r\nHost: a\r\n\r\n").body, "/d");
    client.send(b"HEAD /abc HTTP/1.1\r\n\r\n");
    assert_eq!(client.read_head().status, 400);
    assert_eq!(client.ask("GET /d HTTP/1.1\r\nHost: a\r\n\r\n").body, "/d");
}

#[test]
fn plain_and_other_requests_of_one_connection_are_answered_in_order() {
    let (world, mut client) = World::connected();
    let mut requests = Vec::new();
    for number in 0..20 {
        requests.extend(world.request_of_new_player());
        requests.extend(format!("GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
        requests
            .extend(format!("POST /cloud/games/{number} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1").as_bytes());
        requests.extend(world.refused_request());
    }
    client.send(&requests);
    for number in 0..20 {
        let answers: Vec<_> = (0..3).map(|_| client.read_answer()).map(|answer| (answer.status, answer.body)).collect();
        let passed = (format!("/{number}"), format!("/cloud/games/{number}"));
        assert_eq!(answers, [(200, "{}".into()), (200, passed.0), (200, passed.1)]);
        assert_eq!(client.answer(), "PLAYER_TOKEN_INVALID");
    }
    assert_eq!(world.players(), [0, 20]);
    assert_eq!((world.python.targets(20).len(), world.control.targets(20).len()), (20, 20));
}

#[test]
fn request_behind_a_waiting_one_waits_for_its_turn() {
    let world = World::new();
    world.python.reply_by_test();
    let (mut client, mut prober) = (world.connect(), world.connect());
    client.send(b"GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut first = world.python.request();
    world.settle(&mut prober);
    world.python.check_no_request();
    first.answer_ok("one");
    world.python.request().answer_ok("two");
    assert_eq!([client.read_answer().body, client.read_answer().body], ["one", "two"]);
}

#[test]
fn thousands_of_requests_behind_a_waiting_one_are_answered() {
    let world = World::new();
    let (mut client, mut first) = world.ask_python(&world.python, b"GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
    let more: String = (0..3_000).fold(String::new(), |mut text, number| {
        let _ = write!(text, "GET /{number} HTTP/1.1\r\nHost: a\r\n\r\n");
        text
    });
    client.send(more.as_bytes());
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", &request.target)));
    first.answer_ok("first");
    assert_eq!(client.read_answer().body, "first");
    for number in 0..3_000 {
        assert_eq!(client.read_answer().body, format!("/{number}"));
    }
}

#[test]
fn large_bodies_in_one_write_arrive_whole() {
    let (world, mut client) = World::connected();
    let mut requests = String::new();
    for number in 0..30 {
        let body = number.to_string().repeat(1 + number * 1_000);
        let length = body.len();
        let _ = write!(requests, "POST /{number} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n{body}");
    }
    client.send(requests.as_bytes());
    for number in 0..30 {
        assert_eq!(client.read_answer().body, format!("/{number}"));
        assert_eq!(world.python.request().body, number.to_string().repeat(1 + number * 1_000).as_bytes());
    }
}

#[test]
fn body_is_asked_for_if_the_client_waits() {
    let (world, mut client) = World::connected();
    client.send(b"POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    assert_eq!((client.line(), client.line()), ("HTTP/1.1 100 Continue".into(), String::new()));
    world.python.check_no_request();
    client.send(b"ab");
    assert_eq!(client.read_answer().body, "/a");
    assert!(!world.python.request().has("expect"));
}

#[test]
fn connection_of_http_1_0_ends_with_the_answer() {
    let world = World::new();
    for lines in ["", "Connection: keep-alive\r\n", "Host: a\r\n"] {
        let mut client = world.connect();
        let answer = client.ask(format!("GET /a HTTP/1.0\r\n{lines}\r\n"));
        assert_eq!((answer.status, &*answer.body, answer.header("connection")), (200, "/a", Some("close")), "{lines}");
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn client_may_close_its_connection_with_a_request() {
    let (world, mut client) = World::connected();
    client.send(b"GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.read_answer();
    assert_eq!((&*answer.body, answer.header("connection")), ("/a", Some("close")));
    assert_eq!(client.rest(), b"");
    world.python.request();
    world.python.check_no_request();
}

#[test]
fn upgrade_is_ignored() {
    let (world, mut client) = World::connected();
    let body = "5\r\nabcde\r\n0\r\n\r\n";
    let head = "Host: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked";
    assert_eq!(client.ask(format!("POST /a HTTP/1.1\r\n{head}\r\n\r\n{body}")).body, "/a");
    let request = world.python.request();
    assert_eq!((&*request.body, request.has("upgrade"), request.has("connection")), (&b"abcde"[..], false, false));
    assert_eq!(client.ask("GET /b HTTP/1.1\r\nHost: a\r\n\r\n").body, "/b");
}

#[test]
fn absolute_target_is_passed_as_its_path() {
    let world = World::new();
    for (target, expected) in [("http://b:1/path?query", "/path?query"), ("http://b", "/")] {
        assert_eq!(world.connect().ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n")).body, expected);
        assert_eq!(world.python.request().header("host"), Some("a"));
    }
}

/// Uvicorn would answer without the usual problem.
#[test]
fn target_that_uvicorn_does_not_read_is_not_found() {
    let world = World::new();
    for line in ["OPTIONS *", "OPTIONS /\u{e4}", "CONNECT b:1", "CONNECT /a"] {
        let answer = world.connect().ask(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(answer.problem(), (404, "not_found", false), "{line}");
    }
    world.python.check_no_request();
}

#[test]
fn requests_are_counted_by_operation_and_code() {
    let (world, mut client) = World::connected();
    client.ask("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    client.ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n");
    world.python.reply_with("404 Not Found", "x-hosting-code: NOT_FOUND\r\n", "");
    client.ask("GET /events/live HTTP/1.1\r\nHost: a\r\n\r\n");
    world.python.reply_with("500 Internal Server Error", "", "");
    client.ask("GET /events/live HTTP/1.1\r\nHost: a\r\n\r\n");
    let answer = client.ask("GET /a HTTP/1.1\r\n\r\n");
    assert_eq!(answer.problem(), (400, "no_host", false));
    let counts = world.counts();
    let rows: Vec<_> = counts.iter().map(|(slug, code, count)| (&**slug, &**code, *count)).collect();
    let expected = [
        ("live", "INTERNAL", 1),
        ("live", "NOT_FOUND", 1),
        ("get_game", "OK", 1),
        ("none", "HEADER_INVALID", 1),
        ("none", "OK", 1),
    ];
    assert_eq!(sorted(&rows), sorted(&expected));
    wait_until(|| world.front.take_measurements().1.in_flight == 0);
}

fn sorted<T: Ord + Clone>(rows: &[T]) -> Vec<T> {
    let mut rows = rows.to_vec();
    rows.sort();
    rows
}
