//! Starts the program: fork, isolation, exec. What fails on the way comes back as a sentence.

use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    DumpableBehavior, Pid, Resource, Rlimit, Signal, WaitOptions, chdir, geteuid, kill_process, kill_process_group,
    nice, set_dumpable_behavior, set_parent_process_death_signal, setrlimit, setsid, wait,
};

use crate::isolation::{Cage, Failure, drop_capabilities};
use crate::spec::{Isolation, Spec};

/// A program that runs, or ran for a moment.
pub struct Program {
    /// Leader of its group; in a namespace of processes the first one there.
    pub pid: Pid,
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
    is_init: bool,
    namespaces: libc::c_int,
}

/// Runs it. The error is a sentence for the record.
pub fn start(spec: &Spec, cage: Cage) -> Result<Program, String> {
    let plan = Plan::new(spec, cage)?;
    let told = |error: io::Error| format!("starting: {error}");
    let (out, out_end) = pipe().map_err(told)?;
    let (err, err_end) = pipe().map_err(told)?;
    let (failure, failure_end) = pipe().map_err(told)?;
    let (verdict, verdict_end) = pipe().map_err(told)?;
    let null = OpenOptions::new().read(true).open("/dev/null").map_err(told)?;
    for end in [&out, &err] {
        rustix::io::ioctl_fionbio(end, true).map_err(|error| told(error.into()))?;
    }
    if let Some((uid, gid)) = plan.cage.owner() {
        // Who opens /dev/stdout opens the pipe by its name, and needs to be its owner.
        for end in [&out_end, &err_end] {
            std::os::unix::fs::fchown(end, Some(uid), Some(gid)).map_err(told)?;
        }
    }
    let Some(pid) = fork(plan.namespaces).map_err(told)? else {
        drop((out, err, failure, verdict));
        let mut failure_end = File::from(failure_end);
        let stdio = [null.as_fd(), out_end.as_fd(), err_end.as_fd()];
        let why = match plan.become_program(stdio, &mut failure_end, &verdict_end) {
            Err(Failure(why)) => why,
            Ok(never) => match never {},
        };
        let _ = failure_end.write_all(why.as_bytes());
        // SAFETY: ends this process; nothing of the keeper's runs in it any more.
        unsafe { libc::_exit(NOT_RUN) }
    };
    drop((out_end, err_end, failure_end, verdict_end, null));
    let mut why = String::new();
    // It is closed by the exec that succeeds.
    File::from(failure).read_to_string(&mut why).map_err(told)?;
    if why.is_empty() {
        let streams = [out, err].map(|end| Some(File::from(end)));
        let verdict = plan.is_init.then(|| File::from(verdict));
        return Ok(Program { pid, is_init: plan.is_init, streams, verdict });
    }
    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
    Err(why)
}

/// The kernel ends the child when the keeper ends; if it ended before it was asked to, nobody reads there any more.
fn die_with_keeper(failure: &File) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(named("prctl"))?;
    let mut there = [PollFd::new(failure, PollFlags::empty())];
    poll(&mut there, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(named("poll"))?;
    if there[0].revents().contains(PollFlags::ERR) {
        return Err(Failure("the keeper is gone".to_owned()));
    }
    Ok(())
}

fn named(what: &'static str) -> impl Fn(rustix::io::Errno) -> Failure {
    move |error| Failure(format!("{what}: {error}"))
}

enum Never {}

