//! Start of the program: child process, sandbox, exec.
//!
//! If the program's PID namespace needs a first process other than the keeper, `namespace_init` starts one.

mod namespace_init;

use std::cell::Cell;
use std::convert::Infallible;
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, chdir, geteuid, getpid, getppid, getrlimit,
    kill_process, nice, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, setsid,
};

use rustix::stdio::{dup2_stderr, dup2_stdout};

use crate::isolation::{ExecError, Sandbox};
use crate::network;
use crate::process_tree;
use crate::processes::{self, EXIT_CODE_NOT_STARTED, fork, fork_into, pipe};
use crate::run_spec::{Isolation, RunSpec};

const MEMBERS_FILE: &str = "cgroup.procs";
/// Moves the process that writes it into a control group.
const SELF: &[u8] = b"0";
const PROCESSES_MAX: u64 = 4_096;

const FILES_MAX: u64 = 65_536;

pub struct Program {
    /// PID of the program, which leads its process group. If `is_init`, PID of the PID namespace's first process
    /// instead.
    pub pid: Pid,
    pub outer_pid: i32,
    /// True if `pid` is the first process of the program's PID namespace. Its end ends all processes of the namespace.
    pub is_init: bool,
    pub streams: [Option<File>; 2],
    /// Pipe on which the first process of the PID namespace reports the program's wait status. `None` unless `is_init`.
    pub exit_report: Option<File>,
}

