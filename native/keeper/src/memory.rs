//! How much memory a tree of processes has that nobody else has, where no control group counts it.

use std::fs;

/// Bytes of anonymous and shared memory of these. Pages of files are not counted: the kernel takes them back.
pub fn of_processes(pids: &[i32]) -> u64 {
    pids.iter().map(|&pid| own_bytes(pid)).sum()
}

/// All descendants of a process, parents first. Orphans among them have come to their subreaper, so they are here too.
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

fn children(of: i32, found: &mut Vec<i32>) {
    let Ok(tasks) = fs::read_dir(format!("/proc/{of}/task")) else { return };
    for task in tasks.flatten() {
        if let Ok(text) = fs::read_to_string(task.path().join("children")) {
            found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
        }
    }
}

fn own_bytes(pid: i32) -> u64 {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return 0 };
    status
        .lines()
        .filter_map(|line| line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:")))
        .filter_map(|rest| rest.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok())
        .sum::<u64>()
        * 1024
}
