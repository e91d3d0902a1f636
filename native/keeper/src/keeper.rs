//! The start of a run: the lock, the record, the program; then `run` has it.
//!
//! The order is the promise that a folder is one run. The lock comes before anything, the record that the run begins
//! before the program: who dies in between leaves a folder that tells it, and that nobody starts again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper, umask};

use crate::isolation::Cage;
use crate::log::Log;
use crate::nursery::Told;
use crate::program::{self, Detached};
use crate::run::{self, Run};
use crate::scribe::{Desk, Scribe};
use crate::spec::Spec;
use crate::state::{Reason, State, StateFile, Status};
use crate::templates::Handed;
use crate::times::wall_us;

const LOOKS: u32 = 200;
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The caller waits no longer to be able to read how the run is.
const RECORDED_MOST: Duration = Duration::from_secs(2);
const STACK_BYTES: usize = 128 << 10;

/// Why nothing was started.
#[derive(Debug)]
pub enum Refusal {
    /// Somebody keeps this folder, or did.
    Taken,
    /// `spec` cannot be used.
    Spec(String),
    /// The disk does not do what it has to.
    Disk(io::Error),
    /// The keeper was gone before the run had begun.
    Gone,
}

impl Refusal {
    /// The exit status that tells it.
    pub const fn status(&self) -> u8 {
        match self {
            Self::Taken => 75,
            Self::Spec(_) => 78,
            Self::Disk(_) => 74,
            Self::Gone => 70,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => to.write_str("is kept by another process, or was run before: a folder is one run"),
            Self::Spec(why) => to.write_str(why),
            Self::Disk(error) => write!(to, "{error}"),
            Self::Gone => to.write_str("the keeper was killed before the run had begun"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Who waits to hear that the run has begun.
pub enum Caller {
    /// The process that was called with the folder.
    Process(File),
    /// The nursery, for somebody who asked it.
    Nursery(Told),
}

impl Caller {
    fn begun(self) {
        match self {
            Self::Process(mut to) => drop(to.write_all(&[BEGUN])),
            Self::Nursery(told) => told.tell(0, ""),
        }
    }

    fn failed(self, error: io::Error) {
        match self {
            Self::Process(mut to) => drop(to.write_all(error.to_string().as_bytes())),
            Self::Nursery(told) => {
                let refusal = Refusal::Disk(error);
                told.tell(refusal.status(), &refusal.to_string());
            }
        }
    }
}

/// A run of which nothing has begun, and whose lock is ours.
pub struct Prepared {
    _lock: File,
    spec: Spec,
    states: StateFile,
    log: Log,
    control: File,
    cage: Cage,
}

/// Runs what is in the folder. Returns in the caller's process once the run has begun or was refused; it goes on in
/// another one, which belongs to nobody.
pub fn keep(folder: &Path) -> Result<(), Refusal> {
    let prepared = prepare(folder, None)?;
    match program::detach()? {
        Detached::Here(begun) => go_on(prepared, Caller::Process(begun)),
        Detached::Elsewhere(told) if told == [BEGUN] => {}
        Detached::Elsewhere(told) if told.is_empty() => return Err(Refusal::Gone),
        Detached::Elsewhere(told) => return Err(io::Error::other(String::from_utf8_lossy(&told)).into()),
    }
    Ok(())
}

/// Takes the lock and reads what is to be run. `handed`: what the nursery has for it.
pub fn prepare(folder: &Path, handed: Option<Handed>) -> Result<Prepared, Refusal> {
    // Whoever starts it, what the program makes is as usual; what is the keeper's says who may read it.
    umask(Mode::WGRP | Mode::WOTH);
    let folder = fs::canonicalize(folder).map_err(|error| named("folder", error))?;
    let states = StateFile::new(&folder)?;
    let lock = take_lock(&folder.join("lock"), &states)?;
    if states.exists() {
        return Err(Refusal::Taken);
    }
    let content = fs::read(folder.join("spec")).map_err(|error| named("spec", error))?;
    let spec = Spec::parse(&content).map_err(Refusal::Spec)?;
    let log = Log::create(&folder.join("log"), spec.log_bytes_max, spec.reserve_bytes);
    let log = log.map_err(|error| named("log", error))?;
    let control = open_control(&folder.join("control")).map_err(|error| named("control", error))?;
    let cage = Cage::new(&spec, &folder, folder.join("log"), handed)?;
    Ok(Prepared { _lock: lock, spec, states, log, control, cage })
}

const BEGUN: u8 = b'+';

/// From its start to its end, which is recorded, whatever it is.
pub fn go_on(prepared: Prepared, caller: Caller) {
    let Prepared { _lock, spec, mut states, log, control, cage } = prepared;
    let mut begin = || -> io::Result<(State, File)> {
        let state = State::starting();
        let signals = signal_descriptor(&OURS)?;
        set_child_subreaper(Some(getpid()))?;
        // From here on nobody may start it again, whatever happens.
        states.write(&state)?;
        Ok((state, signals))
    };
    match begin() {
        Err(error) => caller.failed(error),
        Ok((state, signals)) => {
            let desk = Arc::new(Desk::default());
            let scribe = Scribe::new(desk.clone(), log, states, spec.notify.clone(), spec.id.clone());
            play(Run::new(spec, state, desk, control), cage, scribe, &signals, caller);
        }
    }
}

fn play(mut run: Run, cage: Cage, scribe: Scribe, signals: &File, caller: Caller) {
    let started = program::start(&run.spec, cage);
    // Not before: who forks has one thread.
    let writer = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || scribe.run());
    let writer: JoinHandle<()> = match writer {
        Ok(writer) => writer,
        Err(error) => {
            run::kill_all();
            return caller.failed(error);
        }
    };
    let program = match started {
        Ok(program) => {
            run.state.pid = program.pid.as_raw_nonzero().get();
            run.record(Status::Running);
            Some(program)
        }
        Err(why) => {
            (run.state.reason, run.state.message, run.state.ended_us) = (Some(Reason::ExecFailed), why, wall_us());
            run.record(Status::Ended);
            None
        }
    };
    run.desk.wait_recorded(RECORDED_MOST);
    caller.begun();
    if let Some(program) = program {
        run.keep(program, signals);
        run.end();
    }
    // Until the disk takes the end the run is not over for anybody.
    let _ = writer.join();
}

/// Who only looks whether somebody has it has it for a moment: where no run began it is tried again.
fn take_lock(path: &Path, states: &StateFile) -> Result<File, Refusal> {
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    let lock = lock.map_err(|error| named("lock", error))?;
    for _ in 0..LOOKS {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(lock),
            Err(Errno::WOULDBLOCK) if !states.exists() => thread::sleep(LOOK_EVERY),
            Err(Errno::WOULDBLOCK) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Refusal::Disk(error.into())),
        }
    }
    Err(Refusal::Taken)
}

/// A FIFO that is open for both, so that it has no end when writers go.
fn open_control(path: &Path) -> io::Result<File> {
    match rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Ends of processes, and the usual ways to end one.
const OURS: [libc::c_int; 5] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP];

/// Signals as a descriptor; they are not delivered otherwise any more.
pub fn signal_descriptor(signals: &[libc::c_int]) -> io::Result<File> {
    // SAFETY: plain calls with valid arguments; the descriptor is owned from here on.
    unsafe {
        let mut ours: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ours);
        for &signal in signals {
            libc::sigaddset(&raw mut ours, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const ours, std::ptr::null_mut());
        match libc::signalfd(-1, &raw const ours, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}

fn named(what: &str, error: io::Error) -> Refusal {
    Refusal::Disk(io::Error::other(format!("{what}: {error}")))
}
