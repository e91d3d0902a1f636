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

/// Of this process, for who is outside. `is_inside`: whether it is in a namespace that the keeper is the first of.
pub fn outside(is_inside: bool) -> io::Result<i32> {
    if is_inside { shown() } else { Ok(getpid().as_raw_nonzero().get()) }
}

/// In the namespace that `/proc` shows.
fn shown() -> io::Result<i32> {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(DIGITS_MAX))?;
    let number = target.to_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/self: no number"))
}
