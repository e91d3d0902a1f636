//! Calls over real connections, to servers that answer as they are told.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::thread::JoinHandle;

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";

/// For each connection the answers to give, one for each call; then it is closed. Gives back the heads of all calls.
fn serve(connections: Vec<Vec<&'static str>>) -> (Address, JoinHandle<Vec<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::of_url(&format!("http://{}/base/", listener.local_addr().unwrap())).unwrap();
    let thread = std::thread::spawn(move || {
        let mut heads = Vec::new();
        for answers in connections {
            let mut stream = BufReader::new(listener.accept().unwrap().0);
            for answer in answers {
                let head: Vec<_> =
                    (&mut stream).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
                let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                stream.read_exact(&mut vec![0; length.parse().unwrap()]).unwrap();
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
                heads.push(head);
            }
        }
        heads
    });
    (address, thread)
}

fn call(service: &mut Service) -> Result<Answer, NoAnswer> {
    service.call("POST", "/here", "{\"a\":1}", Some("the-key"), Duration::from_secs(5))
}

#[test]
fn calls_share_a_connection_and_say_who_calls() {
    let (address, server) = serve(vec![vec![OK, OK]]);
    let mut service = Service::new(address.clone(), "lobby_x");
    assert_eq!(call(&mut service).unwrap().status, 200);
    assert_eq!(outcome(&call(&mut service)), Outcome::Done);
    let heads = server.join().unwrap();
    assert_eq!(heads[0], heads[1]);
    assert_eq!(heads[0][0], "POST /base/here HTTP/1.1");
    for line in ["authorization: Bearer lobby_x", "idempotency-key: the-key", &format!("host: {}", address.authority)] {
        assert!(heads[0].iter().any(|one| one == line), "{line} in {:?}", heads[0]);
    }
}

#[test]
fn a_kept_connection_that_has_ended_is_replaced_within_the_call() {
    let (address, server) = serve(vec![vec![OK], vec![OK]]);
    let mut service = Service::new(address, "t");
    call(&mut service).unwrap();
    assert_eq!(call(&mut service).unwrap().status, 200);
    server.join().unwrap();
}

#[test]
fn a_server_that_says_nothing_costs_no_more_than_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::of_url(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let mut service = Service::new(address, "t");
    let began = Instant::now();
    let called = service.call("POST", "/", "", None, Duration::from_millis(50));
    assert_eq!(called, Err(NoAnswer::TooSlow));
    assert!(began.elapsed() >= Duration::from_millis(50));
}

#[test]
fn what_the_service_says_is_a_decision_or_none() {
    let problem = r#"{"code": "PLAYER_TOKEN_EXPIRED", "status": 410}"#;
    let answer = |status, body: &str| Ok(Answer { status, retry_after: None, body: body.into() });
    let refused = |status, code: &str| Outcome::Refused { status, code: code.to_owned() };
    assert_eq!(outcome(&answer(410, problem)), refused(410, "PLAYER_TOKEN_EXPIRED"));
    assert_eq!(outcome(&answer(404, "<html>")), refused(404, "UNKNOWN"));
    assert_eq!(outcome(&answer(400, "[1]")), refused(400, "UNKNOWN"));
    for status in UNDECIDED {
        assert_eq!(outcome(&answer(status, problem)), Outcome::Undecided { retry_after: None });
    }
    assert_eq!(outcome(&Err(NoAnswer::Cut)), Outcome::Undecided { retry_after: None });
}

#[test]
fn an_address_is_plain_http() {
    let of = |url| Address::of_url(url).map(|one| (one.host, one.port, one.prefix));
    assert_eq!(of("http://127.0.0.1:8080"), Ok(("127.0.0.1".into(), 8080, String::new())));
    assert_eq!(of("http://api.example.com/v1/"), Ok(("api.example.com".into(), 80, "/v1".into())));
    assert_eq!(of("http://[::1]:81/"), Ok(("::1".into(), 81, String::new())));
    assert_eq!(of("http://[::1]"), Ok(("::1".into(), 80, String::new())));
    assert!(of("https://api.example.com").unwrap_err().contains("https"));
    for wrong in [
        "",
        "api",
        "ftp://a",
        "http://",
        "http://:80",
        "http://a:0",
        "http://a:x",
        "http://a:70000",
        "http://u@a",
        "http://a b",
        "http://a\r\nx",
    ] {
        assert!(of(wrong).is_err(), "{wrong:?}");
    }
}
