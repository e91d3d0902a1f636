//! Limits of programs, and resources that keepers use.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use crate::run_fixture::{KEEPER, Mode, NONE, Run, available_modes, is_alive, is_root, needs_root, wait_until};

const USER: Mode = Mode { isolation: "user", is_unprivileged: false };
/// Limit for the heap, the stacks and the written data of one keeper.
const KEEPER_BYTES_MAX: u64 = 1 << 20;
/// Users of the process limit tests. No other test may use them, because the kernel counts processes per user.
const FORKING_USERS: [u32; 2] = [61_300, 61_301];
const OTHER_USER: u32 = 61_302;
const FORK_SCRIPT: &str = "exec perl -e '$| = 1; while (defined($pid = fork)) { $pid or sleep 1000; $made++ } \
                     print $made; print qq(\\n); sleep 1000'";

#[test]
fn program_over_its_memory_limit_is_ended() {
    for mode in available_modes() {
        let run = Run::new(
            mode,
            "sleep 1000 & exec perl -e '$x = \"y\" x 200_000_000; sleep 1000'",
            &["memory_max_bytes=50000000"],
        );
        let state = run.started().wait_ended();
        assert_eq!(state["reason"], "out_of_memory", "{mode:?}");
        assert!(state["message"].contains("may use 50000000"), "{mode:?}");
    }
}

#[test]
fn shared_memory_counts_once() {
    // The program outlives two memory checks of the keeper.
    let script = "exec perl -e '$x = \"y\" x 60_000_000; for (1..4) { fork or do { sleep 1000 } } \
                  $| = 1; select undef, undef, undef, 1.6; print \"still there\\n\"; sleep 1000'";
    let run = Run::new(NONE, script, &["memory_max_bytes=160000000"]).started();
    run.wait_for_line("o still there");
}

#[test]
fn nice_value_is_applied() {
    // The value is added to the one of the keeper, which inherits it from this process.
    let inherited = rustix::process::getpriority_process(None).expect("a nice value");
    let expected = (inherited + 7).min(19).to_string();
    for mode in available_modes() {
        let run = Run::new(mode, "nice", &["nice=7"]).started();
        run.wait_ended();
        assert_eq!(run.stdout_lines(), [expected.as_str()], "{mode:?}");
    }
}

#[test]
fn process_limit_holds_per_user() {
    if !needs_root("users of runs") {
        return;
    }
    let greedy = Run::with_user(FORKING_USERS[0], USER, FORK_SCRIPT).started();
    wait_until(|| !greedy.stdout_lines().is_empty(), "an end of numbers");
    assert_eq!(greedy.stdout_lines(), ["4095"], "and itself");
    Run::with_user(OTHER_USER, USER, "sleep 1000 & echo well; wait").started().wait_for_line("o well");
    greedy.send_command("stop 0");
    assert_eq!(greedy.wait_ended()["reason"], "stopped");
}

#[test]
fn process_limit_holds_per_user_namespace() {
    for mode in
        available_modes().into_iter().filter(|mode| mode.isolation == "namespace" || mode.isolation == "processes")
    {
        // The OCI runtime limits containers of root.
        if mode.isolation == "processes" && !mode.is_unprivileged && is_root() {
            continue;
        }
        let greedy = Run::with_user(FORKING_USERS[1], mode, FORK_SCRIPT).started();
        wait_until(|| !greedy.stdout_lines().is_empty(), "an end of numbers");
        assert_eq!(greedy.stdout_lines(), ["4094"], "{mode:?}: and itself, and the first");
        // Outside of the namespace, this is the same user.
        Run::with_user(FORKING_USERS[1], mode, "sleep 1000 & echo well; wait").started().wait_for_line("o well");
        greedy.send_command("stop 0");
        assert_eq!(greedy.wait_ended()["reason"], "stopped", "{mode:?}");
    }
}

