//! `state`: how the run is, replaced whole, so that a reader sees one state or the next and never half of one.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The program may or may not run; who finds this without a holder of the lock must not start it again.
    Starting,
    /// It runs.
    Running,
    /// It was told to end.
    Stopping,
    /// All of its processes are gone.
    Ended,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// By itself.
    Exited,
    /// By a signal that was not ours.
    Killed,
    /// It was asked to.
    Stopped,
    /// It could not be run at all.
    ExecFailed,
    /// It used more memory than it may.
    OutOfMemory,
}

/// What is written.
#[derive(Clone, Debug)]
pub struct State {
    /// Where it is.
    pub status: Status,
    /// Of the program; 0 before.
    pub pid: i32,
    /// Microseconds since the epoch.
    pub started_us: u64,
    /// The same; 0 before.
    pub ended_us: u64,
    /// 0 to 255, or 128 + n for signal n.
    pub exit_code: Option<i32>,
    /// Once it has ended.
    pub reason: Option<Reason>,
    /// A sentence about it, if there is something to say.
    pub message: String,
}

/// The file.
pub struct StateFile {
    path: PathBuf,
    next: PathBuf,
    folder: File,
}

impl StateFile {
    /// Of this folder.
    pub fn new(folder: &Path) -> io::Result<Self> {
        Ok(Self { path: folder.join("state"), next: folder.join("state.new"), folder: File::open(folder)? })
    }

    /// Whether there is one: then this folder was run before.
    pub fn exists(&self) -> bool {
        self.path.exists()
    }

    /// Replaces it, durably.
    pub fn write(&self, state: &State) -> io::Result<()> {
        let mut file = File::create(&self.next)?;
        file.write_all(text(state).as_bytes())?;
        file.sync_all()?;
        fs::rename(&self.next, &self.path)?;
        self.folder.sync_all()
    }
}

fn text(state: &State) -> String {
    let status = match state.status {
        Status::Starting => "starting",
        Status::Running => "running",
        Status::Stopping => "stopping",
        Status::Ended => "ended",
    };
    let mut text = format!(
        "status={status}\nkeeper_pid={}\npid={}\nstarted_us={}\nended_us={}\n",
        std::process::id(),
        state.pid,
        state.started_us,
        state.ended_us
    );
    if let Some(code) = state.exit_code {
        let _ = writeln!(text, "exit_code={code}");
    }
    if let Some(reason) = state.reason {
        let word = match reason {
            Reason::Exited => "exited",
            Reason::Killed => "killed",
            Reason::Stopped => "stopped",
            Reason::ExecFailed => "exec_failed",
            Reason::OutOfMemory => "out_of_memory",
        };
        let _ = writeln!(text, "reason={word}");
    }
    if !state.message.is_empty() {
        let _ = writeln!(text, "message={}", state.message.replace('\n', " "));
    }
    text
}
