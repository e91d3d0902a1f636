//! Failed authentications count against the client address.

use hosting_front::ByPlane;
use http_body::Frame;

use crate::grpc::client::{Client, bearer, trailers};
use crate::grpc::world::{CONTROL_METHOD, MESSAGE, OK, TOKEN_STREAM_METHOD, World};
use crate::namespace::public_token;
use crate::world::Setup;

const FAILURES: u32 = 3;
const WRONG: &[(&str, &str)] =
    &[("grpc-status", "16"), ("grpc-status-details-bin", "AQ"), ("x-hosting-code", "TOKEN_INVALID")];

fn connected() -> (World, Client) {
    World::connected_with(Setup { failures: FAILURES, ..Setup::default() })
}

fn fail_often(world: &World, client: &mut Client) {
    for number in 0..FAILURES {
        let token = bearer(&format!("cloud_wrong{number}"));
        let call = client.start(CONTROL_METHOD, &[("authorization", &token)], MESSAGE);
        world.control().next_call().answer_trailers_only(WRONG);
        assert_eq!(client.finish(call).status(), "16");
    }
}

fn check_limited(client: &mut Client, path: &str, token: &str) {
    let answer = client.call(path, &[("authorization", &bearer(token))], MESSAGE);
    assert_eq!(answer.code(), "RATE_LIMITED_FAILURES");
}

#[test]
fn unknown_tokens_of_an_address_are_refused_after_many_failures() {
    let (world, mut client) = connected();
    let serve = |client: &mut Client, token: &str| {
        world.serve(client, CONTROL_METHOD, &[("authorization", &bearer(token))]);
    };
    serve(&mut client, "cloud_good");
    fail_often(&world, &mut client);
    check_limited(&mut client, CONTROL_METHOD, "cloud_new");
    check_limited(&mut client, CONTROL_METHOD, "pub_wrong");
    assert_eq!(world.front.take_grpc_measurements().limited_failures, 2);
    serve(&mut client, "cloud_good");
    serve(&mut client, &public_token());
}

#[test]
fn refused_call_does_not_wait_for_a_permit() {
    // One call of a token runs at a time.
    let requests_max = ByPlane { data: 4, control: 4 };
    let (world, mut client) = World::connected_with(Setup { failures: FAILURES, requests_max, ..Setup::default() });
    let slow = client.start(CONTROL_METHOD, &[("authorization", "Bearer cloud_slow")], MESSAGE);
    let received = world.control().next_call();
    fail_often(&world, &mut client);
    check_limited(&mut client, CONTROL_METHOD, "cloud_slow");
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(slow).status(), "0");
}

#[test]
fn wrong_tokens_of_streams_count() {
    let (world, mut client) = connected();
    for number in 0..FAILURES {
        let token = bearer(&format!("cloud_wrong{number}"));
        let call = client.start(TOKEN_STREAM_METHOD, &[("authorization", &token)], MESSAGE);
        world.data.next_call().answer_trailers_only(WRONG);
        assert_eq!(client.finish(call).status(), "16");
    }
    check_limited(&mut client, TOKEN_STREAM_METHOD, "cloud_new");
}

#[test]
fn begun_stream_does_not_prove_that_its_token_is_valid() {
    let (world, mut client) = connected();
    let token = bearer("cloud_unknown");
    let mut call = client.start(TOKEN_STREAM_METHOD, &[("authorization", &token)], MESSAGE);
    let frames = world.data.next_call().begin();
    client.begin(&mut call);
    frames.send(Frame::trailers(trailers(WRONG))).unwrap();
    assert_eq!(client.finish(call).status(), "16");
    fail_often(&world, &mut client);
    check_limited(&mut client, CONTROL_METHOD, "cloud_unknown");
}

#[test]
fn call_that_its_client_gives_up_counts() {
    let (world, mut client) = connected();
    for number in 0..FAILURES {
        let token = bearer(&format!("cloud_{number}"));
        let metadata = [("authorization", &*token), ("grpc-timeout", "500m")];
        let call = client.start(CONTROL_METHOD, &metadata, MESSAGE);
        let received = world.control().next_call();
        assert_eq!(client.finish(call).code(), "DEADLINE_EXCEEDED");
        received.wait_cancelled();
    }
    check_limited(&mut client, CONTROL_METHOD, "cloud_new");
}
