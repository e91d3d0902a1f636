//! Python processes that are away, slow or faulty.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use hosting_front::ByPlane;

use crate::python::Reply;
use crate::raw_http2::{self, END_HEADERS, END_STREAM};
use crate::socket_process::SocketProcess;
use crate::world::{GET as OF_DATA_PLANE, SHORT, Setup, World, wait_until};

const GET: &[u8] = b"GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\n\r\n";
const POST: &[u8] = b"POST /cloud/games/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
/// Size of a body that is passed on in parts.
const LONG: usize = 100_000;

#[test]
fn control_plane_that_is_away_is_unavailable_to_its_operations_only() {
    let (world, mut client) = World::connected();
    assert_eq!(client.ask(GET).status, 200);
    world.control.end();
    for request in [GET, POST] {
        assert_eq!(client.ask(request).problem(), (503, "control_plane_unavailable", false));
    }
    assert_eq!(client.ask(OF_DATA_PLANE).body, "/a");
    assert_eq!(client.ask(world.request_of_new_player()).body, "{}");
    world.control.serve();
    for request in [POST, GET] {
        assert_eq!(client.ask(request).status, 200);
    }
}

/// A POST on a connection that Python has closed would be lost.
#[test]
fn restarted_control_plane_serves_the_next_request() {
    for request in [GET, POST] {
        let (world, mut client) = World::connected();
        assert_eq!(client.ask(request).status, 200);
        world.control.end_connections();
        world.control.wait_for_close();
        world.settle(&mut world.connect());
        assert_eq!(client.ask(request).status, 200);
    }
}

#[test]
fn lost_read_is_repeated_once() {
    let world = World::new();
    let mut count = 0;
    world.control.reply(move |request| {
        count += 1;
        if count == 2 { Reply::Answer(request.response("200 OK", "", "again")) } else { Reply::Close }
    });
    let mut client = world.connect();
    assert_eq!(client.ask(GET).body, "again");
    assert_eq!(world.control.targets(2), ["/cloud/games/1"; 2]);
    world.control.reply(|_| Reply::Close);
    assert_eq!(client.ask(GET).problem(), (503, "control_plane_unavailable", false));
    assert_eq!(world.control.targets(2).len(), 2);
    world.control.check_no_request();
}

#[test]
fn lost_change_is_sent_once_and_its_result_is_unknown() {
    let world = World::new();
    world.control.reply(|_| Reply::Close);
    let mut client = world.connect();
    assert_eq!(client.ask(POST).problem(), (503, "control_plane_unavailable_sent", false));
    assert_eq!(world.control.request().body, b"ab");
    world.control.check_no_request();
}

#[test]
fn data_plane_that_is_away_is_overloaded() {
    let world = World::new();
    let change = b"POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab";
    world.python.reply(|_| Reply::Close);
    assert_eq!(world.connect().ask(OF_DATA_PLANE).problem(), (503, "overloaded", false));
    assert_eq!(world.connect().ask(change).problem(), (500, "internal", false), "it may have happened");
    world.python.end();
    for request in [OF_DATA_PLANE, change] {
        assert_eq!(world.connect().ask(request).problem(), (503, "overloaded", false));
    }
}

#[test]
fn answer_of_uvicorn_itself_is_no_answer() {
    let world = World::new();
    for (status, expected) in [("400 Bad Request", (400, "not_http", false)), ("200 OK", (500, "internal", false))] {
        world.python.reply(move |_| {
            Reply::Answer(format!("HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: 1\r\n\r\na").into())
        });
        assert_eq!(world.connect().ask(OF_DATA_PLANE).problem(), expected);
    }
}

#[test]
fn invalid_response_is_not_passed_on() {
    let world = World::new();
    let ray = format!("x-ray-id: {}\r\n", "0".repeat(32));
    for response in [
        "GARBAGE\r\n\r\n".to_owned(),
        format!("HTTP/1.1 200 OK\r\n{ray}content-length: a\r\n\r\n"),
        format!("HTTP/1.1 200 OK\r\n{ray}no colon\r\n\r\n"),
        format!("HTTP/1.1 2000 OK\r\n{ray}\r\n"),
    ] {
        world.control.reply(move |_| Reply::Answer(response.clone().into()));
        assert_eq!(world.connect().ask(GET).problem(), (503, "control_plane_unavailable", false));
    }
}

