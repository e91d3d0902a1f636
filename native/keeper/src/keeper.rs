//! The start of a run: the lock, the record, the program; then `run` has it.
//!
//! The order is the promise that a folder is one run. The lock comes before anything, the record that the run begins
//! before the program: who dies in between leaves a folder that tells it, and that nobody starts again.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::FromRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{getpid, set_child_subreaper, umask};

use crate::isolation::Cage;
use crate::log::Log;
use crate::numbers;
use crate::nursery::Told;
use crate::processes::{self, Detached};
use crate::program;
use crate::reserve::Reserve;
use crate::run::Run;
use crate::scribe::{Notices, Scribe, Writing};
use crate::spec::Spec;
use crate::state::{Reason, State, StateFile, Status};
use crate::templates::Handed;
use crate::times::wall_us;

const LOOKS: u32 = 200;
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// The caller waits no longer to be able to read how the run is.
const RECORDED_MOST: Duration = Duration::from_secs(2);

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

/// A folder whose lock is ours, and what is to be run there.
pub struct Taken {
    lock: File,
    spec: Spec,
    states: StateFile,
    folder: PathBuf,
}

/// A run of which nothing has begun.
pub struct Prepared {
    lock: File,
    spec: Spec,
    states: StateFile,
    log: Log,
    control: File,
    cage: Cage,
}

/// Runs what is in the folder. Returns in the caller's process once the run has begun or was refused; it goes on in
/// another one, which belongs to nobody.
pub fn keep(folder: &Path) -> Result<(), Refusal> {
    let taken = take(folder)?;
    let namespaces = if taken.wants_to_be_first() { libc::CLONE_NEWPID } else { 0 };
    let prepared = taken.prepare(None)?;
    match processes::detach(namespaces)? {
        Detached::Here(begun) => go_on(prepared, Caller::Process(begun)),
        Detached::Elsewhere(told) if told == [BEGUN] => {}
        Detached::Elsewhere(told) if told.is_empty() => return Err(Refusal::Gone),
        Detached::Elsewhere(told) => return Err(io::Error::other(String::from_utf8_lossy(&told)).into()),
    }
    Ok(())
}

/// Takes the lock and reads what is to be run.
pub fn take(folder: &Path) -> Result<Taken, Refusal> {
    // Whoever starts it, what the program makes is as usual; what is the keeper's says who may read it.
    umask(Mode::WGRP | Mode::WOTH);
    let folder = if folder.is_absolute() { Ok(folder.to_owned()) } else { fs::canonicalize(folder) };
    let folder = folder.map_err(|error| named("folder", error))?;
    let held = File::open(&folder).map_err(|error| named("folder", error))?;
    let states = StateFile::open(held).map_err(|error| named("state", error))?;
    let lock = take_lock(&states)?;
    if states.is_begun() {
        return Err(Refusal::Taken);
    }
    let content = fs::read(folder.join("spec")).map_err(|error| named("spec", error))?;
    let spec = Spec::parse(&content).map_err(Refusal::Spec)?;
    Ok(Taken { lock, spec, states, folder })
}

impl Taken {
    /// Whether the keeper has to be the first of a namespace of processes.
    pub fn wants_to_be_first(&self) -> bool {
        self.spec.isolation.has_first_keeper()
    }

    /// `handed`: what the nursery has for it.
    pub fn prepare(self, handed: Option<Handed>) -> Result<Prepared, Refusal> {
        let Self { lock, spec, states, folder } = self;
        let log = Log::new(folder.join("log"), spec.log_bytes_max, Reserve::new(folder.clone(), spec.reserve_bytes));
        let control = open_control(&folder.join("control")).map_err(|error| named("control", error))?;
        let cage = Cage::new(&spec, &folder, handed)?;
        Ok(Prepared { lock, spec, states, log, control, cage })
    }
}

const BEGUN: u8 = b'+';

/// From its start to its end, which is recorded, whatever it is.
pub fn go_on(mut prepared: Prepared, caller: Caller) {
    let mut begin = || -> io::Result<(State, File)> {
        let state = State::starting(numbers::outside(numbers::is_first())?);
        let signals = signal_descriptor(&OURS)?;
        // Orphans come to the first of a namespace in any case.
        if !numbers::is_first() {
            set_child_subreaper(Some(getpid()))?;
        }
        // From here on nobody may start it again, whatever happens.
        prepared.states.write(&state)?;
        Ok((state, signals))
    };
    match begin() {
        Err(error) => caller.failed(error),
        Ok((state, signals)) => play(prepared, state, &signals, caller),
    }
}

fn play(prepared: Prepared, mut state: State, signals: &File, caller: Caller) {
    let Prepared { lock: _lock, spec, mut states, log, control, cage } = prepared;
    let notices = spec.notify.clone().map(|path| Notices::new(path, spec.id.clone()));
    let mut is_recorded = false;
    // Opened here: from the program's root it is not seen. Who asked the nursery hears that it runs from there.
    let told = notices.as_ref().filter(|_| matches!(caller, Caller::Process(_)));
    let mut notice = told.and_then(Notices::open);
    // While there is no program yet, which would have to wait for a disk that hangs.
    let mut begins = |pid| {
        (state.status, state.pid) = (Status::Running, pid);
        is_recorded = states.write(&state).is_ok();
        if let (Some(notice), true) = (notice.take(), is_recorded) {
            notice.tell("state");
        }
    };
    let started = program::start(&spec, cage, &mut begins);
    drop(notice);
    let mut run = Run::new(spec, state, Writing::new(Scribe::new(log, states, notices)), control);
    let program = match started {
        Ok(program) => {
            run.state.pid = program.shown;
            if !is_recorded {
                run.record(Status::Running);
            }
            Some(program)
        }
        Err(why) => {
            run.state.pid = 0;
            (run.state.reason, run.state.message, run.state.ended_us) = (Some(Reason::ExecFailed), why, wall_us());
            run.record(Status::Ended);
            None
        }
    };
    run.writing.wait_recorded(RECORDED_MOST);
    caller.begun();
    match program {
        Some(program) => run.keep(program, signals),
        None => run.writing.end(&run.state),
    }
}

/// Who only looks whether somebody has it has it for a moment: where no run began it is tried again.
fn take_lock(states: &StateFile) -> Result<File, Refusal> {
    for _ in 0..LOOKS {
        match states.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && !states.is_begun() => thread::sleep(LOOK_EVERY),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Refusal::Disk(error)),
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
