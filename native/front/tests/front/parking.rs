//! Long polls that Python parks at the front.

use std::time::{Duration, Instant};

use hosting_front::{ByPlane, Changes, Plane, Timeouts};

use crate::client::Client;
use crate::python::{Python, Reply, Request};
use crate::world::{Setup, TIMEOUTS, World, wait_until};

pub const WATCH: &[u8] = b"GET /events/live?after=a.10 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer env_a\r\n\
    Origin: https://b.example\r\nCookie: large\r\nContent-Length: 2\r\n\r\n{}";
const CHANGED: &str = "x-hosting-repeat";

pub fn changes(run: &str, sequence: u64, topics: &[&str], is_complete: bool) -> Changes {
    let topics = topics.iter().map(|topic| ((*topic).to_owned(), sequence)).collect();
    Changes { run: run.into(), sequence, topics, is_complete }
}

/// Parks each request once, and then answers why it was repeated.
pub fn park(python: &Python, park: &'static str) {
    python.reply(move |request| {
        Reply::Answer(match request.header(CHANGED) {
            None => request.response("200 OK", &format!("x-hosting-park: {park}\r\n"), ""),
            Some(held) => request.response("200 OK", "", held),
        })
    });
}

/// Returns a front that knows the changes of the run `a` up to number 10.
pub fn world(timeouts: Timeouts) -> World {
    world_with(Setup { timeouts, ..Setup::default() })
}

fn world_with(setup: Setup) -> World {
    let world = World::with(setup);
    for plane in [Plane::Data, Plane::Control] {
        world.front.take_changes(plane, changes("a", 10, &[], false));
    }
    world.settle(&mut world.connect());
    park(&world.python, "a.10 one,two");
    world
}

/// Returns a client with a parked request.
pub fn parked(world: &World) -> (Client, Request) {
    park_request(world, WATCH)
}

/// Like [`parked`], but no other request has the same response.
fn parked_alone(world: &World, number: usize) -> (Client, Request) {
    let watch = String::from_utf8_lossy(WATCH).replace("after=", &format!("number={number}&after="));
    park_request(world, watch.as_bytes())
}

pub fn park_request(world: &World, request: &[u8]) -> (Client, Request) {
    let (mut client, before) = (world.connect(), world.parked());
    client.send(request);
    let request = world.python.request();
    wait_until(|| world.parked() == before + 1);
    (client, request)
}

#[test]
fn change_wakes_the_request_which_is_repeated_without_its_body() {
    let world = world(TIMEOUTS);
    let (mut client, first) = parked(&world);
    assert_eq!((&*first.body, first.header(CHANGED)), (&b"{}"[..], None));
    world.front.take_changes(Plane::Control, changes("a", 11, &["two"], true));
    world.settle(&mut world.connect());
    assert!(!client.has_answer(), "a change of the other plane");
    world.front.take_changes(Plane::Data, changes("a", 11, &["two"], true));
    let answer = client.read_answer();
    assert_eq!((answer.status, &*answer.body, answer.header("x-hosting-park")), (200, "changed", None));
    let again = world.python.request();
    assert_eq!((&*again.method, &*again.target, &*again.body), ("GET", &*first.target, &b""[..]));
    let mut names: Vec<_> = again.headers.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    let kept = ["authorization", "host", "origin", "x-hosting-client", "x-hosting-ray", CHANGED];
    assert_eq!(names, kept);
    assert_eq!([first.ray_id(), again.ray_id()], [&*answer.ray_id; 2]);
    assert_eq!(client.ask(WATCH).body, "changed", "the change is already known");
}

#[test]
fn tokens_take_turns_with_their_repeats() {
    // One repeat may run at a time.
    let world = world_with(Setup { requests_max: ByPlane { data: 4, control: 4 }, ..Setup::default() });
    let _first: Vec<_> = (0..3).map(|number| parked_alone(&world, number)).collect();
    let other = String::from_utf8_lossy(WATCH).replace("env_a", "env_b");
    let _other = park_request(&world, other.as_bytes());
    world.python.reply_by_test();
    world.front.take_changes(Plane::Data, changes("a", 11, &["two"], true));
    let tokens: Vec<_> = (0..4)
        .map(|_| {
            let mut request = world.python.request();
            world.settle(&mut world.connect());
            world.python.check_no_request();
            request.answer_ok("");
            request.header("authorization").unwrap().to_owned()
        })
        .collect();
    let position = tokens.iter().position(|token| token == "Bearer env_b").unwrap();
    assert!(position <= 2, "{tokens:?}");
}

#[test]
fn cancelled_repeat_keeps_its_permit_for_a_second() {
    // One repeat may run at a time.
    let world = world_with(Setup { requests_max: ByPlane { data: 4, control: 4 }, ..Setup::default() });
    let mut clients: Vec<_> = (0..2).map(|number| Some(parked_alone(&world, number).0)).collect();
    world.python.reply_by_test();
    world.front.take_changes(Plane::Data, changes("a", 11, &["two"], true));
    let first = world.python.request();
    let number = usize::from(first.target.contains("number=1"));
    let cancelled_at = Instant::now();
    clients[number] = None;
    let mut second = world.python.request();
    assert!(cancelled_at.elapsed() >= Duration::from_secs(1));
    second.answer_ok("");
    assert_eq!(clients[1 - number].as_mut().unwrap().read_answer().status, 200);
}

