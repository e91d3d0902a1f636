//! SIGTERM of a stop: which processes of a run get it. No process gets it twice.
//!
//! If the main process catches SIGTERM, only the main process gets it. Otherwise every process of the run gets it, in
//! all process groups and sessions. After the end of the main process, each process that had no SIGTERM gets one.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Signal, pidfd_send_signal};

use crate::clock::now;
use crate::process_tree::{self, Member};

const ROUNDS_MAX: usize = 100;
const REPEAT_INTERVAL: Duration = Duration::from_millis(50);
/// A process that changes its parent during one round can be missing in it.
const LAST_EMPTY_ROUNDS: usize = 2;
/// PID of the main process in its PID namespace, if that has a separate first process.
const MAIN_PID_IN_NAMESPACE: &str = "2";

/// Processes of a run, as the keeper sees them.
#[derive(Clone, Copy)]
pub struct RunProcesses {
    /// PID of the keeper outside of its PID namespace.
    pub keeper: i32,
    pub program: i32,
    /// True if `program` is the first process of the program's PID namespace, which gets no signal.
    pub is_init: bool,
}

impl RunProcesses {
    fn members(self) -> Vec<Member> {
        let mut members = process_tree::members(self.keeper);
        members.retain(|member| !(self.is_init && member.pid == self.program));
        members
    }

    fn main(self) -> Option<i32> {
        if !self.is_init {
            return Some(self.program);
        }
        let is_main = |member: &Member| {
            let pids = Process::open(member.pid).ok().and_then(|process| process.status_field("NSpid:"));
            pids.is_some_and(|pids| pids.split_ascii_whitespace().last() == Some(MAIN_PID_IN_NAMESPACE))
        };
        self.members().into_iter().filter(|member| member.parent == self.program).find(is_main).map(|main| main.pid)
    }
}

#[derive(Default)]
pub struct StopSignals {
    signalled: HashSet<i32>,
    /// Signalled processes that handle SIGTERM. Their new children may do the work of a handler.
    handlers: HashSet<i32>,
    /// Signalled processes that SIGTERM ends. A process that blocks SIGTERM for a moment, as in a fork, can still get
    /// children that have no signal.
    dying: HashSet<i32>,
    repeat_at: Option<Duration>,
}

impl StopSignals {
    pub fn begin(&mut self, processes: RunProcesses) {
        match processes.main().map(|main| (main, Process::open(main))) {
            Some((main, Ok(process))) if process.waits_for_sigterm() => self.signal(main, &process),
            _ => self.signal_rest(processes),
        }
    }

    /// Returns the time at which `signal_rest` has to be called again.
    pub fn repeat_at(&self) -> Option<Duration> {
        self.repeat_at
    }

    /// Signals each process that had no signal yet, including those that are forked meanwhile.
    pub fn signal_rest(&mut self, processes: RunProcesses) {
        let mut empty_rounds = 0;
        for _ in 0..ROUNDS_MAX {
            // Before each round, because a process that dies after it can leave a child that the round did not see.
            self.dying.retain(|&pid| Process::open(pid).is_ok_and(|process| process.is_alive()));
            let mut members = processes.members();
            members.retain(|one| !self.signalled.contains(&one.pid) && !self.handlers.contains(&one.parent));
            empty_rounds = if members.is_empty() { empty_rounds + 1 } else { 0 };
            if empty_rounds == LAST_EMPTY_ROUNDS {
                break;
            }
            for member in members {
                match Process::open(member.pid) {
                    Ok(process) => self.signal(member.pid, &process),
                    Err(_) => drop(self.signalled.insert(member.pid)),
                }
            }
        }
        let is_complete = empty_rounds == LAST_EMPTY_ROUNDS && self.dying.is_empty();
        self.repeat_at = (!is_complete).then(|| now() + REPEAT_INTERVAL);
    }

    fn signal(&mut self, pid: i32, process: &Process) {
        self.signalled.insert(pid);
        if process.has_sigterm_in("SigCgt:") {
            self.handlers.insert(pid);
        } else if !process.has_sigterm_in("SigIgn:") {
            self.dying.insert(pid);
        }
        process.send(Signal::TERM);
        // A stopped process does not handle SIGTERM.
        process.send(Signal::CONT);
    }
}

/// Folder of a process in `/proc`. It never names a later process with the same PID.
struct Process(File);

impl Process {
    fn open(pid: i32) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self(openat(CWD, format!("/proc/{pid}"), flags, Mode::empty())?.into()))
    }

    /// Works in each PID namespace of this process or below, although `/proc` is that of the outer namespace.
    fn send(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.0, signal);
    }

    /// Reports whether the process has a handler for SIGTERM, or blocks SIGTERM, as `sigwait` requires.
    fn waits_for_sigterm(&self) -> bool {
        self.has_sigterm_in("SigCgt:") || self.has_sigterm_in("SigBlk:")
    }

    fn has_sigterm_in(&self, mask: &str) -> bool {
        let signals = self.status_field(mask).and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        signals.unwrap_or_default() & (1 << (Signal::TERM.as_raw() - 1)) != 0
    }

    fn is_alive(&self) -> bool {
        self.status_field("State:").is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
    }

    fn status_field(&self, name: &str) -> Option<String> {
        let file = openat(&self.0, "status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    }
}
