//! Clients that send or read slowly, and idle connections.

use std::io::Write as _;
use std::time::{Duration, Instant};

use hosting_front::Timeouts;

use crate::client::Client;
use crate::paced_reader;
use crate::python::Reply;
use crate::raw_http2::{connect, get, preface, update_window};
use crate::world::{GET, LIMIT, SHORT, Setup, TIMEOUTS, World, wait_until};

const PART: &[u8] = b"GET /a HTTP/1.1\r\nHost:";

fn with(timeouts: Timeouts) -> World {
    World::with(Setup { timeouts, ..Setup::default() })
}

fn with_short_receive() -> World {
    with(Timeouts { receive: SHORT, ..TIMEOUTS })
}

fn pass(time: Duration) {
    let started = Instant::now();
    wait_until(|| started.elapsed() > time);
}

#[test]
fn unfinished_head_times_out() {
    let world = with_short_receive();
    for before in [&b""[..], GET] {
        let mut client = world.connect();
        if !before.is_empty() {
            assert_eq!(client.ask(before).body, "/a");
        }
        assert_eq!(client.ask(PART).problem(), (408, "request_timeout", true));
        assert_eq!(client.rest(), b"");
    }
    wait_until(|| world.budget.count() == 0);
}

/// Further bytes of a head give it no more time.
#[test]
fn head_that_comes_slowly_times_out() {
    let world = with_short_receive();
    let (mut client, started) = (world.connect(), Instant::now());
    client.send(PART);
    while !client.has_answer() {
        assert!(started.elapsed() < LIMIT);
        client.send(b"a");
        pass(SHORT / 10);
    }
    assert_eq!(client.read_answer().problem(), (408, "request_timeout", true));
}

#[test]
fn unfinished_body_times_out() {
    let world = with_short_receive();
    for lines in ["Content-Length: 3\r\n\r\nab", "Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n"] {
        let mut client = world.connect();
        let answer = client.ask(format!("POST /a HTTP/1.1\r\nHost: a\r\n{lines}"));
        assert_eq!(answer.problem(), (408, "request_timeout", true));
        assert_eq!(client.rest(), b"");
    }
    world.python.check_no_request();
    wait_until(|| world.bodies.held_bytes() == 0);
}

#[test]
fn waiting_request_is_not_slow() {
    let world = with(Timeouts { receive: SHORT, keep_alive: SHORT, ..TIMEOUTS });
    let (mut client, mut request) = world.ask_python(&world.python, &[GET, PART].concat());
    pass(3 * SHORT);
    assert!(!client.has_answer());
    request.answer_ok("late");
    assert_eq!(client.read_answer().body, "late");
}

#[test]
fn idle_connection_is_closed_without_an_answer() {
    let world = with(Timeouts { keep_alive: SHORT, ..TIMEOUTS });
    let mut client = world.connect();
    assert_eq!(client.ask(GET).header("connection"), None);
    assert_eq!(client.rest(), b"");
    wait_until(|| world.budget.count() == 0);
}

#[test]
fn connection_without_keep_alive_has_one_request() {
    let world = with(Timeouts { keep_alive: Duration::ZERO, ..TIMEOUTS });
    let requests = [GET.to_vec(), world.request_of_new_player(), b"GET /a HTTP/1.1\r\n\r\n".to_vec()];
    for request in requests {
        let mut client = world.connect();
        client.send(&[&request[..], GET].concat());
        assert_eq!(client.read_answer().header("connection"), Some("close"));
        assert_eq!(client.rest(), b"");
    }
    let mut client = world.connect();
    client.send(PART);
    world.connect().ask(GET);
    client.send(b" a\r\n\r\n");
    assert_eq!(client.read_answer().body, "/a");
    assert_eq!(world.python.targets(3), ["/a"; 3]);
    world.python.check_no_request();
}

#[test]
fn partial_request_is_answered_after_a_second() {
    let world = World::new();
    for at in [1, 20] {
        let request = world.request_of_new_player();
        let mut client = world.connect();
        client.send(&request[..at]);
        pass(Duration::from_millis(1_100));
        assert_eq!(client.ask(&request[at..]).body, "{}");
    }
    assert_eq!(world.players(), [0, 2]);
}

/// Each request has its own second for its rest.
#[test]
fn client_that_sends_requests_in_parts_is_answered() {
    let world = World::new();
    let request = world.refused_request();
    let (first, rest) = request.split_at(1);
    let (mut client, started) = (world.connect(), Instant::now());
    client.send(first);
    while started.elapsed() < Duration::from_millis(1_200) {
        assert_eq!(client.ask([rest, first].concat()).code, "PLAYER_TOKEN_INVALID");
    }
}

const LARGE: usize = 24 << 20;

