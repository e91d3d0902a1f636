//! Limits of connections, calls, bytes and times.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hosting_front::{ByPlane, Timeouts};
use http_body::Frame;
use tokio::sync::mpsc::UnboundedSender;

use crate::grpc::client::{Client, OpenCall, bearer, framed, trailers};
use crate::grpc::world::{
    CONTROL_METHOD, DATA_METHOD, MESSAGE, MESSAGE_BYTES_MAX, METADATA_BYTES_MAX, OK, STREAM_METHOD,
    TOKEN_STREAM_METHOD, World,
};
use crate::namespace::development_token;
use crate::socket_process::SocketProcess;
use crate::world::{LIMIT, SHORT, Setup, TIMEOUTS, wait_until};

/// The front does not know this method, which may be a stream.
const UNKNOWN_METHOD: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// Open streams of one client address without a token that the front can verify.
const STREAMS: usize = 64;

fn short_receive() -> (World, Client) {
    World::connected_with(Setup { timeouts: Timeouts { receive: SHORT, ..TIMEOUTS }, ..Setup::default() })
}

#[test]
fn long_metadata_is_refused() {
    let (world, mut client) = World::connected();
    let answer = client.call(DATA_METHOD, &[("key", &"x".repeat(METADATA_BYTES_MAX))], MESSAGE);
    assert_eq!(answer.code(), "HEADERS_TOO_LARGE");
    assert_eq!(world.counts(), [("live".into(), "HEADERS_TOO_LARGE".into(), 1)]);
    let answer = client.call("/unknown/Method", &[("key", &"x".repeat(METADATA_BYTES_MAX))], MESSAGE);
    assert_eq!(answer.code(), "HEADERS_TOO_LARGE");
}

#[test]
fn long_message_is_refused_before_it_has_come() {
    let (_world, mut client) = World::connected();
    let call = client.open(DATA_METHOD, &[]);
    let length = (MESSAGE_BYTES_MAX + 1) as u32;
    call.send(&[&[0][..], &length.to_be_bytes()].concat());
    let sentence = format!("Send at most {MESSAGE_BYTES_MAX} bytes, not {length}.");
    assert_eq!(client.finish(call).text("grpc-message"), sentence);
}

#[test]
fn longest_message_is_passed() {
    let (world, mut client) = World::connected();
    let message = framed(&vec![7; MESSAGE_BYTES_MAX]);
    let call = client.start(DATA_METHOD, &[], &message);
    let received = world.data.next_call();
    assert!(received.data() == message);
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(call).status(), "0");
}

#[test]
fn message_must_come_in_time() {
    let (_world, mut client) = short_receive();
    let call = client.open(DATA_METHOD, &[]);
    call.send(&MESSAGE[..6]);
    assert_eq!(client.finish(call).code(), "REQUEST_TIMEOUT");
}

#[test]
fn message_that_comes_in_drops_must_end_in_time() {
    let (_world, mut client) =
        World::connected_with(Setup { timeouts: Timeouts { receive: 4 * SHORT, ..TIMEOUTS }, ..Setup::default() });
    let mut call = client.open(DATA_METHOD, &[]);
    call.send(&[0, 0, 1, 0, 0]);
    while !client.has_begun(&mut call) {
        call.send(b"x");
        // Many small unread frames end a connection.
        assert_eq!(client.call(CONTROL_METHOD, &[], MESSAGE).code(), "TOKEN_MISSING");
    }
    assert_eq!(client.finish(call).code(), "REQUEST_TIMEOUT");
}

#[test]
fn call_without_a_message_is_refused() {
    let (_world, mut client) = World::connected();
    for sent in [&b""[..], &MESSAGE[..3], &MESSAGE[..6]] {
        let mut call = client.open(DATA_METHOD, &[]);
        call.send(sent);
        call.messages = None;
        assert_eq!(client.finish(call).code(), "NO_MESSAGE");
    }
}

#[test]
fn pause_of_a_client_ends_its_messages() {
    let (world, mut client) = short_receive();
    let call = client.open("/unknown/Method", &[]);
    call.send(MESSAGE);
    let received = world.data.next_call();
    assert_eq!(received.data(), MESSAGE);
    received.answer_trailers_only(&[("grpc-status", "12")]);
    assert_eq!(client.finish(call).status(), "12");
}

#[test]
fn token_is_checked_before_the_message() {
    let (world, mut client) = World::connected();
    for (metadata, code) in [
        (&[][..], "TOKEN_MISSING"),
        (&[("authorization", "Basic x")], "TOKEN_NOT_BEARER"),
        (&[("authorization", "Bearer x")], "TOKEN_INVALID"),
    ] {
        let call = client.open(CONTROL_METHOD, metadata);
        assert_eq!(client.finish(call).code(), code);
    }
    assert!(!world.control().has_call());
}

