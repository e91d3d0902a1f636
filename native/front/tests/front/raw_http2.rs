//! A client of HTTP/2 that sends frames one by one.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RESET: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Code of a reset by the client.
pub const CANCEL: [u8; 4] = [0, 0, 0, 8];

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LARGEST_WINDOW: u32 = i32::MAX as u32;
const INITIAL_WINDOW_SIZE: u8 = 4;

/// Returns a frame (RFC 9113, 4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns the begin of a connection. `window` is that of each stream. That of the connection is large.
pub fn preface(window: u32) -> Vec<u8> {
    let setting = [&[0, INITIAL_WINDOW_SIZE][..], &window.to_be_bytes()].concat();
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &setting), window_update(0, LARGEST_WINDOW - 65_535)].concat()
}

pub fn window_update(stream: u32, bytes: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &bytes.to_be_bytes())
}

/// Returns literal headers (RFC 7541, 6.2.2).
pub fn fields(headers: &[(&str, &str)]) -> Vec<u8> {
    let field = |(name, value): &(&str, &str)| {
        [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
    };
    headers.iter().flat_map(field).collect()
}

/// `flags` may end the headers and the request.
pub fn headers(flags: u8, stream: u32, method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let first = [(":method", method), (":scheme", "http"), (":path", path), (":authority", "localhost")];
    frame(HEADERS, flags, stream, &fields(&[&first[..], more].concat()))
}

/// Returns a request without a body.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    headers(END_HEADERS | END_STREAM, stream, "GET", path, &[])
}

/// Returns a gRPC call with an empty message.
pub fn call(stream: u32, path: &str, metadata: &[(&str, &str)]) -> Vec<u8> {
    let metadata = [&[("content-type", "application/grpc")], metadata].concat();
    [headers(END_HEADERS, stream, "POST", path, &metadata), frame(DATA, END_STREAM, stream, &[0; 5])].concat()
}

pub fn connect(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(bytes).unwrap();
    stream
}

/// Gives the window of the first stream some bytes a second. Returns whether the front has the connection after this time.
pub fn update_window(
    client: &mut TcpStream,
    bytes_per_second: usize,
    time: Duration,
    is_open: impl Fn() -> bool,
) -> bool {
    send_at_rate(client, bytes_per_second, time, is_open, |bytes| window_update(1, bytes as u32))
}

/// Sends some pings a second, like [`update_window`].
pub fn ping(client: &mut TcpStream, per_second: usize, time: Duration, is_open: impl Fn() -> bool) -> bool {
    send_at_rate(client, per_second, time, is_open, |count| frame(PING, 0, 0, &[0; 8]).repeat(count))
}

/// Sends frames, and reads all that comes.
fn send_at_rate(
    client: &mut TcpStream,
    per_second: usize,
    time: Duration,
    is_open: impl Fn() -> bool,
    frames: impl Fn(usize) -> Vec<u8>,
) -> bool {
    let (started, mut given, mut buffer) = (Instant::now(), 0, [0; 16 << 10]);
    client.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    while is_open() && started.elapsed() < time {
        let due = started.elapsed().as_millis() as usize * per_second / 1_000 - given;
        if due > 0 {
            // It fails once the front has closed the connection.
            let _ = client.write_all(&frames(due));
            given += due;
        }
        let _ = client.read(&mut buffer);
    }
    is_open()
}