#[test]
fn answers_to_repeats_stay_within_the_budget() {
    const BYTES: usize = 10 << 20;
    let world = world_with(Setup { answers_bytes_max: 8 << 20, ..Setup::default() });
    let mut clients: Vec<_> = (0..8).map(|number| parked_alone(&world, number).0).collect();
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; BYTES])));
    world.front.take_changes(Plane::Data, changes("a", 11, &["two"], true));
    wait_until(|| clients.iter().filter(|client| client.has_answer()).count() == 8);
    // Refusals count until they are written too.
    assert!(world.unread_answers.held_bytes() < 2 * BYTES);
    let statuses = clients.iter_mut().map(|client| client.read_answer().status);
    assert_eq!(statuses.filter(|status| *status == 200).count(), 1);
}

#[test]
fn wait_ends_with_the_current_state() {
    let world = world(Timeouts { parked: Duration::from_millis(50), ..TIMEOUTS });
    let mut client = world.connect();
    assert_eq!(client.ask(WATCH).body, "expired");
    assert_eq!(
        client.ask("GET /events/live HTTP/1.1\r\nHost: a\r\n\r\n").body,
        "expired",
        "the connection stays usable"
    );
    assert_eq!(world.parked(), 0);
}

#[test]
fn stop_without_time_refuses_waiting_requests() {
    let world = world(TIMEOUTS);
    let (mut client, _) = parked(&world);
    world.python.reply_by_test();
    world.front.stop(Duration::ZERO);
    assert_eq!(client.read_answer().problem(), (503, "shutting_down", true));
}

#[test]
fn disconnected_client_waits_no_more() {
    let world = world(TIMEOUTS);
    let (client, _) = parked(&world);
    drop(client);
    wait_until(|| world.parked() == 0);
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    world.settle(&mut world.connect());
    world.python.check_no_request();
    assert_eq!(world.counts().iter().filter(|row| row.1 == "CANCELLED").count(), 1);
}

#[test]
fn each_of_many_woken_requests_has_its_own_answer() {
    let world = world(TIMEOUTS);
    let mut clients: Vec<_> = (0..45).map(|number| parked_alone(&world, number)).collect();
    let mut count = 0;
    world.python.reply(move |request| {
        count += 1;
        Reply::Answer(if count % 20 == 0 {
            request.response("401 Unauthorized", "x-hosting-code: TOKEN_REVOKED\r\n", request.ray_id())
        } else {
            request.response("200 OK", "", request.ray_id().repeat(2_000))
        })
    });
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    let mut refused = 0;
    for (client, request) in &mut clients {
        let answer = client.read_answer();
        assert_eq!((&*answer.ray_id, &answer.body[..32]), (request.ray_id(), request.ray_id()));
        refused += usize::from(answer.status == 401);
    }
    assert_eq!(refused, 2);
}

#[test]
fn equal_requests_that_wake_together_share_one_response() {
    let world = world(TIMEOUTS);
    let mut clients: Vec<_> = (0..45).map(|_| parked(&world)).collect();
    let mut count = 0;
    world.python.reply(move |request| {
        count += 1;
        let (number, ray_id) = (count, request.ray_id());
        Reply::Answer(request.response(
            "401 Unauthorized",
            "x-hosting-code: TOKEN_REVOKED\r\n",
            format!("{number} {ray_id}"),
        ))
    });
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    let mut numbers: Vec<String> = Vec::new();
    for (client, _) in &mut clients {
        let answer = client.read_answer();
        let (number, ray_id) = answer.body.split_once(' ').unwrap();
        assert_eq!(ray_id, answer.ray_id, "the ray id is that of the client's own request");
        numbers.push(number.to_owned());
    }
    numbers.dedup();
    assert_eq!(numbers, ["1"]);
}

#[test]
fn slow_repetition_of_one_request_delays_no_other() {
    let world = world(TIMEOUTS);
    let (mut slow, slow_request) = parked_alone(&world, 1);
    let (mut other, _) = parked_alone(&world, 2);
    let slow_ray = slow_request.ray_id().to_owned();
    world.python.reply(move |request| {
        if request.ray_id() == slow_ray { Reply::ByTest } else { Reply::Answer(request.response("200 OK", "", "fast")) }
    });
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    assert_eq!(other.read_answer().body, "fast");
    assert!(!slow.has_answer());
    let requests = [world.python.request(), world.python.request()];
    for mut request in requests {
        if request.ray_id() == slow_request.ray_id() {
            request.answer_ok("slow");
        }
    }
    assert_eq!(slow.read_answer().body, "slow");
}

