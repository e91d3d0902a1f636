//! Tables of plain requests.

use super::*;
use usual_clients::{AUTHORIZATION, LENGTH, TYPE, USUAL_CLIENTS};

mod properties;
mod usual_clients;

const LINE: &str = "POST /matchmaker/players/connected HTTP/1.1";
const TOKEN: &[u8] = b"Bearer lobby_AQEBAQ";
const BODY: &str = r#"{"player_token":"player_AgIC"}"#;
/// Header lines of a plain request.
const USUAL: [&str; 3] = ["Host: localhost", "Authorization: Bearer lobby_AQEBAQ", "Content-Length: 30"];

fn read(bytes: &[u8]) -> Received<'_> {
    Received::read(bytes, REQUEST_BYTES_MAX)
}

fn request_with(line: &str, headers: &[&str], body: &str) -> Vec<u8> {
    format!("{line}\r\n{}\r\n\r\n{body}", headers.join("\r\n")).into_bytes()
}

fn request(headers: &[&str]) -> Vec<u8> {
    request_with(LINE, headers, BODY)
}

fn usual() -> Vec<u8> {
    request(&USUAL)
}

/// Returns a plain request with further header lines.
fn usual_and(more: &[&str]) -> Vec<u8> {
    request(&[&USUAL[..], more].concat())
}

/// Returns a plain request with another value of one of its headers.
fn usual_but(name: &str, line: &str) -> Vec<u8> {
    let is_named = |usual: &str| usual.to_ascii_lowercase().starts_with(name);
    assert!(USUAL.iter().any(|usual| is_named(usual)), "{name}");
    request(&USUAL.map(|usual| if is_named(usual) { line } else { usual }))
}

fn is_plain(bytes: &[u8]) -> bool {
    matches!(read(bytes), Received::Plain(_))
}

