//! One run while its program runs.
//!
//! `running → (stopping →) ended`. The keeper waits in `poll` for the program's output, for commands, for ends of
//! processes and for its own deadlines, and in nothing else; what has to do with a disk is the scribe's. The run is
//! over when its first process is over: whatever else it left is killed, and the rest of its output is read.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

use crate::control::{Command, Commands};
use crate::lines::{Lines, Stream};
use crate::memory;
use crate::numbers;
use crate::program::{End, Program};
use crate::scribe::Writing;
use crate::spec::Spec;
use crate::state::{Reason, State, Status};
use crate::times::{now, wall_us};

const MEMORY_EVERY: Duration = Duration::from_millis(500);
const PIECE_BYTES: usize = 64 << 10;
/// Who is not of the run and still writes into its pipe does not keep it from its end.
const LAST_PIECES_MAX: usize = 64;
const COMMAND_PIECES_MAX: usize = 16;
const SUSPENDED_MOST: usize = 100;
/// As shells tell of a program that was ended by SIGKILL.
const END_BY_KILL: i32 = 128 + 9;

/// All that is known of it.
pub struct Run {
    /// What is run.
    pub spec: Spec,
    /// How it is.
    pub state: State,
    /// Who writes that.
    pub writing: Writing,
    lines: Lines,
    control: File,
    commands: Commands,
    oom_kills: u64,
    kill_at: Option<Duration>,
    is_told_to_stop: bool,
    is_out_of_memory: bool,
    main_status: Option<i32>,
    memory_at: Option<Duration>,
}

impl Run {
    /// One that is about to begin.
    pub fn new(spec: Spec, state: State, writing: Writing, control: File) -> Self {
        Self {
            state,
            writing,
            lines: Lines::default(),
            control,
            commands: Commands::default(),
            oom_kills: spec.oom_counter.as_deref().map_or(0, oom_kills),
            kill_at: None,
            is_told_to_stop: false,
            is_out_of_memory: false,
            main_status: None,
            memory_at: (spec.memory_max_bytes > 0).then(|| now() + MEMORY_EVERY),
            spec,
        }
    }

    /// From now on it is this.
    pub fn record(&mut self, status: Status) {
        self.state.status = status;
        self.writing.record(&self.state);
    }

    /// Until all of its processes are gone, and how it ended is on the disk.
    pub fn keep(mut self, mut program: Program, signals: &File) {
        let mut piece = Vec::new();
        while self.is_anything_left(&mut program) {
            self.wait(signals, &program);
            self.heed_signals(signals, &program);
            self.heed_commands(&program);
            self.read_some(&mut program, &mut piece, 1);
            self.heed_clock(&program);
        }
        self.read_some(&mut program, &mut piece, LAST_PIECES_MAX);
        self.lines.finish(wall_us(), |lines| self.writing.write(lines));
        self.end();
    }

    fn end(mut self) {
        let was_oom = self.spec.oom_counter.as_deref().map_or(0, oom_kills) > self.oom_kills;
        self.state.exit_code = self.main_status;
        self.state.reason = match self.state.reason {
            _ if self.is_out_of_memory => Some(Reason::OutOfMemory),
            Some(Reason::Killed) if was_oom => Some(Reason::OutOfMemory),
            // Who runs the program for us, such as a shell, says so of it.
            Some(Reason::Exited) if was_oom && self.main_status == Some(END_BY_KILL) => Some(Reason::OutOfMemory),
            Some(Reason::Exited | Reason::Killed) if self.is_told_to_stop => Some(Reason::Stopped),
            other => other,
        };
        self.state.ended_us = wall_us();
        self.state.status = Status::Ended;
        self.writing.end(&self.state);
    }

