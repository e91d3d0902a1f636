//! Floods of gRPC connections.
#![allow(clippy::unwrap_used)]

#[path = "../front/certificates.rs"]
#[allow(dead_code)]
mod certificates;
#[path = "../grpc/client.rs"]
#[allow(dead_code)]
mod client;
#[path = "../front/http2_floods.rs"]
#[allow(dead_code)]
mod http2_floods;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/paced_reader.rs"]
#[allow(dead_code)]
mod paced_reader;
#[path = "../front/problem_names.rs"]
mod problem_names;
#[path = "../grpc/python.rs"]
#[allow(dead_code)]
mod python;
#[path = "../front/raw_http2.rs"]
#[allow(dead_code)]
mod raw_http2;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
#[path = "../grpc/world.rs"]
#[allow(dead_code)]
mod world;

use std::io::Write as _;
use std::time::Duration;

use client::Client;
use http2_floods::Door;
use raw_http2::{call, connect, frame, preface};
use world::{CONTROL_METHOD, DATA_METHOD, Setup, World};

/// Resets of calls that Python has.
const RESETS: u32 = 150;
const TOKEN: &[(&str, &str)] = &[("authorization", "Bearer cloud_x")];

fn serve_other(world: &World) {
    let mut client = Client::connect(world.address);
    let call = client.start(CONTROL_METHOD, TOKEN, &[0; 5]);
    world.control().next_call().answer(&[0; 5], &[("grpc-status", "0")]);
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn floods_are_bounded() {
    let world = World::with(Setup { slow_reader: Duration::from_secs(1), ..Setup::default() });
    Door {
        address: world.address,
        method: "POST",
        path: DATA_METHOD,
        headers: &[("content-type", "application/grpc")],
        serve_other: &|| serve_other(&world),
    }
    .check();

    // Calls that Python has are cancelled.
    let mut client = connect(world.address, &preface(0));
    for stream in (0..RESETS).map(|number| 2 * number + 1) {
        client.write_all(&call(stream, DATA_METHOD, &[])).unwrap();
        let received = world.data.next_call();
        client.write_all(&frame(raw_http2::RESET, 0, stream, &[0, 0, 0, 8])).unwrap();
        received.wait_cancelled();
    }
    serve_other(&world);
}