impl Program {
    /// Returns the end of the main process if the first process of the PID namespace has reported it.
    pub fn reported_end(&mut self) -> Option<ProgramEnd> {
        let mut raw = [0; 4];
        match self.exit_report.as_mut()?.read_exact(&mut raw) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            result => {
                self.exit_report = None;
                result.ok().map(|()| ProgramEnd::from_wait_status(i32::from_ne_bytes(raw)))
            }
        }
    }

    /// Kills all processes of the run.
    pub fn kill(&self) {
        if self.is_init {
            let _ = kill_process(self.pid, Signal::KILL);
        } else {
            process_tree::kill_descendants();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramEnd {
    Exited(i32),
    Killed(i32),
}

impl ProgramEnd {
    pub fn from_wait_status(raw: i32) -> Self {
        if libc::WIFEXITED(raw) { Self::Exited(libc::WEXITSTATUS(raw)) } else { Self::Killed(libc::WTERMSIG(raw)) }
    }

    pub fn code(self) -> i32 {
        match self {
            Self::Exited(code) => code,
            Self::Killed(signal) => 128 + signal,
        }
    }
}

struct ExecPlan {
    path: CString,
    arguments: Vec<CString>,
    environment: Vec<CString>,
    workdir: PathBuf,
    cgroups: Vec<PathBuf>,
    /// Opened folder of the control group of version 2.
    cgroup_v2: Option<File>,
    /// True if the child has to move into `cgroup_v2` itself.
    is_moved_after_fork: Cell<bool>,
    has_network_rules: bool,
    nice: i32,
    sandbox: Sandbox,
    has_separate_init: bool,
    namespaces: libc::c_int,
}

/// Starts the program in its sandbox.
///
/// Just before the exec, the child process calls `on_exec` with its PID outside of the PID namespace. `on_exec` is not
/// called if the returned [`Program::is_init`] is true.
pub fn start(spec: &RunSpec, sandbox: Sandbox, on_exec: &mut dyn FnMut(i32)) -> Result<Program, String> {
    let plan = ExecPlan::new(spec, sandbox)?;
    spec.network.apply().map_err(|error| format!("network isolation: {error}"))?;
    let (out, out_end) = pipe().map_err(start_failure)?;
    let (err, err_end) = pipe().map_err(start_failure)?;
    for end in [&out, &err] {
        rustix::io::ioctl_fionbio(end, true).map_err(|error| start_failure(error.into()))?;
    }
    if let Some((uid, gid)) = plan.sandbox.owner() {
        // A program that opens /dev/stdout has to own the pipe.
        for end in [&out_end, &err_end] {
            std::os::unix::fs::fchown(end, Some(uid), Some(gid)).map_err(start_failure)?;
        }
    }
    let output_ends = [out_end.as_fd(), err_end.as_fd()];
    let streams = [out, err].map(|end| Some(File::from(end)));
    if plan.has_separate_init {
        return plan.start_namespace_init(output_ends, streams);
    }
    let (pid, outer_pid) = plan.start_child(output_ends, on_exec)?;
    Ok(Program { pid, outer_pid, is_init: false, streams, exit_report: None })
}

/// Reports the failure to the keeper and ends this child process.
fn exit_with(ExecError(failure_reason): &ExecError, report: &mut File) -> ! {
    let _ = report.write_all(failure_reason.as_bytes());
    // SAFETY: ends this process, and skips the exit handlers of the keeper.
    unsafe { libc::_exit(EXIT_CODE_NOT_STARTED) }
}

fn start_failure(error: io::Error) -> String {
    format!("starting: {error}")
}

/// Makes the kernel kill this process when the keeper ends. Fails if the keeper has already ended.
fn request_parent_death_signal(keeper_is_alive: impl Fn() -> Result<bool, ExecError>) -> Result<(), ExecError> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(with_name("prctl"))?;
    if keeper_is_alive()? { Ok(()) } else { Err(ExecError("the keeper has ended".to_owned())) }
}

pub fn limit(resource: Resource, maximum: u64) -> rustix::io::Result<()> {
    let current = getrlimit(resource);
    let lowered = |limit: Option<u64>| Some(limit.map_or(maximum, |limit| limit.min(maximum)));
    setrlimit(resource, Rlimit { current: lowered(current.current), maximum: lowered(current.maximum) })
}

fn with_name(name: &'static str) -> impl Fn(rustix::io::Errno) -> ExecError {
    move |error| ExecError(format!("{name}: {error}"))
}

const PROCESS_NAMESPACES: libc::c_int = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;

impl ExecPlan {
    fn new(spec: &RunSpec, sandbox: Sandbox) -> Result<Self, String> {
        let text = |value: &OsStr| CString::new(value.as_bytes()).map_err(|_| "a NUL in the command".to_owned());
        let environment = spec.env.iter().map(|(name, value)| {
            let mut variable = name.clone();
            variable.push("=");
            variable.push(value);
            text(&variable)
        });
        let cgroup_v2 = spec
            .cgroup_v2
            .as_ref()
            .map(|path| File::open(path).map_err(|error| format!("{}: {error}", path.display())));
        Ok(Self {
            path: text(&spec.command[0])?,
            arguments: spec.command.iter().map(|one| text(one)).collect::<Result<_, _>>()?,
            environment: environment.collect::<Result<_, _>>()?,
            workdir: spec.workdir.clone(),
            cgroups: spec.cgroups.clone(),
            cgroup_v2: cgroup_v2.transpose()?,
            is_moved_after_fork: Cell::new(false),
            has_network_rules: spec.network.group.is_some(),
            nice: spec.nice,
            has_separate_init: spec.isolation.has_pid_namespace() && !spec.isolation.keeper_is_namespace_init(),
            namespaces: match spec.isolation {
                Isolation::None | Isolation::Landlock => 0,
                Isolation::User => libc::CLONE_NEWIPC | libc::CLONE_NEWNS,
                Isolation::Processes if geteuid().is_root() => PROCESS_NAMESPACES,
                Isolation::Namespace | Isolation::Processes => PROCESS_NAMESPACES | libc::CLONE_NEWUSER,
            },
            sandbox,
        })
    }

    fn start_child(
        &self,
        output_ends: [BorrowedFd<'_>; 2],
        on_exec: &mut dyn FnMut(i32),
    ) -> Result<(Pid, i32), String> {
        let keeper = getpid();
        let (report, report_end) = pipe().map_err(start_failure)?;
        let Some(pid) = self.fork().map_err(start_failure)? else {
            drop(report);
            let mut report_end = File::from(report_end);
            let Err(failure) = self.become_program(keeper, output_ends, &mut report_end, on_exec);
            exit_with(&failure, &mut report_end)
        };
        drop(report_end);
        let mut report = File::from(report);
        let (mut outer_pid, mut failure_reason) = ([0; 4], String::new());
        // A successful exec closes the pipe.
        let result = report.read_exact(&mut outer_pid).and_then(|()| report.read_to_string(&mut failure_reason));
        match result {
            Ok(_) if failure_reason.is_empty() => return Ok((pid, i32::from_ne_bytes(outer_pid))),
            Ok(_) => {}
            Err(error) => failure_reason = start_failure(error),
        }
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        Err(failure_reason)
    }

    /// Forks the process that joins the control groups. Returns `None` in the child.
    fn fork(&self) -> io::Result<Option<Pid>> {
        let Some(group) = &self.cgroup_v2 else { return fork(self.namespaces) };
        match fork_into(self.namespaces, group.as_fd()) {
            // Filters of container runtimes can hide the call.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                self.is_moved_after_fork.set(true);
                fork(self.namespaces)
            }
            result => result,
        }
    }

    fn become_program(
        &self,
        keeper: Pid,
        output_ends: [BorrowedFd<'_>; 2],
        report: &mut File,
        on_exec: &mut dyn FnMut(i32),
    ) -> Result<Infallible, ExecError> {
        let _ = setsid();
        let outer_pid = processes::outer_pid(keeper.is_init());
        let reported = report.write_all(&outer_pid.as_ref().map_or(0, |&pid| pid).to_ne_bytes());
        let outer_pid = reported.and(outer_pid).map_err(|error| ExecError(error.to_string()))?;
        // The end of a first process ends its whole PID namespace anyway.
        let request_end_with_keeper = || match keeper.is_init() {
            true => Ok(()),
            false => request_parent_death_signal(|| Ok(getppid() == Some(keeper))),
        };
        self.prepare_process(output_ends)?;
        // The kernel clears the parent death signal when the user changes.
        request_end_with_keeper()?;
        self.sandbox.enter()?;
        request_end_with_keeper()?;
        if self.sandbox.owner().is_some() {
            // Other processes of the new user must not read this copy of the keeper's memory.
            set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(with_name("memory"))?;
        }
        self.run(&mut || on_exec(outer_pid))
    }

    /// Connects the output pipes, joins the control groups and sets the limits. Standard input is `/dev/null` already.
    fn prepare_process(&self, [out, err]: [BorrowedFd<'_>; 2]) -> Result<(), ExecError> {
        reset_signals();
        dup2_stdout(out).map_err(with_name("stdio"))?;
        dup2_stderr(err).map_err(with_name("stdio"))?;
        // SAFETY: only marks descriptors, and none is used after the exec.
        unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC as libc::c_int) };
        if let (Some(group), true) = (&self.cgroup_v2, self.is_moved_after_fork.get()) {
            let file = openat(group, MEMBERS_FILE, OFlags::WRONLY, Mode::empty()).map_err(with_name(MEMBERS_FILE))?;
            File::from(file).write_all(SELF).map_err(|error| ExecError(format!("{MEMBERS_FILE}: {error}")))?;
        }
        for path in &self.cgroups {
            let joined = OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(SELF));
            joined.map_err(|error| ExecError(format!("{}: {error}", path.display())))?;
        }
        if self.has_network_rules {
            network::check_enforced().map_err(|error| ExecError(format!("network isolation: {error}")))?;
        }
        if self.nice != 0 {
            nice(self.nice).map_err(with_name("nice"))?;
        }
        if self.sandbox.has_own_process_count() {
            limit(Resource::Nproc, PROCESSES_MAX).map_err(with_name("process limit"))?;
        }
        limit(Resource::Nofile, FILES_MAX).map_err(with_name("file limit"))?;
        limit(Resource::Core, 0).map_err(with_name("core limit"))
    }

    fn run(&self, on_exec: &mut dyn FnMut()) -> Result<Infallible, ExecError> {
        chdir(&self.workdir).map_err(|error| ExecError(format!("workdir {}: {error}", self.workdir.display())))?;
        on_exec();
        self.exec()
    }

    fn exec(&self) -> Result<Infallible, ExecError> {
        let pointers = |all: &[CString]| -> Vec<*const libc::c_char> {
            all.iter().map(|one| one.as_ptr()).chain([std::ptr::null()]).collect()
        };
        let (arguments, environment) = (pointers(&self.arguments), pointers(&self.environment));
        // SAFETY: both lists end with null and outlive the call.
        unsafe { libc::execve(self.path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
        Err(ExecError(format!("{}: {}", self.path.to_string_lossy(), io::Error::last_os_error())))
    }
}

/// Resets ignored signals to their default action. Otherwise the program would ignore them too after the exec.
pub fn restore_ignored_signals() {
    for signal in 1..=64 {
        // SAFETY: plain calls with valid arguments.
        unsafe {
            let mut current: libc::sigaction = std::mem::zeroed();
            let is_valid_signal = libc::sigaction(signal, std::ptr::null(), &raw mut current) == 0;
            if is_valid_signal && signal != libc::SIGPIPE && current.sa_sigaction == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

pub fn reset_signals() {
    // SAFETY: plain calls with valid arguments.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}
