//! Timeouts, and the budget of connections.

use std::io::Write as _;
use std::time::Duration;

use hosting_front::Timeouts;

use crate::client::Client;
use crate::namespace::SERVICE_TOKEN;
use crate::paced_reader;
use crate::proxy_headers::proxy_header;
use crate::world::{NEVER, SHORT, Setup, TIMEOUTS, World, wait_until};

fn with_timeouts(receive: Duration, keep_alive: Duration) -> World {
    World::with(Setup { timeouts: Timeouts { receive, keep_alive, ..TIMEOUTS }, ..Setup::default() })
}

/// Starts a front with responses to a join of about so many bytes.
fn with_long_answers(answer_bytes: usize, setup: Setup) -> World {
    World::with(Setup { region_name: "x".repeat(answer_bytes), ..setup })
}

fn confirm_new_player(world: &World, client: &mut Client) {
    assert_eq!(client.ask(world.request_of_new_player()).code, "OK");
}

#[test]
fn connection_without_a_request_and_idle_connection_are_closed() {
    for (receive, keep_alive, has_request) in [(SHORT, NEVER, false), (NEVER, SHORT, true)] {
        let world = with_timeouts(receive, keep_alive);
        let mut client = world.connect();
        if has_request {
            confirm_new_player(&world, &mut client);
        }
        assert_eq!(client.rest(), b"");
        wait_until(|| world.budget.count() == 0);
    }
}

#[test]
fn answered_connection_has_the_longer_timeout() {
    let world = with_timeouts(SHORT, NEVER);
    let mut client = world.connect();
    confirm_new_player(&world, &mut client);
    // The timeout of this later connection is also past the first timeout of the client.
    assert_eq!(world.connect().rest(), b"");
    confirm_new_player(&world, &mut client);
}

#[test]
fn client_that_ends_within_a_request_leaves_the_budget() {
    let (world, mut client) = World::connected();
    client.send(&world.request_of_new_player()[..50]);
    client.end_sending();
    assert_eq!(client.rest(), b"");
    wait_until(|| world.budget.count() == 0);
    world.python.check_no_request();
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    const ANSWER_BYTES: usize = 4 << 20;
    const COUNT: usize = 8;
    let timeouts = Timeouts { slow_reader: SHORT, ..TIMEOUTS };
    let world = with_long_answers(ANSWER_BYTES, Setup { timeouts, ..Setup::default() });
    let mut client = world.connect();
    client.send(&world.join(SERVICE_TOKEN).repeat(COUNT));
    // The front counts answers before it writes them.
    wait_until(|| world.take_answered_count() > 0);
    wait_until(|| world.budget.count() == 0);
    assert!(client.rest().len() < COUNT * ANSWER_BYTES);
    world.python.check_no_request();
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn client_must_read_8_kib_of_answers_a_second() {
    for (bytes_per_second, windows, is_cut_off) in [(6 << 10, 10, true), (32 << 10, 3, false)] {
        let window = Duration::from_secs(1);
        let timeouts = Timeouts { slow_reader: window, ..TIMEOUTS };
        let world = with_long_answers(4 << 20, Setup { timeouts, ..Setup::default() });
        let mut stream = paced_reader::connect(world.address);
        stream.write_all(&world.join(SERVICE_TOKEN)).unwrap();
        wait_until(|| world.take_answered_count() > 0);
        let is_open = || world.budget.count() > 0;
        let still_open = paced_reader::read(&mut stream, bytes_per_second, windows * window, is_open);
        assert_eq!(!still_open, is_cut_off, "{bytes_per_second} bytes a second");
    }
}

/// Unread answers of one client address have a budget. A client above it is cut off at once.
#[test]
fn unread_answers_count_for_their_client() {
    // More than the buffers of two sockets.
    const ANSWER_BYTES: usize = 32 << 20;
    let answers_bytes_max = ANSWER_BYTES;
    let world = with_long_answers(ANSWER_BYTES, Setup { answers_bytes_max, ..Setup::default() });
    let mut first = world.connect();
    first.send(&world.join(SERVICE_TOKEN));
    wait_until(|| world.unread_answers.held_bytes() > answers_bytes_max / 2);
    let mut second = world.connect();
    second.send(&world.join(SERVICE_TOKEN));
    wait_until(|| world.budget.count() == 1);
    assert!(second.rest().len() < ANSWER_BYTES);
    assert!(first.read_answer().body.len() > ANSWER_BYTES);
    wait_until(|| world.unread_answers.held_bytes() == 0);
}

#[test]
fn new_connection_replaces_the_oldest_silent_one() {
    let world = World::with(Setup { budget: 6, ..Setup::default() });
    let mut spoken = world.connect();
    confirm_new_player(&world, &mut spoken);
    let oldest = world.connect();
    wait_until(|| world.budget.count() == 2);
    let mut younger = world.connect();
    wait_until(|| world.budget.count() == 3);
    let mut new = world.connect();
    confirm_new_player(&world, &mut new);
    assert_eq!(oldest.rest(), b"");
    for client in [&mut spoken, &mut younger, &mut new] {
        confirm_new_player(&world, client);
    }
    assert_eq!(world.connect().rest(), b"", "all others have sent requests");
}

#[test]
fn silent_connections_are_replaced_over_all_clients() {
    let proxies = vec!["127.0.0.1/32".parse().unwrap()];
    let world = World::with(Setup { budget: 2, proxies, has_proxy_headers: true, ..Setup::default() });
    let without_header = world.connect();
    wait_until(|| world.budget.count() == 1);
    let mut without_request = world.connect();
    without_request.send(&proxy_header([192, 0, 2, 1]));
    wait_until(|| world.budget.count() == 2);
    let mut client = world.connect();
    client.send(&proxy_header([198, 51, 100, 1]));
    confirm_new_player(&world, &mut client);
    assert_eq!(without_header.rest(), b"");
    let mut client = world.connect();
    client.send(&proxy_header([203, 0, 113, 1]));
    confirm_new_player(&world, &mut client);
    assert_eq!(without_request.rest(), b"");
}
