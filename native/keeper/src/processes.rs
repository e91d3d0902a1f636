//! How processes are made: copies of this one, and one that borrows its memory.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::process::{Pid, chdir, setsid};

/// Exit status of a process that was to become the program.
pub const NOT_RUN: libc::c_int = 127;
const STACK_ALIGNMENT: usize = 64;
/// More than what is used below us by who waits. Not much more: memory that was used before is there already.
const LENT_STACK_GAP: usize = 4 << 10;

/// None in the child. Who calls it has one thread, so the child may do whatever that may.
pub fn fork(namespaces: libc::c_int) -> io::Result<Option<Pid>> {
    // SAFETY: without CLONE_VM this is fork, with namespaces of its own for the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(namespaces | libc::SIGCHLD), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

/// Runs it in a child that has our memory until it runs a program or ends. We wait for so long, so nothing is used by
/// two at a time. What is not memory is the child's own: descriptors, folders, signals, user. For the first thread
/// of a process: the child goes on where its stack ends, which the kernel lets grow.
pub fn lend(namespaces: libc::c_int, mut body: &mut dyn FnMut()) -> io::Result<Pid> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is what is given below, by who waits.
        unsafe { (*body.cast::<&mut dyn FnMut()>())() };
        NOT_RUN
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | namespaces;
    let here = (&raw mut body).expose_provenance();
    let top = (here - LENT_STACK_GAP) & !(STACK_ALIGNMENT - 1);
    // SAFETY: below the gap nothing of ours is in use, nor will be until this call returns, which it does when the
    // child uses it no more.
    let pid = unsafe {
        let top = std::ptr::with_exposed_provenance_mut(top);
        libc::clone(run, top, flags, (&raw mut body).cast())
    };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// Where one is after `detach`.
pub enum Detached {
    /// In the process that goes on. What it writes there is told to the caller, when it is closed.
    Here(File),
    /// In the caller's, with what was told.
    Elsewhere(Vec<u8>),
}

/// Goes on in a process of its own session that is nobody's child, without the caller's streams.
pub fn detach(namespaces: libc::c_int) -> io::Result<Detached> {
    let (begun, begun_end) = pipe()?;
    if fork(namespaces)?.is_some() {
        drop(begun_end);
        let mut told = Vec::new();
        File::from(begun).read_to_end(&mut told)?;
        return Ok(Detached::Elsewhere(told));
    }
    drop(begun);
    leave()?;
    Ok(Detached::Here(File::from(begun_end)))
}

/// Away from the caller's session, folder and streams.
pub fn leave() -> io::Result<()> {
    let _ = setsid();
    // The caller's folder is nobody's any more.
    chdir("/")?;
    hear_nothing(0..3)
}

/// These numbers are of what is empty and takes everything.
pub fn hear_nothing(numbers: std::ops::Range<libc::c_int>) -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for number in numbers {
        // SAFETY: the first is an open descriptor of this process, the second one of its standard streams.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
    Ok(())
}

/// The same for who is forked by one that has left its own folder, and hears nothing.
pub fn leave_also() {
    let _ = setsid();
    // SAFETY: both are open descriptors of this process.
    unsafe { libc::dup2(0, 2) };
}

/// Its end for reading, and that for writing.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both, and both are owned from here on.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}
