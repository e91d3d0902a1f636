//! Start of a keeper that is killed at each of its steps.
//!
//! All processes of the start are traced. The test kills the keeper just before each system call in turn, so it covers
//! every moment between two steps.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use crate::run_fixture::{KEEPER, Mode, Run, available_modes, is_root, wait_until};

/// System calls without effect outside of the process.
const IGNORED_CALLS: [libc::c_long; 14] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_brk,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_futex,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_pread64,
    libc::SYS_getrandom,
    libc::SYS_prlimit64,
];
const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

struct TracedStart {
    caller: i32,
    keeper: Option<i32>,
    steps: usize,
    has_begun: bool,
}

impl TracedStart {
    /// Kills the keeper at a step, or its caller if no keeper exists yet. Returns `None` if the start has fewer
    /// steps. The end of the tracing thread releases the processes.
    fn killed_at(run: &Run, step: usize) -> Option<Child> {
        let mut caller = Command::new("/bin/sh");
        caller.args(["-c", "read go; exec \"$0\" \"$1\"", KEEPER]).arg(run.folder.path());
        run.set_keeper_user(&mut caller).stdin(Stdio::piped()).stderr(Stdio::null());
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    let mut caller = caller.spawn().expect("spawned");
                    let pid = caller.id() as i32;
                    let mut traced = Self { caller: pid, keeper: None, steps: 0, has_begun: false };
                    let options = libc::PTRACE_O_TRACESYSGOOD
                        | libc::PTRACE_O_TRACEFORK
                        | libc::PTRACE_O_TRACEVFORK
                        | libc::PTRACE_O_TRACECLONE
                        | libc::PTRACE_O_TRACEEXEC;
                    ptrace(libc::PTRACE_SEIZE, pid, options as usize);
                    caller.stdin.take().expect("a pipe").write_all(b"go\n").expect("written");
                    traced.follow(step).then_some(caller)
                })
                .join()
                .expect("traced")
        })
    }

    /// Follows the start up to a step. Returns false if the start has fewer steps.
    fn follow(&mut self, step: usize) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: waits for what this thread has started or traces.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::__WNOTHREAD) };
            assert!(pid > 0, "waiting: {}", std::io::Error::last_os_error());
            if !libc::WIFSTOPPED(status) {
                if pid == self.caller {
                    return false;
                }
                continue;
            }
            let mut signal = 0;
            match (libc::WSTOPSIG(status), status >> 16) {
                (SYSCALL_STOP, _) => {
                    if self.has_begun && is_step(pid) {
                        self.steps += 1;
                        if self.steps == step {
                            // SAFETY: the process is traced by this thread, so its PID is not reused.
                            unsafe { libc::kill(self.keeper.unwrap_or(self.caller), libc::SIGKILL) };
                            return true;
                        }
                    }
                }
                (_, libc::PTRACE_EVENT_FORK) if pid == self.caller && self.keeper.is_none() => {
                    let mut child: libc::c_ulong = 0;
                    ptrace(libc::PTRACE_GETEVENTMSG, pid, &raw mut child as usize);
                    self.keeper = Some(child as i32);
                }
                (_, libc::PTRACE_EVENT_EXEC) if pid == self.caller => self.has_begun = true,
                (_, libc::PTRACE_EVENT_EXEC) => {
                    ptrace(libc::PTRACE_DETACH, pid, 0);
                    continue;
                }
                (_, 1..) => {}
                (number, _) => signal = number,
            }
            ptrace(libc::PTRACE_SYSCALL, pid, signal as usize);
        }
    }
}

fn is_step(pid: i32) -> bool {
    // SAFETY: plain numbers, for which zero is a value; the size is that of what is pointed to.
    let info = unsafe {
        let mut info: libc::ptrace_syscall_info = std::mem::zeroed();
        libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size_of_val(&info), &raw mut info);
        info
    };
    // SAFETY: that part is there at an entry.
    info.op == libc::PTRACE_SYSCALL_INFO_ENTRY && !IGNORED_CALLS.contains(&(unsafe { info.u.entry.nr } as libc::c_long))
}

