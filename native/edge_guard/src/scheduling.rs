//! Scheduler attributes: short time slices (Linux 6.12), and a higher priority than game servers.
//!
//! Forwarding a packet takes microseconds, so edge-guard requests a short delay. A much higher priority would interrupt
//! game servers for every packet.

use std::io;

use crate::operator_log;

const TIME_SLICE_NS: u64 = 100_000;

/// Sets the scheduler attributes of this thread and of threads that it starts later. Logs and ignores a failure.
pub fn raise_priority(nice: i8) {
    if let Err(error) = set_attributes(nice.into()) {
        operator_log::write_line(&format!("nice {nice}: {error}; edge-guard runs without a higher priority"));
        // Needs no privilege.
        let _ = set_attributes(current_nice());
    }
}

fn set_attributes(nice: i32) -> io::Result<()> {
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: TIME_SLICE_NS,
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
