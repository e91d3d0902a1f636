//! `state`: how the run is. What is new stands behind what was, each with an empty line at its end: a reader takes the
//! last that has one, and so sees one state or the next and never half of one. A file in place of the file would be
//! found as fast; but file systems look at numbers of files that went long after they did, and each run would leave three.

use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};

use crate::times::wall_us;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The program may or may not run; who finds this without a holder of the lock must not start it again.
    Starting,
    /// It runs, or is about to.
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
    /// Of the keeper.
    pub keeper_pid: i32,
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
    /// A run that begins now, kept by this one.
    pub fn starting(keeper_pid: i32) -> Self {
        Self {
            keeper_pid,
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

/// The file, which is the lock of its folder as well: one that is made anew costs more than all that is done with it.
pub struct StateFile {
    file: File,
    folder: File,
    /// Where the next state goes.
    end: u64,
}

impl StateFile {
    /// Of this folder; empty at first.
    pub fn open(folder: File) -> io::Result<Self> {
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = openat(&folder, "state", how, Mode::RUSR | Mode::WUSR)?.into();
        Ok(Self { file, folder, end: 0 })
    }

    /// Whether a keeper said something: then this folder was run before. One that came no further said nothing.
    pub fn is_begun(&self) -> bool {
        self.file.metadata().is_ok_and(|found| found.len() > 0)
    }

    /// Whether the folder was removed, so that nobody will ever look.
    pub fn is_nowhere(&self) -> bool {
        self.folder.metadata().is_ok_and(|found| found.nlink() == 0)
    }

    /// Takes the lock, as long as this or what is returned is there.
    pub fn lock(&self) -> io::Result<File> {
        flock(&self.file, FlockOperation::NonBlockingLockExclusive)?;
        self.file.try_clone()
    }

    /// Adds one. An end is durable when this returns; all before it is of a program that a crash of the machine ends.
    pub fn write(&mut self, state: &State) -> io::Result<()> {
        let text = text(state);
        if let Err(error) = self.file.write_all_at(text.as_bytes(), self.end) {
            // Half of one is none; where even that cannot be taken back, the next one goes over it.
            let _ = self.file.set_len(self.end);
            return Err(error);
        }
        if state.status == Status::Ended {
            self.file.sync_all()?;
            self.folder.sync_all()?;
        }
        self.end += text.len() as u64;
        Ok(())
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
        state.keeper_pid, state.pid, state.started_us, state.ended_us
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
    text.push('\n');
    text
}

/// For some reader or other.
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
    fn states_stand_behind_each_other_and_have_what_is_known() {
        let folder = tempfile::tempdir().expect("folder");
        let mut states = states_of(&folder);
        assert!(!states.is_begun(), "nothing was said");
        let mut state = State::starting(7);
        states.write(&state).expect("written");
        let first = fs::read_to_string(folder.path().join("state")).expect("there");
        assert!(
            first.starts_with("status=starting\nkeeper_pid=7\n")
                && first.contains("\npid=0\n")
                && first.contains("\nended_us=0\n")
        );
        assert!(first.ends_with("=0\n\n") && states.is_begun());
        assert!(!first.contains("exit_code") && !first.contains("reason") && !first.contains("message"));
        state.status = Status::Ended;
        (state.exit_code, state.reason) = (Some(137), Some(Reason::Killed));
        state.message = "a\nb\r\u{85}c\u{2029}d".to_owned();
        states.write(&state).expect("written");
        let both = fs::read_to_string(folder.path().join("state")).expect("there");
        let last = both.strip_prefix(&first).expect("what was said stays");
        assert!(last.starts_with("status=ended\n"));
        assert!(last.ends_with("exit_code=137\nreason=killed\nmessage=a b  c d\n\n"), "{last}");
        assert!(!states.is_nowhere());
        drop(folder);
        assert!(states.is_nowhere());
    }

    #[test]
    fn it_is_locked_as_long_as_somebody_has_it() {
        let folder = tempfile::tempdir().expect("folder");
        let states = states_of(&folder);
        let others = states_of(&folder);
        let lock = states.lock().expect("free");
        drop(states);
        assert_eq!(others.lock().expect_err("taken").kind(), io::ErrorKind::WouldBlock);
        drop(lock);
        others.lock().expect("free again");
    }
}
