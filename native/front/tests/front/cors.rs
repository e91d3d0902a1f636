//! Requests of web pages.

use crate::client::Answer;
use crate::world::World;

const CONSOLE: &str = "https://console.example";
const OTHER: &str = "https://other.example";

fn preflight(world: &World, path: &str, origin: &str) -> Answer {
    world.connect().ask(format!(
        "OPTIONS {path} HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\n\r\n"
    ))
}

/// Returns the CORS headers.
fn headers(answer: &Answer) -> Vec<String> {
    let of_cors = |name: &str| name.starts_with("access-control-") || name == "vary";
    let mut headers: Vec<_> = answer.headers.iter().filter(|(name, _)| of_cors(name)).collect();
    headers.sort();
    headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[test]
fn preflight_is_answered_without_python() {
    let world = World::new();
    let expected = |methods: &str| {
        vec![
            "access-control-allow-headers: authorization, content-type, idempotency-key, traceparent".to_owned(),
            format!("access-control-allow-methods: {methods}"),
            "access-control-allow-origin: *".into(),
            "access-control-expose-headers: x-ray-id, retry-after".into(),
            "access-control-max-age: 7200".into(),
        ]
    };
    for (path, methods) in [("/matchmaker/lobbies/find", "POST"), ("/events/live", "GET, HEAD")] {
        let answer = preflight(&world, path, OTHER);
        assert_eq!((answer.status, answer.header("content-length")), (204, None));
        assert_eq!(headers(&answer), expected(methods));
    }
    let answer = preflight(&world, "/cloud/games/1", CONSOLE);
    let mut of_console = expected("GET, HEAD, POST");
    of_console[2] = format!("access-control-allow-origin: {CONSOLE}");
    of_console.push("vary: origin".into());
    assert_eq!((answer.status, headers(&answer)), (204, of_console));
    world.python.check_no_request();
    world.control.check_no_request();
}

#[test]
fn preflight_of_another_origin_allows_nothing() {
    let world = World::new();
    let answer = preflight(&world, "/cloud/games/1", OTHER);
    assert_eq!((answer.status, headers(&answer)), (204, vec!["vary: origin".to_owned()]));
}

#[test]
fn preflight_of_an_unknown_path_is_not_found() {
    let world = World::new();
    let answer = preflight(&world, "/matchmaker/x", OTHER);
    assert_eq!(answer.problem(), (404, "not_found", false));
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"));
    world.python.check_no_request();
}

#[test]
fn options_without_a_requested_method_is_passed_on() {
    let world = World::new();
    let request = format!("OPTIONS /cloud/games/1 HTTP/1.1\r\nHost: a\r\nOrigin: {CONSOLE}\r\n\r\n");
    assert_eq!(world.connect().ask(request).body, "/cloud/games/1");
    assert_eq!(world.python.request().header("origin"), Some(CONSOLE));
}

#[test]
fn responses_name_the_allowed_origin() {
    let world = World::new();
    world.python.reply_with("401 Unauthorized", "", "");
    let ask = |target: &str, origin: &str| {
        let origin = if origin.is_empty() { String::new() } else { format!("Origin: {origin}\r\n") };
        headers(&world.connect().ask(format!("GET {target} HTTP/1.1\r\nHost: a\r\n{origin}\r\n")))
    };
    let exposed = "access-control-expose-headers: x-ray-id, retry-after";
    let any = ["access-control-allow-origin: *", exposed];
    assert_eq!(ask("/events/live?x", OTHER), any);
    assert_eq!(ask("/matchmaker/unknown", CONSOLE), any);
    let console = format!("access-control-allow-origin: {CONSOLE}");
    assert_eq!(ask("/cloud/games/1", CONSOLE), [&console, exposed, "vary: origin"]);
    assert_eq!(ask("/cloud/games/1", OTHER), ["vary: origin"]);
    assert_eq!(ask("/cloud/games/1", ""), [""; 0]);
    assert_eq!(ask("/matchmaker/unknown", ""), [""; 0]);
}

#[test]
fn refused_response_names_the_allowed_origin() {
    let world = World::new();
    let answer = world.connect().ask(format!("GET /events/live HTTP/1.1\r\nOrigin: {OTHER}\r\n\r\n"));
    assert_eq!((answer.problem().1, answer.header("access-control-allow-origin")), ("no_host", Some("*")));
}

/// Tools read the description of the API without an origin, and caches may keep that response for web pages.
#[test]
fn every_origin_may_read_the_description_of_the_api() {
    let world = World::new();
    let expected = ["access-control-allow-origin: *", "access-control-expose-headers: x-ray-id, etag"];
    for status in ["200 OK", "304 Not Modified", "405 Method Not Allowed"] {
        world.python.reply_with(status, "", "");
        for origin in ["", "Origin: https://other.example\r\n"] {
            let mut client = world.connect();
            client.send(format!("GET /openapi.json HTTP/1.1\r\nHost: a\r\n{origin}\r\n").as_bytes());
            assert_eq!(headers(&client.read_head()), expected, "{status} {origin}");
            world.python.request();
        }
    }
    let answer = preflight(&world, "/openapi.json", OTHER);
    let of_preflight = [
        "access-control-allow-headers: authorization, if-none-match, traceparent",
        "access-control-allow-methods: GET, HEAD",
        expected[0],
        expected[1],
        "access-control-max-age: 7200",
    ];
    assert_eq!((answer.status, headers(&answer)), (204, of_preflight.map(str::to_owned).to_vec()));
    world.python.check_no_request();
}
