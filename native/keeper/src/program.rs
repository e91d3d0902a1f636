//! Starts the program: a process, isolation, exec. What fails on the way comes back as a sentence.
//!
//! The process that becomes the program borrows the keeper's memory until then, so nothing is copied for it. Where the
//! keeper is not the first of the program's namespace of processes, another one is (`first`).

mod first;

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, chdir, geteuid, getpid, getppid, getrlimit,
    kill_process, kill_process_group, nice, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, setsid,
};

use crate::isolation::{Cage, Failure};
use crate::numbers;
use crate::processes::{lend, pipe};
use crate::spec::{Isolation, Spec};

/// Of a program whose processes and threads are counted for it alone. More than any game needs, and no machine runs out
/// of numbers for one.
const PROCESSES_MAX: u64 = 4_096;

/// What it may have open.
const FILES_MAX: u64 = 65_536;

/// A program that runs, or ran for a moment.
pub struct Program {
    /// Leader of its group; in a namespace that the keeper is not of, the first one there.
    pub pid: Pid,
    /// The same, as others see it.
    pub shown: i32,
    /// Whether ending `pid` ends all others, and signals go to it alone.
    pub is_init: bool,
    /// Its standard output and standard error, as long as somebody may write there.
    pub streams: [Option<File>; 2],
    /// How the program ended, where the first process is not the program.
    verdict: Option<File>,
}

impl Program {
    /// How it ended, when the first process did with that status of `wait`.
    pub fn end(&mut self, of_first: i32) -> End {
        let mut raw = [0; 4];
        match self.verdict.as_mut().map(|verdict| verdict.read_exact(&mut raw)) {
            Some(Ok(())) => End::of(i32::from_ne_bytes(raw)),
            // Killed before it could tell, or there is nobody in between.
            _ => End::of(of_first),
        }
    }

