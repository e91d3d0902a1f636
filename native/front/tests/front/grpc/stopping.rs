//! The stop of the front.

use std::thread;
use std::time::Duration;

use crate::grpc::answering::connected;
use crate::grpc::client::{Client, bearer};
use crate::grpc::world::{CONNECTED, MESSAGE, OK, World};
use crate::world::{LIMIT, wait_until};

#[test]
fn running_calls_are_answered_before_the_stop() {
    let (world, mut client) = World::connected();
    let (call, received) = world.start(&mut client, &[]);
    thread::scope(|scope| {
        let stopping = scope.spawn(|| world.front.stop(LIMIT));
        received.answer(MESSAGE, OK);
        assert_eq!(client.finish(call).status(), "0");
        client.wait_closed();
        stopping.join().unwrap();
    });
}

#[test]
fn calls_after_the_grace_are_refused() {
    let (world, mut client) = World::connected();
    let (call, _received) = world.start(&mut client, &[]);
    thread::scope(|scope| {
        scope.spawn(|| world.front.stop(Duration::ZERO));
        assert_eq!(client.finish(call).code(), "SHUTTING_DOWN");
    });
}

#[test]
fn answers_that_are_not_durable_are_refused_after_the_grace() {
    let world = World::stepped();
    let mut client = Client::connect(world.address);
    let usual = ("authorization", &*bearer(&world.lobby.lobby_token));
    let calls = [vec![usual], vec![usual, ("grpc-timeout", "1H")]]
        .map(|metadata| client.start(CONNECTED, &metadata, &connected(&world.new_player())));
    wait_until(|| world.players() == [0, 2]);
    world.front.stop(Duration::ZERO);
    for call in calls {
        assert_eq!(client.finish(call).code(), "SHUTTING_DOWN");
    }
    assert_eq!(world.counts(), [("connected".into(), "SHUTTING_DOWN".into(), 2)]);
}
