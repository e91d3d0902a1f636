//! Creation of processes, and their PIDs outside of a PID namespace.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, chdir, getpid, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

pub const EXIT_CODE_NOT_STARTED: libc::c_int = 127;
const STACK_ALIGNMENT: usize = 64;
const SHARED_STACK_GAP: usize = 4 << 10;
/// Buffer length for the digits of a PID, which is at most 4194304.
const PID_DIGITS_MAX: usize = 16;

/// Forks this process, which must have only one thread. `namespaces` are clone flags. Returns `None` in the child.
pub fn fork(namespaces: libc::c_int) -> io::Result<Option<Pid>> {
    // SAFETY: without CLONE_VM this is fork, with namespaces of its own for the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(namespaces | libc::SIGCHLD), 0, 0, 0, 0) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
}

/// Runs `body` in a child that shares this process's memory until the child executes a program or exits.
///
/// The caller waits until then. Only the main thread may call this, because the child uses the free part of its stack.
pub fn run_with_shared_memory(namespaces: libc::c_int, mut body: &mut dyn FnMut()) -> io::Result<Pid> {
    extern "C" fn run(body: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the pointer is the one passed below, by the waiting parent.
        unsafe { (*body.cast::<&mut dyn FnMut()>())() };
        EXIT_CODE_NOT_STARTED
    }
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD | namespaces;
    let stack_position = (&raw mut body).expose_provenance();
    let top = (stack_position - SHARED_STACK_GAP) & !(STACK_ALIGNMENT - 1);
    // SAFETY: nothing below the gap is in use until this call returns, which is after the child's last use of it.
    let pid = unsafe {
        let top = std::ptr::with_exposed_provenance_mut(top);
        libc::clone(run, top, flags, (&raw mut body).cast())
    };
    Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error)
}

pub enum DaemonizeResult {
    /// Result in the child: a pipe to the parent, which reads until the child closes the pipe.
    Child(File),
    Parent(Vec<u8>),
}

pub fn daemonize(namespaces: libc::c_int) -> io::Result<DaemonizeResult> {
    let (report, report_end) = pipe()?;
    if fork(namespaces)?.is_some() {
        drop(report_end);
        let mut report_bytes = Vec::new();
        File::from(report).read_to_end(&mut report_bytes)?;
        return Ok(DaemonizeResult::Parent(report_bytes));
    }
    drop(report);
    let _ = setsid();
    chdir("/")?;
    redirect_stdin_and_stdout()?;
    dup2_stderr(stdin())?;
    Ok(DaemonizeResult::Child(File::from(report_end)))
}

pub fn redirect_stdin_and_stdout() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    Ok(())
}

pub fn leave_launcher_session() {
    let _ = setsid();
    let _ = dup2_stderr(stdin());
}

pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

pub fn is_namespace_init() -> bool {
    getpid().is_init()
}

/// Returns the PID of this process as seen outside of the keeper's PID namespace.
///
/// `has_pid_namespace` is true if the keeper has a PID namespace of its own.
pub fn outer_pid(has_pid_namespace: bool) -> io::Result<i32> {
    if !has_pid_namespace {
        return Ok(getpid().as_raw_nonzero().get());
    }
    // `/proc` is still that of the outer namespace.
    let target = rustix::fs::readlink("/proc/self", Vec::with_capacity(PID_DIGITS_MAX))?;
    let pid = target.to_str().ok().and_then(|text| text.parse().ok());
    pid.ok_or_else(|| io::Error::other("/proc/self: no number"))
}

/// Reports whether the kernel counts processes per user namespace and not per user, as Linux does since 5.14.
pub fn counts_processes_by_user_namespace() -> bool {
    let system = rustix::system::uname();
    let mut version_parts = system.release().to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut number =
        || version_parts.next().and_then(|part| str::from_utf8(part).ok()?.parse::<u32>().ok()).unwrap_or_default();
    (number(), number()) >= (5, 14)
}
