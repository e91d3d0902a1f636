//! Signals that a keeper reads from a descriptor.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

pub const HANDLED_SIGNALS: [libc::c_int; 5] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];

pub fn signal_descriptor(signals: &[libc::c_int]) -> io::Result<File> {
    // SAFETY: plain calls with valid arguments; the descriptor is owned from here on.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        match libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

/// Reads all signals that arrived, and returns whether one of them requests a stop.
pub fn has_stop_signal(mut signals: &File) -> bool {
    let mut record = [0; size_of::<libc::signalfd_siginfo>()];
    let mut is_stop = false;
    while signals.read_exact(&mut record).is_ok() {
        let number = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]) as i32;
        is_stop |= number != libc::SIGCHLD && number != libc::SIGHUP;
    }
    is_stop
}