/// Sends a ptrace request. Ignores the error of a process that was already killed.
fn ptrace(request: libc::c_uint, pid: i32, data: usize) {
    // SAFETY: the requests of this file take a number or a valid pointer.
    unsafe { libc::ptrace(request, pid, 0, data) };
}

/// Returns the command lines that contain the run folder.
fn processes_of(run: &Run) -> Vec<String> {
    let place = run.folder.path().to_string_lossy().into_owned();
    let pids = fs::read_dir("/proc").expect("processes").flatten();
    pids.filter_map(|one| fs::read_to_string(one.path().join("cmdline")).ok())
        .filter(|words| words.contains(&place))
        .collect()
}

fn start_count(run: &Run) -> usize {
    fs::read(run.path("scratch/started")).map_or(0, |marks| marks.len())
}

/// Returns the run state after a kill at a step, or `None` if the start has fewer steps.
fn try_step(mode: Mode, step: usize) -> Option<Option<String>> {
    let run = Run::new(mode, "printf x >> started; read x < go", &[]);
    rustix::fs::mkfifoat(rustix::fs::CWD, run.path("scratch/go"), rustix::fs::Mode::RWXU).expect("fifo");
    run.chown_to_program("scratch/go");
    let named =
        fs::read_to_string(run.path("spec")).expect("spec") + &format!("command={}\0", run.folder.path().display());
    fs::write(run.path("spec"), named).expect("spec");
    let Some(mut caller) = TracedStart::killed_at(&run, step) else {
        run.send_command("stop 0");
        run.wait_ended();
        return None;
    };
    let code = caller.wait().expect("ended").code();
    wait_until(|| processes_of(&run).is_empty(), "all of them go with the keeper");
    let context = format!("{mode:?}, step {step}: {code:?}, {:?}", run.state());
    let state = run.state().get("status").cloned();
    let before = start_count(&run);
    match state.as_deref() {
        None => {
            assert_eq!(before, 0, "{context}: the program ran without a record");
            assert!([None, Some(70)].contains(&code), "{context}");
            assert_eq!(run.keep().status.code(), Some(0), "{context}: nothing ran, so it may");
            wait_until(|| start_count(&run) == 1 || run.has_ended(), "it runs");
            assert_eq!(start_count(&run), 1, "{context}, then {:?}", run.state());
            run.send_command("stop 0");
            run.wait_ended();
            assert_eq!(start_count(&run), 1, "{context}");
        }
        Some("starting" | "running") => {
            assert!(before <= 1 && [None, Some(0), Some(70)].contains(&code), "{context}");
            assert!(run.number("keeper_pid") > 0);
            assert_eq!(run.keep().status.code(), Some(75), "{context}");
            assert_eq!(start_count(&run), before, "{context}");
        }
        other => panic!("{context}: {other:?}"),
    }
    Some(state)
}

fn try_every_step(mode: Mode) {
    let mut step = 1;
    let mut observed_states = Vec::new();
    while let Some(state) = try_step(mode, step) {
        if observed_states.last() != Some(&state) {
            observed_states.push(state);
        }
        step += 1;
    }
    eprintln!("{mode:?}: {} steps", step - 1);
    let words: Vec<Option<&str>> = observed_states.iter().map(Option::as_deref).collect();
    assert!(words.starts_with(&[None, Some("starting")]), "{mode:?}: {words:?}");
    assert!(step > 50, "{mode:?}: {step} steps are no start");
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn folder_is_one_run_after_a_kill_at_any_step_of_the_start() {
    // A namespace starts like `processes`, so root tests only one of them.
    let modes = available_modes()
        .into_iter()
        .filter(|mode| !mode.is_unprivileged && (mode.isolation != "namespace" || !is_root()));
    std::thread::scope(|scope| {
        for mode in modes {
            scope.spawn(move || try_every_step(mode));
        }
    });
}