#[test]
fn open_file_limit_is_only_lowered() {
    for mode in available_modes() {
        let run = Run::new(mode, "ulimit -Sn; ulimit -Hn", &[]);
        let mut keeper_command = Command::new("/bin/sh");
        keeper_command.args(["-c", "ulimit -n 70000 2> /dev/null; exec \"$0\" \"$1\"", KEEPER]).arg(run.folder.path());
        assert!(run.set_keeper_user(&mut keeper_command).status().expect("keeper runs").success());
        run.wait_ended();
        let output_lines: Vec<u64> = run.stdout_lines().iter().map(|line| line.parse().expect("a limit")).collect();
        assert!(
            output_lines.len() == 2 && output_lines.iter().all(|&limit| limit <= 65_536),
            "{mode:?}: {output_lines:?}"
        );
        let run = Run::new(mode, "ulimit -Sn; ulimit -Hn", &[]);
        let mut keeper_command = Command::new("/bin/sh");
        keeper_command
            .args(["-c", "ulimit -Sn 400; ulimit -Hn 500; exec \"$0\" \"$1\"", KEEPER])
            .arg(run.folder.path());
        assert!(run.set_keeper_user(&mut keeper_command).status().expect("keeper runs").success());
        run.wait_ended();
        assert_eq!(run.stdout_lines(), ["400", "500"], "{mode:?}: no more than there was");
    }
}

/// A control group that is removed on drop.
struct ControlGroup {
    path: PathBuf,
}

impl ControlGroup {
    /// Creates a control group. Only version 1 uses the controller. Returns `None` if the machine has no such group.
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

    fn new_or_skip(kind: &str, controller: &str) -> Option<Self> {
        let group = Self::new(kind, controller);
        if group.is_none() {
            skipped!("{kind} {controller}: this machine gives none");
        }
        group
    }

    /// Returns the record of the spec that makes a program join the group.
    fn record(&self) -> String {
        if self.path.join("cgroup.type").exists() {
            format!("cgroup_v2={}", self.path.display())
        } else {
            format!("cgroup={}", self.path.join("tasks").display())
        }
    }

    fn members(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.path.join("cgroup.procs")).expect("members");
        text.lines().map(|line| line.parse().expect("a pid")).collect()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
    }
}

#[test]
fn program_joins_control_groups_before_exec_without_the_keeper() {
    if !needs_root("control groups") {
        return;
    }
    let groups: Vec<ControlGroup> = [("cgroup", "pids"), ("cgroup", "cpu"), ("cgroup2", "unified")]
        .into_iter()
        .filter_map(|(kind, controller)| ControlGroup::new_or_skip(kind, controller))
        .collect();
    let records: Vec<String> = groups.iter().map(ControlGroup::record).collect();
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    for mode in available_modes().into_iter().filter(|mode| !mode.is_unprivileged) {
        let run = Run::new(mode, "cat /proc/self/cgroup; sleep 1000 & echo up; wait", &records).started();
        run.wait_for_line("o up");
        let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
        for group in &groups {
            let members = group.members();
            assert!(members.contains(&program) && members.len() >= 2, "{mode:?}: {members:?}");
            assert!(!members.contains(&keeper), "{mode:?}");
        }
        let listed = run.stdout_lines().iter().filter(|line| line.contains("keeper-test-")).count();
        assert!(mode.isolation == "landlock" || listed >= groups.len(), "{mode:?}: {:?}", run.stdout_lines());
        run.send_command("stop 0");
        run.wait_ended();
    }
}

#[test]
fn program_joins_its_control_group_where_clone3_is_hidden() {
    if !needs_root("control groups") {
        return;
    }
    let Some(group) = ControlGroup::new_or_skip("cgroup2", "hidden") else { return };
    let architecture = std::env::consts::ARCH.try_into().expect("an architecture");
    let (hidden, others) = (SeccompAction::Errno(libc::ENOSYS as u32), SeccompAction::Allow);
    let rules = [(libc::SYS_clone3, Vec::new())].into_iter().collect();
    let filter = SeccompFilter::new(rules, others, hidden, architecture).expect("a filter");
    let filter: BpfProgram = filter.try_into().expect("a program");
    let run = Run::new(NONE, "echo up; exec sleep 1000", &[&group.record()]);
    let mut keeper = run.keeper();
    // SAFETY: the filter is installed by plain system calls.
    unsafe { keeper.pre_exec(move || apply_filter(&filter).map_err(io::Error::other)) };
    assert!(keeper.status().expect("keeper runs").success());
    run.wait_for_line("o up");
    assert_eq!(group.members(), [run.number("pid")]);
    run.send_command("stop 0");
    run.wait_ended();
}