    /// A signal to all of its group.
    pub fn signal(&self, signal: Signal) {
        let _ = if self.is_init { kill_process(self.pid, signal) } else { kill_process_group(self.pid, signal) };
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl End {
    fn of(raw: i32) -> Self {
        if libc::WIFEXITED(raw) { Self::Exited(libc::WEXITSTATUS(raw)) } else { Self::Killed(libc::WTERMSIG(raw)) }
    }

    /// As shells tell it.
    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

/// All that the child needs, made before the fork.
struct Plan {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    workdir: PathBuf,
    cgroups: Vec<PathBuf>,
    nice: i32,
    cage: Cage,
    /// Whether the first process of its namespace is neither the keeper nor the program.
    has_other_first: bool,
    namespaces: libc::c_int,
}

/// Runs it. `begins` is told its number when nothing is left to do but to run it, by the process that does. Where the
/// first process is another one it is told nothing. The error is a sentence for the record.
pub fn start(spec: &Spec, cage: Cage, begins: &mut dyn FnMut(i32)) -> Result<Program, String> {
    let plan = Plan::new(spec, cage)?;
    let (out, out_end) = pipe().map_err(told)?;
    let (err, err_end) = pipe().map_err(told)?;
    for end in [&out, &err] {
        rustix::io::ioctl_fionbio(end, true).map_err(|error| told(error.into()))?;
    }
    if let Some((uid, gid)) = plan.cage.owner() {
        // Who opens /dev/stdout opens the pipe by its name, and needs to be its owner.
        for end in [&out_end, &err_end] {
            std::os::unix::fs::fchown(end, Some(uid), Some(gid)).map_err(told)?;
        }
    }
    let ends = [out_end.as_fd(), err_end.as_fd()];
    let streams = [out, err].map(|end| Some(File::from(end)));
    if plan.has_other_first {
        return plan.start_first(ends, streams);
    }
    let (pid, shown) = plan.start_lent(ends, begins)?;
    Ok(Program { pid, shown, is_init: false, streams, verdict: None })
}

fn told(error: io::Error) -> String {
    format!("starting: {error}")
}

/// The kernel ends this process when the keeper ends; if that ended before this was asked for, nothing would.
fn die_with_keeper(is_there: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(named("prctl"))?;
    if is_there()? { Ok(()) } else { Err(Failure("the keeper is gone".to_owned())) }
}

/// No more than what is allowed already.
fn limit(resource: Resource, most: u64) -> rustix::io::Result<()> {
    let now = getrlimit(resource);
    let least = |limit: Option<u64>| Some(limit.map_or(most, |limit| limit.min(most)));
    setrlimit(resource, Rlimit { current: least(now.current), maximum: least(now.maximum) })
}

fn named(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |error| Failure(format!("{what}: {error}"))
}

enum Never {}

const OWN_PROCESSES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;

impl Plan {
    fn new(spec: &Spec, cage: Cage) -> Result<Self, String> {
        let text = |value: &OsStr| CString::new(value.as_bytes()).map_err(|_| "a NUL in the command".to_owned());
        let environment = spec.env.iter().map(|(name, value)| {
            let mut variable = name.clone();
            variable.push("=");
            variable.push(value);
            text(&variable)
        });
        Ok(Self {
            path: text(&spec.command[0])?,
            arguments: spec.command.iter().map(|one| text(one)).collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            workdir: spec.workdir.clone(),
            cgroups: spec.cgroups.clone(),
            nice: spec.nice,
            has_other_first: spec.isolation.has_own_processes() && !spec.isolation.has_first_keeper(),
            namespaces: match spec.isolation {
                Isolation::None | Isolation::Landlock => 0,
                Isolation::User if !cage.begins_with_mounts() => libc::CLONE_NEWIPC,
                Isolation::User => libc::CLONE_NEWIPC | libc::CLONE_NEWNS,
                Isolation::Processes if geteuid().is_root() => OWN_PROCESSES,
                Isolation::Namespace | Isolation::Processes => OWN_PROCESSES | libc::CLONE_NEWUSER,
            },
            cage,
        })
    }

    /// Its number here, and as others see it.
    fn start_lent(&self, ends: [BorrowedFd<'_>; 2], begins: &mut dyn FnMut(i32)) -> Result<(Pid, i32), String> {
        let keeper = getpid();
        let (mut shown, mut why) = (0, None);
        let pid = lend(self.namespaces, &mut || {
            why = self.become_program(keeper, ends, &mut shown, begins).err();
        });
        let pid = pid.map_err(told)?;
        if let Some(Failure(why)) = why {
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            return Err(why);
        }
        Ok((pid, shown))
    }

    fn become_program(
        &self,
        keeper: Pid,
        ends: [BorrowedFd<'_>; 2],
        shown: &mut i32,
        begins: &mut dyn FnMut(i32),
    ) -> Result<Never, Failure> {
        let _ = setsid();
        // The first of a namespace ends all others there with it, without being asked to.
        let die = || match keeper.is_init() {
            true => Ok(()),
            false => die_with_keeper(|| Ok(getppid() == Some(keeper))),
        };
        *shown = numbers::outside(keeper.is_init()).map_err(|error| Failure(error.to_string()))?;
        self.join(ends)?;
        // Isolation may come with another user, after which this has to be said again; before it, it covers the way.
        die()?;
        self.cage.enter()?;
        die()?;
        if self.cage.owner().is_some() {
            // Whoever has that user must not look into what is the keeper's memory still.
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(named("memory"))?;
        }
        self.run(&mut || begins(*shown))
    }

    /// Streams, control groups and limits of the program.
    fn join(&self, ends: [BorrowedFd<'_>; 2]) -> Result<(), Failure> {
        reset_signals();
        // Its standard input is the keeper's, which is nothing.
        for (number, end) in (1..).zip(ends) {
            // SAFETY: both are open descriptors of this process.
            if unsafe { libc::dup2(end.as_raw_fd(), number) } < 0 {
                return Err(Failure(format!("stdio: {}", io::Error::last_os_error())));
            }
        }
        // SAFETY: marks descriptors only; none of them is used after the exec.
        unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
        for path in &self.cgroups {
            let joined = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(b"0"));
            joined.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        }
        if self.nice != 0 {
            nice(self.nice).map_err(named("nice"))?;
        }
        if self.cage.is_counted_alone() {
            limit(Resource::Nproc, PROCESSES_MAX).map_err(named("process limit"))?;
        }
        limit(Resource::Nofile, FILES_MAX).map_err(named("file limit"))?;
        limit(Resource::Core, 0).map_err(named("core limit"))
    }

    fn run(&self, begins: &mut dyn FnMut()) -> Result<Never, Failure> {
        chdir(&self.workdir).map_err(|error| Failure(format!("workdir {}: {error}", self.workdir.display())))?;
        begins();
        self.exec()
    }

    fn exec(&self) -> Result<Never, Failure> {
        let pointers = |all: &[CString]| -> Vec<*const libc::c_char> {
            all.iter().map(|one| one.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: both lists end with null and outlive the call.
        unsafe { libc::execve(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        Err(Failure(format!("{}: {}", self.path.to_string_lossy(), io::Error::last_os_error())))
    }
}

/// What is ignored stays so in a program, and nobody expects that. Once, before anything is started.
pub fn heed_signals() {
    for signal in 1..=64 {
        // SAFETY: plain calls with valid arguments. What is ours is left: only the program is without it.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            let is_known = libc::sigaction(signal, std::ptr::null(), &raw mut now) == 0;
            if is_known && signal != libc::SIGPIPE && now.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Of those the keeper ignores or blocks some itself.
fn reset_signals() {
    // SAFETY: plain calls with valid arguments.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}
