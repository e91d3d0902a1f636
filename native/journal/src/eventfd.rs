//! Event descriptor that wakes an event loop when a batch is durable.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub fn new() -> io::Result<Self> {
        // SAFETY: plain call without pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Wakes the event loop that waits for this descriptor. Ignores a full counter (`EAGAIN`), which also wakes it.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: pointer and length belong to one live array.
        unsafe { libc::write(self.raw(), one.as_ptr().cast(), one.len()) };
    }
}
