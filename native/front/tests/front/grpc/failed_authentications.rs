//! Failed authentications count against the client address.

use http_body::Frame;

use crate::grpc::client::{Client, bearer, trailers};
use crate::grpc::world::{CONTROL_METHOD, TOKEN_STREAM_METHOD, World};
use crate::namespace::public_token;
use crate::world::Setup;

const FAILURES: u32 = 3;
/// Calls of one token that the front passes on at once.
const PERMITS: usize = 128;
const MESSAGE: &[u8] = &[0, 0, 0, 0, 2, 7, 8];
const WRONG: &[(&str, &str)] =
    &[("grpc-status", "16"), ("grpc-status-details-bin", "AQ"), ("x-hosting-code", "TOKEN_INVALID")];

fn world() -> World {
    World::with(Setup { failures: FAILURES, ..Setup::default() })
}

fn fail(world: &World, client: &mut Client, token: &str) {
    let call = client.start(CONTROL_METHOD, &[("authorization", &bearer(token))], MESSAGE);
    world.control().next_call().answer_trailers_only(WRONG);
    assert_eq!(client.finish(call).status(), "16");
}

fn succeed(world: &World, client: &mut Client, token: &str) {
    let call = client.start(CONTROL_METHOD, &[("authorization", &bearer(token))], MESSAGE);
    world.control().next_call().answer(MESSAGE, &[("grpc-status", "0")]);
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn tokens_of_an_address_are_refused_after_many_failures() {
    let world = world();
    let mut client = Client::connect(world.address);
    succeed(&world, &mut client, "cloud_good");
    for number in 0..FAILURES {
        fail(&world, &mut client, &format!("cloud_wrong{number}"));
    }
    let answer = client.call(CONTROL_METHOD, &[("authorization", &bearer("cloud_new"))], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
    assert_eq!(world.front.take_grpc_measurements().limited_failures, 1);
    succeed(&world, &mut client, "cloud_good");
}

#[test]
fn valid_token_of_players_is_not_limited() {
    let world = world();
    let mut client = Client::connect(world.address);
    for number in 0..FAILURES {
        fail(&world, &mut client, &format!("cloud_wrong{number}"));
    }
    succeed(&world, &mut client, &public_token());
    let answer = client.call(CONTROL_METHOD, &[("authorization", &bearer("pub_wrong"))], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
}

#[test]
fn refused_call_does_not_wait_for_a_permit() {
    let world = world();
    let mut client = Client::connect(world.address);
    let token = bearer("cloud_slow");
    let metadata = [("authorization", &*token)];
    let slow: Vec<_> = (0..PERMITS).map(|_| client.start(CONTROL_METHOD, &metadata, MESSAGE)).collect();
    let received: Vec<_> = (0..PERMITS).map(|_| world.control().next_call()).collect();
    for number in 0..FAILURES {
        fail(&world, &mut client, &format!("cloud_wrong{number}"));
    }
    assert_eq!(client.call(CONTROL_METHOD, &metadata, MESSAGE).code(), "RATE_LIMITED_FAILURES");
    received.into_iter().for_each(|call| call.answer(MESSAGE, &[("grpc-status", "0")]));
    for call in slow {
        assert_eq!(client.finish(call).status(), "0");
    }
}

#[test]
fn wrong_tokens_of_streams_count() {
    let world = world();
    let mut client = Client::connect(world.address);
    for number in 0..FAILURES {
        let token = bearer(&format!("cloud_wrong{number}"));
        let call = client.start(TOKEN_STREAM_METHOD, &[("authorization", &token)], MESSAGE);
        world.data.next_call().answer_trailers_only(WRONG);
        assert_eq!(client.finish(call).status(), "16");
    }
    let answer = client.call(TOKEN_STREAM_METHOD, &[("authorization", &bearer("cloud_new"))], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
}

#[test]
fn begun_stream_does_not_prove_that_its_token_is_valid() {
    let world = world();
    let mut client = Client::connect(world.address);
    let token = bearer("cloud_unknown");
    let mut call = client.start(TOKEN_STREAM_METHOD, &[("authorization", &token)], MESSAGE);
    let frames = world.data.next_call().begin();
    client.begin(&mut call);
    frames.send(Frame::trailers(trailers(WRONG))).unwrap();
    assert_eq!(client.finish(call).status(), "16");
    for number in 0..FAILURES {
        fail(&world, &mut client, &format!("cloud_wrong{number}"));
    }
    let answer = client.call(CONTROL_METHOD, &[("authorization", &token)], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
}

#[test]
fn call_that_its_client_gives_up_counts() {
    let world = world();
    let mut client = Client::connect(world.address);
    for number in 0..FAILURES {
        let token = bearer(&format!("cloud_{number}"));
        let metadata = [("authorization", &*token), ("grpc-timeout", "500m")];
        let call = client.start(CONTROL_METHOD, &metadata, MESSAGE);
        let received = world.control().next_call();
        assert_eq!(client.finish(call).code(), "DEADLINE_EXCEEDED");
        received.wait_cancelled();
    }
    let answer = client.call(CONTROL_METHOD, &[("authorization", &bearer("cloud_new"))], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
}
