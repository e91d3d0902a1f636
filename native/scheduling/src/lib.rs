//! Scheduler attributes of threads that answer players: short time slices (Linux 6.12), and a higher priority than
//! Python, the control plane and game servers.
//!
//! Such a thread works for microseconds, and must not wait until another thread has used its slice of some
//! milliseconds. A much higher priority would interrupt game servers for every packet, and could delay the threads of
//! the kernel that receive packets.

use std::io;
use std::time::Duration;

/// Nice value of the threads that answer players.
pub const NICE: i8 = -4;
const TIME_SLICE: Duration = Duration::from_micros(100);

/// Sets the scheduler attributes of this thread and of threads that it starts later.
///
/// If the system refuses the priority, the thread gets the time slice only.
pub fn raise_priority(nice: i8) -> io::Result<()> {
    set_attributes(nice.into()).inspect_err(|_| {
        // Needs no privilege.
        let _ = set_attributes(current_nice());
    })
}

fn set_attributes(nice: i32) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: TIME_SLICE.as_nanos() as u64,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes have their own size.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn current_nice() -> i32 {
    // SAFETY: no memory is passed.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes() -> libc::sched_attr {
        // SAFETY: an all-zero value is valid, and the call fills it or fails.
        let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::sched_attr>();
        // SAFETY: the attributes have `size` bytes.
        let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        attributes
    }

    #[test]
    fn a_thread_has_the_priority_or_without_privilege_the_slice_only() {
        let before = attributes();
        let expected_nice = match raise_priority(NICE) {
            Ok(()) => NICE.into(),
            Err(error) => {
                assert!(matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES)), "{error}");
                before.sched_nice
            }
        };
        let after = attributes();
        assert_eq!(after.sched_nice, expected_nice);
        // Linux before 6.12 has no slices of threads and reports 0.
        assert!([TIME_SLICE.as_nanos() as u64, 0].contains(&after.sched_runtime), "{} ns", after.sched_runtime);
    }
}
