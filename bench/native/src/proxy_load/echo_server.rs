//! Echo server behind a proxy, for WebSocket messages and datagrams.
//!
//! `serve --ready FILE` chooses a free port and writes it to the file.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use super::datagram_batch::{BATCH, DatagramBatch};
use super::epoll::Epoll;
use super::udp_load::enlarge_socket_buffers;
use crate::flags::Flags;
use crate::measurement::Measurement;
use crate::{Failure, failure};

const LISTENER: usize = usize::MAX;
const DATAGRAMS: usize = usize::MAX - 1;
const UPGRADE_RESPONSE: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    raise_descriptor_limit();
    let (listener, socket) = bind_common_port()?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER)?;
    epoll.add(&socket, DATAGRAMS)?;
    std::fs::write(flags.text("ready")?, listener.local_addr()?.to_string())?;
    let mut connections: HashMap<usize, EchoConnection> = HashMap::new();
    let mut batch = DatagramBatch::new();
    loop {
        for number in epoll.wait(None)? {
            match number {
                LISTENER => {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    stream.set_nonblocking(true)?;
                    let number = stream.as_raw_fd() as usize;
                    epoll.add(&stream, number)?;
                    connections.insert(number, EchoConnection { stream, received: Vec::new(), is_upgraded: false });
                }
                DATAGRAMS => send_back(&mut batch, &socket),
                number => {
                    if connections.get_mut(&number).is_some_and(|connection| connection.echo().is_err()) {
                        connections.remove(&number);
                    }
                }
            }
        }
    }
}

fn bind_common_port() -> Result<(TcpListener, UdpSocket), Failure> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        if let Ok(socket) = UdpSocket::bind(listener.local_addr()?) {
            socket.set_nonblocking(true)?;
            enlarge_socket_buffers(&socket);
            // SAFETY: the descriptor is open. A second listen only enlarges the queue.
            unsafe { libc::listen(listener.as_raw_fd(), 4_096) };
            return Ok((listener, socket));
        }
    }
    Err(failure("no port is free for both"))
}

pub fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local value that outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

struct EchoConnection {
    stream: TcpStream,
    received: Vec<u8>,
    is_upgraded: bool,
}

impl EchoConnection {
    fn echo(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; 16_384];
        match self.stream.read(&mut buffer) {
            Ok(0) => return Err(failure("it has left")),
            Ok(count) => self.received.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !self.is_upgraded {
            if !self.received.ends_with(b"\r\n\r\n") {
                return Ok(());
            }
            (self.is_upgraded, self.received) = (true, Vec::new());
            return Ok(self.stream.write_all(UPGRADE_RESPONSE)?);
        }
        let mut frames = Vec::new();
        let mut at = 0;
        while let Some(&[kind, length]) = self.received.get(at..at + 2) {
            let (text_start, text_end) = (at + 6, at + 6 + usize::from(length & 0x7f));
            let Some(text) = self.received.get(text_start..text_end) else { break };
            let mask = &self.received[at + 2..text_start];
            frames.extend([kind, length & 0x7f]);
            frames.extend(text.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
            at = text_end;
        }
        self.received.drain(..at);
        Ok(self.stream.write_all(&frames)?)
    }
}

fn send_back(batch: &mut DatagramBatch, socket: &UdpSocket) {
    loop {
        let count = batch.receive(socket.as_raw_fd());
        batch.send_back(socket.as_raw_fd(), count);
        if count < BATCH {
            return;
        }
    }
}
