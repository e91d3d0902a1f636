//! `state`: how the run is, replaced whole, so that a reader sees one state or the next and never half of one.

use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::times::wall_us;

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

impl State {
    /// A run that begins now.
    pub fn starting() -> Self {
        Self {
            status: Status::Starting,
            pid: 0,
            started_us: wall_us(),
            ended_us: 0,
            exit_code: None,
            reason: None,
            message: String::new(),
        }
    }
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

    /// Whether the folder was removed, so that nobody will ever look.
    pub fn is_nowhere(&self) -> bool {
        self.folder.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// Replaces it. An end is durable when this returns; all before it is of a program that a crash of the machine ends.
    pub fn write(&self, state: &State) -> io::Result<()> {
        let is_end = state.status == Status::Ended;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&self.next)?;
        file.write_all(text(state).as_bytes())?;
        if is_end {
            file.sync_all()?;
        }
        fs::rename(&self.next, &self.path)?;
        if is_end { self.folder.sync_all() } else { Ok(()) }
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
        let _ = writeln!(text, "message={}", state.message.replace(ends_a_line, " "));
    }
    text
}

/// For some reader or other.
fn ends_a_line(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_replaced_whole_and_has_what_is_known() {
        let folder = tempfile::tempdir().expect("folder");
        let states = StateFile::new(folder.path()).expect("folder");
        assert!(!states.exists());
        let mut state = State::starting();
        states.write(&state).expect("written");
        let first = fs::read_to_string(folder.path().join("state")).expect("there");
        assert!(
            first.starts_with("status=starting\n") && first.contains("\npid=0\n") && first.contains("\nended_us=0\n")
        );
        assert!(!first.contains("exit_code") && !first.contains("reason") && !first.contains("message"));
        state.status = Status::Ended;
        (state.exit_code, state.reason) = (Some(137), Some(Reason::Killed));
        state.message = "a\nb\r\u{85}c\u{2029}d".to_owned();
        states.write(&state).expect("written");
        let last = fs::read_to_string(folder.path().join("state")).expect("there");
        assert!(last.starts_with("status=ended\n"));
        assert!(last.ends_with("exit_code=137\nreason=killed\nmessage=a b  c d\n"), "{last}");
        assert!(!folder.path().join("state.new").exists() && !states.is_nowhere());
        drop(folder);
        assert!(states.is_nowhere() && states.write(&state).is_err());
    }
}
