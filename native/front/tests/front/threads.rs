//! Several threads that serve the same sockets.

use hosting_front::Plane;

use crate::client::Client;
use crate::parking::{WATCH, changes, park};
use crate::world::{NEVER, Setup, World, wait_until};

/// So many connections that each thread has some.
const CLIENTS: usize = 48;
/// Requests without a token that one client address may have at the control plane at once.
const WITHOUT_TOKEN_AT_ONCE: usize = 128;

fn world() -> (World, Vec<Client>) {
    let world = World::with(Setup { threads: 4, budget: 1_000, ..Setup::default() });
    let clients = (0..CLIENTS).map(|_| world.connect()).collect();
    (world, clients)
}

#[test]
fn all_connections_are_answered_and_counted() {
    let (world, mut clients) = world();
    for client in &mut clients {
        client.send(&world.request_of_new_player());
    }
    for client in &mut clients {
        assert_eq!(client.answer(), "OK");
    }
    assert_eq!(world.counts(), [("connected".into(), "OK".into(), CLIENTS as u64)]);
    assert_eq!(world.players()[1], CLIENTS as u32);
}

#[test]
fn change_wakes_the_parked_requests_of_all_threads() {
    let (world, mut clients) = world();
    world.front.take_changes(Plane::Data, changes("a", 10, &["one"], false));
    park(&world.python, "a.10 one");
    clients.iter_mut().for_each(|client| client.send(WATCH));
    wait_until(|| world.parked() == CLIENTS);
    world.front.take_changes(Plane::Data, changes("a", 11, &["one"], true));
    for client in &mut clients {
        assert_eq!(client.read_answer().body, "changed");
    }
}

#[test]
fn passed_requests_of_all_threads_share_the_permits() {
    let (world, _) = world();
    world.control.reply_by_test();
    let request = b"POST /cloud/games/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}";
    let mut clients: Vec<Client> = (0..=WITHOUT_TOKEN_AT_ONCE).map(|_| world.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(request));
    let _held: Vec<_> = (0..WITHOUT_TOKEN_AT_ONCE).map(|_| world.control.request()).collect();
    wait_until(|| clients.iter().any(Client::has_answer));
    let mut answered = clients.iter_mut().filter(|client| client.has_answer());
    assert_eq!(answered.next().unwrap().read_answer().problem(), (503, "overloaded_no_own_token", false));
    assert!(answered.next().is_none(), "the others have a permit");
}

#[test]
fn stop_ends_all_threads() {
    let (world, mut clients) = world();
    clients.iter_mut().for_each(|client| {
        assert_eq!(client.ask(world.request_of_new_player()).code, "OK");
    });
    world.front.stop(NEVER);
    assert_eq!(world.budget.count(), 0);
    assert!(clients.into_iter().all(|client| client.rest().is_empty()));
}
