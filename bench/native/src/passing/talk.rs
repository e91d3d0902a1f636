//! WebSocket messages in an open loop, which the server sends back. Latency begins at the planned time of a message.
//!
//! `talk --address HOST:PORT --connections N --rate PER_S --seconds S`

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::poll::{Poll, Ticks};
use super::{Window, pattern};
use crate::figures::Figures;
use crate::flags::Flags;
use crate::latency::latency_figures;
use crate::{Failure, wrong};

const TEXT: usize = 64;
const TICK_US: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(5);
const FRAME: [u8; 6] = [0x82, 0x80 | TEXT as u8, 0, 0, 0, 0];
const ANSWER: [u8; 2] = [0x82, TEXT as u8];

struct Talker {
    stream: TcpStream,
    came: Vec<u8>,
    waiting: VecDeque<(u64, Instant)>,
}

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let rate: f64 = flags.get("rate", 10_000.0)?;
    let mut poll = Poll::new()?;
    let mut talkers = Vec::new();
    for number in 0..flags.get("connections", 1_000)? {
        let stream = upgraded(flags.text("address")?)?;
        poll.add(&stream, number)?;
        talkers.push(Talker { stream, came: Vec::new(), waiting: VecDeque::new() });
    }
    let window = Window::begin(flags)?;
    let mut ticks = Ticks::new(rate, TICK_US);
    let (mut samples, mut said, mut answered) = (Vec::new(), 0, 0);
    while !(window.is_over() && answered == said) {
        if window.began.elapsed() > window.length + PATIENCE {
            return Err(wrong(format!("{said} messages, {answered} answers")));
        }
        if !window.is_over() {
            while let Some((since, due)) = ticks.due() {
                for message in due {
                    let which = message as usize % talkers.len();
                    talkers[which].say(message, since)?;
                    said += 1;
                }
            }
        }
        for number in poll.wait(Some(ticks.next().max(Instant::now())))? {
            for since in talkers[number].hear()? {
                samples.push(window.sample(since));
                answered += 1;
            }
        }
        if window.is_over() {
            // The window is over, so that no further message is sent.
            while ticks.due().is_some() {}
        }
    }
    let counted = window.counted(samples);
    Ok(window
        .load()
        .number("asked_per_s", rate)
        .number("answers_per_s", counted.len() as f64 / window.counted_s())
        .count("answers", answered)
        .and(latency_figures(counted.into_iter())))
}

fn upgraded(address: &str) -> Result<TcpStream, Failure> {
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
        return Err(wrong(format!("not upgraded: {}", String::from_utf8_lossy(&head))));
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

impl Talker {
    fn say(&mut self, message: u64, since: Instant) -> Result<(), Failure> {
        let mut frame = FRAME.to_vec();
        frame.extend(pattern(TEXT, message));
        self.stream.write_all(&frame)?;
        self.waiting.push_back((message, since));
        Ok(())
    }

    fn hear(&mut self) -> Result<Vec<Instant>, Failure> {
        let mut scratch = [0; 4_096];
        match self.stream.read(&mut scratch) {
            Ok(0) => return Err(wrong("a connection was closed")),
            Ok(count) => self.came.extend_from_slice(&scratch[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        let mut heard = Vec::new();
        while self.came.len() >= ANSWER.len() + TEXT {
            let (message, since) = self.waiting.pop_front().ok_or_else(|| wrong("an answer to nothing"))?;
            let answer: Vec<u8> = self.came.drain(..ANSWER.len() + TEXT).collect();
            if answer[..2] != ANSWER || answer[2..] != pattern(TEXT, message) {
                return Err(wrong("a response differs from its message"));
            }
            heard.push(since);
        }
        Ok(heard)
    }
}
