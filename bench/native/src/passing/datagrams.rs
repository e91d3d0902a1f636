//! UDP load in an open loop: datagrams of 128 bytes over many sessions, which the server sends back. Each received
//! datagram is compared byte by byte.
//!
//! `datagrams --address HOST:PORT --sessions N --rate PER_S --seconds S --tick-us N`

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::poll::{Poll, Ticks};
use super::{Window, pattern};
use crate::figures::Figures;
use crate::flags::Flags;
use crate::latency::{Sample, latency_figures};
use crate::{Failure, wrong};

pub const SIZE: usize = 128;
static ROOM: libc::c_int = 4 << 20;
const GRACE: Duration = Duration::from_millis(300);

struct Load {
    sessions: Vec<UdpSocket>,
    window: Window,
    /// Planned time of each datagram, taken when its answer arrives.
    sent: Vec<Option<Instant>>,
    samples: Vec<Sample>,
    filling: Vec<u8>,
}

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let rate: f64 = flags.get("rate", 100_000.0)?;
    let mut poll = Poll::new()?;
    let mut sessions = Vec::new();
    for number in 0..flags.get("sessions", 256)? {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(flags.text("address")?)?;
        socket.set_nonblocking(true)?;
        make_room(&socket);
        poll.add(&socket, number)?;
        sessions.push(socket);
    }
    let mut ticks = Ticks::new(rate, flags.get("tick-us", 200)?);
    let window = Window::begin(flags)?;
    let mut load = Load { sessions, window, sent: Vec::new(), samples: Vec::new(), filling: pattern(SIZE, 7) };
    let end = load.window.began + load.window.length + GRACE;
    while Instant::now() < end {
        let is_over = load.window.is_over();
        if let Some((since, due)) = ticks.due()
            && !is_over
        {
            load.send(due, since)?;
        }
        for number in poll.wait(Some(ticks.next().min(end)))? {
            load.take(number)?;
        }
    }
    Ok(load.figures(rate))
}

impl Load {
    fn send(&mut self, due: std::ops::Range<u64>, since: Instant) -> Result<(), Failure> {
        for number in due {
            let bytes = datagram(&self.filling, number);
            match self.sessions[number as usize % self.sessions.len()].send(&bytes) {
                Ok(_) => {}
                // The datagram counts as lost.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused) => {}
                Err(error) => return Err(error.into()),
            }
            self.sent.push(Some(since));
        }
        Ok(())
    }

    fn take(&mut self, session: usize) -> Result<(), Failure> {
        let mut came = [0; 2 * SIZE];
        loop {
            match self.sessions[session].recv(&mut came) {
                Ok(count) => {
                    let number = u64::from_le_bytes(came[..8].try_into()?);
                    let is_right = came[..count] == datagram(&self.filling, number)
                        && number as usize % self.sessions.len() == session;
                    let since = self.sent.get_mut(number as usize).and_then(Option::take);
                    match since.filter(|_| is_right) {
                        Some(since) => self.samples.push(self.window.sample(since)),
                        None => return Err(wrong("a datagram was altered, repeated or sent to another client")),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn figures(self, rate: f64) -> Figures {
        let (sent, came) = (self.sent.len(), self.samples.len());
        let seconds = self.window.length.as_secs_f64();
        let counted = self.window.counted(self.samples);
        self.window
            .load()
            .number("asked_per_s", rate)
            .number("sent_per_s", sent as f64 / seconds)
            .number("received_per_s", counted.len() as f64 / (seconds * 0.9))
            .count("sent", sent as u64)
            .count("received", came as u64)
            .number("lost_share", 1.0 - came as f64 / sent as f64)
            .and(latency_figures(counted.into_iter()))
    }
}

fn datagram(filling: &[u8], number: u64) -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let turn = number as usize % SIZE;
    for (index, byte) in bytes.iter_mut().enumerate().skip(8) {
        *byte = filling[(index + turn) % SIZE];
    }
    bytes
}

/// Enlarges the socket buffers, for datagrams that wait while other threads use the core. Needs privileges.
pub fn make_room(socket: &UdpSocket) {
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is an int, which lives through the call; the descriptor is open.
        let done =
            unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const ROOM).cast(), length) };
        if done != 0 {
            eprintln!("bench-edge: buffers stay small: {}", io::Error::last_os_error());
        }
    }
}
