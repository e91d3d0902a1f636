//! Floods of HTTP/2 connections with requests.
#![allow(clippy::unwrap_used)]

#[path = "../front/client.rs"]
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

use std::io::Write as _;
use std::time::Duration;

use hosting_front::Timeouts;

use http2_floods::Door;
use python::Reply;
use raw_http2::{connect, frame, get, preface};
use world::{Setup, TIMEOUTS, World};

/// Resets of requests that Python has.
const RESETS: u32 = 150;

fn new_world() -> World {
    let timeouts = Timeouts { slow_reader: Duration::from_secs(1), ..TIMEOUTS };
    World::with(Setup { timeouts, ..Setup::default() })
}

fn serve_other(world: &World) {
    let mut other = world.connect();
    other.send(&world.refused_request());
    assert_eq!(other.answer(), "PLAYER_TOKEN_INVALID");
    assert_eq!(other.ask(b"GET /other HTTP/1.1\r\nhost: a\r\n\r\n").body, "/other");
}

#[test]
fn floods_are_bounded() {
    let world = new_world();
    Door { address: world.address, method: "POST", path: "/a", headers: &[], serve_other: &|| serve_other(&world) }
        .check();

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
        client.write_all(&frame(raw_http2::RESET, 0, stream, &[0, 0, 0, 8])).unwrap();
        world.python.wait_for_close();
    }
    serve_other(&world);
}
