//! The stop of the front.

use std::thread;
use std::time::Duration;

use crate::grpc::client::Client;
use crate::grpc::world::{DATA_METHOD, MESSAGE, OK, World};
use crate::world::LIMIT;

#[test]
fn running_calls_are_answered_before_the_stop() {
    let world = World::new();
    let mut client = Client::connect(world.address);
    let call = client.start(DATA_METHOD, &[], MESSAGE);
    let received = world.data.next_call();
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
    let world = World::new();
    let mut client = Client::connect(world.address);
    let call = client.start(DATA_METHOD, &[], MESSAGE);
    let _received = world.data.next_call();
    thread::scope(|scope| {
        scope.spawn(|| world.front.stop(Duration::ZERO));
        assert_eq!(client.finish(call).code(), "SHUTTING_DOWN");
    });
}
