//! UDP load in an open loop: datagrams of 128 bytes over many sessions, which the server sends back. Each received
//! datagram is compared byte by byte.
//!
//! `datagrams --address HOST:PORT --sessions N --rate PER_S --seconds S --tick-us N`

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::epoll::{Epoll, RateSchedule};
use super::{MeasurementWindow, pattern};
use crate::flags::Flags;
use crate::latency::{Sample, latency_statistics};
use crate::measurement::Measurement;
use crate::{Failure, failure};

pub const DATAGRAM_BYTES: usize = 128;
static SOCKET_BUFFER_BYTES: libc::c_int = 4 << 20;
const FINAL_WAIT: Duration = Duration::from_millis(300);

struct Load {
    sessions: Vec<UdpSocket>,
    window: MeasurementWindow,
    /// Planned time of each datagram, taken when its answer arrives.
    sent: Vec<Option<Instant>>,
    samples: Vec<Sample>,
    pattern_bytes: Vec<u8>,
}

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let rate: f64 = flags.get("rate", 100_000.0)?;
    let mut epoll = Epoll::new()?;
    let mut sessions = Vec::new();
    for number in 0..flags.get("sessions", 256)? {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(flags.text("address")?)?;
        socket.set_nonblocking(true)?;
        enlarge_socket_buffers(&socket);
        epoll.add(&socket, number)?;
        sessions.push(socket);
    }
    let mut schedule = RateSchedule::new(rate, flags.get("tick-us", 200)?);
    let window = MeasurementWindow::start(flags)?;
    let mut load =
        Load { sessions, window, sent: Vec::new(), samples: Vec::new(), pattern_bytes: pattern(DATAGRAM_BYTES, 7) };
    let end = load.window.started + load.window.length + FINAL_WAIT;
    while Instant::now() < end {
        let is_over = load.window.is_over();
        if let Some((since, due)) = schedule.due()
            && !is_over
        {
            load.send(due, since)?;
        }
        for number in epoll.wait(Some(schedule.next().min(end)))? {
            load.receive(number)?;
        }
    }
    Ok(load.figures(rate))
}

impl Load {
    fn send(&mut self, due: std::ops::Range<u64>, since: Instant) -> Result<(), Failure> {
        for number in due {
            let bytes = datagram(&self.pattern_bytes, number);
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

    fn receive(&mut self, session: usize) -> Result<(), Failure> {
        let mut received = [0; 2 * DATAGRAM_BYTES];
        loop {
            match self.sessions[session].recv(&mut received) {
                Ok(count) => {
                    let number = u64::from_le_bytes(received[..8].try_into()?);
                    let is_expected = received[..count] == datagram(&self.pattern_bytes, number)
                        && number as usize % self.sessions.len() == session;
                    let since = self.sent.get_mut(number as usize).and_then(Option::take);
                    match since.filter(|_| is_expected) {
                        Some(since) => self.samples.push(self.window.sample(since)),
                        None => return Err(failure("a datagram was altered, repeated or sent to another client")),
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn figures(self, rate: f64) -> Measurement {
        let (sent, received) = (self.sent.len(), self.samples.len());
        let seconds = self.window.length.as_secs_f64();
        let in_window = self.window.in_window(self.samples);
        self.window
            .cpu_share()
            .number("planned_per_s", rate)
            .number("sent_per_s", sent as f64 / seconds)
            .number("received_per_s", in_window.len() as f64 / (seconds * 0.9))
            .count("sent", sent as u64)
            .count("received", received as u64)
            .number("lost_share", 1.0 - received as f64 / sent as f64)
            .and(latency_statistics(in_window.into_iter()))
    }
}

fn datagram(pattern_bytes: &[u8], number: u64) -> [u8; DATAGRAM_BYTES] {
    let mut bytes = [0; DATAGRAM_BYTES];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    let rotation = number as usize % DATAGRAM_BYTES;
    for (index, byte) in bytes.iter_mut().enumerate().skip(8) {
        *byte = pattern_bytes[(index + rotation) % DATAGRAM_BYTES];
    }
    bytes
}

/// Enlarges the socket buffers, for datagrams that wait while other threads use the core. Needs privileges.
pub fn enlarge_socket_buffers(socket: &UdpSocket) {
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is an int, which lives through the call; the descriptor is open.
        let result = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const SOCKET_BUFFER_BYTES).cast(),
                length,
            )
        };
        if result != 0 {
            eprintln!("bench-edge: buffers stay small: {}", io::Error::last_os_error());
        }
    }
}
