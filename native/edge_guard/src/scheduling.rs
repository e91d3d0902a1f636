//! When the kernel gives this process its turn on a core that others want too.
//!
//! What is passed on is microseconds of work, and somebody plays at both of its ends. So it asks for short turns, which
//! come sooner (Linux 6.12; older ones do not listen), and for more weight than what computes. Much more weight would
//! not be better: it would take the core from a game server for each single packet.

use std::io;

use crate::operator_log;

const TIME_SLICE_NS: u64 = 100_000;

/// For this thread and for those that it begins later. What the system does not grant is logged, and is no reason not
/// to serve.
pub fn apply(nice: i8) {
    if let Err(error) = set_attributes(nice.into()) {
        operator_log::write_line(&format!("nice {nice}: {error}; edge-guard waits for its turn like everybody"));
        // Short turns are everybody's to ask for.
        let _ = set_attributes(own_nice());
    }
}

fn set_attributes(nice: i32) -> io::Result<()> {
    let wanted = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: TIME_SLICE_NS,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the attributes are ours for the call and say how long they are.
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn own_nice() -> i32 {
    // SAFETY: no memory is passed.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}