fn shown(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

#[test]
fn parts_of_a_plain_request() {
    let plain = |length: usize| PlainRequest {
        operation: Operation::Connected,
        head: Head { authorization: Some(TOKEN), ..Head::default() },
        body: BODY.as_bytes(),
        length,
    };
    let bytes = usual();
    assert_eq!(read(&bytes), Received::Plain(plain(bytes.len())));
    let with_next = [&bytes[..], b"GET / HTTP/1.1\r\n"].concat();
    assert_eq!(read(&with_next), Received::Plain(plain(bytes.len())));
}

#[test]
fn usual_requests_and_unusual_forms_of_them_are_plain() {
    let usual = USUAL_CLIENTS.map(|(client, headers)| (client, request(headers)));
    let same = [
        ("upper case", request(&["HOST: a", "AUTHORIZATION: Bearer lobby_AQEBAQ", "CONTENT-LENGTH: 30"])),
        ("mixed case", request(&["hOsT: a", "aUTHORIZATION: Bearer lobby_AQEBAQ", "cOnTENT-lENGTH: 30"])),
        ("no space", request(&["Host:a", "Authorization:Bearer lobby_AQEBAQ", "Content-Length:30"])),
        ("more space", request(&["Host:  a ", "Authorization:  Bearer lobby_AQEBAQ ", "Content-Length:  30 "])),
        ("type without space", usual_and(&["Content-Type: application/json;charset=utf-8"])),
        ("Keep-Alive", usual_and(&["Connection: Keep-Alive"])),
        ("leading zero", usual_but("content-length", "Content-Length: 030")),
        ("repeated header without effect", usual_and(&["Accept: a", "Accept: b"])),
        ("all headers without effect", usual_and(&["Cache-Control: no-cache", "Pragma: no-cache", "Priority: u=3"])),
        ("empty header without effect", usual_and(&["User-Agent:"])),
    ];
    for (name, bytes) in usual.into_iter().chain(same) {
        let Received::Plain(plain) = read(&bytes) else { panic!("{name}: {}", shown(&bytes)) };
        assert_eq!(
            (plain.head.authorization, plain.body, plain.length),
            (Some(TOKEN), BODY.as_bytes(), bytes.len()),
            "{name}"
        );
    }
}

const OPERATIONS: [(&str, Operation, &str); 5] = [
    (LINE, Operation::Connected, "connected"),
    ("POST /matchmaker/players/disconnected HTTP/1.1", Operation::Disconnected, "disconnected"),
    ("POST /matchmaker/lobbies/heartbeat HTTP/1.1", Operation::Heartbeat, "heartbeat"),
    ("POST /matchmaker/lobbies/join HTTP/1.1", Operation::Join, "join"),
    ("POST /matchmaker/lobbies/find HTTP/1.1", Operation::Find, "find"),
];

#[test]
fn each_operation_has_its_line() {
    for (line, operation, slug) in OPERATIONS {
        let bytes = request_with(line, &USUAL, BODY);
        let Received::Plain(plain) = read(&bytes) else { panic!("{line}") };
        assert_eq!((plain.operation, plain.operation.slug(), plain.length), (operation, slug, bytes.len()), "{line}");
        assert_eq!((plain.head.authorization, plain.body), (Some(TOKEN), BODY.as_bytes()), "{line}");
        assert_prefixes_are_partial(&bytes);
    }
}

/// Counts of operations are kept in the order of the list.
#[test]
fn all_operations_are_listed_in_the_order_of_their_numbers() {
    assert_eq!(Operation::ALL[..OPERATIONS.len()], OPERATIONS.map(|(_, operation, _)| operation));
    assert_eq!(Operation::ALL.map(|operation| operation as usize), std::array::from_fn(|number| number));
}

#[test]
fn one_other_byte_of_a_line_is_not_plain() {
    for (line, ..) in OPERATIONS {
        for at in 0..line.len() + 2 {
            let mut bytes = request_with(line, &USUAL, BODY);
            bytes[at] ^= 1;
            assert_eq!(read(&bytes), Received::Other, "{}", shown(&bytes));
            assert_eq!(read(&bytes[..=at]), Received::Other, "{}", shown(&bytes[..=at]));
        }
    }
}

#[test]
fn empty_body_is_plain() {
    let bytes = request_with(LINE, &["Host: a", AUTHORIZATION, "Content-Length: 0"], "");
    assert!(matches!(read(&bytes), Received::Plain(PlainRequest { body: b"", .. })));
}

#[test]
fn other_request_lines_are_not_plain() {
    let lines = [
        "GET /matchmaker/players/connected HTTP/1.1",
        "PUT /matchmaker/players/connected HTTP/1.1",
        "OPTIONS /matchmaker/players/connected HTTP/1.1",
        "post /matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connect HTTP/1.1",
        "POST /matchmaker/players/connectedd HTTP/1.1",
        "GET /matchmaker/lobbies/find HTTP/1.1",
        "POST /matchmaker/lobbies/create HTTP/1.1",
        "POST /matchmaker/lobbies/find HTTP/1.0",
        "POST /matchmaker/lobbies/finds HTTP/1.1",
        "POST /matchmaker/lobbies/join?a=b HTTP/1.1",
        "POST /matchmaker/players/heartbeat HTTP/1.1",
        "POST /matchmaker/players/join HTTP/1.1",
        "POST /matchmaker/lobbies/connected HTTP/1.1",
        "POST /matchmaker/lobbies/ HTTP/1.1",
        "POST /matchmaker/players/connected/ HTTP/1.1",
        "POST //matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connecte%64 HTTP/1.1",
        "POST /Matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connected? HTTP/1.1",
        "POST /matchmaker/players/connected?a=b HTTP/1.1",
        "POST http://localhost/matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connected HTTP/1.0",
        "POST /matchmaker/players/connected HTTP/2.0",
        "POST /matchmaker/players/connected http/1.1",
        "POST /matchmaker/players/connected",
        "POST  /matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connected  HTTP/1.1",
        "POST\t/matchmaker/players/connected HTTP/1.1",
        "POST /matchmaker/players/connected HTTP/1.1 ",
        " POST /matchmaker/players/connected HTTP/1.1",
        "\r\nPOST /matchmaker/players/connected HTTP/1.1",
        "PRI * HTTP/2.0",
        "",
    ];
    for line in lines {
        assert_eq!(read(&request_with(line, &USUAL, BODY)), Received::Other, "{line:?}");
    }
}

#[test]
fn headers_with_an_effect_are_read() {
    let bytes = usual_and(&[
        "Origin: https://game.example",
        "Idempotency-Key: 1",
        "Content-Type: text/plain",
        "X-Forwarded-For: 192.0.2.1",
        "X-Coords: 50.1,8.7",
        "Traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ]);
    let Received::Plain(plain) = read(&bytes) else { panic!("not plain") };
    let head = Head {
        authorization: Some(TOKEN),
        origin: Some(b"https://game.example"),
        idempotency_key: Some(b"1"),
        media_type: Some(b"text/plain"),
        forwarded_for: Some(b"192.0.2.1"),
        coordinates: Some(b"50.1,8.7"),
        traceparent: Some(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    };
    assert_eq!(plain.head, head);
}

/// The rules answer a request with an empty, missing or wrong header.
#[test]
fn values_of_headers_are_left_to_the_rules() {
    let authorization = |bytes: &[u8]| match read(bytes) {
        Received::Plain(plain) => plain.head.authorization.map(<[u8]>::to_vec),
        other => panic!("{other:?}"),
    };
    assert_eq!(authorization(&request(&["Host: a", LENGTH])), None);
    for value in ["", "Bearer", "bearer lobby_AQEBAQ", "Basic YTpi", "lobby_AQEBAQ", "Bearer lobby_\u{e4}"] {
        let bytes = usual_but("authorization", &format!("Authorization: {value}"));
        assert_eq!(authorization(&bytes), Some(value.as_bytes().to_vec()), "{value:?}");
    }
    for value in ["", "application/jsonp", "application/json, text/plain"] {
        let bytes = usual_and(&[&format!("Content-Type: {value}")]);
        let Received::Plain(plain) = read(&bytes) else { panic!("{value:?}") };
        assert_eq!(plain.head.media_type, Some(value.as_bytes()));
    }
}

#[test]
fn headers_without_an_effect_are_plain() {
    for header in [
        "Cookie: a=b",
        "X-Hosting-Client: 192.0.2.1",
        "X-Hosting-Admitted: 1",
        "Upgrade: h2c",
        "Upgrade: websocket",
        "HTTP2-Settings: AAEAAEAAAAIAAAAAAAMAAAAA",
        "Connection: upgrade",
        "Connection: Keep-Alive, Upgrade",
        "Connection: Upgrade, HTTP2-Settings",
        "Connection: TE",
        "Trailer: a",
        "TE: trailers",
        "X-Unknown: a",
        "Keep-Alive: timeout=5",
    ] {
        for bytes in [usual_and(&[header]), request(&[&[header], &USUAL[..]].concat())] {
            let Received::Plain(plain) = read(&bytes) else { panic!("{header}") };
            assert_eq!(plain.head, Head { authorization: Some(TOKEN), ..Head::default() }, "{header}");
        }
    }
}

#[test]
fn headers_of_the_framing_and_invalid_lines_are_not_plain() {
    let headers = [
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: identity",
        "Expect: 100-continue",
        "Connection: close",
        "Connection: keep-alive, close",
        "Connection: authorization",
        "Connection: keep-alive, x-unknown",
        "Connection:",
        "Accept : a",
        "Accept\t: a",
        ": a",
        "Accept",
        "Hos t: a",
        "Ho\u{e4}st: a",
    ];
    for header in headers {
        assert_eq!(read(&usual_and(&[header])), Received::Other, "after the others: {header:?}");
        let first = [&[header], &USUAL[..]].concat();
        assert_eq!(read(&request(&first)), Received::Other, "before the others: {header:?}");
    }
}

#[test]
fn missing_and_repeated_headers_are_not_plain() {
    for missing in USUAL {
        let others: Vec<_> = USUAL.into_iter().filter(|header| *header != missing).collect();
        let is_needed = !missing.starts_with("Authorization");
        assert_eq!(read(&request(&others)) == Received::Other, is_needed, "without {missing}");
        assert_eq!(read(&usual_and(&[missing])), Received::Other, "two times {missing}");
        assert_eq!(read(&usual_and(&[&missing.to_ascii_lowercase()])), Received::Other, "{missing}");
    }
    for repeated in [
        TYPE,
        "Connection: keep-alive",
        "Origin: https://game.example",
        "Idempotency-Key: 1",
        "Traceparent: 1",
        "X-Coords: 1,2",
    ] {
        assert_eq!(read(&usual_and(&[repeated, repeated])), Received::Other, "two times {repeated}");
    }
    assert_eq!(read(&usual_and(&["Host: b"])), Received::Other);
    assert_eq!(read(&usual_and(&["Content-Length: 3"])), Received::Other);
    assert_eq!(read(&request_with(LINE, &[], BODY)), Received::Other);
}

#[test]
fn other_lengths_are_not_plain() {
    let lengths = [
        "",
        "+30",
        "-30",
        "3 0",
        "30, 30",
        "30,30",
        "0x1e",
        "1e",
        "30.0",
        "3_0",
        "\u{663}\u{660}",
        "18446744073709551615",
        "18446744073709551616",
        "18446744073709551646",
        "99999999999999999999999999",
        "9223372036854775807",
        "8192",
    ];
    for length in lengths {
        let bytes = usual_but("content-length", &format!("Content-Length: {length}"));
        assert_eq!(read(&bytes), Received::Other, "{length:?}");
    }
}

#[test]
fn other_line_ends_are_not_plain() {
    let bytes = usual();
    let head_length = bytes.len() - BODY.len();
    let line_ends: Vec<_> = (0..head_length).filter(|at| bytes[*at] == b'\r').collect();
    assert_eq!(line_ends.len(), USUAL.len() + 2);
    for end in line_ends {
        for other in ["\n", "\r", "\r\r\n", "\n\r", "\n\n", " \n", "\r\n\n", "\r\n ", "\r\n\t"] {
            let changed = [&bytes[..end], other.as_bytes(), &bytes[end + 2..]].concat();
            let is_last = end + 2 == head_length && other.starts_with("\r\n");
            // Behind the end of the head, the additional byte belongs to the body.
            assert!(is_last || !is_plain(&changed), "{}", shown(&changed));
        }
    }
}

#[test]
fn folded_lines_and_control_bytes_are_not_plain() {
    for folded in ["Accept: a\r\n b", "Accept:\r\n a", "Accept: a\r\n\tb", "Accept: a\r\n \r\nPragma: b"] {
        assert_eq!(read(&usual_and(&[folded])), Received::Other, "{folded:?}");
    }
    for control in (0..0x20).chain([0x7f]) {
        let control = char::from(control);
        for header in [format!("Accept: a{control}b"), format!("Accept: {control}"), format!("Ac{control}cept: a")] {
            assert_eq!(read(&usual_and(&[&header])), Received::Other, "{header:?}");
        }
    }
}

#[test]
fn bound_of_the_number_of_headers() {
    let accepts = vec!["Accept: a"; HEADERS_MAX - USUAL.len()];
    assert!(is_plain(&usual_and(&accepts)));
    assert_eq!(read(&usual_and(&[&accepts[..], &["Accept: a"]].concat())), Received::Other);
}

/// Returns a request with a long body, or with a long header.
fn long_request(length: usize, is_body_long: bool) -> Vec<u8> {
    let with = |agent: usize, body: usize| {
        let (agent, length) = (format!("User-Agent: {}", "a".repeat(agent)), format!("Content-Length: {body:04}"));
        request_with(LINE, &["Host: a", AUTHORIZATION, &agent, &length], &"b".repeat(body))
    };
    let rest = length - with(0, 0).len();
    if is_body_long { with(0, rest) } else { with(rest, 0) }
}

#[test]
fn bound_of_the_length() {
    for is_body_long in [true, false] {
        let longest = long_request(REQUEST_BYTES_MAX, is_body_long);
        assert_eq!(longest.len(), REQUEST_BYTES_MAX);
        assert!(is_plain(&longest), "long body: {is_body_long}");
        assert_prefixes_are_partial(&longest);
        let too_long = long_request(REQUEST_BYTES_MAX + 1, is_body_long);
        assert_eq!(read(&too_long), Received::Other, "long body: {is_body_long}");
        let unfinished = &too_long[..REQUEST_BYTES_MAX];
        assert_eq!(read(unfinished), Received::Other, "long body: {is_body_long}");
    }
}

#[test]
fn unfinished_request_is_not_partial_for_ever() {
    for endless in ["a".repeat(REQUEST_BYTES_MAX), "Accept: a\r\n".repeat(REQUEST_BYTES_MAX)] {
        let bytes = [LINE.as_bytes(), b"\r\nAccept: ", endless.as_bytes()].concat();
        assert_eq!(read(&bytes[..REQUEST_BYTES_MAX]), Received::Other);
    }
}

fn assert_prefixes_are_partial(plain: &[u8]) {
    for end in 0..plain.len() {
        assert_eq!(read(&plain[..end]), Received::Partial, "{}", shown(&plain[..end]));
    }
}

#[test]
fn prefixes_of_plain_requests_are_partial() {
    for (_, headers) in USUAL_CLIENTS {
        assert_prefixes_are_partial(&request(headers));
    }
}

#[test]
fn address_of_a_proxy_is_read_from_one_header() {
    let forwarded = usual_and(&["X-Forwarded-For: 192.0.2.1, 10.0.0.1", "Via: 1.1 proxy", "X-Real-IP: 192.0.2.1"]);
    let Received::Plain(request) = read(&forwarded) else { panic!("the headers of a proxy are plain") };
    assert_eq!(request.head.forwarded_for, Some(&b"192.0.2.1, 10.0.0.1"[..]));
    assert_eq!(read(&usual_and(&["X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 10.0.0.1"])), Received::Other);
}
