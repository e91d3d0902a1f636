//! Budgets of bodies, of unread answers, and of requests that are passed on at once.

use std::io::Write as _;
use std::thread;

use hosting_front::ByPlane;

use crate::client::Client;
use crate::proxies::edge_client;
use crate::python::Reply;
use crate::raw_http2::{END_HEADERS, END_STREAM, connect, get, headers, preface};
use crate::world::{FILE_BYTES_MAX, Setup, World, wait_until};

fn upload(bytes: usize) -> String {
    let head = "POST /cloud/files HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer env_a\r\n";
    format!("{head}Content-Length: {bytes}\r\n\r\n{}", "a".repeat(bytes))
}

/// Sends all but the last byte of a body.
fn unfinished(world: &World, mut client: Client, bytes: usize) -> Client {
    let (before, request) = (world.bodies.held_bytes(), upload(bytes));
    client.send(&request.as_bytes()[..request.len() - 1]);
    wait_until(|| world.bodies.held_bytes() == before + bytes - 1);
    client
}

#[test]
fn unfinished_bodies_stay_within_the_budget() {
    let world = World::with(Setup { bodies_bytes_max: 2 * FILE_BYTES_MAX, ..Setup::default() });
    let mut first = unfinished(&world, world.connect(), FILE_BYTES_MAX);
    let refused = |mut client: Client| {
        let answer = client.ask(upload(200_000));
        let (status, name, is_last) = answer.problem();
        assert!(is_last);
        (status, name.to_owned())
    };
    assert_eq!(refused(world.connect()), (503, "overloaded_bodies".to_owned()));
    let other = unfinished(&world, edge_client(&world, [192, 0, 2, 1]), FILE_BYTES_MAX);
    assert_eq!(refused(edge_client(&world, [192, 0, 2, 2])), (503, "overloaded".to_owned()));
    // Small bodies have room of their own.
    for client in [&mut edge_client(&world, [192, 0, 2, 1]), &mut world.connect()] {
        assert_eq!(client.ask(upload(60_000)).status, 200);
    }
    assert_eq!(first.ask("a").status, 200);
    drop(other);
    wait_until(|| world.bodies.held_bytes() == 0);
    assert_eq!(world.connect().ask(upload(FILE_BYTES_MAX)).status, 200);
}

#[test]
fn body_counts_until_its_answer() {
    let world = World::new();
    for bytes in [100_000, 60_000] {
        let (mut client, mut request) = world.ask_python(&world.python, upload(bytes).as_bytes());
        assert_eq!(world.bodies.held_bytes(), bytes);
        request.answer_ok("");
        assert_eq!(client.read_answer().status, 200);
        wait_until(|| world.bodies.held_bytes() == 0);
    }
}

#[test]
fn unread_answers_of_a_client_are_limited() {
    const BYTES: usize = 24 << 20;
    let world = World::with(Setup { answers_bytes_max: 8 << 20, ..Setup::default() });
    world.python.reply(|request| {
        Reply::Answer(request.response("200 OK", "", vec![b'a'; if request.target == "/large" { BYTES } else { 1 }]))
    });
    let mut slow = world.connect();
    slow.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(|| world.unread_answers.held_bytes() > 1 << 20);
    let other = b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut refused = world.connect();
    assert_eq!(refused.ask(other).problem(), (503, "overloaded_unread", false));
    // Hyper has the connection now. Lobby servers go on, because their responses have no content.
    assert_eq!(refused.ask(world.request_of_new_player()).body, "{}");
    assert_eq!(slow.read_answer().body.len(), BYTES);
    wait_until(|| world.unread_answers.held_bytes() == 0);
    assert_eq!(world.connect().ask(other).body, "a");
}