#[test]
fn response_that_ends_early_ends_the_connection() {
    let world = World::new();
    let (client, mut request) = world.ask_python(&world.python, OF_DATA_PLANE);
    let response = request.response("200 OK", "", vec![b'a'; LONG]);
    request.answer(&response[..response.len() - 1]);
    world.python.end_connections();
    let rest = String::from_utf8(client.rest()).unwrap();
    assert!(rest.starts_with("HTTP/1.1 200 OK") && rest.ends_with(&"a".repeat(LONG - 1)), "{rest}");
}

#[test]
fn short_response_that_python_does_not_complete_is_replaced_by_an_error() {
    let world = World::new();
    let process = SocketProcess::start(&world.python.listener());
    for is_stopped in [false, true] {
        let (mut client, mut request) = world.ask_python(&world.python, OF_DATA_PLANE);
        let response = request.response("200 OK", "", "abcdef");
        request.answer(&response[..response.len() - 1]);
        if is_stopped {
            process.stop()
        } else {
            world.python.end_connections()
        }
        assert_eq!(client.read_answer().status, 503);
    }
    process.go_on();
}

#[test]
fn stopped_process_ends_the_responses_that_it_has_begun() {
    for (length, begun) in [("content-length: 100000", "abc"), ("transfer-encoding: chunked", "3\r\nabc\r\n")] {
        let world = World::new();
        let process = SocketProcess::start(&world.python.listener());
        let (mut client, mut request) = world.ask_python(&world.python, OF_DATA_PLANE);
        let head = format!("HTTP/1.1 200 OK\r\nx-ray-id: {}\r\n{length}\r\n\r\n", request.ray_id());
        request.answer(head.as_bytes());
        client.read_head();
        process.stop();
        request.answer(begun.as_bytes());
        assert_eq!(client.rest(), begun.as_bytes());
        process.go_on();
        world.python.reply(|request| Reply::Answer(request.response("200 OK", "", "next")));
        wait_until(|| world.connect().ask(OF_DATA_PLANE).body == "next");
    }
}

#[test]
fn late_answer_is_refused_and_its_request_cancelled() {
    let world = World::with(Setup { answer_timeout: SHORT, ..Setup::default() });
    world.python.reply_by_test();
    let mut client = world.connect();
    assert_eq!(client.ask(OF_DATA_PLANE).problem(), (504, "deadline_exceeded", false));
    world.python.wait_for_close();
    assert_eq!(client.ask(world.request_of_new_player()).body, "{}");
}

#[test]
fn disconnected_client_cancels_its_request() {
    let world = World::new();
    drop(world.ask_python(&world.control, GET));
    world.control.wait_for_close();
    wait_until(|| world.budget.count() == 0);
    assert_eq!(world.counts(), [("get_game".to_owned(), "CANCELLED".to_owned(), 1)]);
}

#[test]
fn connections_to_python_are_reused() {
    let world = World::new();
    let mut clients: Vec<_> = (0..10).map(|_| world.connect()).collect();
    for client in &mut clients {
        assert_eq!(client.ask(GET).status, 200);
    }
    assert_eq!(world.control.connections(), 1);
}

#[test]
fn connection_that_python_ends_is_not_reused() {
    let world = World::new();
    world.control.reply_with("200 OK", "connection: close\r\n", "last");
    let mut client = world.connect();
    for _ in 0..3 {
        let answer = client.ask(POST);
        assert_eq!((&*answer.body, answer.header("connection")), ("last", None));
    }
    assert_eq!(world.control.connections(), 3);
}

