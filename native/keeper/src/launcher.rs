//! Keeper launcher: forks a keeper for each run folder that it reads from its standard input.
//!
//! A request is an absolute path that ends with NUL. A reply on standard output is three NUL-terminated words: an exit
//! status of `hosting-keeper <folder>`, the folder, and a message. The first reply has the status `0` and the folder of
//! all runs. It reports that the launcher has locked that folder.
//!
//! Each forked keeper holds the launcher's lock until it has locked its run folder. So a new launcher starts only when
//! no keeper is about to start. The launcher ends when its input ends, and the keepers continue.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, chdir, wait};

use crate::process_title::ProcessTitle;
use crate::processes;
use crate::run_start::{self, StartError, StartRequester};
use crate::signals::signal_descriptor;
use crate::start_reply::StartReply;

const LOCK: &str = ".nursery";
const READ_BYTES: usize = 4 << 10;
/// Exit status of a forked keeper that has an unneeded PID namespace, or that lacks a needed one.
const NEEDS_OTHER_NAMESPACE: i32 = 76;

/// Forks a keeper for each run folder that standard input names. Returns at the end of the input, and in each forked
/// keeper after its run.
pub fn serve(runs: &Path) -> io::Result<()> {
    let mut launcher = Launcher::new(runs)?;
    launcher.reply_for(runs)?.send(0, "");
    let mut input = Vec::new();
    loop {
        let [has_input, has_exits] = launcher.wait()?;
        let mut requests = if has_exits { launcher.reap()? } else { Vec::new() };
        let is_open = !has_input || read_available(&launcher.requests, &mut input)?;
        while let Some(end) = input.iter().position(|&byte| byte == 0) {
            requests.push((PathBuf::from(OsStr::from_bytes(&input[..end])), None));
            input.drain(..=end);
        }
        for (folder, needs_namespace_init) in requests {
            if let Some((folder, is_namespace_init)) = launcher.fork(folder, needs_namespace_init)? {
                run_forked_keeper(&folder, launcher, is_namespace_init);
                return Ok(());
            }
        }
        if !is_open {
            return Ok(());
        }
    }
}

fn run_forked_keeper(folder: &Path, launcher: Launcher, is_namespace_init: bool) {
    let Launcher { lock, requests, child_signals, replies, title, .. } = launcher;
    let reply = StartReply { replies, folder: folder.to_owned() };
    title.set(folder);
    drop((requests, child_signals));
    let locked = match run_start::lock(folder) {
        Ok(locked) if locked.needs_namespace_init() != is_namespace_init => std::process::exit(NEEDS_OTHER_NAMESPACE),
        other => other,
    };
    match locked.and_then(run_start::LockedRun::prepare) {
        Ok(prepared) => {
            processes::leave_launcher_session();
            drop(lock);
            run_start::start(prepared, StartRequester::Launcher(reply));
        }
        Err(error) => reply.send(error.status(), &error.to_string()),
    }
}

struct ForkedKeeper {
    pid: Pid,
    folder: PathBuf,
    is_namespace_init: bool,
}

struct Launcher {
    lock: File,
    requests: File,
    child_signals: File,
    replies: File,
    forked_keepers: Vec<ForkedKeeper>,
    /// True if the next keeper is forked into a new PID namespace.
    ///
    /// This is a guess, because only the keeper reads the run folder, which can block. After a wrong guess, the keeper
    /// exits with `NEEDS_OTHER_NAMESPACE`.
    is_namespace_init: bool,
    title: ProcessTitle,
}

impl Launcher {
    fn new(runs: &Path) -> io::Result<Self> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(runs.join(LOCK))?;
        while let Err(error) = flock(&lock, FlockOperation::LockExclusive) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        let requests = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let replies = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        processes::redirect_stdin_and_stdout()?;
        chdir("/")?;
        let child_signals = signal_descriptor(&[libc::SIGCHLD])?;
        let title = ProcessTitle::find();
        Ok(Self { lock, requests, child_signals, replies, forked_keepers: Vec::new(), is_namespace_init: false, title })
    }

    fn reply_for(&self, folder: &Path) -> io::Result<StartReply> {
        Ok(StartReply { replies: self.replies.try_clone()?, folder: folder.to_owned() })
    }

    fn fork(&mut self, folder: PathBuf, required: Option<bool>) -> io::Result<Option<(PathBuf, bool)>> {
        let fork_as = |is_init| (is_init, processes::fork(if is_init { libc::CLONE_NEWPID } else { 0 }));
        let (is_namespace_init, result) = match fork_as(required.unwrap_or(self.is_namespace_init)) {
            (true, Err(_)) if required.is_none() => fork_as(false),
            other => other,
        };
        match result {
            Ok(None) => return Ok(Some((folder, is_namespace_init))),
            Ok(Some(pid)) => {
                self.is_namespace_init = is_namespace_init;
                self.forked_keepers.push(ForkedKeeper { pid, folder, is_namespace_init });
            }
            Err(error) => {
                let error = StartError::Disk(error);
                self.reply_for(&folder)?.send(error.status(), &error.to_string());
            }
        }
        Ok(None)
    }

    fn wait(&self) -> io::Result<[bool; 2]> {
        let mut fds = [PollFd::new(&self.requests, PollFlags::IN), PollFd::new(&self.child_signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.map(|fd| !fd.revents().is_empty()))
    }

    /// Collects ended keepers. Sends a reply for each killed keeper.
    ///
    /// Returns the run folders of keepers that exited with `NEEDS_OTHER_NAMESPACE`, and for each whether it needs a new
    /// PID namespace (never `None`).
    fn reap(&mut self) -> io::Result<Vec<(PathBuf, Option<bool>)>> {
        let mut retries = Vec::new();
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while (&self.child_signals).read(&mut record).is_ok() {}
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    let Some(at) = self.forked_keepers.iter().position(|keeper| keeper.pid == pid) else { continue };
                    let keeper = self.forked_keepers.swap_remove(at);
                    if status.signaled() {
                        let error = StartError::Killed;
                        self.reply_for(&keeper.folder)?.send(error.status(), &error.to_string());
                    } else if status.exit_status() == Some(NEEDS_OTHER_NAMESPACE) {
                        retries.push((keeper.folder, Some(!keeper.is_namespace_init)));
                    }
                }
                Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return Ok(retries),
            }
        }
    }
}

/// Appends available bytes to `input`. Returns false at the end of the file.
fn read_available(from: &File, input: &mut Vec<u8>) -> io::Result<bool> {
    input.reserve(READ_BYTES);
    Ok(rustix::io::read(from, spare_capacity(input))? > 0)
}
