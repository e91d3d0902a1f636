//! epoll(7) and eventfd(2), as little of them as the loop needs.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// What a descriptor is registered with: told back with each event.
pub type Token = u64;

/// One epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is new and ours.
        unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)).map(Self) }
    }

    /// Tells of a descriptor whenever something can be read. It goes by itself when it is closed everywhere.
    pub fn add(&self, fd: RawFd, token: Token) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event is ours for the call; the kernel checks the descriptor.
        let done = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Tells of it no more.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: no event is passed; the kernel checks the descriptor.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// Waits at most so long, and says how many of `events` were filled.
    pub fn wait(&self, events: &mut [libc::epoll_event], ms: i32) -> usize {
        let most = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for `most` events.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), most, ms) };
        // Interrupted is the only thing that can go wrong here: then nothing has happened.
        usize::try_from(count).unwrap_or(0)
    }
}

/// Wakes the loop.
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// A new one.
    pub fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is new and ours.
        unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)).map(Self) }
    }

    /// What to register.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Wakes.
    pub fn wake(&self) {
        // SAFETY: eight bytes are read from a place that has them.
        unsafe { libc::write(self.fd(), (&raw const ONE).cast(), 8) };
    }

    /// It was heard.
    pub fn heard(&self) {
        let mut count = 0_u64;
        // SAFETY: there is room for eight bytes.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }
}

static ONE: u64 = 1;

/// # Safety
/// `fd` is new and nobody else's, or negative.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
