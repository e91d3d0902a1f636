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

/// Whether the kernel counts who has a user by namespaces of users: since Linux 5.14. Before, a limit would be one on all
/// that has the keeper's user.
pub fn are_counted_by_namespace() -> bool {
    // SAFETY: all of it is bytes, and the call writes nothing else.
    let release = unsafe {
        let mut about: libc::utsname = std::mem::zeroed();
        libc::uname(&raw mut about);
        about.release.map(|byte| byte as u8)
    };
    let mut parts = release.split(|byte| !byte.is_ascii_digit());
    let mut number =
        || parts.next().and_then(|part| str::from_utf8(part).ok()?.parse::<u32>().ok()).unwrap_or_default();
    (number(), number()) >= (5, 14)
}

/// In the namespace that `/proc` shows.
fn shown() -> io::Result<i32> {
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(DIGITS_MAX))?;
    let number = target.to_str().ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| io::Error::other("/proc/self: no number"))
}
