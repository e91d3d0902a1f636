//! Event descriptors that wake event loops when a batch is durable.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, Weak};

use crate::journal::lock;

/// Non-blocking eventfd of one consumer, which the writer signals after each durable batch with events. Dropping it ends
/// the subscription.
pub struct DurableSignal(Arc<EventFd>);

impl AsRawFd for DurableSignal {
    fn as_raw_fd(&self) -> RawFd {
        self.0.raw()
    }
}

impl AsFd for DurableSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.0.as_fd()
    }
}

/// All consumers of a journal. Each has its own descriptor, so that no consumer takes the wake-up of another.
#[derive(Default)]
pub(crate) struct DurableSignals(Mutex<Vec<Weak<EventFd>>>);

impl DurableSignals {
    pub fn subscribe(&self) -> io::Result<DurableSignal> {
        let signal = Arc::new(EventFd::new()?);
        lock(&self.0).push(Arc::downgrade(&signal));
        Ok(DurableSignal(signal))
    }

    pub fn signal_all(&self) {
        lock(&self.0).retain(|signal| {
            let signal = signal.upgrade();
            if let Some(signal) = &signal {
                signal.signal();
            }
            signal.is_some()
        });
    }
}

struct EventFd(OwnedFd);

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