/// Python answers many requests in one turn of its event loop. With a lower limit, most connections were closed and opened
/// again for the next requests. In an overload, Python answered half as many.
#[test]
fn connections_of_many_requests_at_once_are_reused() {
    const REQUESTS: usize = 200;
    let world = World::with(Setup { budget: 2 * REQUESTS, ..Setup::default() });
    world.python.reply_by_test();
    let mut clients: Vec<_> = (0..REQUESTS).map(|_| world.connect()).collect();
    for _ in 0..3 {
        clients.iter_mut().for_each(|client| client.send(OF_DATA_PLANE));
        let mut requests: Vec<_> = clients.iter().map(|_| world.python.request()).collect();
        requests.iter_mut().for_each(|request| request.answer_ok(""));
        assert!(clients.iter_mut().all(|client| client.read_answer().status == 200));
    }
    // A client may send its next request before the connection of its last one is idle.
    let opened = world.python.connections();
    assert!(opened < REQUESTS + REQUESTS / 4, "{opened}");
}

#[test]
fn idle_connections_are_limited() {
    // Each thread keeps one.
    let requests_max = ByPlane { data: 8, control: 4 };
    let world = World::with(Setup { threads: 4, requests_max, ..Setup::default() });
    world.control.reply_by_test();
    let requests = [(1, "Bearer env_a"), (3, "Bearer env_b")].map(|(stream, token)| {
        raw_http2::headers(END_HEADERS | END_STREAM, stream, "GET", "/cloud/games/1", &[("authorization", token)])
    });
    let _client = raw_http2::connect(world.address, &[raw_http2::preface(0xffff), requests.concat()].concat());
    for mut request in [world.control.request(), world.control.request()] {
        request.answer_ok("");
    }
    let answered = Instant::now();
    world.control.wait_for_close();
    assert!(answered.elapsed() < Duration::from_secs(3), "after 4 s, each idle connection is closed");
}

#[test]
fn second_response_to_one_request_is_discarded() {
    let world = World::new();
    world.control.reply(|request| {
        Reply::Answer([request.response("200 OK", "", "first"), request.response("200 OK", "", "second")].concat())
    });
    let mut client = world.connect();
    for _ in 0..3 {
        assert_eq!(client.ask(GET).body, "first");
        world.settle(&mut world.connect());
    }
}

/// The rest of the abandoned answer must not reach another client.
#[test]
fn disconnect_during_a_response_affects_no_other_request() {
    let world = World::new();
    let (mut gone, mut request) = world.ask_python(&world.control, GET);
    let response = request.response("200 OK", "", "a".repeat(LONG));
    let (first, rest) = response.split_at(response.len() - 50);
    request.answer(first);
    assert_eq!(gone.read_head().status, 200);
    drop(gone);
    world.control.wait_for_close();
    let _ = std::io::Write::write_all(&mut request.connection, rest);
    world.control.reply(|request| Reply::Answer(request.response("200 OK", "", &request.target)));
    assert_eq!(world.connect().ask(GET).body, "/cloud/games/1");
}

#[test]
fn request_waits_while_the_backlog_of_the_process_is_full() {
    let world = World::new();
    world.control.end();
    let path = world.control.path();
    let listener = UnixListener::bind(path).unwrap();
    // SAFETY: a call on an open socket. It sets a backlog for one connection.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let _first = UnixStream::connect(path).unwrap();
    let mut client = world.connect();
    client.send(GET);
    world.settle(&mut world.connect());
    assert!(!client.has_answer());
    drop(listener.accept().unwrap());
    let (mut accepted, _) = listener.accept().unwrap();
    assert!(std::io::Read::read(&mut accepted, &mut [0; 1_000]).unwrap() > 0);
    let answering = "HTTP/1.1 200 OK\r\nx-ray-id: 00000000000000000000000000000000\r\ncontent-length: 1\r\n\r\na";
    std::io::Write::write_all(&mut accepted, answering.as_bytes()).unwrap();
    assert_eq!(client.read_answer().status, 200);
}

#[test]
fn hot_operations_are_answered_while_python_hangs() {
    let world = World::new();
    world.python.reply_by_test();
    let mut waiting: Vec<_> = (0..20).map(|_| world.connect()).collect();
    waiting.iter_mut().for_each(|client| client.send(OF_DATA_PLANE));
    let mut client = world.connect();
    for _ in 0..20 {
        assert_eq!(client.ask(world.request_of_new_player()).body, "{}");
    }
    assert!(waiting.iter().all(|client| !client.has_answer()));
}
