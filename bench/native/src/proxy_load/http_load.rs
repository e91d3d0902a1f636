//! HTTP load in a closed loop on keep-alive connections. Each response must be a 200 with the repeated alphabet.
//!
//! `http --address HOST:PORT --host NAME --connections N --bytes N --seconds S`

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use super::MeasurementWindow;
use super::epoll::Epoll;
use crate::flags::Flags;
use crate::latency::{Sample, latency_statistics};
use crate::measurement::Measurement;
use crate::{Failure, failure};

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    request_started: Instant,
}

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", flags.text("host")?);
    let expected: Vec<u8> = (b'a'..=b'z').cycle().take(flags.get("bytes", 1_024)?).collect();
    let mut epoll = Epoll::new()?;
    let mut connections = Vec::new();
    for number in 0..flags.get("connections", 256)? {
        let stream = TcpStream::connect(flags.text("address")?)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        epoll.add(&stream, number)?;
        connections.push(Connection { stream, received: Vec::new(), request_started: Instant::now() });
    }
    let window = MeasurementWindow::start(flags)?;
    let mut samples = Vec::new();
    for connection in &mut connections {
        connection.send_request(&request)?;
    }
    let mut buffer = vec![0; 65_536];
    while !window.is_over() {
        for number in epoll.wait(None)? {
            let connection = &mut connections[number];
            match connection.stream.read(&mut buffer)? {
                0 => return Err(failure("a connection was closed")),
                count => connection.received.extend_from_slice(&buffer[..count]),
            }
            if connection.has_response(&expected)? {
                samples.push(window.sample(connection.request_started));
                connection.send_request(&request)?;
            }
        }
    }
    Ok(figures(&window, samples))
}

fn figures(window: &MeasurementWindow, samples: Vec<Sample>) -> Measurement {
    let in_window = window.in_window(samples);
    window
        .cpu_share()
        .number("answers_per_s", in_window.len() as f64 / window.in_window_s())
        .count("answers", in_window.len() as u64)
        .and(latency_statistics(in_window.into_iter()))
}

impl Connection {
    fn send_request(&mut self, request: &str) -> Result<(), Failure> {
        self.request_started = Instant::now();
        self.stream.write_all(request.as_bytes())?;
        Ok(())
    }

    /// Reports whether the response is complete, and fails if it is wrong.
    fn has_response(&mut self, expected: &[u8]) -> Result<bool, Failure> {
        let Some(end) = self.received.windows(4).position(|window| window == b"\r\n\r\n") else { return Ok(false) };
        let head = String::from_utf8_lossy(&self.received[..end]);
        if !head.starts_with("HTTP/1.1 200 ") {
            return Err(failure(format!("an answer begins with {head}")));
        }
        if self.received.len() < end + 4 + expected.len() {
            return Ok(false);
        }
        if &self.received[end + 4..] != expected {
            return Err(failure("a body is not the expected one"));
        }
        self.received.clear();
        Ok(true)
    }
}
