//! Floods of HTTP/2 connections with requests and with gRPC calls.
//!
//! One test sends them all, because the memory of the whole process is measured.
#![allow(clippy::unwrap_used)]

#[path = "../front/client.rs"]
#[allow(dead_code)]
mod client;
mod http2_floods;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/paced_reader.rs"]
#[allow(dead_code)]
mod paced_reader;
#[path = "../front/problem_names.rs"]
mod problem_names;
#[path = "../front/python.rs"]
#[allow(dead_code)]
mod python;
#[path = "../front/raw_http2.rs"]
#[allow(dead_code)]
mod raw_http2;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../front/world.rs"]
#[allow(dead_code)]
mod world;

#[path = "../front/grpc"]
#[allow(dead_code)]
mod grpc {
    pub mod client;
    pub mod python;
    pub mod world;
}

use std::io::Write as _;
use std::time::Duration;

use hosting_front::Timeouts;

use grpc::world::{CONTROL_METHOD, DATA_METHOD};
use http2_floods::Door;
use python::Reply;
use raw_http2::{CANCEL, call, connect, frame, get, preface};
use world::{Setup, TIMEOUTS, World};

/// Resets of requests that Python has.
const RESETS: u32 = 150;
const TOKEN: &[(&str, &str)] = &[("authorization", "Bearer cloud_x")];

fn setup() -> Setup {
    Setup { timeouts: Timeouts { slow_reader: Duration::from_secs(1), ..TIMEOUTS }, ..Setup::default() }
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn floods_are_bounded() {
    check_requests(&World::with(setup()));
    check_calls(&grpc::world::World::with(setup()));
}

fn check_requests(world: &World) {
    let serve_other = || {
        let mut other = world.connect();
        other.send(&world.refused_request());
        assert_eq!(other.answer(), "PLAYER_TOKEN_INVALID");
        assert_eq!(other.ask(b"GET /other HTTP/1.1\r\nhost: a\r\n\r\n").body, "/other");
    };
    Door { address: world.address, method: "POST", path: "/a", headers: &[], serve_other: &serve_other }.check();

    // Requests that Python has are cancelled.
    world.python.reply(|request| match &*request.target {
        "/other" => Reply::Answer(request.response("200 OK", "", &request.target)),
        _ => Reply::ByTest,
    });
    while world.python.received().is_some() {}
    let mut client = connect(world.address, &preface(0));
    for stream in (0..RESETS).map(|number| 2 * number + 1) {
        client.write_all(&get(stream, "/reset")).unwrap();
        while world.python.request().target != "/reset" {}
        client.write_all(&frame(raw_http2::RESET, 0, stream, &CANCEL)).unwrap();
        world.python.wait_for_close();
    }
    serve_other();
}

fn check_calls(world: &grpc::world::World) {
    let serve_other = || {
        let mut client = grpc::client::Client::connect(world.address);
        let call = client.start(CONTROL_METHOD, TOKEN, &[0; 5]);
        world.control().next_call().answer(&[0; 5], &[("grpc-status", "0")]);
        assert_eq!(client.finish(call).status(), "0");
    };
    let headers = &[("content-type", "application/grpc")];
    Door { address: world.address, method: "POST", path: DATA_METHOD, headers, serve_other: &serve_other }.check();

    // Calls that Python has are cancelled.
    let mut client = connect(world.address, &preface(0));
    for stream in (0..RESETS).map(|number| 2 * number + 1) {
        client.write_all(&call(stream, DATA_METHOD, &[])).unwrap();
        let received = world.data.next_call();
        client.write_all(&frame(raw_http2::RESET, 0, stream, &CANCEL)).unwrap();
        received.wait_cancelled();
    }
    serve_other();
}
