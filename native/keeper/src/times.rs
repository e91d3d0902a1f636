//! Clocks: one for people, one for deadlines.

use std::time::Duration;

/// Microseconds since the Unix epoch, for stamps that people read.
pub fn wall_us() -> u64 {
    read(libc::CLOCK_REALTIME).as_micros() as u64
}

/// Time that only runs forward, for deadlines. It goes on while the machine sleeps.
pub fn now() -> Duration {
    read(libc::CLOCK_BOOTTIME)
}

/// By a call of the kernel, which is quick as well, and needs no pages that each process has to map first.
fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both clocks are there, and the place is ours.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) };
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec as u32)
}
