//! Echo server behind a proxy, for WebSocket messages and datagrams.
//!
//! `serve --ready FILE` chooses a free port and writes it to the file.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use super::batch::{BATCH, Batch};
use super::datagrams::make_room;
use super::poll::Poll;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::{Failure, wrong};

const LISTENER: usize = usize::MAX;
const DATAGRAMS: usize = usize::MAX - 1;
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    raise_descriptors();
    let (listener, socket) = one_port()?;
    let mut poll = Poll::new()?;
    poll.add(&listener, LISTENER)?;
    poll.add(&socket, DATAGRAMS)?;
    std::fs::write(flags.text("ready")?, listener.local_addr()?.to_string())?;
    let mut guests: HashMap<usize, Guest> = HashMap::new();
    let mut batch = Batch::new();
    loop {
        for number in poll.wait(None)? {
            match number {
                LISTENER => {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    let number = stream.as_raw_fd() as usize;
                    poll.add(&stream, number)?;
                    guests.insert(number, Guest { stream, came: Vec::new(), is_upgraded: false });
                }
                DATAGRAMS => give_back(&mut batch, &socket),
                number => {
                    if guests.get_mut(&number).is_some_and(|guest| guest.answer().is_err()) {
                        guests.remove(&number);
                    }
                }
            }
        }
    }
}

fn one_port() -> Result<(TcpListener, UdpSocket), Failure> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        if let Ok(socket) = UdpSocket::bind(listener.local_addr()?) {
            socket.set_nonblocking(true)?;
            make_room(&socket);
            // SAFETY: the descriptor is open. A second listen only enlarges the queue.
            unsafe { libc::listen(listener.as_raw_fd(), 4_096) };
            return Ok((listener, socket));
        }
    }
    Err(wrong("no port is free for both"))
}

pub fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local value that outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

struct Guest {
    stream: TcpStream,
    came: Vec<u8>,
    is_upgraded: bool,
}

impl Guest {
    fn answer(&mut self) -> Result<(), Failure> {
        let mut scratch = [0; 16_384];
        match self.stream.read(&mut scratch) {
            Ok(0) => return Err(wrong("it has left")),
            Ok(count) => self.came.extend_from_slice(&scratch[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !self.is_upgraded {
            if !self.came.ends_with(b"\r\n\r\n") {
                return Ok(());
            }
            (self.is_upgraded, self.came) = (true, Vec::new());
            return Ok(self.stream.write_all(SWITCHED)?);
        }
        let mut answers = Vec::new();
        let mut at = 0;
        while let Some(&[kind, length]) = self.came.get(at..at + 2) {
            let (begin, end) = (at + 6, at + 6 + usize::from(length & 0x7f));
            let Some(text) = self.came.get(begin..end) else { break };
            let mask = &self.came[at + 2..begin];
            answers.extend([kind, length & 0x7f]);
            answers.extend(text.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
            at = end;
        }
        self.came.drain(..at);
        Ok(self.stream.write_all(&answers)?)
    }
}

fn give_back(batch: &mut Batch, socket: &UdpSocket) {
    loop {
        let count = batch.receive(socket.as_raw_fd());
        batch.give_back(socket.as_raw_fd(), count);
        if count < BATCH {
            return;
        }
    }
}
