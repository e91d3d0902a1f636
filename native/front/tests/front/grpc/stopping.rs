//! The stop of the front.

use std::thread;
use std::time::Duration;

use crate::grpc::world::{MESSAGE, OK, World};
use crate::world::LIMIT;

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