#[test]
fn response_to_a_woken_request_that_stops_in_the_middle_is_late() {
    // The first response must arrive in this time.
    let world = world_with(Setup { answer_timeout: Duration::from_secs(2), ..Setup::default() });
    let (mut client, _) = parked(&world);
    world.python.reply(|_| Reply::Answer(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_vec()));
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    assert_eq!(client.read_answer().problem(), (504, "deadline_exceeded", false));
}

/// A process that has restarted names a run which the front does not know yet.
#[test]
fn request_of_a_new_run_is_repeated_once_and_then_waits() {
    let world = world(TIMEOUTS);
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "x-hosting-park: b.1 one\r\n", "")));
    let mut client = world.connect();
    client.send(WATCH);
    assert_eq!(world.python.request().header(CHANGED), None);
    assert_eq!(world.python.request().header(CHANGED), Some("changed"));
    wait_until(|| world.parked() == 1);
    park(&world.python, "b.1 one");
    world.front.take_changes(Plane::Data, changes("b", 2, &["one"], true));
    assert_eq!(client.read_answer().body, "changed");
}

#[test]
fn invalid_park_is_an_internal_error() {
    let world = world(TIMEOUTS);
    for invalid in ["a.1", "a.10 one,two\r\nx-hosting-share: key"] {
        park(&world.python, invalid);
        assert_eq!(world.connect().ask(WATCH).problem(), (500, "internal", false), "{invalid}");
    }
}

#[test]
fn parked_request_of_a_stopped_control_plane_is_unavailable() {
    let world = world(TIMEOUTS);
    park(&world.control, "a.10 one");
    let mut client = world.connect();
    client.send(b"GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(|| world.parked() == 1);
    world.control.end();
    world.front.take_changes(Plane::Control, changes("b", 1, &[], true));
    assert_eq!(client.read_answer().problem(), (503, "control_plane_unavailable", false));
    world.control.serve();
    park(&world.control, "c.1 one");
    world.front.take_changes(Plane::Control, changes("c", 2, &["one"], true));
    assert_eq!(client.ask("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\n\r\n").body, "changed");
}

#[test]
fn shared_answer_counts_once_until_all_clients_have_it() {
    const BYTES: usize = 24 << 20;
    let world = world(TIMEOUTS);
    let clients = [parked(&world).0, parked(&world).0];
    world.python.reply(|request| Reply::Answer(request.response("200 OK", "", vec![b'a'; BYTES])));
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    wait_until(|| world.unread_answers.held_bytes() > 0);
    for mut client in clients {
        assert_eq!(world.unread_answers.held_bytes(), BYTES);
        assert_eq!(client.read_answer().body.len(), BYTES);
    }
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn client_with_unread_answers_gets_no_repeat() {
    const BYTES: usize = 24 << 20;
    let world = world_with(Setup { proxies: vec!["127.0.0.0/8".parse().unwrap()], ..Setup::default() });
    world.python.reply(|request| {
        let (topic, body) = if request.target.ends_with("large") { ("one", BYTES) } else { ("two", 1) };
        Reply::Answer(match request.header(CHANGED) {
            None => request.response("200 OK", &format!("x-hosting-park: a.10 {topic}\r\n"), ""),
            Some(_) => request.response("200 OK", "", vec![b'a'; body]),
        })
    });
    let park = |path, client| {
        let request = format!("GET /events/live?{path} HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n");
        park_request(&world, request.as_bytes()).0
    };
    let [mut refused, _leader, unread] = ["own", "shared", "large"].map(|path| park(path, "192.0.2.1"));
    let mut served = park("shared", "192.0.2.2");
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    wait_until(|| world.unread_answers.held_bytes() > 0);
    world.front.take_changes(Plane::Data, changes("a", 12, &["two"], true));
    assert_eq!(refused.read_answer().problem(), (503, "overloaded_unread", false));
    assert_eq!(served.read_answer().body, "a");
    drop(unread);
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn parked_requests_of_one_address_are_limited_in_bytes() {
    let proxies = vec!["127.0.0.0/8".parse().unwrap()];
    let world = world_with(Setup { proxies, parked_bytes_max: 64 << 10, ..Setup::default() });
    let watch = |client, padding| {
        let token = "x".repeat(padding);
        format!("GET /events/live HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\nX-Forwarded-For: {client}\r\n\r\n")
    };
    for (padding, count) in [(1, 7), (12 << 10, 1)] {
        let request = watch("192.0.2.1", padding);
        let parked: Vec<_> = (0..count).map(|_| park_request(&world, request.as_bytes())).collect();
        let mut refused = world.connect();
        assert_eq!(refused.ask(&request).problem(), (503, "overloaded_bodies", false));
        world.python.request();
        park_request(&world, watch("192.0.2.2", 1).as_bytes());
        drop(parked);
        wait_until(|| world.parked_bytes.held_bytes() == 0);
        refused.send(request.as_bytes());
        world.python.request();
        wait_until(|| world.parked() == 1);
        drop(refused);
        wait_until(|| world.parked_bytes.held_bytes() == 0);
    }
}
