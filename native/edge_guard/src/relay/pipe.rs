//! Pipes for splice(2), which all relays of a thread reuse.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Requested pipe size in bytes. The kernel grants less to users that have many pipes.
const SIZE: i32 = 256 * 1024;

const KEPT: usize = 16;

thread_local! {
    static UNUSED: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    length: usize,
}

impl Pipe {
    pub fn take() -> io::Result<Self> {
        if let Some(pipe) = UNUSED.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for two descriptors.
        let (reader, writer) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, SIZE);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        Ok(Self { reader, writer, length: 0 })
    }

    /// Stores an empty pipe for reuse. Closes a pipe that contains bytes.
    pub fn give_back(self) {
        UNUSED.with_borrow_mut(|unused| {
            if self.length == 0 && unused.len() < KEPT {
                unused.push(self);
            }
        });
    }

    pub fn len(&self) -> usize {
        self.length
    }

    /// Moves bytes from a socket into the pipe. Returns 0 if the peer has closed the connection.
    pub fn fill(&mut self, from: BorrowedFd<'_>) -> io::Result<usize> {
        let count = splice(from.as_raw_fd(), self.writer.as_raw_fd(), SIZE as usize)?;
        self.length += count;
        Ok(count)
    }

    pub fn empty(&mut self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let count = splice(self.reader.as_raw_fd(), to.as_raw_fd(), self.length)?;
        self.length -= count;
        Ok(count)
    }
}

fn splice(from: i32, to: i32, limit: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: both descriptors are open, and no offsets are passed.
    let count = unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), limit, flags) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
