//! Limits on the sizes of requests, and requests that are no valid HTTP.

use crate::client::Client;
use crate::world::{BODY_BYTES_MAX, FILE_BYTES_MAX, HEADERS_BYTES_MAX, URL_BYTES_MAX, World, wait_until};

/// Overhead of a header in the limit, beside its name and value.
const OVERHEAD: usize = 4;
const HOST: &str = "Host: a\r\n";

/// Sends a request that ends its connection. Returns the status and the problem of the answer.
fn last_problem(world: &World, request: impl AsRef<[u8]>) -> (u16, String) {
    let mut client = world.connect();
    let answer = client.ask(request);
    let (status, name, is_last) = answer.problem();
    assert!(is_last, "{status} {name}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let problem = (status, name.to_owned());
    assert_eq!(client.rest(), b"");
    problem
}

fn problem(status: u16, name: &str) -> (u16, String) {
    (status, name.to_owned())
}

fn get(target: &str, lines: &str) -> String {
    format!("GET {target} HTTP/1.1\r\n{lines}\r\n")
}

#[test]
fn url_has_a_limit() {
    let world = World::new();
    let exact = format!("/{}", "a".repeat(URL_BYTES_MAX - 1));
    assert_eq!(world.connect().ask(get(&exact, HOST)).body, exact);
    let mut client = world.connect();
    assert_eq!(client.ask(get(&format!("{exact}?"), HOST)).problem(), (414, "uri_too_long", false));
    assert_eq!(client.ask(get("/b", HOST)).body, "/b", "the request was read completely");
}

/// The line of such a request does not fit into the memory of the head.
#[test]
fn endless_url_is_refused_before_its_end() {
    let world = World::new();
    for length in [20_000, 70_000, 300_000] {
        assert_eq!(last_problem(&world, format!("GET /{}", "a".repeat(length))), problem(414, "uri_too_long"));
    }
}

#[test]
fn headers_have_a_limit() {
    let world = World::new();
    let spare = HEADERS_BYTES_MAX - (4 + 1 + OVERHEAD) - (1 + OVERHEAD);
    let exact = format!("{HOST}x: {}\r\n", "a".repeat(spare));
    let mut client = world.connect();
    assert_eq!(client.ask(get("/a", &exact)).status, 200);
    let longer = exact.replace("x: ", "x: b");
    assert_eq!(client.ask(get("/a", &longer)).problem(), (431, "headers_too_large", false));
    let several: String =
        (0..40).map(|number| format!("x-{number:03}: {}\r\n", "a".repeat(HEADERS_BYTES_MAX / 40))).collect();
    assert_eq!(client.ask(get("/a", &format!("{HOST}{several}"))).status, 431);
}

#[test]
fn endless_headers_are_refused_before_their_end() {
    let world = World::new();
    let long = format!("GET / HTTP/1.1\r\nHost: a\r\nx: {}", "a".repeat(100_000));
    assert_eq!(last_problem(&world, long), problem(431, "headers_too_large"));
    let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}", "x: a\r\n".repeat(129));
    assert_eq!(last_problem(&world, many), problem(431, "headers_too_large"));
}

#[test]
fn number_of_headers_has_a_limit() {
    let world = World::new();
    let most = format!("{HOST}{}", "x: a\r\n".repeat(127));
    assert_eq!(world.connect().ask(get("/a", &most)).status, 200);
    assert_eq!(last_problem(&world, get("/a", &format!("{most}x: a\r\n"))), problem(431, "headers_too_large"));
}

fn post(target: &str, lines: &str) -> String {
    format!("POST {target} HTTP/1.1\r\n{HOST}Authorization: Bearer env_a\r\n{lines}\r\n")
}

#[test]
fn announced_body_has_the_limit_of_its_operation() {
    let world = World::new();
    for (target, limit) in [("/a", BODY_BYTES_MAX), ("/cloud/games/1", 64 * 1024), ("/cloud/files", FILE_BYTES_MAX)] {
        let exact = post(target, &format!("Content-Length: {limit}\r\n")) + &"a".repeat(limit);
        assert_eq!(world.connect().ask(exact).body, target);
        for more in ["", "Expect: 100-continue\r\n"] {
            let request = post(target, &format!("Content-Length: {}\r\n{more}", limit + 1));
            assert_eq!(last_problem(&world, request), problem(413, "body_too_large"));
        }
    }
    assert_eq!(world.bodies.held_bytes(), 0);
}

#[test]
fn chunked_body_has_the_limit_of_its_operation() {
    let world = World::new();
    let exact =
        post("/a", "Transfer-Encoding: chunked\r\n") + &format!("{BODY_BYTES_MAX:x}\r\n{}", "a".repeat(BODY_BYTES_MAX));
    assert_eq!(world.connect().ask(format!("{exact}\r\n0\r\n\r\n")).body, "/a");
    assert_eq!(last_problem(&world, format!("{exact}\r\n1\r\na")), problem(413, "body_too_large"));
    wait_until(|| world.bodies.held_bytes() == 0);
}

