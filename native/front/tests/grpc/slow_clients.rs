//! Clients that read slowly.

use std::io::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http_body::Frame;

use crate::paced_reader;
use crate::world::{DATA_METHOD, SHORT, Setup, World};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LARGE: usize = 24 << 20;
const FRAME_BYTES: usize = 16 << 10;

/// Returns a frame of HTTP/2 (RFC 9113, 4.1).
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Returns a literal header (RFC 7541, 6.2.2).
fn header(name: &str, value: &str) -> Vec<u8> {
    [&[0, name.len() as u8], name.as_bytes(), &[value.len() as u8], value.as_bytes()].concat()
}

/// Returns the bytes of a call. The client takes any number of bytes.
fn call() -> Vec<u8> {
    let headers = [
        header(":method", "POST"),
        header(":scheme", "http"),
        header(":path", DATA_METHOD),
        header(":authority", "localhost"),
        header("content-type", "application/grpc"),
    ];
    let (settings, window_update, end_headers, end_stream) = (4, 8, 4, 1);
    [
        PREFACE.to_vec(),
        // SETTINGS_INITIAL_WINDOW_SIZE
        frame(settings, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]),
        frame(window_update, 0, 0, &[0x7f, 0, 0, 0]),
        frame(1, end_headers, 1, &headers.concat()),
        frame(0, end_stream, 1, &[0; 5]),
    ]
    .concat()
}

/// Returns whether a client that reads a large response at this rate is cut off within some windows.
fn is_cut_off(bytes_per_second: usize, window: Duration, windows: u32) -> bool {
    let world = World::with(Setup { slow_reader: window, ..Setup::default() });
    let mut stream = paced_reader::connect(world.address);
    stream.write_all(&call()).unwrap();
    let frames = world.data.next_call().begin();
    for _ in 0..LARGE / FRAME_BYTES {
        frames.send(Frame::data(Bytes::from_static(&[b'a'; FRAME_BYTES]))).unwrap();
    }
    !paced_reader::read(&mut stream, bytes_per_second, windows * window, || world.budget.count() > 0)
}

#[test]
fn client_that_does_not_read_is_cut_off() {
    assert!(is_cut_off(0, SHORT, 100));
}

#[test]
fn reader_below_8_kib_a_second_is_cut_off() {
    assert!(is_cut_off(6 << 10, Duration::from_secs(1), 10));
}

#[test]
fn reader_above_8_kib_a_second_is_not_cut_off() {
    assert!(!is_cut_off(12 << 10, Duration::from_secs(1), 3));
}
