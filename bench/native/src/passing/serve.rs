//! `serve --ready FILE`: the server behind a proxy. At one port of the system's choice, which it writes into the file,
//! it gives every message of a WebSocket and every datagram back. It goes on until it is ended.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;

use super::datagrams::make_room;
use super::poll::Poll;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::{Failure, wrong};

const LISTENER: usize = usize::MAX;
const DATAGRAMS: usize = usize::MAX - 1;
const SWITCHED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
const BATCH: usize = 64;
const DATAGRAM_MAX: usize = 2_048;

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
                DATAGRAMS => batch.give_back(&socket)?,
                number => {
                    if guests.get_mut(&number).is_some_and(|guest| guest.answer().is_err()) {
                        guests.remove(&number);
                    }
                }
            }
        }
    }
}

/// A TCP and a UDP socket of the same number.
fn one_port() -> Result<(TcpListener, UdpSocket), Failure> {
    for _ in 0..100 {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        if let Ok(socket) = UdpSocket::bind(listener.local_addr()?) {
            socket.set_nonblocking(true)?;
            make_room(&socket);
            // SAFETY: the descriptor is open; listening again only makes the queue longer.
            unsafe { libc::listen(listener.as_raw_fd(), 4_096) };
            return Ok((listener, socket));
        }
    }
    Err(wrong("no port is free for both"))
}

pub fn raise_descriptors() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours and lives through the calls.
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

/// Room for many datagrams at once.
struct Batch {
    bytes: Box<[[u8; DATAGRAM_MAX]]>,
    senders: Box<[libc::sockaddr_in]>,
}

impl Batch {
    fn new() -> Self {
        // SAFETY: an address of zeros is an address.
        let nobody: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        Self { bytes: vec![[0; DATAGRAM_MAX]; BATCH].into(), senders: vec![nobody; BATCH].into() }
    }

    fn give_back(&mut self, socket: &UdpSocket) -> Result<(), Failure> {
        loop {
            let mut places: Vec<libc::iovec> = self
                .bytes
                .iter_mut()
                .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: DATAGRAM_MAX })
                .collect();
            let mut messages: Vec<libc::mmsghdr> = Vec::with_capacity(BATCH);
            for (place, sender) in places.iter_mut().zip(self.senders.iter_mut()) {
                // SAFETY: a header of zeros names nothing; what it has to name follows.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_name = std::ptr::from_mut(sender).cast();
                message.msg_hdr.msg_namelen = size_of::<libc::sockaddr_in>() as libc::socklen_t;
                message.msg_hdr.msg_iov = place;
                message.msg_hdr.msg_iovlen = 1;
                messages.push(message);
            }
            // SAFETY: every header names a buffer and an address of `self`, which live through both calls.
            unsafe {
                let came = libc::recvmmsg(
                    socket.as_raw_fd(),
                    messages.as_mut_ptr(),
                    BATCH as u32,
                    libc::MSG_DONTWAIT,
                    std::ptr::null_mut(),
                );
                let Ok(count @ 1..) = usize::try_from(came) else { return Ok(()) };
                for (place, message) in places.iter_mut().zip(&messages[..count]) {
                    place.iov_len = message.msg_len as usize;
                }
                // What does not go is lost, and whoever counts will see it.
                libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT);
                if count < BATCH {
                    return Ok(());
                }
            }
        }
    }
}
