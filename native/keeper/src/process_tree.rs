//! Descendants of a process: their memory, and how all of them are killed.

use std::fs;

use rustix::process::{Pid, Signal, getpid, kill_process};

use crate::processes;

const SUSPEND_ROUNDS: usize = 100;

/// Lets both threads of a keeper share one heap, which saves memory.
pub fn limit_malloc_arenas() {
    #[cfg(target_env = "gnu")]
    // SAFETY: called before there is another thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns the bytes of anonymous and shared memory of these processes if they exceed `limit`.
///
/// Shared memory counts once. This exact value is slow to read, so it is read only if a sum that counts shared memory
/// several times exceeds `limit`.
pub fn memory_over_limit(limit: u64, pids: &[i32]) -> Option<u64> {
    let upper_bound: u64 =
        pids.iter().map(|&pid| memory_bytes(pid, "status", ["RssAnon:", "RssShmem:"]).unwrap_or(0)).sum();
    if upper_bound <= limit {
        return None;
    }
    let shares = pids.iter().map(|&pid| memory_bytes(pid, "smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"]));
    let exact_bytes: u64 = shares.map(Option::unwrap_or_default).sum();
    // Some kernels do not report the exact value.
    let used = if exact_bytes == 0 { upper_bound } else { exact_bytes };
    (used > limit).then_some(used)
}

/// PID of a process, and that of its parent.
#[derive(Clone, Copy)]
pub struct Member {
    pub pid: i32,
    pub parent: i32,
}

/// Returns all descendants of a process, parents before their children.
pub fn members(pid: i32) -> Vec<Member> {
    let mut members = Vec::new();
    add_children(pid, &mut members);
    let mut at = 0;
    while at < members.len() {
        add_children(members[at].pid, &mut members);
        at += 1;
    }
    members
}

/// Returns the PIDs of all descendants of a process, parents before their children.
pub fn descendants(pid: i32) -> Vec<i32> {
    members(pid).into_iter().map(|member| member.pid).collect()
}

/// Kills all descendants of this process, including children that they fork meanwhile.
pub fn kill_descendants() {
    if processes::is_namespace_init() {
        // The PID namespace has no other processes, and the kernel signals all of them at once.
        // SAFETY: a plain call.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        return;
    }
    let mut stopped = Vec::new();
    for _ in 0..SUSPEND_ROUNDS {
        let descendants = descendants(getpid().as_raw_nonzero().get());
        let new: Vec<i32> = descendants.into_iter().filter(|pid| !stopped.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        signal_all(&new, Signal::STOP);
        stopped.extend(new);
    }
    signal_all(&stopped, Signal::KILL);
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid)) {
        let _ = kill_process(pid, signal);
    }
}

fn add_children(parent: i32, members: &mut Vec<Member>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return };
    for task in tasks.flatten() {
        if let Ok(text) = fs::read_to_string(task.path().join("children")) {
            let pids = text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            members.extend(pids.map(|pid| Member { pid, parent }));
        }
    }
}

fn memory_bytes(pid: i32, file: &str, lines: [&str; 2]) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let kibibytes = |name: &str| {
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        number?.trim().parse::<u64>().ok()
    };
    Some(lines.into_iter().filter_map(kibibytes).sum::<u64>() * 1024)
}
