//! HTTP load in a closed loop on keep-alive connections. Each response must be a 200 with the repeated alphabet.
//!
//! `http --address HOST:PORT --host NAME --connections N --bytes N --seconds S`

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::Window;
use super::poll::Poll;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::latency::{Sample, latency_figures};
use crate::{Failure, wrong};

struct Connection {
    stream: TcpStream,
    came: Vec<u8>,
    asked: Instant,
}

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", flags.text("host")?);
    let expected: Vec<u8> = (b'a'..=b'z').cycle().take(flags.get("bytes", 1_024)?).collect();
    let mut poll = Poll::new()?;
    let mut connections = Vec::new();
    for number in 0..flags.get("connections", 256)? {
        let stream = TcpStream::connect(flags.text("address")?)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        poll.add(&stream, number)?;
        connections.push(Connection { stream, came: Vec::new(), asked: Instant::now() });
    }
    let window = Window::begin(flags)?;
    let mut samples = Vec::new();
    for connection in &mut connections {
        connection.ask(&request)?;
    }
    let mut scratch = vec![0; 65_536];
    while !window.is_over() {
        for number in poll.wait(None)? {
            let connection = &mut connections[number];
            match connection.stream.read(&mut scratch)? {
                0 => return Err(wrong("a connection was closed")),
                count => connection.came.extend_from_slice(&scratch[..count]),
            }
            if connection.is_answered(&expected)? {
                samples.push(window.sample(connection.asked));
                connection.ask(&request)?;
            }
        }
    }
    Ok(figures(&window, samples))
}

fn figures(window: &Window, samples: Vec<Sample>) -> Figures {
    let counted = window.counted(samples);
    window
        .load()
        .number("answers_per_s", counted.len() as f64 / window.counted_s())
        .count("answers", counted.len() as u64)
        .and(latency_figures(counted.into_iter()))
}

impl Connection {
    fn ask(&mut self, request: &str) -> Result<(), Failure> {
        self.asked = Instant::now();
        self.stream.write_all(request.as_bytes())?;
        Ok(())
    }

    /// Reports whether the response is complete, and fails if it is wrong.
    fn is_answered(&mut self, expected: &[u8]) -> Result<bool, Failure> {
        let Some(end) = self.came.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(false) };
        let head = String::from_utf8_lossy(&self.came[..end]);
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err(wrong(format!("an answer begins with {head}")));
        }
        if self.came.len() < end + 4 + expected.len() {
            return Ok(false);
        }
        if &self.came[end + 4..] != expected {
            return Err(wrong("a body is not the expected one"));
        }
        self.came.clear();
        Ok(true)
    }
}