/// Closing the socket with unread bytes would reset the connection, and discard the answer.
#[test]
fn client_that_sends_its_whole_body_still_reads_the_refusal() {
    let (world, mut client) = World::connected();
    let length = 4 << 20;
    client.send(post("/a", &format!("Content-Length: {length}\r\n")).as_bytes());
    client.send(&vec![b'a'; length]);
    assert_eq!(client.read_answer().problem(), (413, "body_too_large", true));
    assert_eq!(client.rest(), b"");
    world.python.check_no_request();
}

#[test]
fn large_body_needs_a_token_of_the_usual_form() {
    let world = World::new();
    let length = format!("Content-Length: {}\r\n", 64 * 1024 + 1);
    for (authorization, name) in [
        ("", "token_missing"),
        ("Authorization: Basic abc\r\n", "token_not_bearer"),
        ("Authorization: Bearer other\r\n", "token_invalid"),
    ] {
        let head = |target: &str, lines: &str| format!("POST {target} HTTP/1.1\r\n{HOST}{authorization}{lines}\r\n");
        assert_eq!(last_problem(&world, head("/cloud/files", &length)), problem(401, name));
        let chunks = format!("{:x}\r\n{}", 64 * 1024 + 1, "a".repeat(64 * 1024 + 1));
        let chunked = head("/cloud/files", "Transfer-Encoding: chunked\r\n") + &chunks;
        assert_eq!(last_problem(&world, chunked), problem(401, name));
        // Python refuses the token of a small one, and the connection stays usable.
        let small = head("/cloud/files", "Content-Length: 65536\r\n") + &"a".repeat(64 * 1024);
        assert_eq!(world.connect().ask(small).header("connection"), None);
        assert_eq!(world.connect().ask(head("/cloud/log-in", &length) + &"a".repeat(64 * 1024 + 1)).status, 413);
        assert_eq!(world.connect().ask(head("/a", &length) + &"a".repeat(64 * 1024 + 1)).status, 200);
    }
}

#[test]
fn endless_chunk_extension_is_refused() {
    let world = World::new();
    let request = post("/a", "Transfer-Encoding: chunked\r\n") + &format!("1;{}", "a".repeat(200_000));
    assert_eq!(last_problem(&world, request), problem(400, "not_http"));
    wait_until(|| world.bodies.held_bytes() == 0);
}

#[test]
fn invalid_http_gets_the_whole_problem() {
    let world = World::new();
    for request in [
        "GARBAGE\r\n\r\n",
        "GET /\r\n\r\n",
        "GET / HTTP/0.9\r\nHost: a\r\n\r\n",
        "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.3\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nno colon\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n folded: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 2\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n{}",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "\x16\x03\x01\x02\0\x01\0\x01\u{7c}\x03\x03",
        "\0",
    ] {
        assert_eq!(last_problem(&world, request), problem(400, "not_http"), "{request:?}");
    }
    world.python.check_no_request();
    assert_eq!(world.counts(), [("none".to_owned(), "HEADER_INVALID".to_owned(), 18)]);
}

#[test]
fn invalid_request_behind_others_is_answered_in_order() {
    let (_world, mut client) = World::connected();
    client.send((get("/a", HOST).repeat(300) + "\0\r\n\r\n").as_bytes());
    for _ in 0..300 {
        assert_eq!(client.read_answer().body, "/a");
    }
    assert_eq!(client.read_answer().problem(), (400, "not_http", true));
    assert_eq!(client.rest(), b"");
}

#[test]
fn request_has_one_host() {
    let (world, mut client) = World::connected();
    for hosts in ["Host: a\r\nHost: b\r\n", "Host: a\r\nHost: a\r\n", "Host: a\r\nHost:\r\n"] {
        assert_eq!(client.ask(get("/a", hosts)).problem(), (400, "two_hosts", false), "{hosts:?}");
    }
    assert_eq!(client.ask(get("/a", "")).problem(), (400, "no_host", false));
    world.python.check_no_request();
    assert_eq!(client.ask(get("/a", "Host:\r\n")).status, 200);
    let request = String::from_utf8(world.request_of_new_player()).unwrap();
    let of = |hosts: &str| last_problem(&world, request.replace("Host: localhost\r\n", hosts)).1;
    assert_eq!([of(""), of("Host: a\r\nHost: a\r\n")], ["no_host", "two_hosts"]);
    assert_eq!(world.players(), [1, 0]);
}

#[test]
fn budget_is_given_back_after_hostile_bodies() {
    let world = World::new();
    let length = "Content-Length: 90000\r\n";
    let half = "a".repeat(45_000);
    let chunked = "Transfer-Encoding: chunked\r\n";
    let requests = [
        post("/a", length) + &half,
        post("/a", chunked) + &format!("{:x}\r\n{half}zz", half.len()),
        post("/a", chunked) + &format!("{:x}\r\n{half}\r\n0\r\nno colon\r\n\r\n", half.len()),
        post("/a", &format!("Upgrade: x\r\nConnection: upgrade\r\n{length}")) + &half,
        post("/a", &format!("Expect: 100-continue\r\n{length}")) + &half,
        post("/a", &format!("Connection: close\r\n{length}")) + &half,
    ];
    for request in requests {
        let mut client: Client = world.connect();
        client.send(request.as_bytes());
        client.end_sending();
        client.rest();
        wait_until(|| world.bodies.held_bytes() == 0 && world.budget.count() == 0);
    }
    world.python.check_no_request();
}
