//! Minimal wrappers of epoll(7) and eventfd(2).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub type Token = u64;

#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is new.
        unsafe { owned(libc::epoll_create1(libc::EPOLL_CLOEXEC)).map(Self) }
    }

    pub fn add(&self, fd: RawFd, token: Token) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: the event outlives the call.
        let done = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub fn remove(&self, fd: RawFd) {
        // SAFETY: no memory is passed.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    pub fn wait(&self, events: &mut [libc::epoll_event], ms: i32) -> usize {
        let maximum = i32::try_from(events.len()).unwrap_or(i32::MAX);
        // SAFETY: there is room for `maximum` events.
        let count = unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), maximum, ms) };
        usize::try_from(count).unwrap_or(0)
    }
}

#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    pub fn new() -> io::Result<Self> {
        // SAFETY: the descriptor is new.
        unsafe { owned(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)).map(Self) }
    }

    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn wake(&self) {
        // SAFETY: the source has eight bytes.
        unsafe { libc::write(self.fd(), (&raw const WAKE_COUNT).cast(), 8) };
    }

    pub fn drain(&self) {
        let mut count = 0_u64;
        // SAFETY: there is room for eight bytes.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
    }
}

static WAKE_COUNT: u64 = 1;

/// Takes ownership of `fd`. Fails with the last OS error if `fd` is negative.
///
/// # Safety
///
/// `fd` must be negative, or a new descriptor without another owner.
unsafe fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
