//! WebSocket messages in an open loop, which the server sends back. Latency begins at the planned time of a message.
//!
//! `talk --address HOST:PORT --connections N --rate PER_S --seconds S`

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::epoll::{Epoll, RateSchedule};
use super::{MeasurementWindow, pattern};
use crate::flags::Flags;
use crate::latency::latency_statistics;
use crate::measurement::Measurement;
use crate::{Failure, failure};

const TEXT_BYTES: usize = 64;
const TICK_US: u64 = 100;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
const FRAME_HEADER: [u8; 6] = [0x82, 0x80 | TEXT_BYTES as u8, 0, 0, 0, 0];
const RESPONSE_HEADER: [u8; 2] = [0x82, TEXT_BYTES as u8];

struct WebSocketConnection {
    stream: TcpStream,
    received: Vec<u8>,
    pending: VecDeque<(u64, Instant)>,
}

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let rate: f64 = flags.get("rate", 10_000.0)?;
    let mut epoll = Epoll::new()?;
    let mut connections = Vec::new();
    for number in 0..flags.get("connections", 1_000)? {
        let stream = connect_websocket(flags.text("address")?)?;
        epoll.add(&stream, number)?;
        connections.push(WebSocketConnection { stream, received: Vec::new(), pending: VecDeque::new() });
    }
    let window = MeasurementWindow::start(flags)?;
    let mut schedule = RateSchedule::new(rate, TICK_US);
    let (mut samples, mut sent_count, mut received_count) = (Vec::new(), 0, 0);
    while !(window.is_over() && received_count == sent_count) {
        if window.started.elapsed() > window.length + RESPONSE_TIMEOUT {
            return Err(failure(format!("{sent_count} messages, {received_count} answers")));
        }
        if !window.is_over() {
            while let Some((since, due)) = schedule.due() {
                for message in due {
                    let connection = message as usize % connections.len();
                    connections[connection].send_message(message, since)?;
                    sent_count += 1;
                }
            }
        }
        for number in epoll.wait(Some(schedule.next().max(Instant::now())))? {
            for since in connections[number].receive_messages()? {
                samples.push(window.sample(since));
                received_count += 1;
            }
        }
        if window.is_over() {
            // The window is over, so that no further message is sent.
            while schedule.due().is_some() {}
        }
    }
    let in_window = window.in_window(samples);
    Ok(window
        .cpu_share()
        .number("planned_per_s", rate)
        .number("answers_per_s", in_window.len() as f64 / window.in_window_s())
        .count("answers", received_count)
        .and(latency_statistics(in_window.into_iter())))
}

fn connect_websocket(address: &str) -> Result<TcpStream, Failure> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let request = "GET /talk HTTP/1.1\r\nHost: bench.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if !head.starts_with(b"HTTP/1.1 101 ") {
        return Err(failure(format!("not upgraded: {}", String::from_utf8_lossy(&head))));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

impl WebSocketConnection {
    fn send_message(&mut self, message: u64, since: Instant) -> Result<(), Failure> {
        let mut frame = FRAME_HEADER.to_vec();
        frame.extend(pattern(TEXT_BYTES, message));
        self.stream.write_all(&frame)?;
        self.pending.push_back((message, since));
        Ok(())
    }

    fn receive_messages(&mut self) -> Result<Vec<Instant>, Failure> {
        let mut buffer = [0; 4_096];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(failure("a connection was closed")),
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let mut send_times = Vec::new();
        while self.received.len() >= RESPONSE_HEADER.len() + TEXT_BYTES {
            let (message, since) = self.pending.pop_front().ok_or_else(|| failure("an answer to nothing"))?;
            let response: Vec<u8> = self.received.drain(..RESPONSE_HEADER.len() + TEXT_BYTES).collect();
            if response[..2] != RESPONSE_HEADER || response[2..] != pattern(TEXT_BYTES, message) {
                return Err(failure("a response differs from its message"));
            }
            send_times.push(since);
        }
        Ok(send_times)
    }
}
