//! Wait for many sockets with a resolution of microseconds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::{Failure, failure};

const EVENTS_MAX: usize = 256;

pub struct Epoll {
    epoll: OwnedFd,
    ready: Vec<libc::epoll_event>,
}

impl Epoll {
    pub fn new() -> Result<Self, Failure> {
        // SAFETY: no pointers. A non-negative descriptor is new and has no other owner.
        let epoll = unsafe {
            // Reduces the timer slack from 50 µs to 1 ns.
            libc::prctl(libc::PR_SET_TIMERSLACK, 1);
            let epoll = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if epoll < 0 {
                return Err(io::Error::last_os_error().into());
            }
            OwnedFd::from_raw_fd(epoll)
        };
        Ok(Self { epoll, ready: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX] })
    }

    pub fn add(&self, socket: &impl AsRawFd, number: usize) -> Result<(), Failure> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number as u64 };
        // SAFETY: both descriptors are open; `event` lives through the call.
        let result =
            unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &raw mut event) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error().into()) }
    }

    /// Waits for readable sockets and returns their numbers. Returns an empty list at the time `until`.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<Vec<usize>, Failure> {
        let remaining = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = remaining.map(|remaining: Duration| libc::timespec {
            tv_sec: remaining.as_secs() as libc::time_t,
            tv_nsec: remaining.subsec_nanos().into(),
        });
        let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: `ready` has room for EVENTS_MAX events; `timeout` is null or lives through the call; no signal mask.
        let count = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd(),
                self.ready.as_mut_ptr(),
                EVENTS_MAX,
                timeout,
                std::ptr::null::<libc::sigset_t>(),
                0_usize,
            )
        };
        match usize::try_from(count) {
            Ok(count) => Ok(self.ready[..count].iter().map(|event| event.u64 as usize).collect()),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Err(failure("a signal came")),
                error => Err(error.into()),
            },
        }
    }
}

/// Schedule of a fixed rate. Each tick can have several planned times.
pub struct RateSchedule {
    started: Instant,
    tick: Duration,
    per_s: f64,
    tick_count: u32,
    returned_count: u64,
}

impl RateSchedule {
    pub fn new(per_s: f64, tick_us: u64) -> Self {
        Self { started: Instant::now(), tick: Duration::from_micros(tick_us), per_s, tick_count: 0, returned_count: 0 }
    }

    pub fn next(&self) -> Instant {
        self.started + self.tick * (self.tick_count + 1)
    }

    /// Returns the numbers that are due in one tick, with its planned time. Late ticks are returned one by one.
    pub fn due(&mut self) -> Option<(Instant, std::ops::Range<u64>)> {
        let next = self.next();
        if next > Instant::now() {
            return None;
        }
        self.tick_count += 1;
        let due_count = (next.duration_since(self.started).as_secs_f64() * self.per_s) as u64;
        let due = self.returned_count..due_count.max(self.returned_count);
        self.returned_count = due.end;
        Some((next, due))
    }
}
