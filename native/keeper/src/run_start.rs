//! Start of a run: locks the folder, records the start, starts the program, and continues in `run_loop`.
//!
//! This order guarantees that a folder has only one run, ever. The lock is taken first, and the start is recorded
//! before the program runs. If the keeper dies after the record, no other keeper starts the folder again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper, umask};

use crate::clock::wall_us;
use crate::disk_writer::{DiskWriter, DiskWriterHandle, Notifier};
use crate::isolation::Sandbox;
use crate::log_segments::{DiskReserve, SegmentedLog};
use crate::processes::{self, DaemonizeResult};
use crate::program;
use crate::run_loop::RunLoop;
use crate::run_spec::RunSpec;
use crate::run_state::{ExitCause, RunState, RunStatus, StateFile};
use crate::signals::{HANDLED_SIGNALS, signal_descriptor};
use crate::start_reply::StartReply;

const LOCK_ATTEMPTS: u32 = 200;
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(5);
const RECORD_WAIT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub enum StartError {
    FolderInUse,
    Spec(String),
    Disk(io::Error),
    Killed,
}

impl StartError {
    pub const fn status(&self) -> u8 {
        match self {
            Self::FolderInUse => 75,
            Self::Spec(_) => 78,
            Self::Disk(_) => 74,
            Self::Killed => 70,
        }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FolderInUse => to.write_str("is kept by another process, or was run before: a folder is one run"),
            Self::Spec(problem) => to.write_str(problem),
            Self::Disk(error) => write!(to, "{error}"),
            Self::Killed => to.write_str("the keeper was killed before the run started"),
        }
    }
}

impl From<io::Error> for StartError {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

pub enum StartRequester {
    Parent(File),
    Launcher(StartReply),
}

impl StartRequester {
    fn report_started(self) {
        match self {
            Self::Parent(mut to) => drop(to.write_all(&[STARTED])),
            Self::Launcher(reply) => reply.send(0, ""),
        }
    }

    fn report_failure(self, error: io::Error) {
        match self {
            Self::Parent(mut to) => drop(to.write_all(error.to_string().as_bytes())),
            Self::Launcher(reply) => {
                let error = StartError::Disk(error);
                reply.send(error.status(), &error.to_string());
            }
        }
    }
}

pub struct LockedRun {
    lock: File,
    spec: RunSpec,
    states: StateFile,
    folder: PathBuf,
}

pub struct PreparedRun {
    lock: File,
    spec: RunSpec,
    states: StateFile,
    log: SegmentedLog,
    control: File,
    sandbox: Sandbox,
}

const STARTED: u8 = b'+';

pub fn run_keeper(folder: &Path) -> Result<(), StartError> {
    let locked = lock(folder)?;
    let namespaces = if locked.needs_namespace_init() { libc::CLONE_NEWPID } else { 0 };
    let prepared = locked.prepare()?;
    match processes::daemonize(namespaces)? {
        DaemonizeResult::Child(report) => start(prepared, StartRequester::Parent(report)),
        DaemonizeResult::Parent(report) if report == [STARTED] => {}
        DaemonizeResult::Parent(report) if report.is_empty() => return Err(StartError::Killed),
        DaemonizeResult::Parent(report) => return Err(io::Error::other(String::from_utf8_lossy(&report)).into()),
    }
    Ok(())
}

pub fn lock(folder: &Path) -> Result<LockedRun, StartError> {
    // The usual mask for files of the program. Files of the keeper have explicit modes.
    umask(Mode::WGRP | Mode::WOTH);
    let folder = if folder.is_absolute() { Ok(folder.to_owned()) } else { fs::canonicalize(folder) };
    let folder = folder.map_err(|error| with_name("folder", error))?;
    let opened = File::open(&folder).map_err(|error| with_name("folder", error))?;
    let states = StateFile::open(opened).map_err(|error| with_name("state", error))?;
    let lock = lock_folder(&states)?;
    if states.has_started() {
        return Err(StartError::FolderInUse);
    }
    let content = fs::read(folder.join("spec")).map_err(|error| with_name("spec", error))?;
    let spec = RunSpec::parse(&content).map_err(StartError::Spec)?;
    Ok(LockedRun { lock, spec, states, folder })
}

impl LockedRun {
    pub fn needs_namespace_init(&self) -> bool {
        self.spec.isolation.keeper_is_namespace_init()
    }