/// Exit status of a process that was to become the program.
const NOT_RUN: libc::c_int = 127;
const LENT_STACK_BYTES: usize = 32 << 10;

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
            is_init: spec.isolation.has_own_processes(),
            namespaces: match spec.isolation {
                Isolation::None | Isolation::Landlock => 0,
                Isolation::User if !cage.begins_with_mounts() => OWN_PROCESSES & !libc::CLONE_NEWNS,
                Isolation::User => OWN_PROCESSES,
                Isolation::Processes if geteuid().is_root() => OWN_PROCESSES,
                Isolation::Namespace | Isolation::Processes => OWN_PROCESSES | libc::CLONE_NEWUSER,
            },
            cage,
        })
    }

    fn become_program(
        &self,
        stdio: [std::os::fd::BorrowedFd<'_>; 3],
        failure: &mut File,
        verdict: &OwnedFd,
    ) -> Result<Never, Failure> {
        if !self.is_init {
            let _ = setsid();
        }
        reset_signals();
        for (number, end) in (0..).zip(stdio) {
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
        setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).map_err(named("core limit"))?;
        // Isolation may come with another user, after which this has to be said again; before it, it covers the way.
        die_with_keeper(failure)?;
        self.cage.enter()?;
        die_with_keeper(failure)?;
        if self.is_init { self.stay_as_init(failure, verdict) } else { self.run() }
    }

    fn run(&self) -> Result<Never, Failure> {
        chdir(&self.workdir).map_err(|error| Failure(format!("workdir {}: {error}", self.workdir.display())))?;
        self.exec()
    }

    /// The first process of a namespace ends all others with it, and must be one that passes signals on: the kernel
    /// keeps those from it that it does not handle, and no program expects that.
    fn stay_as_init(&self, failure: &mut File, verdict: &OwnedFd) -> Result<Never, Failure> {
        // Before there is a program: it has the same user, and must not look into who is a copy of the keeper.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(named("init"))?;
        let mut why = None;
        let program = lend(&mut || {
            let _ = setsid();
            why = self.run().err();
        });
        let program = program.map_err(|error| Failure(format!("starting: {error}")))?;
        if let Some(why) = why {
            return Err(why);
        }
        drop_capabilities().map_err(named("init"))?;
        PROGRAM.store(program.as_raw_nonzero().get(), Ordering::Relaxed);
        // SAFETY: the handler calls nothing but kill.
        unsafe {
            for signal in [libc::SIGTERM, libc::SIGINT] {
                libc::signal(signal, pass_on as extern "C" fn(libc::c_int) as libc::sighandler_t);
            }
            // Readers wait for the end of these, and of the sentence about a failure. What stays open is the verdict.
            let verdict = verdict.as_raw_fd() as libc::c_uint;
            libc::close(failure.as_raw_fd());
            libc::close_range(0, verdict - 1, 0);
            libc::close_range(verdict + 1, libc::c_uint::MAX, 0);
        }
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == program => {
                    let raw = status.as_raw().to_ne_bytes();
                    // SAFETY: the descriptor is open, the bytes are there; the end of this process is that of all here.
                    unsafe {
                        libc::write(verdict.as_raw_fd(), raw.as_ptr().cast(), raw.len());
                        libc::_exit(0)
                    }
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // SAFETY: as above.
                Err(_) => unsafe { libc::_exit(255) },
            }
        }
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

static PROGRAM: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let group = -PROGRAM.load(Ordering::Relaxed);
    // SAFETY: allowed in a handler.
    unsafe {
        libc::kill(group, signal);
        // One that is suspended would not hear it; what lets it go on reaches no handler of an init.
        libc::kill(group, libc::SIGCONT);
    }
}

/// None in the child. The keeper has one thread, so the child may do whatever the keeper may.
pub fn fork(namespaces: libc::c_int) -> io::Result<Option<Pid>> {
    // SAFETY: without CLONE_VM this is fork, with namespaces of its own for the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(namespaces | libc::SIGCHLD), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

/// Runs it in a child that has our memory until it runs a program or ends. We wait for so long, so nothing is used by
/// two at a time.
fn lend(mut body: &mut dyn FnMut()) -> io::Result<Pid> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: it is what is given below, by who waits.
        unsafe { (*body.cast::<&mut dyn FnMut()>())() };
        NOT_RUN
    }
    // Of what is aligned as stacks have to be.
    let mut stack: Vec<u128> = Vec::with_capacity(LENT_STACK_BYTES / size_of::<u128>());
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack grows down from the end of what was allocated, and is there until this call returns, which it
    // does when the child uses it no more.
    let pid = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity());
        libc::clone(run, top.cast(), flags, (&raw mut body).cast())
    };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

/// Where one is after `detach`.
pub enum Detached {
    /// In the process that goes on. What it writes there is told to the caller, when it is closed.
    Here(File),
    /// In the caller's, with what was told.
    Elsewhere(Vec<u8>),
}

/// Goes on in a process of its own session that is nobody's child, without the caller's streams.
pub fn detach() -> io::Result<Detached> {
    let (begun, begun_end) = pipe()?;
    if fork(0)?.is_some() {
        drop(begun_end);
        let mut told = Vec::new();
        File::from(begun).read_to_end(&mut told)?;
        return Ok(Detached::Elsewhere(told));
    }
    drop(begun);
    leave()?;
    Ok(Detached::Here(File::from(begun_end)))
}

/// Away from the caller's session, folder and streams.
pub fn leave() -> io::Result<()> {
    let _ = setsid();
    // The caller's folder is nobody's any more.
    chdir("/")?;
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    for number in 0..3 {
        // SAFETY: both are open descriptors of this process.
        unsafe { libc::dup2(null.as_raw_fd(), number) };
    }
    Ok(())
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

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the array has room for both, and both are owned from here on.
    unsafe {
        if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}
