//! One run from its beginning to its end.
//!
//! `starting → running → (stopping →) ended`. The keeper waits in `poll` for the program's output, for commands, for
//! ends of processes and for its own deadlines, and in nothing else. The run is over when its first process is over:
//! whatever else it left is killed, the rest of its output is read, and only then is the end recorded and the lock free.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};

use crate::control::{Command, Commands};
use crate::isolation::Cage;
use crate::log::{Log, Stream};
use crate::memory;
use crate::program::{self, End, Program};
use crate::spec::Spec;
use crate::state::{Reason, State, StateFile, Status};
use crate::times::{now, wall_us};

const MEMORY_EVERY: Duration = Duration::from_millis(500);
const NOTIFY_EVERY: Duration = Duration::from_millis(20);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const PIECE_BYTES: usize = 64 << 10;

/// Why nothing was started.
#[derive(Debug)]
pub enum Refusal {
    /// Somebody keeps this folder, or did.
    Taken,
    /// `spec` cannot be used.
    Spec(String),
    /// The disk does not do what it has to.
    Disk(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => to.write_str("is kept by another process, or was run before: a folder is one run"),
            Self::Spec(why) => to.write_str(why),
            Self::Disk(error) => write!(to, "{error}"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

/// Runs what is in the folder. Returns in the caller's process once the run has begun or was refused; it goes on in
/// another one, which belongs to nobody.
pub fn keep(folder: &Path) -> Result<(), Refusal> {
    let folder = fs::canonicalize(folder)?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(folder.join("lock"))?;
    if let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        return Err(if error == Errno::WOULDBLOCK { Refusal::Taken } else { Refusal::Disk(error.into()) });
    }
    let states = StateFile::new(&folder)?;
    if states.exists() {
        return Err(Refusal::Taken);
    }
    let spec = Spec::parse(&fs::read(folder.join("spec"))?).map_err(Refusal::Spec)?;
    let log = Log::create(&folder.join("log"), spec.log_bytes_max)?;
    let control = open_control(&folder.join("control"))?;
    let cage = Cage::new(&spec, &folder)?;
    let Some(mut begun) = program::detach()? else { return Ok(()) };
    let mut run = Run {
        state: State {
            status: Status::Starting,
            pid: 0,
            started_us: wall_us(),
            ended_us: 0,
            exit_code: None,
            reason: None,
            message: String::new(),
        },
        is_recorded: true,
        oom_kills: spec.oom_counter.as_deref().map_or(0, oom_kills),
        kill_at: None,
        is_told_to_stop: false,
        is_out_of_memory: false,
        main_status: None,
        memory_at: (spec.memory_max_bytes > 0).then(|| now() + MEMORY_EVERY),
        follow_until: Duration::ZERO,
        notified_at: Duration::ZERO,
        notified_end: 0,
        commands: Commands::default(),
        spec,
        states,
        log,
        control,
    };
    let prepared = run.prepare();
    let signals = match prepared {
        Ok(signals) => signals,
        Err(error) => {
            let _ = begun.write_all(error.to_string().as_bytes());
            return Err(error.into());
        }
    };
    match program::start(&run.spec, cage) {
        Ok(program) => {
            run.state.pid = program.pid.as_raw_nonzero().get();
            run.record(Status::Running);
            drop(begun);
            run.keep(program, &signals);
        }
        Err(why) => {
            run.state.reason = Some(Reason::ExecFailed);
            run.state.message = why;
        }
    }
    run.end();
    Ok(())
}

struct Run {
    spec: Spec,
    state: State,
    states: StateFile,
    /// Whether the file says what `state` does.
    is_recorded: bool,
    log: Log,
    control: File,
    commands: Commands,
    oom_kills: u64,
    kill_at: Option<Duration>,
    is_told_to_stop: bool,
    is_out_of_memory: bool,
    main_status: Option<i32>,
    memory_at: Option<Duration>,
    follow_until: Duration,
    notified_at: Duration,
    notified_end: u64,
}

impl Run {
    fn prepare(&self) -> io::Result<File> {
        // From here on nobody may start it again, whatever happens.
        self.states.write(&self.state)?;
        set_child_subreaper(Some(getpid()))?;
        signal_descriptor()
    }

    fn keep(&mut self, mut program: Program, signals: &File) {
        let mut streams = [Some(reader(&program.out)), Some(reader(&program.err))];
        let mut piece = vec![0; PIECE_BYTES];
        while self.is_anything_left(&mut program) {
            self.wait(signals, &streams);
            self.heed_signals(signals, &program);
            self.heed_commands(&program);
            for (slot, stream) in streams.iter_mut().zip([Stream::Out, Stream::Err]) {
                self.read_some(slot, stream, &mut piece, 1);
            }
            self.heed_clock(&program);
            self.notify_growth();
        }
        for (slot, stream) in streams.iter_mut().zip([Stream::Out, Stream::Err]) {
            self.read_some(slot, stream, &mut piece, usize::MAX);
        }
        self.log.finish(wall_us());
    }

    /// Takes who has ended. Once the first process has, all others are killed.
    fn is_anything_left(&mut self, program: &mut Program) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == program.pid => {
                    let end = program.end(status.as_raw());
                    self.main_status = Some(end.code());
                    self.state.reason =
                        Some(if matches!(end, End::Killed(_)) { Reason::Killed } else { Reason::Exited });
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        if self.main_status.is_some() {
            kill_descendants();
        }
        true
    }

    fn wait(&self, signals: &File, streams: &[Option<File>; 2]) {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        fds.extend(streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)));
        let due = [
            self.kill_at,
            self.memory_at,
            (!self.is_recorded).then(|| now() + AGAIN_AFTER),
            (self.notified_end < self.log.end() && now() < self.follow_until).then(|| self.notified_at + NOTIFY_EVERY),
        ];
        let timeout = due.into_iter().flatten().min().map(|at| {
            let left = at.saturating_sub(now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn heed_signals(&mut self, mut signals: &File, program: &Program) {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        while signals.read_exact(&mut record).is_ok() {
            let number = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]) as i32;
            if number != libc::SIGCHLD && number != libc::SIGHUP {
                self.stop(program, self.spec.kill_timeout);
            }
        }
    }

    fn heed_commands(&mut self, program: &Program) {
        let mut piece = [0; 512];
        let mut asked = Vec::new();
        while let Ok(count @ 1..) = self.control.read(&mut piece) {
            self.commands.take(&piece[..count], |command| asked.push(command));
        }
        for command in asked {
            match command {
                Command::Stop(ms) => self.stop(program, Duration::from_millis(ms)),
                Command::Follow(ms) => {
                    self.follow_until = self.follow_until.max(now() + Duration::from_millis(ms));
                    self.notified_end = 0;
                }
            }
        }
    }

    fn stop(&mut self, program: &Program, timeout: Duration) {
        let at = now().saturating_add(timeout);
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        if !self.is_told_to_stop && self.main_status.is_none() {
            self.is_told_to_stop = true;
            if !timeout.is_zero() {
                program.signal(Signal::TERM);
                // A stopped one would hear of it only when somebody lets it go on.
                program.signal(Signal::CONT);
            }
            self.record(Status::Stopping);
        }
    }

    fn heed_clock(&mut self, program: &Program) {
        let now = now();
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            program.signal(Signal::KILL);
            kill_descendants();
        }
        if self.memory_at.is_some_and(|at| at <= now) {
            self.memory_at = Some(now + MEMORY_EVERY);
            let pids = memory::descendants(getpid().as_raw_nonzero().get());
            let used = memory::of_processes(&pids);
            if used > self.spec.memory_max_bytes && !self.is_out_of_memory {
                self.is_out_of_memory = true;
                self.state.message = format!("used {used} bytes of memory, may use {}", self.spec.memory_max_bytes);
                self.kill_at = Some(now);
            }
        }
        if !self.is_recorded {
            self.record(self.state.status);
        }
    }

    fn read_some(&mut self, slot: &mut Option<File>, stream: Stream, piece: &mut [u8], times: usize) {
        for _ in 0..times {
            let Some(file) = slot.as_mut() else { return };
            match file.read(piece) {
                Ok(0) => *slot = None,
                Ok(count) => self.log.take(stream, &piece[..count], wall_us()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }

    fn record(&mut self, status: Status) {
        self.state.status = status;
        self.is_recorded = self.states.write(&self.state).is_ok();
        if self.is_recorded {
            self.notify("state");
        }
    }

    fn notify_growth(&mut self) {
        let now = now();
        if now < self.follow_until && self.notified_end < self.log.end() && self.notified_at + NOTIFY_EVERY <= now {
            self.notified_at = now;
            self.notified_end = self.log.end();
            self.notify("log");
        }
    }

    /// Whoever reads there looks for himself: it does not matter when nobody does, or when it is full.
    fn notify(&self, what: &str) {
        let Some(path) = &self.spec.notify else { return };
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path);
        if let Ok(mut fifo) = opened {
            let _ = fifo.write_all(format!("{} {what}\n", self.spec.id).as_bytes());
        }
    }

    /// Records the end; until the disk takes it the run is not over for anybody.
    fn end(&mut self) {
        let was_oom = self.spec.oom_counter.as_deref().map_or(0, oom_kills) > self.oom_kills;
        self.state.exit_code = self.main_status;
        self.state.reason = match self.state.reason {
            _ if self.is_out_of_memory => Some(Reason::OutOfMemory),
            Some(Reason::Killed) if was_oom => Some(Reason::OutOfMemory),
            Some(Reason::Exited | Reason::Killed) if self.is_told_to_stop => Some(Reason::Stopped),
            other => other,
        };
        self.state.ended_us = wall_us();
        self.record(Status::Ended);
        while !self.is_recorded {
            std::thread::sleep(AGAIN_AFTER);
            self.record(Status::Ended);
        }
    }
}

fn kill_descendants() {
    for pid in memory::descendants(getpid().as_raw_nonzero().get()) {
        if let Some(pid) = Pid::from_raw(pid) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

fn oom_kills(counter: &Path) -> u64 {
    let text = fs::read_to_string(counter).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or_default()
}

/// A FIFO that is open for both, so that it has no end when writers go.
fn open_control(path: &Path) -> io::Result<File> {
    match rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn reader(end: &OwnedFd) -> File {
    let _ = rustix::io::ioctl_fionbio(end, true);
    end.try_clone().map(File::from).unwrap_or_else(|_| unreachable!("a descriptor was free a moment ago"))
}

/// SIGCHLD and the usual ways to end a process, as a descriptor.
fn signal_descriptor() -> io::Result<File> {
    // SAFETY: plain calls with valid arguments; the descriptor is owned from here on.
    unsafe {
        let mut ours: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut ours);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
            libc::sigaddset(&raw mut ours, signal);
        }
        libc::sigprocmask(libc::SIG_BLOCK, &raw const ours, std::ptr::null_mut());
        match libc::signalfd(-1, &raw const ours, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(File::from_raw_fd(fd)),
        }
    }
}
