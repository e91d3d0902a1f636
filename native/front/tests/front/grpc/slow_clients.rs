//! Clients that read slowly.

use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use hosting_front::Timeouts;
use http_body::Frame;

use crate::grpc::client::{Client, framed, trailers};
use crate::grpc::python::{Python, ReceivedCall};
use crate::grpc::world::{CONTROL_METHOD, DATA_METHOD, OK, World};
use crate::raw_http2::{call, connect, ping, preface};
use crate::world::{NEVER, SHORT, Setup, TIMEOUTS, wait_until};

const EMPTY: [u8; 5] = [0; 5];
const LARGE: usize = 24 << 20;
const FRAME_BYTES: usize = 16 << 10;
/// Frames of a response that the front passes on in parts.
const LARGE_FRAMES: usize = 8;
const WINDOW: Duration = Duration::from_secs(1);

fn with(slow_reader: Duration) -> World {
    World::with(Setup {
        timeouts: Timeouts { slow_reader, ..TIMEOUTS },
        answers_bytes_max: 1_000_000_000,
        ..Setup::default()
    })
}

/// Answers the next call with this number of bytes.
fn answer(python: &Python, bytes: usize) {
    answer_call(python.next_call(), bytes);
}

fn answer_call(mut call: ReceivedCall, bytes: usize) {
    let frames = call.begin();
    let mut message = Bytes::from(framed(&vec![b'a'; bytes - EMPTY.len()]));
    while !message.is_empty() {
        // The front may end the call.
        let _ = frames.send(Frame::data(message.split_to(FRAME_BYTES)));
    }
    let _ = frames.send(Frame::trailers(trailers(OK)));
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    let world = with(SHORT);
    let _client = connect(world.address, &[preface(i32::MAX as u32), call(1, DATA_METHOD, &[])].concat());
    answer(&world.data, LARGE);
    wait_until(|| world.budget.count() == 0);
}

/// Calls of one token to the control plane that run at once.
const TOKEN_CALLS: u32 = 128;
const TOKEN: &[(&str, &str)] = &[("authorization", "Bearer cloud_x")];

/// Returns a client that takes none of the responses to the calls that one token may have at once.
fn unread_calls(world: &World, answer_bytes: usize) -> TcpStream {
    let calls = (0..TOKEN_CALLS).flat_map(|number| call(2 * number + 1, CONTROL_METHOD, TOKEN));
    let client = connect(world.address, &preface(0).into_iter().chain(calls).collect::<Vec<_>>());
    (0..TOKEN_CALLS).for_each(|_| answer(world.control(), answer_bytes));
    client
}

fn check_served(world: &World) {
    let mut client = Client::connect(world.address);
    let call = client.start(CONTROL_METHOD, TOKEN, &EMPTY);
    answer(world.control(), FRAME_BYTES);
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn client_with_a_closed_window_is_cut_off_and_its_permits_come_back() {
    // Long enough for all calls to arrive.
    let world = with(3 * WINDOW);
    let _client = unread_calls(&world, LARGE_FRAMES * FRAME_BYTES);
    wait_until(|| world.budget.count() == 0);
    check_served(&world);
}

#[test]
fn unread_answers_hold_no_permit() {
    for bytes in [2 * FRAME_BYTES, LARGE_FRAMES * FRAME_BYTES] {
        let world = with(NEVER);
        let _client = unread_calls(&world, bytes);
        check_served(&world);
    }
}

#[test]
fn unread_answers_are_limited_by_client() {
    for frames in [3, LARGE_FRAMES] {
        let (world, mut client) =
            World::connected_with(Setup { answers_bytes_max: frames * FRAME_BYTES, ..Setup::default() });
        let running = client.start(DATA_METHOD, &[], &EMPTY);
        let received = world.data.next_call();
        let unread = connect(world.address, &[preface(1), call(1, DATA_METHOD, &[])].concat());
        answer(&world.data, frames * FRAME_BYTES);
        wait_until(|| world.unread_answers.held_bytes() == frames * FRAME_BYTES);
        assert_eq!(client.call(DATA_METHOD, &[], &EMPTY).code(), "OVERLOADED_UNREAD");
        answer_call(received, LARGE_FRAMES * FRAME_BYTES);
        assert_eq!(client.finish(running).code(), "OVERLOADED_UNREAD");
        drop(unread);
        wait_until(|| world.unread_answers.held_bytes() == 0);
        let call = client.start(DATA_METHOD, &[], &EMPTY);
        answer(&world.data, FRAME_BYTES);
        assert_eq!(client.finish(call).status(), "0");
    }
}

#[test]
fn responses_to_pings_are_not_read_responses() {
    let world = with(WINDOW);
    let mut client = connect(world.address, &[preface(0), call(1, DATA_METHOD, &[])].concat());
    answer(&world.data, LARGE);
    assert!(!ping(&mut client, 2_000, 10 * WINDOW, || world.budget.count() > 0));
}
