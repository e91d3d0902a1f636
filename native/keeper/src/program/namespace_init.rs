//! Separate first process of the program's PID namespace: a fork of the keeper that stays while the program runs.

use std::convert::Infallible;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, setsid, wait};

use super::{ExecPlan, Program, exit_with, request_parent_death_signal, start_failure, with_name};
use crate::isolation::{ExecError, drop_capabilities};
use crate::processes::{fork, pipe};

const USER_MAPPED: u8 = b'+';

impl ExecPlan {
    pub(super) fn start_namespace_init(
        &self,
        output_ends: [BorrowedFd<'_>; 2],
        streams: [Option<File>; 2],
    ) -> Result<Program, String> {
        let (failure, failure_end) = pipe().map_err(start_failure)?;
        let (exit_report, exit_report_end) = pipe().map_err(start_failure)?;
        let (mapping_report, mapping_report_end) = pipe().map_err(start_failure)?;
        let Some(pid) = self.fork().map_err(start_failure)? else {
            drop((streams, failure, exit_report, mapping_report_end));
            let mut failure_end = File::from(failure_end);
            let Err(failure) =
                self.become_namespace_init(output_ends, mapping_report, &mut failure_end, &exit_report_end);
            exit_with(&failure, &mut failure_end)
        };
        drop((failure_end, exit_report_end, mapping_report));
        if self.sandbox.needs_user_mapping() {
            match self.sandbox.map_user(pid) {
                Ok(()) => drop(File::from(mapping_report_end).write_all(&[USER_MAPPED])),
                Err(ExecError(failure_reason)) => {
                    drop(mapping_report_end);
                    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                    return Err(failure_reason);
                }
            }
        }
        let mut failure_reason = String::new();
        // A successful exec closes the pipe.
        File::from(failure).read_to_string(&mut failure_reason).map_err(start_failure)?;
        if failure_reason.is_empty() {
            rustix::io::ioctl_fionbio(&exit_report, true).map_err(|error| start_failure(error.into()))?;
            let (outer_pid, exit_report) = (pid.as_raw_nonzero().get(), Some(File::from(exit_report)));
            return Ok(Program { pid, outer_pid, is_init: true, streams, exit_report });
        }
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        Err(failure_reason)
    }

    fn become_namespace_init(
        &self,
        output_ends: [BorrowedFd<'_>; 2],
        mapping_report: OwnedFd,
        failure: &mut File,
        exit_report: &OwnedFd,
    ) -> Result<Infallible, ExecError> {
        // The pipe has no reader if the keeper has ended.
        let keeper_is_alive = |failure: &File| {
            let mut fds = [PollFd::new(failure, PollFlags::empty())];
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(with_name("poll"))?;
            Ok(!fds[0].revents().contains(PollFlags::ERR))
        };
        self.prepare_process(output_ends)?;
        request_parent_death_signal(|| keeper_is_alive(failure))?;
        if self.sandbox.needs_user_mapping() && File::from(mapping_report).read_exact(&mut [0]).is_err() {
            return Err(ExecError("the keeper did not map the user".to_owned()));
        }
        self.sandbox.enter()?;
        request_parent_death_signal(|| keeper_is_alive(failure))?;
        self.run_as_init(failure, exit_report)
    }

    /// Starts the program and stays as the first process of the PID namespace.
    ///
    /// The program must not be the first process, because the kernel drops signals that a first process does not
    /// handle.
    fn run_as_init(&self, failure: &mut File, exit_report: &OwnedFd) -> Result<Infallible, ExecError> {
        // The program has the same user, and must not read this copy of the keeper's memory.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(with_name("init"))?;
        let program = fork(0).map_err(|error| ExecError(format!("starting: {error}")))?;
        let Some(program) = program else {
            let _ = setsid();
            let Err(error) = self.run(&mut || ());
            exit_with(&error, failure)
        };
        drop_capabilities().map_err(with_name("init"))?;
        // SAFETY: plain calls, and the closed descriptors are not used any more.
        unsafe {
            // The keeper waits for the end of all descriptors but the exit report.
            let exit_report = exit_report.as_raw_fd() as libc::c_uint;
            libc::close(failure.as_raw_fd());
            libc::close_range(0, exit_report - 1, 0);
            libc::close_range(exit_report + 1, libc::c_uint::MAX, 0);
        }
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == program => {
                    let raw = status.as_raw().to_ne_bytes();
                    // The keeper decides how long the remaining processes may run.
                    // SAFETY: the descriptor is open, and the buffer is valid.
                    unsafe { libc::write(exit_report.as_raw_fd(), raw.as_ptr().cast(), raw.len()) };
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // No process remains.
                // SAFETY: ends this process.
                Err(_) => unsafe { libc::_exit(0) },
            }
        }
    }
}