#[test]
fn unjoinable_control_group_is_reported_as_exec_failed() {
    for (record, message) in [
        ("cgroup=/nowhere/tasks", "/nowhere/tasks: No such file"),
        ("cgroup_v2=/nowhere", "/nowhere: No such file"),
        ("cgroup_v2=/tmp", "starting: Bad file descriptor"),
    ] {
        let state = Run::new(NONE, "echo up", &[record]).started().wait_ended();
        assert_eq!(state["reason"], "exec_failed");
        assert!(state["message"].contains(message), "{}", state["message"]);
    }
}

#[test]
fn control_group_memory_kill_is_out_of_memory() {
    if !needs_root("control groups") {
        return;
    }
    let Some(group) = ControlGroup::new_or_skip("cgroup", "memory") else { return };
    fs::write(group.path.join("memory.limit_in_bytes"), "40000000").expect("a limit");
    let records = [group.record(), format!("oom_counter={}", group.path.join("memory.oom_control").display())];
    let records: Vec<&str> = records.iter().map(String::as_str).collect();
    let state = Run::new(USER, "exec perl -e '$x = \"y\" x 200_000_000; sleep 1000'", &records).started().wait_ended();
    assert_eq!((state["exit_code"].as_str(), state["reason"].as_str()), ("137", "out_of_memory"));
}

/// Returns the memory that a process has in addition to the pages of its program, which all keepers share.
fn own_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")?.trim().strip_suffix(" kB"));
    line.map_or(0, |number| number.trim().parse::<u64>().expect("a number") * 1024)
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn large_log_stays_within_disk_and_memory_limits() {
    const MAX: u64 = 8 << 20;
    let script = "yes 'a line of a server that has much to tell, as they do when players come and go' | head -c 256M; \
                  : > over; sleep 1000";
    let run = Run::new(NONE, script, &[&format!("log_bytes_max={MAX}")]);
    let begun = Instant::now();
    let run = run.started();
    let keeper = run.number("keeper_pid");
    let (mut most, mut largest) = (0, 0);
    wait_until(
        || {
            most = most.max(run.log_bytes());
            largest = largest.max(own_bytes(keeper));
            run.path("scratch/over").exists()
        },
        "all of it is written",
    );
    eprintln!(
        "256 MiB of log in {:?}; memory of the keeper at most {largest} bytes; disk {most} bytes",
        begun.elapsed()
    );
    assert!(most <= MAX, "{most}");
    assert!(run.log_bytes() > MAX / 2, "what fits is kept");
    assert!(largest > 0 && largest <= KEEPER_BYTES_MAX, "{largest}");
    run.send_command("stop 0");
    run.wait_ended();
    assert!(!is_alive(run.number("pid")));
}

/// Returns the processor time that a process has used, in seconds.
fn processor_s(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("runs");
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks: u64 = fields.split(' ').skip(11).take(2).map(|field| field.parse::<u64>().expect("a number")).sum();
    ticks as f64 / rustix::param::clock_ticks_per_second() as f64
}

/// Returns the sums of lines and bytes in reports of dropped output.
fn dropped_output(run: &Run) -> (u64, u64) {
    let reports = run.log().into_iter().filter(|line| line.starts_with("e [") && line.ends_with("a rate limit]"));
    reports.fold((0, 0), |(lines, bytes), report| {
        let numbers: Vec<u64> = report.split([' ', '[']).filter_map(|word| word.parse().ok()).collect();
        (lines + numbers[0], bytes + numbers[1])
    })
}

