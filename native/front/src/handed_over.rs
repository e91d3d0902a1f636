//! Connections on their way to Python.

use std::io::{self, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use parking_lot::Mutex;

use crate::connection_budget::Admission;

/// Bound of the queue, for a time in which Python takes no connection.
const QUEUED_MAX: usize = 4096;

pub struct HandedOver {
    pub stream: TcpStream,
    /// Bytes that the front has read and not answered.
    pub unread: Vec<u8>,
    /// None for a connection that Python counts, because a trusted proxy opened it.
    pub admission: Option<Admission>,
}

/// Queue of connections. Its descriptor is readable while there are connections.
pub struct HandedOverQueue {
    queued: Mutex<Vec<HandedOver>>,
    signal: UnixStream,
    wake: UnixStream,
}

impl HandedOverQueue {
    pub fn new() -> io::Result<HandedOverQueue> {
        let (signal, wake) = UnixStream::pair()?;
        signal.set_nonblocking(true)?;
        wake.set_nonblocking(true)?;
        Ok(HandedOverQueue { queued: Mutex::default(), signal, wake })
    }

    /// Adds a connection, or closes it if the queue is full.
    pub fn push(&self, connection: HandedOver) {
        let mut queued = self.queued.lock();
        if queued.len() >= QUEUED_MAX {
            return;
        }
        queued.push(connection);
        if queued.len() == 1 {
            // The socket is empty, so the byte fits.
            let _ = (&self.wake).write(&[0]);
        }
    }

    pub fn take(&self) -> Vec<HandedOver> {
        let mut queued = self.queued.lock();
        if !queued.is_empty() {
            let _ = io::Read::read(&mut &self.signal, &mut [0]);
        }
        std::mem::take(&mut queued)
    }

    pub fn signal(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}