#[test]
fn concurrent_answers_of_a_client_are_limited() {
    let world = World::with(Setup { answers_bytes_max: 8 << 20, ..Setup::default() });
    let ask = |method| world.ask_python(&world.python, format!("{method} /a HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    let (mut slow, first) = ask("GET");
    let others = [ask("GET"), ask("POST")];
    let response = first.response("200 OK", "", vec![b'a'; 24 << 20]);
    let mut connection = first.connection;
    let writing = thread::spawn(move || connection.write_all(&response).unwrap());
    wait_until(|| world.unread_answers.held_bytes() > 1 << 20);
    let statuses = others.map(|(mut client, mut request)| {
        request.answer_ok("other");
        client.read_answer().status
    });
    assert_eq!(statuses, [503, 200], "a change has happened, so its response is sent");
    assert_eq!(slow.read_answer().body.len(), 24 << 20);
    writing.join().unwrap();
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn clients_that_do_not_read_short_answers_hold_no_connection_to_python() {
    const STREAMS: u32 = 20;
    let world = World::new();
    world.python.reply_by_test();
    let requests: Vec<u8> = (0..STREAMS).flat_map(|number| get(2 * number + 1, "/a")).collect();
    let _clients: Vec<_> = (0..2)
        .map(|_| {
            let client = connect(world.address, &[&*preface(0), &requests].concat());
            let mut asked: Vec<_> = (0..STREAMS).map(|_| world.python.request()).collect();
            let response = asked[0].response("200 OK", "", vec![b'a'; 16 << 10]);
            asked.iter_mut().for_each(|request| request.answer(&response));
            wait_until(|| world.unread_answers.held_bytes() >= STREAMS as usize * (16 << 10));
            client
        })
        .collect();
    assert_eq!(world.python.connections(), STREAMS as usize);
}

#[test]
fn refusals_count_until_they_are_written() {
    let world = World::with(Setup { answers_bytes_max: 8, ..Setup::default() });
    world.python.reply(|request| {
        let ray_id = request.ray_id();
        Reply::Answer(if request.target == "/refused" {
            request.response("400 Bad Request", "", ray_id)
        } else {
            request.response("200 OK", "", "")
        })
    });
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "GET")];
    let by_front = headers(END_HEADERS | END_STREAM, 1, "OPTIONS", "/unknown", &preflight);
    for refused in [by_front, get(1, "/refused")] {
        let unread = connect(world.address, &[preface(0), refused].concat());
        wait_until(|| world.unread_answers.held_bytes() > 0);
        world.settle(&mut world.connect());
        let other = b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n";
        assert_eq!(world.connect().ask(other).problem(), (503, "overloaded_unread", false));
        drop(unread);
        wait_until(|| world.unread_answers.held_bytes() == 0);
        assert_eq!(world.connect().ask(other).status, 200);
    }
}

#[test]
fn unread_long_answers_take_no_permit_of_other_requests() {
    const BYTES: usize = 10 << 20;
    // One long answer may wait for its client.
    let requests_max = ByPlane { data: 4, control: 4 };
    let world = World::with(Setup { requests_max, answers_bytes_max: 1 << 30, ..Setup::default() });
    world.python.reply(|request| {
        let bytes = if request.target == "/short" { 1 } else { BYTES };
        Reply::Answer(request.response("200 OK", "", vec![b'a'; bytes]))
    });
    let mut slow = world.connect();
    slow.send(b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(|| world.unread_answers.held_bytes() > 1 << 20);
    let mut refused = world.connect();
    assert_eq!(refused.ask("GET /long HTTP/1.1\r\nHost: a\r\n\r\n").status, 503);
    for _ in 0..8 {
        assert_eq!(world.connect().ask("GET /short HTTP/1.1\r\nHost: a\r\n\r\n").body, "a");
    }
    assert_eq!(world.connect().ask("POST /long HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").body.len(), BYTES);
    assert_eq!(slow.read_answer().body.len(), BYTES);
    assert_eq!(refused.ask("GET /long HTTP/1.1\r\nHost: a\r\n\r\n").body.len(), BYTES);
}

/// Sends requests to the control plane with one token.
fn wait_with(world: &World, token: &str, count: usize) -> Vec<Client> {
    let request = format!("GET /cloud/games/1 HTTP/1.1\r\nHost: a\r\nAuthorization: {token}\r\n\r\n");
    let mut clients: Vec<_> = (0..count).map(|_| world.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(request.as_bytes()));
    clients
}

#[test]
fn token_has_a_quarter_and_an_address_half_of_the_requests() {
    let world = World::with(Setup { requests_max: ByPlane { data: 4_096, control: 8 }, ..Setup::default() });
    world.control.reply_by_test();
    let mut served: Vec<_> = ["Bearer env_a", "bearer  env_a", "Bearer env_b", "Bearer env_b"]
        .into_iter()
        .flat_map(|token| wait_with(&world, token, 1))
        .collect();
    let requests: Vec<_> = (0..4).map(|_| world.control.request()).collect();
    let names = ["overloaded_token", "overloaded_address", "overloaded_address"];
    let waiting = ["Bearer env_a", "Bearer env_c", ""].map(|token| wait_with(&world, token, 1));
    for (mut clients, name) in waiting.into_iter().zip(names) {
        assert_eq!(clients[0].read_answer().problem(), (503, name, false));
    }
    world.control.check_no_request();
    assert_eq!(world.connect().ask("GET /a HTTP/1.1\r\nHost: a\r\n\r\n").body, "/a", "the data plane is not affected");
    requests.into_iter().for_each(|mut request| request.answer_ok("served"));
    assert!(served.iter_mut().all(|client| client.read_answer().body == "served"));
}
