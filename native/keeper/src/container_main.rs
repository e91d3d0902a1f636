//! `hosting-keeper --container <program> [arguments]`: main process of a container that another system starts and kills.
//!
//! It stops the processes of its program as a keeper does: see `stop_signals`. Output is not read, and there is no run
//! folder. The exit code is that of the program. The end of this process ends the container.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, getpid, set_child_subreaper, setsid, wait};

use crate::clock::{now, time_until};
use crate::process_title::ProcessTitle;
use crate::process_tree;
use crate::program::{ProgramEnd, reset_signals};
use crate::signals::{HANDLED_SIGNALS, has_stop_signal, signal_descriptor};
use crate::stop_signals::{RunProcesses, StopSignals};

pub const FLAG: &str = "--container";

const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

struct ContainerMain {
    processes: RunProcesses,
    signals: File,
    stop_signals: StopSignals,
    is_stop_requested: bool,
    end: Option<ProgramEnd>,
}

/// Runs a program until it ends, and during a stop until its last process ends. Returns its exit code.
pub fn run(program: &OsString, arguments: &[OsString]) -> io::Result<i32> {
    let signals = signal_descriptor(&HANDLED_SIGNALS)?;
    set_child_subreaper(Some(getpid()))?;
    let mut command = Command::new(program);
    command.args(arguments);
    // SAFETY: plain system calls.
    unsafe {
        command.pre_exec(|| {
            reset_signals();
            let _ = setsid();
            Ok(())
        });
    }
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{}: {error}", program.display());
            return Ok(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE });
        }
    };
    // Otherwise a search for the program by its command line would find two processes.
    ProcessTitle::find().set(Path::new(FLAG));
    let keeper = getpid().as_raw_nonzero().get();
    let processes = RunProcesses { keeper, program: child.id() as i32, is_init: false };
    let stop_signals = StopSignals::default();
    ContainerMain { processes, signals, stop_signals, is_stop_requested: false, end: None }.run_to_end()
}

impl ContainerMain {
    fn run_to_end(mut self) -> io::Result<i32> {
        while self.reap_children()? {
            self.wait();
            self.handle_signals();
            if self.stop_signals.repeat_at().is_some_and(|at| at <= now()) {
                self.stop_signals.signal_rest(self.processes);
            }
        }
        let end = self.end.ok_or_else(|| io::Error::other("the program has no exit code"))?;
        Ok(end.code())
    }

    /// Returns whether a process is left.
    fn reap_children(&mut self) -> io::Result<bool> {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid.as_raw_nonzero().get() == self.processes.program {
                        self.end = Some(ProgramEnd::from_wait_status(status.as_raw()));
                        if self.is_stop_requested {
                            self.stop_signals.signal_rest(self.processes);
                        } else {
                            process_tree::kill_descendants();
                        }
                    }
                }
                Ok(None) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::CHILD) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn wait(&self) {
        let mut fds = [PollFd::new(&self.signals, PollFlags::IN)];
        let timeout = self.stop_signals.repeat_at().map(time_until);
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn handle_signals(&mut self) {
        if has_stop_signal(&self.signals) && !self.is_stop_requested {
            self.is_stop_requested = true;
            self.stop_signals.begin(self.processes);
        }
    }
}