/// Returns a client that waits for a large answer.
fn large_answer(world: &World) -> Client {
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; LARGE])));
    let mut client = world.connect();
    client.send(GET);
    world.python.request();
    client
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    let world = with(Timeouts { slow_reader: SHORT, ..TIMEOUTS });
    let client = large_answer(&world);
    wait_until(|| world.budget.count() == 0);
    assert!(client.rest().len() < LARGE);
    world.python.wait_for_close();
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn slow_reader_gets_the_whole_answer() {
    let world =
        with(Timeouts { receive: SHORT, keep_alive: SHORT, slow_reader: Duration::from_millis(500), ..TIMEOUTS });
    let mut client = large_answer(&world);
    assert_eq!(client.read_head().header("content-length"), Some(&*LARGE.to_string()));
    const STEPS: usize = 24;
    for _ in 0..STEPS {
        pass(Duration::from_millis(60));
        assert!(client.bytes(LARGE / STEPS).iter().all(|byte| *byte == b'a'));
    }
    assert_eq!(client.rest(), b"");
}

/// Returns whether a client that reads a large answer at this rate is cut off within some windows.
fn is_cut_off(bytes_per_second: usize, windows: u32) -> bool {
    let window = Duration::from_secs(1);
    let world = with(Timeouts { slow_reader: window, ..TIMEOUTS });
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; LARGE])));
    let mut stream = paced_reader::connect(world.address);
    stream.write_all(GET).unwrap();
    world.python.request();
    !paced_reader::read(&mut stream, bytes_per_second, windows * window, || world.budget.count() > 0)
}

/// Returns whether a client that reads at this rate is cut off. The front empties its buffers many times in each window.
/// With the smallest buffers, the kernel sends about 3 KiB a second.
fn is_cut_off_in_parts(buffer_bytes: u32, bytes_per_second: usize, windows: u32) -> bool {
    let window = Duration::from_secs(1);
    let timeouts = Timeouts { slow_reader: window, ..TIMEOUTS };
    let world = World::with(Setup { timeouts, has_small_buffers: true, ..Setup::default() });
    world.python.reply(|request| {
        let head = format!("HTTP/1.1 200 OK\r\nx-ray-id: {}\r\ntransfer-encoding: chunked\r\n\r\n", request.ray_id());
        let part = [&b"40\r\n"[..], &[b'a'; 64], b"\r\n"].concat();
        Reply::Answer([head.into_bytes(), part.repeat(32_000)].concat())
    });
    let mut stream = paced_reader::connect_with_buffer(world.address, buffer_bytes);
    stream.write_all(GET).unwrap();
    world.python.request();
    !paced_reader::read(&mut stream, bytes_per_second, windows * window, || world.budget.count() > 0)
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn reader_must_take_8_kib_a_second() {
    assert!(is_cut_off(6 << 10, 10) && !is_cut_off(32 << 10, 3), "one large part");
    assert!(is_cut_off_in_parts(1, 4 << 10, 10) && !is_cut_off_in_parts(8 << 10, 16 << 10, 4), "many parts");
}

/// Waits of several responses add up, but not the pauses between them.
#[test]
fn pauses_between_requests_are_not_slow() {
    let timeouts = Timeouts { slow_reader: Duration::from_millis(300), ..TIMEOUTS };
    let world = World::with(Setup { timeouts, has_small_buffers: true, ..Setup::default() });
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; 64 << 10])));
    let mut client = world.connect();
    for _ in 0..10 {
        client.ask(GET);
        pass(Duration::from_millis(150));
    }
}

#[test]
fn client_with_a_closed_window_is_cut_off() {
    let world = with(Timeouts { slow_reader: SHORT, ..TIMEOUTS });
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; LARGE])));
    // A window of one byte makes hyper give the response to h2.
    for window in [0, 1] {
        let _client = connect(world.address, &[preface(window), get(1, "/a")].concat());
        world.python.request();
        wait_until(|| world.budget.count() == 0);
        wait_until(|| world.unread_answers.held_bytes() == 0);
    }
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn window_that_grows_by_more_than_8_kib_a_second_is_enough() {
    let window = Duration::from_secs(1);
    for (bytes_per_second, is_enough) in [(32 << 10, true), (4 << 10, false)] {
        let world = with(Timeouts { slow_reader: window, ..TIMEOUTS });
        world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; LARGE])));
        let mut client = connect(world.address, &[preface(0), get(1, "/a")].concat());
        world.python.request();
        let is_open = update_window(&mut client, bytes_per_second, 4 * window, || world.budget.count() > 0);
        assert_eq!(is_open, is_enough, "{bytes_per_second}");
    }
}

#[test]
fn client_that_sends_but_does_not_read_is_disconnected() {
    let world = with(Timeouts { slow_reader: SHORT, ..TIMEOUTS });
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; 1 << 20])));
    let mut client = world.connect();
    client.send(&GET.repeat(40));
    world.python.request();
    wait_until(|| world.budget.count() == 0);
    assert!(client.rest().len() < 40 << 20);
}

#[test]
fn unread_data_of_a_disconnected_client_is_discarded() {
    let world = World::new();
    let (mut client, mut request) = world.ask_python(&world.python, GET);
    client.send(&GET.repeat(2_000));
    drop(client);
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", "")));
    request.answer_ok("");
    wait_until(|| world.budget.count() == 0);
}
