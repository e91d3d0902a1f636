//! Several threads that serve the same sockets.

use hosting_matchmaker::proto;

use crate::grpc::client::{Client, bearer, encoded};
use crate::grpc::world::{CONNECTED, DATA_METHOD, World};
use crate::world::{NEVER, Setup};

/// One thread opens at most so many connections to Python.
const CONNECTIONS_OF_THREAD: usize = 2;
const CLIENTS_MAX: usize = 400;

/// Answers a plain call, and one that is passed on.
fn call_both(world: &World, client: &mut Client) {
    let confirmed = encoded(&proto::PlayerConnectedRequest { player_token: world.new_player() });
    let token = bearer(&world.lobby.lobby_token);
    assert_eq!(client.call(CONNECTED, &[("authorization", &token)], &confirmed).status(), "0");
    world.serve(client, DATA_METHOD, &[]);
}

#[test]
fn two_threads_answer_and_stop() {
    let world = World::with(Setup { threads: 2, budget: 1_000, ..Setup::default() });
    let mut clients = Vec::new();
    while world.data.connections() <= CONNECTIONS_OF_THREAD {
        assert!(clients.len() < CLIENTS_MAX, "one thread got all connections");
        let mut client = Client::connect(world.address);
        // Calls of one thread take turns on its connections to Python.
        (0..CONNECTIONS_OF_THREAD).for_each(|_| call_both(&world, &mut client));
        clients.push(client);
    }
    let count = clients.len() as u64 * CONNECTIONS_OF_THREAD as u64;
    clients.iter_mut().for_each(|client| call_both(&world, client));
    let count = count + clients.len() as u64;
    assert_eq!(world.counts(), [("connected".into(), "OK".into(), count), ("live".into(), "OK".into(), count)]);
    world.front.stop(NEVER);
    clients.iter_mut().for_each(Client::wait_closed);
    assert_eq!(world.budget.count(), 0);
}
