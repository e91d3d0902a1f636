//! Pipes that splice(2) needs between two sockets, shared by the flows of a thread: only who moves much has one.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// As much as a pipe may hold; the system gives less to those with many.
const SIZE: i32 = 256 * 1024;

/// How many unused pipes a thread keeps.
const KEPT: usize = 16;

thread_local! {
    static UNUSED: RefCell<Vec<Pipe>> = const { RefCell::new(Vec::new()) };
}

/// An empty pipe, or one that holds what was taken and not yet given.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl Pipe {
    /// An unused one of this thread, or a new one.
    pub fn take() -> io::Result<Self> {
        if let Some(pipe) = UNUSED.with_borrow_mut(Vec::pop) {
            return Ok(pipe);
        }
        let mut ends = [0; 2];
        // SAFETY: `ends` has room for the two descriptors, which are ours from here on.
        let (reader, writer) = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            libc::fcntl(ends[1], libc::F_SETPIPE_SZ, SIZE);
            (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
        };
        Ok(Self { reader, writer, held: 0 })
    }

    /// Gives it back when it is empty; one with bytes in it is closed.
    pub fn give_back(self) {
        UNUSED.with_borrow_mut(|unused| {
            if self.held == 0 && unused.len() < KEPT {
                unused.push(self);
            }
        });
    }

    /// How much it holds.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Fills it from a socket; 0: the other side has closed.
    pub fn fill(&mut self, from: BorrowedFd<'_>) -> io::Result<usize> {
        let moved = splice(from.as_raw_fd(), self.writer.as_raw_fd(), SIZE as usize)?;
        self.held += moved;
        Ok(moved)
    }

    /// Empties it into a socket.
    pub fn empty(&mut self, to: BorrowedFd<'_>) -> io::Result<usize> {
        let moved = splice(self.reader.as_raw_fd(), to.as_raw_fd(), self.held)?;
        self.held -= moved;
        Ok(moved)
    }
}

fn splice(from: i32, to: i32, most: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: both descriptors are open for as long as their owners are borrowed; no offsets are passed.
    let moved = unsafe { libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), most, flags) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}
