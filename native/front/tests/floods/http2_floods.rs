//! Floods of small frames over HTTP/2. The process has no other tests, because they would use memory too.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::thread;

use crate::paced_reader;
use crate::raw_http2::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, PING, RESET, SETTINGS, fields, frame, headers, preface,
    window_update,
};

/// Each flood is sent in parts. Another client is served after each part.
const PARTS: u32 = 40;
const PART_FRAMES: u32 = 1_000;
/// Enough for the buffers of the kernel to become full.
const UNREAD_PART_FRAMES: u32 = 20_000;
const MEMORY_GROWTH_MAX: usize = 24 << 20;
/// Stands for a stream that has not been used.
const NEXT: u32 = i32::MAX as u32;

/// A port of the front.
pub struct Door<'a> {
    pub address: SocketAddr,
    pub method: &'a str,
    pub path: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    /// Sends a request of another client, and checks the response.
    pub serve_other: &'a dyn Fn(),
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    /// The front serves the connection on.
    None,
    /// The front ends the connection.
    Refused,
    /// The front ends the connection, because the client does not read.
    Unread,
}

/// Frames that are sent once, and frames that are sent again and again.
type Flood = (&'static str, End, Vec<u8>, Vec<Vec<u8>>);

impl Door<'_> {
    fn headers(&self, flags: u8, stream: u32, more: &[(&str, &str)]) -> Vec<u8> {
        headers(flags, stream, self.method, self.path, &[self.headers, more].concat())
    }

    fn floods(&self) -> Vec<Flood> {
        let (ping, settings) = (vec![frame(PING, 0, 0, &[0; 8])], vec![frame(SETTINGS, 0, 0, &[])]);
        let request = self.headers(END_HEADERS, 1, &[]);
        let part = self.headers(0, 1, &[]);
        let continuation = |fields: &[u8]| vec![frame(CONTINUATION, 0, 1, fields)];
        let whole = |more| self.headers(END_HEADERS | END_STREAM, NEXT, more);
        vec![
            ("PING", End::None, vec![], ping.clone()),
            ("unread PING", End::Unread, vec![], ping),
            ("SETTINGS", End::None, vec![], settings.clone()),
            ("unread SETTINGS", End::Unread, vec![], settings),
            ("CONTINUATION", End::Refused, part.clone(), continuation(&fields(&[("x", "a")]))),
            ("empty CONTINUATION", End::Refused, part, continuation(&[])),
            ("empty DATA", End::Refused, request.clone(), vec![frame(DATA, 0, 1, &[])]),
            ("WINDOW_UPDATE", End::None, request, vec![window_update(1, 1)]),
            ("RST_STREAM", End::Refused, vec![], vec![whole(&[]), frame(RESET, 0, NEXT, &CANCEL)]),
            ("malformed HEADERS", End::Refused, vec![], vec![whole(&[("connection", "close")])]),
        ]
    }

    /// Checks that no flood takes much memory or stops other clients, and how it ends.
    pub fn check(&self) {
        (self.serve_other)();
        for flood in self.floods() {
            self.check_flood(flood);
        }
    }

    fn check_flood(&self, (name, end, first, repeated): Flood) {
        let is_read = end != End::Unread;
        let (buffer_bytes, count) = if is_read { (64 << 10, PART_FRAMES) } else { (1, UNREAD_PART_FRAMES) };
        let before = resident_bytes();
        let mut client = paced_reader::connect_with_buffer(self.address, buffer_bytes);
        client.write_all(&[preface(0), first].concat()).unwrap();
        let mut received = client.try_clone().unwrap();
        let reading = thread::spawn(move || {
            let mut buffer = [0; 16 << 10];
            while is_read && received.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
        let mut is_ended = false;
        for part in 0..PARTS {
            let numbers = part * count..(part + 1) * count;
            let frames = numbers.flat_map(|number| repeated.iter().flat_map(move |frame| numbered(frame, number)));
            is_ended = client.write_all(&frames.collect::<Vec<_>>()).is_err();
            (self.serve_other)();
            let growth = resident_bytes().saturating_sub(before);
            assert!(growth < MEMORY_GROWTH_MAX, "{name} takes {growth} bytes");
            if is_ended {
                break;
            }
        }
        assert_eq!(is_ended, end != End::None, "{name}");
        // It fails if the front has closed the connection.
        let _ = client.shutdown(Shutdown::Both);
        reading.join().unwrap();
    }
}

/// Returns a frame, on a new stream if it is one of [`NEXT`].
fn numbered(frame: &[u8], number: u32) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame[5..9] == NEXT.to_be_bytes() {
        frame[5..9].copy_from_slice(&(2 * number + 1).to_be_bytes());
    }
    frame
}

fn resident_bytes() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
