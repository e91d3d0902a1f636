//! Numbers of processes. Those that are recorded are for who is outside: where the keeper is the first of a namespace
//! of processes, it has another one there, and so has its program.

use std::io;

use rustix::process::getpid;

/// "4194304", the largest.
const DIGITS_MAX: usize = 16;

/// Whether this process is the first of its namespace: all others there end with it.
pub fn is_first() -> bool {
    getpid().is_init()
}

/// Of this process, in the namespace that `/proc` shows.
pub fn shown() -> io::Result<i32> {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(DIGITS_MAX))?;
    let number = target.to_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/self: no number"))
}

/// Of the keeper.
pub fn of_keeper() -> io::Result<i32> {
    if is_first() { shown() } else { Ok(getpid().as_raw_nonzero().get()) }
}