    /// Takes who has ended. Once the first process has, all others are killed.
    fn is_anything_left(&mut self, program: &mut Program) -> bool {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == program.pid && self.main_status.is_none() => {
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
        // A first process of its own namespace is over when all of them are.
        if self.main_status.is_some() && !program.is_init {
            kill_all();
        }
        true
    }

    fn wait(&self, signals: &File, program: &Program) {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        fds.extend(program.streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)));
        let timeout = [self.kill_at, self.memory_at].into_iter().flatten().min().map(|at| {
            let left = at.saturating_sub(now());
            Timespec { tv_sec: left.as_secs().min(i32::MAX as u64) as i64, tv_nsec: i64::from(left.subsec_nanos()) }
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
        for _ in 0..COMMAND_PIECES_MAX {
            let Ok(count @ 1..) = self.control.read(&mut piece) else { break };
            self.commands.take(&piece[..count], |command| asked.push(command));
        }
        for command in asked {
            match command {
                Command::Stop(ms) => self.stop(program, Duration::from_millis(ms)),
                Command::Follow(ms) => self.writing.follow(now().saturating_add(Duration::from_millis(ms))),
            }
        }
    }

    fn stop(&mut self, program: &Program, timeout: Duration) {
        if self.main_status.is_some() {
            return;
        }
        let at = now().saturating_add(timeout);
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
        if !self.is_told_to_stop {
            self.is_told_to_stop = true;
            if !timeout.is_zero() {
                program.signal(Signal::TERM);
                // A suspended one would hear of it only when somebody lets it go on.
                program.signal(Signal::CONT);
            }
            self.record(Status::Stopping);
        }
    }

    fn heed_clock(&mut self, program: &Program) {
        let now = now();
        if self.memory_at.is_some_and(|at| at <= now) {
            self.memory_at = Some(now + MEMORY_EVERY);
            let pids = memory::descendants(self.state.keeper_pid);
            let most = self.spec.memory_max_bytes;
            if let (Some(used), None) = (memory::beyond(most, &pids), self.main_status) {
                if !self.is_out_of_memory {
                    self.is_out_of_memory = true;
                    self.state.message = format!("used {used} bytes of memory, may use {most}");
                }
                self.kill_at = Some(now);
            }
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            // A number that is not ours any more may be somebody else's.
            if self.main_status.is_none() {
                program.signal(Signal::KILL);
            }
            if !program.is_init {
                kill_all();
            }
        }
    }

    fn read_some(&mut self, program: &mut Program, piece: &mut Vec<u8>, times: usize) {
        for (slot, stream) in program.streams.iter_mut().zip([Stream::Out, Stream::Err]) {
            for _ in 0..times {
                let Some(file) = slot.as_mut() else { break };
                piece.clear();
                // Memory that nothing was read into yet is none.
                piece.reserve(PIECE_BYTES);
                match rustix::io::read(file, spare_capacity(piece)) {
                    Ok(0) => *slot = None,
                    Ok(_) => self.lines.take(stream, piece, wall_us(), |lines| self.writing.write(lines)),
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
    }
}

/// Kills whatever the program left or still has. First they are suspended, again and again until nobody is new: so none
/// of them can have a child that is not seen. Who comes to the keeper later wakes it, and is killed then.
fn kill_all() {
    if numbers::is_first() {
        // Of its namespace, which has nobody else's: the kernel gets all of them at once.
        // SAFETY: a plain call.
        unsafe { libc::kill(-1, libc::SIGKILL) };
        return;
    }
    let mut seen = Vec::new();
    for _ in 0..SUSPENDED_MOST {
        let found = memory::descendants(getpid().as_raw_nonzero().get());
        let new: Vec<i32> = found.into_iter().filter(|pid| !seen.contains(pid)).collect();
        if new.is_empty() {
            break;
        }
        signal_all(&new, Signal::STOP);
        seen.extend(new);
    }
    signal_all(&seen, Signal::KILL);
}

fn signal_all(pids: &[i32], signal: Signal) {
    for pid in pids.iter().filter_map(|&pid| Pid::from_raw(pid)) {
        let _ = kill_process(pid, signal);
    }
}

fn oom_kills(counter: &Path) -> u64 {
    let text = fs::read_to_string(counter).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or_default()
}
