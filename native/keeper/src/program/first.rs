//! The first process of a namespace of processes, where the keeper is not: a copy of the keeper, which stays as long as
//! the program runs.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{DumpableBehavior, WaitOptions, set_dumpable_behavior, setsid, wait};

use super::{Never, Plan, Program, die_with_keeper, named, told};
use crate::isolation::{Failure, drop_capabilities};
use crate::processes::{NOT_RUN, fork, lend, pipe};

const MAPPED: u8 = b'+';

impl Plan {
    /// Starts it, and the program below it.
    pub(super) fn start_first(&self, ends: [BorrowedFd<'_>; 2], streams: [Option<File>; 2]) -> Result<Program, String> {
        let (failure, failure_end) = pipe().map_err(told)?;
        let (verdict, verdict_end) = pipe().map_err(told)?;
        let (mapped, mapped_end) = pipe().map_err(told)?;
        let Some(pid) = fork(self.namespaces).map_err(told)? else {
            drop((streams, failure, verdict, mapped_end));
            let mut failure_end = File::from(failure_end);
            let why = match self.become_first(ends, mapped, &mut failure_end, &verdict_end) {
                Err(Failure(why)) => why,
                Ok(never) => match never {},
            };
            let _ = failure_end.write_all(why.as_bytes());
            // SAFETY: ends this process; nothing of the keeper's runs in it any more.
            unsafe { libc::_exit(NOT_RUN) }
        };
        drop((failure_end, verdict_end, mapped));
        if self.cage.is_mapped() {
            match self.cage.map_user(pid) {
                Ok(()) => drop(File::from(mapped_end).write_all(&[MAPPED])),
                // It hears nothing, and ends.
                Err(Failure(why)) => {
                    drop(mapped_end);
                    let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                    return Err(why);
                }
            }
        }
        let mut why = String::new();
        // It is closed by the exec that succeeds.
        File::from(failure).read_to_string(&mut why).map_err(told)?;
        if why.is_empty() {
            let (shown, verdict) = (pid.as_raw_nonzero().get(), Some(File::from(verdict)));
            return Ok(Program { pid, shown, is_init: true, streams, verdict });
        }
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
        Err(why)
    }

    fn become_first(
        &self,
        ends: [BorrowedFd<'_>; 2],
        mapped: OwnedFd,
        failure: &mut File,
        verdict: &OwnedFd,
    ) -> Result<Never, Failure> {
        // Nobody reads there any more when the keeper is gone.
        let is_there = |failure: &File| {
            let mut there = [PollFd::new(failure, PollFlags::empty())];
            poll(&mut there, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(named("poll"))?;
            Ok(!there[0].revents().contains(PollFlags::ERR))
        };
        self.join(ends)?;
        die_with_keeper(|| is_there(failure))?;
        if self.cage.is_mapped() && File::from(mapped).read_exact(&mut [0]).is_err() {
            return Err(Failure("nobody said whom it is".to_owned()));
        }
        self.cage.enter()?;
        // Isolation may come with another user, after which this has to be said again.
        die_with_keeper(|| is_there(failure))?;
        self.stay_as_init(failure, verdict)
    }

    /// The first process of a namespace ends all others with it, and must be one that passes signals on: the kernel
    /// keeps those from it that it does not handle, and no program expects that.
    fn stay_as_init(&self, failure: &mut File, verdict: &OwnedFd) -> Result<Never, Failure> {
        // Before there is a program: it has the same user, and must not look into who is a copy of the keeper.
        set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(named("init"))?;
        let mut why = None;
        let program = lend(0, &mut || {
            let _ = setsid();
            why = self.run(&mut || ()).err();
        });
        let program = program.map_err(|error| Failure(format!("starting: {error}")))?;
        if let Some(why) = why {
            return Err(why);
        }
        drop_capabilities().map_err(named("init"))?;
        PROGRAM.store(program.as_raw_nonzero().get(), Ordering::Relaxed);
        // SAFETY: the handler calls nothing but kill.
        unsafe {
            for signal in [libc::SIGTERM, libc::SIGINT] {
                libc::signal(signal, pass_on as extern "C" fn(libc::c_int) as libc::sighandler_t);
            }
            // Readers wait for the end of these, and of the sentence about a failure. What stays open is the verdict.
            let verdict = verdict.as_raw_fd() as libc::c_uint;
            libc::close(failure.as_raw_fd());
            libc::close_range(0, verdict - 1, 0);
            libc::close_range(verdict + 1, libc::c_uint::MAX, 0);
        }
        loop {
            match wait(WaitOptions::empty()) {
                Ok(Some((pid, status))) if pid == program => {
                    let raw = status.as_raw().to_ne_bytes();
                    // SAFETY: the descriptor is open, the bytes are there; the end of this process is that of all here.
                    unsafe {
                        libc::write(verdict.as_raw_fd(), raw.as_ptr().cast(), raw.len());
                        libc::_exit(0)
                    }
                }
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                // SAFETY: as above.
                Err(_) => unsafe { libc::_exit(255) },
            }
        }
    }
}

static PROGRAM: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: libc::c_int) {
    let group = -PROGRAM.load(Ordering::Relaxed);
    // SAFETY: allowed in a handler.
    unsafe {
        libc::kill(group, signal);
        // One that is suspended would not hear it; what lets it go on reaches no handler of an init.
        libc::kill(group, libc::SIGCONT);
    }
}
