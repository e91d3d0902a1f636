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

/// Returns the bytes of anonymous and shared memory of these processes if they exceed `most`.
///
/// Memory that processes share counts once. This exact value is slow to read. So it is read only if the sum over the
/// processes, which counts shared memory several times, exceeds `most`.
pub fn memory_over_limit(most: u64, pids: &[i32]) -> Option<u64> {
    let quick: u64 = pids.iter().map(|&pid| bytes_of(pid, "status", ["RssAnon:", "RssShmem:"]).unwrap_or(0)).sum();
    if quick <= most {
        return None;
    }
    let shares = pids.iter().map(|&pid| bytes_of(pid, "smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"]));
    let exact: u64 = shares.map(Option::unwrap_or_default).sum();
    // Some kernels do not report the exact value.
    let used = if exact == 0 { quick } else { exact };
    (used > most).then_some(used)
}

/// Returns the PIDs of all descendants of a process, parents before their children.
pub fn descendants(of: i32) -> Vec<i32> {
    let mut found = Vec::new();
    children(of, &mut found);
    let mut at = 0;
    while at < found.len() {
        children(found[at], &mut found);
        at += 1;
    }
    found
}

/// Kills all descendants of this process, including children that they fork meanwhile.
pub fn kill_descendants() {
    if processes::is_namespace_init() {
        // The PID namespace has no other processes, and the kernel signals all of them at once.
        // SAFETY: a plain call.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..SUSPEND_ROUNDS {
        let found = descendants(getpid().as_raw_nonzero().get());
        let new: Vec<i32> = found.into_iter().filter(|pid| !seen.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        signal_all(&new, Signal::STOP);
        seen.extend(new);
    }
    signal_all(&seen, Signal::KILL);
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid)) {
        let _ = kill_process(pid, signal);
    }
}

fn children(of: i32, found: &mut Vec<i32>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return };
    for task in tasks.flatten() {
        if let Ok(text) = fs::read_to_string(task.path().join("children")) {
            found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
}

fn bytes_of(pid: i32, file: &str, lines: [&str; 2]) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let of = |name: &str| {
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        number?.trim().parse::<u64>().ok()
    };
    Some(lines.into_iter().filter_map(of).sum::<u64>() * 1024)
}
