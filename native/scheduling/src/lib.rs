//! Scheduler attributes of threads that answer players: short time slices (Linux 6.12), and a higher priority than
//! Python, the control plane and game servers. Also those of threads that work in the background.
//!
//! A thread that answers players works for microseconds, and must not wait until another thread has used its slice of some
//! milliseconds. A much higher priority would interrupt game servers for every packet, and could delay the threads of
//! the kernel that receive packets.

use std::io;
use std::time::Duration;

/// Nice value of the threads that answer players.
pub const NICE: i8 = -4;
/// Nice value of threads that work in the background.
///
/// On a busy machine, a thread with `SCHED_IDLE` could stop for a second. It could then hold a lock of the kernel for which
/// other threads wait.
const BACKGROUND_NICE: i32 = 10;
const TIME_SLICE: Duration = Duration::from_micros(100);

/// Sets the scheduler attributes of this thread and of threads that it starts later.
///
/// If the system refuses the priority, the thread gets the time slice only.
pub fn raise_priority(nice: i8) -> io::Result<()> {
    set_attributes(nice.into(), TIME_SLICE).inspect_err(|_| {
        // Needs no privilege.
        let _ = set_attributes(current_nice(), TIME_SLICE);
    })
}

/// Lowers the priority of this thread, which works in the background. Without a privilege, it cannot be raised again.
pub fn lower_priority() -> io::Result<()> {
    // The default time slice of the system: the thread does not have to run soon.
    set_attributes(BACKGROUND_NICE.max(current_nice()), Duration::ZERO)
}

fn set_attributes(nice: i32, time_slice: Duration) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: time_slice.as_nanos() as u64,
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

    #[test]
    fn background_thread_has_a_lower_priority_than_its_process() {
        let before = attributes();
        std::thread::spawn(|| {
            lower_priority().expect("needs no privilege");
            assert!(attributes().sched_nice >= BACKGROUND_NICE);
        })
        .join()
        .expect("the nice value is lower");
        assert_eq!(attributes().sched_nice, before.sched_nice);
    }
}
