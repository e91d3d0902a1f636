//! How much memory a tree of processes has that nobody else has, where no control group counts it. And how little a
//! keeper takes.

use std::fs;

/// Both threads of a keeper take memory from one heap: another one is more to make, and to keep, than they ever wait.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a plain call, before there is another thread.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Bytes of anonymous and shared memory of these, if that is more than `most`. Pages of files are not counted: the
/// kernel takes them back. What several of them share counts once; to find out is dear, so it is asked only where they
/// would be too much otherwise.
pub fn beyond(most: u64, pids: &[i32]) -> Option<u64> {
    let quick: u64 = pids.iter().map(|&pid| bytes_of(pid, "status", ["RssAnon:", "RssShmem:"]).unwrap_or(0)).sum();
    if quick <= most {
        return None;
    }
    let shares = pids.iter().map(|&pid| bytes_of(pid, "smaps_rollup", ["Pss_Anon:", "Pss_Shmem:"]));
    // Who is on its way out has none; a kernel that does not tell leaves the quick answer.
    let exact: u64 = shares.map(Option::unwrap_or_default).sum();
    let used = if exact == 0 { quick } else { exact };
    (used > most).then_some(used)
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

fn bytes_of(pid: i32, file: &str, lines: [&str; 2]) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let of = |name: &str| {
        let number = text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB"));
        number?.trim().parse::<u64>().ok()
    };
    Some(lines.into_iter().filter_map(of).sum::<u64>() * 1024)
}
