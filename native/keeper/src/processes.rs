//! Creation of processes, and their PIDs outside of a PID namespace.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, chdir, getpid, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdin};

pub const EXIT_CODE_NOT_STARTED: libc::c_int = 127;
const CLONE_INTO_CGROUP: u64 = 1 << 33;
/// Buffer length for the digits of a PID, which is at most 4194304.
const PID_DIGITS_MAX: usize = 16;

/// Forks this process, which must have only one thread. `namespaces` are clone flags. Returns `None` in the child.
pub fn fork(namespaces: libc::c_int) -> io::Result<Option<Pid>> {
    // SAFETY: without CLONE_VM this is fork, with namespaces of its own for the child.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::c_long::from(namespaces | libc::SIGCHLD), 0, 0, 0, 0) };
    forked(pid)
}

/// Forks like [`fork`]. The child starts in a control group of version 2, given as its folder.
///
/// Moving a process into a group waits for a grace period of the kernel, often 10 ms. A fork into the group does not.
pub fn fork_into(namespaces: libc::c_int, group: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
    // SAFETY: all fields are numbers, for which zero is valid.
    let mut request: libc::clone_args = unsafe { std::mem::zeroed() };
    request.flags = CLONE_INTO_CGROUP | namespaces as u64;
    request.exit_signal = libc::SIGCHLD as u64;
    request.cgroup = group.as_raw_fd() as u64;
    // SAFETY: the request outlives the call. Without CLONE_VM this is fork, as above.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const request, size_of::<libc::clone_args>()) };
    forked(pid)
}

fn forked(pid: libc::c_long) -> io::Result<Option<Pid>> {
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Pid::from_raw(pid as i32)),
    }
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