#[test]
fn log_rate_limit_reports_what_it_dropped() {
    let script = "i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo \"line $i\"; done; echo end >&2";
    let run = Run::new(NONE, script, &["log_lines_per_s=20"]).started();
    run.wait_ended();
    let log = run.log();
    let lines: Vec<&String> = log.iter().filter(|line| line.starts_with("o ")).collect();
    let (dropped_lines, dropped_bytes) = dropped_output(&run);
    let is_end_logged = u64::from(log.iter().any(|line| line == "e end"));
    assert_eq!(lines.len() as u64 + dropped_lines + is_end_logged, 5_001);
    let bytes: usize = lines.iter().map(|line| line.len() - 1).sum();
    let all_bytes: usize = (1..=5_000).map(|i| format!("line {i}\n").len()).sum();
    assert_eq!(bytes as u64 + dropped_bytes + 4 * is_end_logged, all_bytes as u64 + 4);
    assert!(dropped_lines > 0 && lines.len() >= 200, "{dropped_lines} {}", lines.len());
    let numbers = lines.iter().map(|line| line.strip_prefix("o line ").expect("a whole line").parse::<u32>());
    assert!(numbers.map(|number| number.expect("a number")).is_sorted());
}

#[test]
fn flood_of_log_lines_costs_the_keeper_little_and_does_not_stop_the_program() {
    let script = "exec perl -e '$line = qq(a line of a flood\\n); $count = 1_000_000; \
                  syswrite STDOUT, $line while $count--; open FILE, q(>), q(over); sleep 1000'";
    let limits = ["log_lines_per_s=1000", "log_bytes_per_s=100000"];
    let run = Run::new(NONE, script, &limits).started();
    let begun = Instant::now();
    let (keeper, program) = (run.number("keeper_pid"), run.number("pid"));
    wait_until(
        || fs::read_to_string(format!("/proc/{program}/wchan")).is_ok_and(|at| at.contains("nanosleep")),
        "over",
    );
    let (keeper_s, program_s) = (processor_s(keeper), processor_s(program));
    eprintln!("a million lines in {:?}: keeper {keeper_s} s, program {program_s} s", begun.elapsed());
    // A build without optimisation counts the lines slowly. The release build needs a tenth.
    assert!(keeper_s < 0.5 * program_s.max(1.0), "{keeper_s} {program_s}");
    run.send_command("stop 0");
    run.wait_ended();
    let (dropped_lines, _) = dropped_output(&run);
    assert!((900_000..=1_000_000).contains(&dropped_lines), "{dropped_lines}");
}

#[test]
fn silent_program_costs_one_thread_and_no_log_folder() {
    for mode in available_modes() {
        let run = Run::new(mode, "until [ -e go ]; do sleep 0.01; done; echo up; sleep 1000", &[]).started();
        let tasks = format!("/proc/{}/task", run.number("keeper_pid"));
        let threads = || fs::read_dir(&tasks).expect("a keeper").count();
        let is_first_other = ["namespace", "processes"].contains(&mode.isolation);
        assert_eq!(threads(), if is_first_other { 2 } else { 1 }, "{mode:?}");
        assert!(!run.path("log").exists(), "{mode:?}");
        fs::write(run.path("scratch/go"), "").expect("written");
        run.wait_for_line("o up");
        assert_eq!(threads(), 2, "{mode:?}");
        run.send_command("stop 0");
        assert_eq!(run.wait_ended()["reason"], "stopped", "{mode:?}");
    }
}

#[test]
fn keeper_of_a_logging_program_stays_small() {
    let script = "i=0; while :; do i=$((i+1)); echo \"tick $i\"; [ $i = 2000 ] && echo enough; done";
    for mode in available_modes() {
        let run = Run::new(mode, script, &["memory_max_bytes=1000000000"]).started();
        wait_until(|| run.log_bytes() > 100_000, "it logs");
        let (keeper, first) = (own_bytes(run.number("keeper_pid")), own_bytes(run.number("pid")));
        eprintln!("{mode:?}: memory of the keeper {keeper} bytes, of the first process {first}");
        assert!(keeper > 0 && keeper <= KEEPER_BYTES_MAX, "{mode:?}: {keeper}");
        run.send_command("stop 0");
        run.wait_ended();
    }
}