    pub fn prepare(self) -> Result<PreparedRun, StartError> {
        let Self { lock, spec, states, folder } = self;
        let reserve = DiskReserve::new(folder.clone(), spec.reserve_bytes);
        let log = SegmentedLog::new(folder.join("log"), spec.log_bytes_max, reserve);
        let control = open_control(&folder.join("control")).map_err(|error| with_name("control", error))?;
        let sandbox = Sandbox::new(&spec, &folder)?;
        Ok(PreparedRun { lock, spec, states, log, control, sandbox })
    }
}

pub fn start(mut prepared: PreparedRun, requester: StartRequester) {
    let mut record_start = || -> io::Result<(RunState, File)> {
        let is_init = processes::is_namespace_init();
        let state = RunState::starting(processes::outer_pid(is_init)?);
        let signals = signal_descriptor(&HANDLED_SIGNALS)?;
        // The first process of a namespace adopts orphans anyway.
        if !is_init {
            set_child_subreaper(Some(getpid()))?;
        }
        // From here on no keeper starts this folder again.
        prepared.states.write(&state)?;
        Ok((state, signals))
    };
    match record_start() {
        Err(error) => requester.report_failure(error),
        Ok((state, signals)) => start_program(prepared, state, &signals, requester),
    }
}

fn start_program(prepared: PreparedRun, mut state: RunState, signals: &File, requester: StartRequester) {
    let PreparedRun { lock: _lock, spec, mut states, log, control, sandbox } = prepared;
    let notifier = spec.notify.clone().map(|path| Notifier::new(path, spec.id.clone()));
    // Opened before the program's root hides the path.
    let parent_notifier = notifier.as_ref().filter(|_| matches!(requester, StartRequester::Parent(_)));
    let mut notification = parent_notifier.and_then(Notifier::open);
    // Recorded by the process that becomes the program: a program never waits for a disk that hangs.
    let mut on_exec = |pid| {
        (state.status, state.pid) = (RunStatus::Running, pid);
        let is_recorded = states.write(&state).is_ok();
        if let (Some(notification), true) = (notification.take(), is_recorded) {
            notification.send("state");
        }
    };
    let start_result = program::start(&spec, sandbox, &mut on_exec);
    drop(notification);
    let is_recorded = states.continue_after_child().unwrap_or(false);
    let mut run = RunLoop::new(spec, state, DiskWriterHandle::new(DiskWriter::new(log, states, notifier)), control);
    let program = match start_result {
        Ok(program) => {
            (run.state.status, run.state.pid) = (RunStatus::Running, program.outer_pid);
            if !is_recorded {
                run.record(RunStatus::Running);
            }
            Some(program)
        }
        Err(problem) => {
            run.state.pid = 0;
            (run.state.reason, run.state.message, run.state.ended_us) =
                (Some(ExitCause::ExecFailed), problem, wall_us());
            run.record(RunStatus::Ended);
            None
        }
    };
    run.disk.wait_recorded(RECORD_WAIT);
    requester.report_started();
    match program {
        Some(program) => run.run_to_end(program, signals),
        None => run.disk.end(&run.state),
    }
}

/// Locks the run folder. Retries, because other processes briefly take the lock to test it. Does not retry if the run
/// has started.
fn lock_folder(states: &StateFile) -> Result<File, StartError> {
    for _ in 0..LOCK_ATTEMPTS {
        match states.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !states.has_started() => {
                thread::sleep(LOCK_RETRY_DELAY);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StartError::Disk(error)),
        }
    }
    Err(StartError::FolderInUse)
}

/// Opens the control FIFO for reading and writing, so that reads do not report end-of-file when all writers close it.
fn open_control(path: &Path) -> io::Result<File> {
    match rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn with_name(name: &str, error: io::Error) -> StartError {
    StartError::Disk(io::Error::other(format!("{name}: {error}")))
}
