//! Sends HTTP/2 frames to the gRPC server of a front, and checks the frames that come back.
//!
//! Each call has at most one response. A message of Python is the echo of what the client has sent on this stream. Valid
//! calls all end, and every connection ends with the client's.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;

use crate::fuzz::client_frames::{self, ClientFrames, Tokens};
use crate::fuzz::server_frames::{ServerFrames, Stream};
use crate::grpc::client::{framed, trailers};
use crate::grpc::python::{Python, ReceivedCall};
use crate::grpc::world::World;
use crate::world::{LIMIT, Setup};

/// Time without a frame after which an invalid call counts as not answered.
const QUIET: Duration = Duration::from_millis(10);
const ECHO: &[u8] = b"echo";

pub struct Checker {
    world: Arc<World>,
    tokens: Tokens,
}

impl Checker {
    pub fn new() -> Checker {
        let world = Arc::new(World::with(Setup { failures: u32::MAX, ..Setup::default() }));
        let pythons: [fn(&World) -> &Python; 2] = [|world| &world.data, |world| world.control()];
        for python in pythons {
            let world = Arc::downgrade(&world);
            thread::spawn(move || {
                while let Some(world) = world.upgrade() {
                    answer_next_call(python(&world));
                }
            });
        }
        let tokens = Tokens { lobby: world.lobby.lobby_token.clone(), player: world.new_player() };
        Checker { world, tokens }
    }

    pub fn check(&self, input: &[u8]) {
        let sent = client_frames::read(input, &self.tokens);
        let mut connection = TcpStream::connect(self.world.address).unwrap();
        connection.set_nodelay(true).unwrap();
        // The front may close the connection before it has read all.
        let _ = connection.write_all(&sent.bytes);
        let frames = exchange(&mut connection, &sent);
        for (number, stream) in &frames.streams {
            let data = sent.data.get(number).map_or(&[][..], Vec::as_slice);
            check_response(stream, data);
            assert!(sent.has_raw || number % 2 == 1 || stream.is_reset, "the front has begun stream {number}");
        }
        drop(connection);
        let started = Instant::now();
        let is_used = || self.world.budget.count() > 0 || self.world.bodies.held_bytes() > 0;
        while is_used() {
            assert!(started.elapsed() < LIMIT, "a connection or its bodies are not given back");
            thread::yield_now();
        }
        self.world.front.take_measurements();
        self.world.front.take_grpc_measurements();
    }
}

fn answer_next_call(python: &Python) {
    let Some(call) = python.next_call_within(LIMIT) else { return };
    thread::spawn(move || answer(call));
}

fn answer(mut call: ReceivedCall) {
    let message = framed(&[ECHO, &call.data()].concat());
    let frames = call.begin();
    let _ = frames.send(Frame::data(Bytes::from(message)));
    let _ = frames.send(Frame::trailers(trailers(&[("grpc-status", "0")])));
}

/// Reads until all calls have ended, and then until the end of the connection.
fn exchange(connection: &mut TcpStream, sent: &ClientFrames) -> ServerFrames {
    let mut frames = ServerFrames::default();
    connection.set_read_timeout(Some(if sent.is_valid { LIMIT } else { QUIET })).unwrap();
    let is_done = |frames: &ServerFrames| frames.is_pinged && sent.ended.iter().all(|stream| frames.has_ended(*stream));
    let mut is_open = true;
    while is_open && !is_done(&frames) {
        match read(connection, &mut frames) {
            Some(more) => is_open = more,
            None => {
                assert!(!sent.is_valid, "a call has no end");
                break;
            }
        }
    }
    // Metadata with an invalid name ends the connection.
    assert!(!sent.is_valid || is_done(&frames) || frames.is_going_away, "the connection ends before the calls");
    let _ = connection.shutdown(Shutdown::Write);
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    while is_open {
        is_open = read(connection, &mut frames).expect("the connection ends");
    }
    frames
}

/// Returns whether the connection goes on, or None after its timeout.
fn read(connection: &mut TcpStream, frames: &mut ServerFrames) -> Option<bool> {
    let mut buffer = [0; 4096];
    match connection.read(&mut buffer) {
        Ok(0) => Some(false),
        Ok(count) => {
            frames.take(&buffer[..count]);
            Some(true)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        // By the timer of the fuzzer.
        Err(error) if error.kind() == ErrorKind::Interrupted => Some(true),
        Err(_) => Some(false),
    }
}

/// `sent` is the data of the client on this stream.
fn check_response(stream: &Stream, sent: &[u8]) {
    let is_whole = stream.has_ended && !stream.is_reset;
    let Some((prefix, message)) = stream.data.split_at_checked(5) else {
        return assert!(stream.data.is_empty() || !is_whole);
    };
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    assert_eq!(prefix[0], 0);
    assert!(if is_whole { message.len() == length } else { message.len() <= length });
    if let Some(echo) = message.strip_prefix(ECHO) {
        assert!(sent.starts_with(echo), "{} instead of {}", echo.escape_ascii(), sent.escape_ascii());
    }
}
