//! What a program may use, and what its keeper does.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use crate::folder::{KEEPER, NONE, Run, Way, is_alive, is_root, needs_root, possible, until};

const USER: Way = Way { isolation: "user", is_ordinary: false };
const KEEPER_BYTES_MAX: u64 = 2 << 20;
/// What counts is whose they are: the many are of users that no other test has.
const GREEDY: [u32; 2] = [61_300, 61_301];
const MODEST: u32 = 61_302;
const FORKS: &str = "exec perl -e '$| = 1; while (defined($pid = fork)) { $pid or sleep 1000; $made++ } \
                     print $made; print qq(\\n); sleep 1000'";

#[test]
fn who_takes_more_memory_than_it_may_is_ended_for_it() {
    for way in possible() {
        let run = Run::new(
            way,
            "sleep 1000 & exec perl -e '$x = \"y\" x 200_000_000; sleep 1000'",
            &["memory_max_bytes=50000000"],
        );
        let state = run.begun().ended();
        assert_eq!(state["reason"], "out_of_memory", "{way:?}");
        assert!(state["message"].contains("may use 50000000"), "{way:?}");
    }
}

#[test]
fn memory_that_processes_share_counts_once() {
    // It lives for longer than two looks of the keeper are apart.
    let script = "exec perl -e '$x = \"y\" x 60_000_000; for (1..4) { fork or do { sleep 1000 } } \
                  $| = 1; select undef, undef, undef, 1.6; print \"still there\\n\"; sleep 1000'";
    let run = Run::new(NONE, script, &["memory_max_bytes=160000000"]).begun();
    run.says("o still there");
}

#[test]
fn a_program_has_the_weight_that_it_is_given() {
    for way in possible() {
        let run = Run::new(way, "nice", &["nice=7"]).begun();
        run.ended();
        assert_eq!(run.said(), ["7"], "{way:?}");
    }
}

#[test]
fn who_forks_for_ever_comes_to_an_end_of_it_that_is_its_own() {
    if !needs_root("users of runs") {
        return;
    }
    let greedy = Run::of_user(GREEDY[0], USER, FORKS).begun();
    until(|| !greedy.said().is_empty(), "an end of numbers");
    assert_eq!(greedy.said(), ["4095"], "and itself");
    Run::of_user(MODEST, USER, "sleep 1000 & echo well; wait").begun().says("o well");
    greedy.tell("stop 0");
    assert_eq!(greedy.ended()["reason"], "stopped");
}

#[test]
fn who_has_a_namespace_of_users_and_forks_for_ever_comes_to_an_end_of_it_too() {
    for way in possible().into_iter().filter(|way| way.isolation == "namespace" || way.isolation == "processes") {
        // A container's own limit is in what makes it: root's is kept by no other.
        if way.isolation == "processes" && !way.is_ordinary && is_root() {
            continue;
        }
        let greedy = Run::of_user(GREEDY[1], way, FORKS).begun();
        until(|| !greedy.said().is_empty(), "an end of numbers");
        assert_eq!(greedy.said(), ["4094"], "{way:?}: and itself, and the first");
        // The same user, as others see it.
        Run::of_user(GREEDY[1], way, "sleep 1000 & echo well; wait").begun().says("o well");
        greedy.tell("stop 0");
        assert_eq!(greedy.ended()["reason"], "stopped", "{way:?}");
    }
}

#[test]
fn no_program_may_have_files_without_number() {
    for way in possible() {
        let run = Run::new(way, "ulimit -Sn; ulimit -Hn", &[]);
        let mut rich = Command::new("/bin/sh");
        rich.args(["-c", "ulimit -n 70000 2> /dev/null; exec \"$0\" \"$1\"", KEEPER]).arg(run.folder.path());
        assert!(run.as_keepers_user(&mut rich).status().expect("keeper runs").success());
        run.ended();
        let said: Vec<u64> = run.said().iter().map(|line| line.parse().expect("a limit")).collect();
        assert!(said.len() == 2 && said.iter().all(|&limit| limit <= 65_536), "{way:?}: {said:?}");
        let run = Run::new(way, "ulimit -Sn; ulimit -Hn", &[]);
        let mut poor = Command::new("/bin/sh");
        poor.args(["-c", "ulimit -Sn 400; ulimit -Hn 500; exec \"$0\" \"$1\"", KEEPER]).arg(run.folder.path());
        assert!(run.as_keepers_user(&mut poor).status().expect("keeper runs").success());
        run.ended();
        assert_eq!(run.said(), ["400", "500"], "{way:?}: no more than there was");
    }
}

/// A control group of our own, as long as it is needed.
struct Group {
    path: PathBuf,
}

impl Group {
    /// In the hierarchy with this type and, for the first version, this controller.
    fn new(kind: &str, controller: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/mounts").expect("mounts");
        let place = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find_map(|words| {
            let has = kind == "cgroup2" || words[3].split(',').any(|option| option == controller);
            (words[2] == kind && has).then(|| PathBuf::from(words[1]))
        })?;
        let path = place.join(format!("keeper-test-{}-{controller}", std::process::id()));
        fs::create_dir(&path).ok()?;
        Some(Self { path })
    }

    fn or_skipped(kind: &str, controller: &str) -> Option<Self> {
        let group = Self::new(kind, controller);
        if group.is_none() {
            skipped!("{kind} {controller}: this machine gives none");
        }
        group
    }

