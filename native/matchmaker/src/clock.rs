//! Monotonic time, and wall-clock time.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the seconds of the clock that never goes back, as `time.monotonic` of Python.
pub fn monotonic_s() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: pointer to one live value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the Unix time in milliseconds.
pub fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}