#[test]
fn other_requests_are_not_grpc() {
    let (world, mut client) = World::connected();
    let mut call = client.start(DATA_METHOD, &[("content-type", "text/plain")], MESSAGE);
    assert!(!client.begin(&mut call).contains_key("grpc-status"));
    let mut http1 = TcpStream::connect(world.address).unwrap();
    http1.set_read_timeout(Some(LIMIT)).unwrap();
    http1.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut received = Vec::new();
    let _ = http1.read_to_end(&mut received);
    assert!(!received.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn connections_of_one_address_are_limited_unless_they_are_silent() {
    let world = World::with(Setup { budget: 4, ..Setup::default() });
    let open = || {
        let stream = TcpStream::connect(world.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let served = || {
        let mut client = Client::connect(world.address);
        world.serve(&mut client, DATA_METHOD, &[]);
        client
    };
    let _spoken = served();
    let mut silent = open();
    wait_until(|| world.budget.count() == 2);
    let _new = served();
    assert_eq!(silent.read(&mut [0; 8]).unwrap(), 0);
    assert!(matches!(open().read(&mut [0; 8]), Ok(0) | Err(_)));
}

#[test]
fn connection_without_a_handshake_is_closed() {
    let (world, _client) = short_receive();
    for sent in [&b""[..], b"PRI * HTTP/2.0\r\n\r\n"] {
        let mut silent = TcpStream::connect(world.address).unwrap();
        silent.set_read_timeout(Some(LIMIT)).unwrap();
        silent.write_all(sent).unwrap();
        // The front may send its settings first.
        let mut received = Vec::new();
        let _ = silent.read_to_end(&mut received);
        assert!(received.len() < 1_000);
    }
}

#[test]
fn connection_with_a_call_is_not_idle() {
    let (_world, mut client) = World::connected_with(Setup { grpc_idle: SHORT, ..Setup::default() });
    let call = client.start(DATA_METHOD, &[("grpc-timeout", "300m")], MESSAGE);
    assert_eq!(client.finish(call).code(), "DEADLINE_EXCEEDED");
    client.wait_closed();
}

#[test]
fn calls_of_one_token_to_the_control_plane_are_limited() {
    // One call of a token runs at a time.
    let (world, mut client) =
        World::connected_with(Setup { requests_max: ByPlane { data: 4, control: 4 }, ..Setup::default() });
    let token = [("authorization", "Bearer cloud_x")];
    let held = client.start(CONTROL_METHOD, &token, MESSAGE);
    let received = world.control().next_call();
    let refused = client.start(CONTROL_METHOD, &token, MESSAGE);
    world.serve(&mut client, CONTROL_METHOD, &[("authorization", "Bearer cloud_y")]);
    assert_eq!(client.finish(refused).code(), "OVERLOADED_TOKEN");
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(held).status(), "0");
    world.serve(&mut client, CONTROL_METHOD, &token);
}

/// Python may have a cancelled call in a queue. So a client does not send the next one at once.
#[test]
fn cancelled_calls_keep_their_permits_for_a_second() {
    // One call of a token runs at a time.
    let world = World::with(Setup { requests_max: ByPlane { data: 4, control: 4 }, ..Setup::default() });
    let (token, other) = ("Bearer cloud_x", "Bearer cloud_y");
    for is_late in [false, true] {
        let mut client = Client::connect(world.address);
        let deadline = Instant::now() + Duration::from_millis(1_500);
        let timeout = ("grpc-timeout", if is_late { "1500m" } else { "1M" });
        let call = client.start(CONTROL_METHOD, &[("authorization", token), timeout], MESSAGE);
        let received = world.control().next_call();
        let cancelled_at = if is_late { deadline } else { Instant::now() };
        if is_late {
            assert_eq!(client.finish(call).code(), "DEADLINE_EXCEEDED");
        } else {
            client.cancel(call);
        }
        received.wait_cancelled();
        let next = client.start(CONTROL_METHOD, &[("authorization", token)], MESSAGE);
        let of_other = client.start(CONTROL_METHOD, &[("authorization", other)], MESSAGE);
        let received = world.control().next_call();
        assert_eq!(received.text("authorization"), Some(other));
        received.answer(MESSAGE, OK);
        assert_eq!(client.finish(of_other).status(), "0");
        let received = world.control().next_call();
        assert!(cancelled_at.elapsed() >= Duration::from_secs(1));
        received.answer(MESSAGE, OK);
        assert_eq!(client.finish(next).status(), "0");
    }
}

/// Returns a client that sends many small calls without a delay.
fn connect_without_delay(world: &World) -> Client {
    Client::over(async {
        let stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    })
}

fn open_stream(world: &World, client: &mut Client, path: &str) -> (OpenCall, UnboundedSender<Frame<Bytes>>) {
    let mut call = client.start(path, &[], MESSAGE);
    let frames = world.data.next_call().begin();
    client.begin(&mut call);
    (call, frames)
}

#[test]
fn open_streams_are_limited() {
    let world = World::new();
    let mut client = connect_without_delay(&world);
    let mut open: Vec<_> = (0..STREAMS).map(|_| open_stream(&world, &mut client, UNKNOWN_METHOD)).collect();
    assert_eq!(client.call(UNKNOWN_METHOD, &[], MESSAGE).code(), "OVERLOADED");
    world.serve(&mut client, DATA_METHOD, &[]);
    // Streams of event channels have permits of their own.
    let _channels: Vec<_> = (0..4 * STREAMS).map(|_| open_stream(&world, &mut client, STREAM_METHOD)).collect();
    assert_eq!(client.call(STREAM_METHOD, &[], MESSAGE).code(), "OVERLOADED");
    let (ended, frames) = open.pop().unwrap();
    frames.send(Frame::trailers(trailers(OK))).unwrap();
    client.finish(ended);
    world.serve(&mut client, UNKNOWN_METHOD, &[]);
}

fn ending_streams() -> (World, Client) {
    World::connected_with(Setup { timeouts: Timeouts { unverified_stream: SHORT, ..TIMEOUTS }, ..Setup::default() })
}

/// Without an end, two addresses could hold all permits of streams with invented tokens.
#[test]
fn unverified_streams_end_in_time() {
    let (world, mut client) = ending_streams();
    let mut open = client.start(TOKEN_STREAM_METHOD, &[("authorization", &bearer("cloud_new"))], MESSAGE);
    let _frames = world.data.next_call().begin();
    client.begin(&mut open);
    assert_eq!((client.finish(open).status(), world.counts().len()), ("14", 1));
    let silent = client.start(UNKNOWN_METHOD, &[], MESSAGE);
    let received = world.data.next_call();
    assert_eq!(client.finish(silent).status(), "14");
    received.wait_cancelled();
    // A client can invent the secret of a channel.
    let (channel, _frames) = open_stream(&world, &mut client, STREAM_METHOD);
    assert_eq!(client.finish(channel).status(), "14");
    // The body of this response is never asked for its next frame.
    let mut closed = Client::connect_without_window(world.address);
    let (_unread, frames) = open_stream(&world, &mut closed, UNKNOWN_METHOD);
    wait_until(|| frames.is_closed());
}

#[test]
fn verified_streams_have_no_end() {
    let (world, mut client) = ending_streams();
    let developer = bearer(&development_token());
    let mut verified = client.start(UNKNOWN_METHOD, &[("authorization", &developer)], MESSAGE);
    let frames = world.data.next_call().begin();
    client.begin(&mut verified);
    // A stream that begins later, and has an end, has ended.
    let (other, _frames) = open_stream(&world, &mut client, UNKNOWN_METHOD);
    client.finish(other);
    frames.send(Frame::trailers(trailers(OK))).unwrap();
    assert_eq!(client.finish(verified).status(), "0");
}

/// A client without a token could hold all permits of calls with streams that send nothing.
#[test]
fn silent_stream_gives_its_permit_back_after_a_second() {
    // One call without a token runs at a time.
    let (world, mut client) =
        World::connected_with(Setup { requests_max: ByPlane { data: 4, control: 512 }, ..Setup::default() });
    let silent = client.start(STREAM_METHOD, &[], MESSAGE);
    let received = world.data.next_call();
    world.serve(&mut client, DATA_METHOD, &[]);
    received.answer(MESSAGE, OK);
    assert_eq!(client.finish(silent).status(), "0");
}

#[test]
fn stopped_process_ends_its_streams_and_frees_their_permits() {
    let world = World::new();
    let (process, other) =
        (SocketProcess::start(&world.data.listener), SocketProcess::start(&world.control().listener));
    let mut client = connect_without_delay(&world);
    let mut open: Vec<_> = (0..STREAMS).map(|_| open_stream(&world, &mut client, UNKNOWN_METHOD)).collect();
    let (quiet, frames) = open.pop().unwrap();
    // The process of another plane changes nothing.
    other.stop();
    assert_eq!(
        client.call(CONTROL_METHOD, &[("authorization", "Bearer cloud_x")], MESSAGE).code(),
        "CONTROL_PLANE_UNAVAILABLE"
    );
    frames.send(Frame::trailers(trailers(OK))).unwrap();
    assert_eq!(client.finish(quiet).status(), "0");
    process.stop();
    for (call, _frames) in open {
        assert_eq!(client.finish(call).code(), "OVERLOADED");
    }
    process.go_on();
    let _open: Vec<_> = (0..STREAMS).map(|_| open_stream(&world, &mut client, UNKNOWN_METHOD)).collect();
}

#[test]
fn calls_that_wait_for_their_messages_are_limited_and_others_go_on() {
    let (world, mut client) = World::connected_with(Setup { bodies_bytes_max: 1_000_000, ..Setup::default() });
    let waiting: Vec<_> = (0..100).map(|_| client.open(DATA_METHOD, &[])).collect();
    let last = client.open(DATA_METHOD, &[]);
    assert_eq!(client.finish(last).code(), "OVERLOADED_BODIES");
    world.serve(&mut client, DATA_METHOD, &[]);
    waiting.into_iter().for_each(|call| client.cancel(call));
}