    fn members(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).expect("members");
        text.lines().map(|line| line.parse().expect("a pid")).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn a_program_is_in_its_groups_before_it_begins_and_its_keeper_is_not() {
    if !needs_root("control groups") {
        return;
    }
    let groups: Vec<Group> = [("cgroup", "pids"), ("cgroup", "cpu"), ("cgroup2", "unified")]
        .into_iter()
        .filter_map(|(kind, controller)| Group::or_skipped(kind, controller))
        .collect();
    let files: Vec<String> =
        groups.iter().map(|group| format!("cgroup={}", group.path.join("cgroup.procs").display())).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    for way in possible().into_iter().filter(|way| !way.is_ordinary) {
        let run = Run::new(way, "cat /proc/self/cgroup; sleep 1000 & echo up; wait", &files).begun();
        run.says("o up");
        let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
        for group in &groups {
            let members = group.members();
            assert!(members.contains(&program) && members.len() >= 2, "{way:?}: {members:?}");
            assert!(!members.contains(&keeper), "{way:?}");
        }
        let told = run.said().iter().filter(|line| line.contains("keeper-test-")).count();
        assert!(way.isolation == "landlock" || told >= groups.len(), "{way:?}: {:?}", run.said());
        run.tell("stop 0");
        run.ended();
    }
}

#[test]
fn a_group_that_cannot_be_joined_is_an_end_that_says_so() {
    let state = Run::new(NONE, "echo up", &["cgroup=/nowhere/cgroup.procs"]).begun().ended();
    assert_eq!(state["reason"], "exec_failed");
    assert!(state["message"].contains("/nowhere/cgroup.procs: No such file"), "{}", state["message"]);
}

#[test]
fn who_is_ended_by_the_limit_of_its_group_was_out_of_memory() {
    if !needs_root("control groups") {
        return;
    }
    let Some(group) = Group::or_skipped("cgroup", "memory") else { return };
    fs::write(group.path.join("memory.limit_in_bytes"), "40000000").expect("a limit");
    let records = [
        format!("cgroup={}", group.path.join("cgroup.procs").display()),
        format!("oom_counter={}", group.path.join("memory.oom_control").display()),
    ];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let state = Run::new(USER, "exec perl -e '$x = \"y\" x 200_000_000; sleep 1000'", &records).begun().ended();
    assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("137", "out_of_memory"));
}

fn pss_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB"));
    line.map_or(0, |number| number.trim().parse::<u64>().expect("a number") * 1024)
}

#[test]
fn a_gigabyte_of_log_takes_its_share_of_the_disk_and_the_keeper_stays_small() {
    const MAX: u64 = 8 << 20;
    let script = "yes 'a line of a server that has much to tell, as they do when players come and go' | head -c 1G; \
                  : > over; sleep 1000";
    let run = Run::new(NONE, script, &[&format!("log_bytes_max={MAX}")]);
    let begun = Instant::now();
    let run = run.begun();
    let keeper = run.number("keeper_pid");
    let (mut most, mut largest) = (0, 0);
    until(
        || {
            most = most.max(run.log_bytes());
            largest = largest.max(pss_bytes(keeper));
            run.path("scratch/over").exists()
        },
        "all of it is written",
    );
    eprintln!("1 GiB of log in {:?}; Pss of the keeper at most {largest} bytes; disk {most} bytes", begun.elapsed());
    assert!(most <= MAX, "{most}");
    assert!(run.log_bytes() > MAX / 2, "what fits is kept");
    assert!(largest > 0 && largest <= KEEPER_BYTES_MAX, "{largest}");
    run.tell("stop 0");
    run.ended();
    assert!(!is_alive(run.number("pid")));
}

#[test]
fn a_keeper_of_a_server_that_says_nothing_has_one_thread_and_no_file_for_it() {
    for way in possible() {
        let run = Run::new(way, "until [ -e go ]; do sleep 0.01; done; echo up; sleep 1000", &[]).begun();
        let tasks = format!("/proc/{}/task", run.number("keeper_pid"));
        let threads = || fs::read_dir(&tasks).expect("a keeper").count();
        let is_first_other = ["namespace", "processes"].contains(&way.isolation);
        assert_eq!(threads(), if is_first_other { 2 } else { 1 }, "{way:?}");
        assert!(!run.path("log").exists(), "{way:?}");
        fs::write(run.path("scratch/go"), "").expect("told");
        run.says("o up");
        assert_eq!(threads(), 2, "{way:?}");
        run.tell("stop 0");
        assert_eq!(run.ended()["reason"], "stopped", "{way:?}");
    }
}

#[test]
fn a_keeper_of_a_server_that_logs_at_its_pace_is_small() {
    let script = "i=0; while :; do i=$((i+1)); echo \"tick $i\"; [ $i = 2000 ] && echo enough; done";
    for way in possible() {
        let run = Run::new(way, script, &["memory_max_bytes=1000000000"]).begun();
        until(|| run.log_bytes() > 100_000, "it logs");
        let (keeper, first) = (pss_bytes(run.number("keeper_pid")), pss_bytes(run.number("pid")));
        eprintln!("{way:?}: Pss of the keeper {keeper} bytes, of the first process {first}");
        assert!(keeper > 0 && keeper <= KEEPER_BYTES_MAX, "{way:?}: {keeper}");
        run.tell("stop 0");
        run.ended();
    }
}
