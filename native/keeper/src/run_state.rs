//! `state`: append-only file of the run's states, and lock of the run folder.
//!
//! An empty line ends each state. A reader takes the last complete one, so it never sees half a state.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use crate::clock::wall_us;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    /// A keeper has begun to start the run. The folder must not be started again, even if it is not locked any more.
    Starting,
    Running,
    Stopping,
    Ended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitCause {
    Exited,
    Killed,
    Stopped,
    ExecFailed,
    OutOfMemory,
}

#[derive(Clone, Debug)]
pub struct RunState {
    pub keeper_pid: i32,
    pub status: RunStatus,
    /// PID of the program, 0 before the start.
    pub pid: i32,
    pub started_us: u64,
    /// End of the run in microseconds since the Unix epoch, 0 before the end.
    pub ended_us: u64,
    /// Exit code from 0 to 255, or 128 + n after signal n.
    pub exit_code: Option<i32>,
    pub reason: Option<ExitCause>,
    pub message: String,
}

impl RunState {
    pub fn starting(keeper_pid: i32) -> Self {
        Self {
            keeper_pid,
            status: RunStatus::Starting,
            pid: 0,
            started_us: wall_us(),
            ended_us: 0,
            exit_code: None,
            reason: None,
            message: String::new(),
        }
    }
}

pub struct StateFile {
    file: File,
    folder: File,
    end: u64,
}

impl StateFile {
    pub fn open(folder: File) -> io::Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = openat(&folder, "state", flags, Mode::RUSR | Mode::WUSR)?.into();
        Ok(Self { file, folder, end: 0 })
    }

    pub fn has_started(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.len() > 0)
    }

    pub fn is_folder_removed(&self) -> bool {
        self.folder.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }

    /// Locks the run folder against another keeper, and returns a second handle of the state file.
    ///
    /// The lock ends when both handles are closed.
    pub fn lock(&self) -> io::Result<File> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        self.file.try_clone()
    }

    /// Continues after states that a child process has appended. Returns true if there are any.
    pub fn continue_after_child(&mut self) -> io::Result<bool> {
        let end = self.file.metadata()?.len();
        Ok(std::mem::replace(&mut self.end, end) < end)
    }

    /// Appends a state, and syncs the file if the state is `Ended`. Other states are not synced, because a machine
    /// crash also ends the program.
    pub fn write(&mut self, state: &RunState) -> io::Result<()> {
        let text = text(state);
        if let Err(error) = self.file.write_all_at(text.as_bytes(), self.end) {
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        if state.status == RunStatus::Ended {
            self.file.sync_all()?;
            self.folder.sync_all()?;
        }
        self.end += text.len() as u64;
        Ok(())
    }
}

fn text(state: &RunState) -> String {
    let status = match state.status {
        RunStatus::Starting => "starting",
        RunStatus::Running => "running",
        RunStatus::Stopping => "stopping",
        RunStatus::Ended => "ended",
    };
    let mut text = format!(
        "status={status}\nkeeper_pid={}\npid={}\nstarted_us={}\nended_us={}\n",
        state.keeper_pid, state.pid, state.started_us, state.ended_us
    );
    if let Some(code) = state.exit_code {
        let _ = writeln!(text, "exit_code={code}");
    }
    if let Some(reason) = state.reason {
        let word = match reason {
            ExitCause::Exited => "exited",
            ExitCause::Killed => "killed",
            ExitCause::Stopped => "stopped",
            ExitCause::ExecFailed => "exec_failed",
            ExitCause::OutOfMemory => "out_of_memory",
        };
        let _ = writeln!(text, "reason={word}");
    }
    if !state.message.is_empty() {
        let _ = writeln!(text, "message={}", state.message.replace(ends_a_line, " "));
    }
    text.push('\n');
    text
}

fn ends_a_line(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn states_of(folder: &tempfile::TempDir) -> StateFile {
        StateFile::open(File::open(folder.path()).expect("folder")).expect("opened")
    }

    #[test]
    fn states_are_appended_with_known_fields() {
        let folder = tempfile::tempdir().expect("folder");
        let mut states = states_of(&folder);
        assert!(!states.has_started(), "nothing is recorded");
        let mut state = RunState::starting(7);
        states.write(&state).expect("written");
        let first = fs::read_to_string(folder.path().join("state")).expect("there");
        assert!(
            first.starts_with("status=starting\nkeeper_pid=7\n")
                && first.contains("\npid=0\n")
                && first.contains("\nended_us=0\n")
        );
        assert!(first.ends_with("=0\n\n") && states.has_started());
        assert!(!first.contains("exit_code") && !first.contains("reason") && !first.contains("message"));
        state.status = RunStatus::Ended;
        (state.exit_code, state.reason) = (Some(137), Some(ExitCause::Killed));
        state.message = "a\nb\r\u{85}c\u{2029}d".to_owned();
        states.write(&state).expect("written");
        let both = fs::read_to_string(folder.path().join("state")).expect("there");
        let last = both.strip_prefix(&first).expect("earlier states stay");
        assert!(last.starts_with("status=ended\n"));
        assert!(last.ends_with("exit_code=137\nreason=killed\nmessage=a b  c d\n\n"), "{last}");
        assert!(!states.is_folder_removed());
        drop(folder);
        assert!(states.is_folder_removed());
    }

    #[test]
    fn lock_lasts_as_long_as_its_file() {
        let folder = tempfile::tempdir().expect("folder");
        let states = states_of(&folder);
        let other_states = states_of(&folder);
        let lock = states.lock().expect("free");
        drop(states);
        assert_eq!(other_states.lock().expect_err("taken").kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        other_states.lock().expect("free again");
    }
}
