//! Event loop of a keeper while its program runs: `running → (stopping →) ended`.
//!
//! The loop waits in `poll`. When the program's main process ends, the keeper kills the remaining processes. During a
//! stop, it lets them run for the remaining time. At the end it reads the remaining output.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};

use crate::clock::{now, time_until, wall_us};
use crate::control_fifo::{CommandReader, ControlCommand};
use crate::disk_writer::DiskWriterHandle;
use crate::log_lines::{LineSplitter, OutputStream};
use crate::log_rate::{LogRate, line_count};
use crate::process_tree;
use crate::program::{Program, ProgramEnd};
use crate::run_spec::RunSpec;
use crate::run_state::{ExitCause, RunState, RunStatus};
use crate::signals::has_stop_signal;
use crate::stop_signals::{RunProcesses, StopSignals};

const MEMORY_POLL_INTERVAL: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 64 << 10;
/// Minimum time between two reads of output, unless the pipe was nearly full.
///
/// Without it, the keeper would wake up for each line. A program that floods the log costs the keeper about 1 % of a
/// core. It waits for the keeper at more than 32 MB/s for each stream, because the keeper then reads a full pipe each
/// 2 ms.
const READ_INTERVAL: Duration = Duration::from_millis(2);
const NEARLY_FULL_BYTES: usize = READ_BYTES / 2;
/// Maximum number of reads per output stream after the processes of the run have ended. Another process that has the
/// stream could write forever.
const FINAL_READS_MAX: usize = 64;
const COMMAND_READS_MAX: usize = 16;
const EXIT_CODE_SIGKILL: i32 = 128 + 9;

pub struct RunLoop {
    pub spec: RunSpec,
    pub state: RunState,
    pub disk: DiskWriterHandle,
    line_splitter: LineSplitter,
    log_rate: LogRate,
    read_at: Duration,
    control: File,
    command_reader: CommandReader,
    oom_kills: u64,
    kill_at: Option<Duration>,
    is_stop_requested: bool,
    stop_signals: StopSignals,
    is_out_of_memory: bool,
    main_status: Option<i32>,
    memory_check_at: Option<Duration>,
}

impl RunLoop {
    pub fn new(spec: RunSpec, state: RunState, disk: DiskWriterHandle, control: File) -> Self {
        Self {
            state,
            disk,
            line_splitter: LineSplitter::default(),
            log_rate: LogRate::new(spec.log_lines_per_s, spec.log_bytes_per_s, now()),
            read_at: Duration::ZERO,
            control,
            command_reader: CommandReader::default(),
            oom_kills: spec.oom_counter.as_deref().map_or(0, oom_kills),
            kill_at: None,
            is_stop_requested: false,
            stop_signals: StopSignals::default(),
            is_out_of_memory: false,
            main_status: None,
            memory_check_at: (spec.memory_max_bytes > 0).then(|| now() + MEMORY_POLL_INTERVAL),
            spec,
        }
    }

    pub fn record(&mut self, status: RunStatus) {
        self.state.status = status;
        self.disk.record(&self.state);
    }

    pub fn run_to_end(mut self, mut program: Program, signals: &File) {
        let mut chunk = Vec::new();
        while self.reap_children(&mut program) {
            self.wait(signals, &program);
            self.handle_signals(signals, &program);
            self.handle_commands(&program);
            if now() >= self.read_at {
                self.read_output(&mut program, &mut chunk, 1);
            }
            self.handle_deadlines(&program);
        }
        self.read_output(&mut program, &mut chunk, FINAL_READS_MAX);
        self.report_dropped_output();
        self.line_splitter.finish(wall_us(), |lines| self.disk.write(lines));
        self.end();
    }

    fn end(mut self) {
        let was_oom_killed = self.spec.oom_counter.as_deref().map_or(0, oom_kills) > self.oom_kills;
        self.state.exit_code = self.main_status;
        self.state.reason = match self.state.reason {
            _ if self.is_out_of_memory => Some(ExitCause::OutOfMemory),
            Some(ExitCause::Killed) if was_oom_killed => Some(ExitCause::OutOfMemory),
            Some(ExitCause::Exited) if was_oom_killed && self.main_status == Some(EXIT_CODE_SIGKILL) => {
                Some(ExitCause::OutOfMemory)
            }
            Some(ExitCause::Exited | ExitCause::Killed) if self.is_stop_requested => Some(ExitCause::Stopped),
            other => other,
        };
        self.state.ended_us = wall_us();
        self.state.status = RunStatus::Ended;
        self.disk.end(&self.state);
    }

    fn reap_children(&mut self, program: &mut Program) -> bool {
        let had_ended = self.main_status.is_some();
        let reported_end = program.reported_end();
        self.note_main_end(reported_end);
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == program.pid => {
                    // A first process reports the end of the main process, unless it was killed before.
                    let end = program.reported_end().unwrap_or(ProgramEnd::from_wait_status(status.as_raw()));
                    self.note_main_end(Some(end));
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(_) => return false,
            }
        }
        if self.main_status.is_none() {
            return true;
        }
        if !self.is_stop_requested || self.kill_at.is_none() {
            program.kill();
        } else if !had_ended {
            self.stop_signals.signal_rest(self.processes(program));
        }
        true
    }

    fn note_main_end(&mut self, end: Option<ProgramEnd>) {
        if let (Some(end), None) = (end, self.main_status) {
            self.main_status = Some(end.code());
            self.state.reason =
                Some(if matches!(end, ProgramEnd::Killed(_)) { ExitCause::Killed } else { ExitCause::Exited });
        }
    }

    fn processes(&self, program: &Program) -> RunProcesses {
        RunProcesses { keeper: self.state.keeper_pid, program: program.outer_pid, is_init: program.is_init }
    }

    fn wait(&self, signals: &File, program: &Program) {
        let mut fds = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&self.control, PollFlags::IN)];
        fds.extend(program.exit_report.as_ref().map(|report| PollFd::new(report, PollFlags::IN)));
        let read_at = Some(self.read_at).filter(|&at| now() < at);
        if read_at.is_none() {
            fds.extend(program.streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)));
        }
        let deadlines =
            [self.kill_at, self.stop_signals.repeat_at(), self.memory_check_at, read_at, self.log_rate.report_at()];
        let timeout = deadlines.into_iter().flatten().min().map(time_until);
        let _ = poll(&mut fds, timeout.as_ref());
    }

    fn handle_signals(&mut self, signals: &File, program: &Program) {
        if has_stop_signal(signals) {
            self.stop(program, self.spec.kill_timeout);
        }
    }

    fn handle_commands(&mut self, program: &Program) {
        let mut chunk = [0; 512];
        let mut commands = Vec::new();
        for _ in 0..COMMAND_READS_MAX {
            let Ok(count @ 1..) = self.control.read(&mut chunk) else { break };
            self.command_reader.take(&chunk[..count], |command| commands.push(command));
        }
        for command in commands {
            match command {
                ControlCommand::Stop(ms) => self.stop(program, Duration::from_millis(ms)),
                ControlCommand::Follow(ms) => self.disk.follow(now().saturating_add(Duration::from_millis(ms))),
                ControlCommand::Log(text) => self.disk.write(&mut format!("{} s {text}\n", wall_us()).into_bytes()),
            }
        }
    }

    fn stop(&mut self, program: &Program, timeout: Duration) {
        if self.main_status.is_some() && !self.is_stop_requested {
            return;
        }
        let at = now().saturating_add(timeout);
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        if !self.is_stop_requested {
            self.is_stop_requested = true;
            if !timeout.is_zero() {
                self.stop_signals.begin(self.processes(program));
            }
            self.record(RunStatus::Stopping);
        }
    }

    fn handle_deadlines(&mut self, program: &Program) {
        let now = now();
        if self.memory_check_at.is_some_and(|at| at <= now) {
            self.memory_check_at = Some(now + MEMORY_POLL_INTERVAL);
            let pids = process_tree::descendants(self.state.keeper_pid);
            let limit = self.spec.memory_max_bytes;
            let may_run = self.main_status.is_none() || self.is_stop_requested;
            if let (Some(used), true) = (process_tree::memory_over_limit(limit, &pids), may_run) {
                if !self.is_out_of_memory {
                    self.is_out_of_memory = true;
                    self.state.message = format!("used {used} bytes of memory, may use {limit}");
                }
                self.kill_at = Some(now);
            }
        }
        if self.log_rate.report_at().is_some_and(|at| at <= now) {
            self.report_dropped_output();
        }
        if self.stop_signals.repeat_at().is_some_and(|at| at <= now) {
            self.stop_signals.signal_rest(self.processes(program));
        }
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            program.kill();
        }
    }

    fn read_output(&mut self, program: &mut Program, chunk: &mut Vec<u8>, times: usize) {
        let (mut has_read, mut is_behind) = (false, false);
        for (at, stream) in [OutputStream::Out, OutputStream::Err].into_iter().enumerate() {
            for _ in 0..times {
                let Some(file) = program.streams[at].as_mut() else { break };
                chunk.clear();
                // The kernel provides these pages only when they are written.
                chunk.reserve(READ_BYTES);
                match rustix::io::read(file, spare_capacity(chunk)) {
                    Ok(0) => program.streams[at] = None,
                    Ok(count) => {
                        self.log_output(stream, chunk);
                        has_read = true;
                        is_behind |= count >= NEARLY_FULL_BYTES && !self.log_rate.is_dropping(now());
                    }
                    Err(Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
        if has_read && !is_behind {
            self.read_at = now() + READ_INTERVAL;
        }
    }

    fn log_output(&mut self, stream: OutputStream, chunk: &[u8]) {
        if !self.log_rate.admits(chunk, now()) {
            self.log_rate.count_dropped(line_count(chunk), self.line_splitter.drop_chunk(stream, chunk));
            return;
        }
        let (dropped, chunk) = chunk.split_at(self.line_splitter.dropped_beginning(stream, chunk));
        self.log_rate.count_dropped(line_count(dropped), dropped.len());
        self.report_dropped_output();
        self.line_splitter.take(stream, chunk, wall_us(), |lines| self.disk.write(lines));
    }

    fn report_dropped_output(&mut self) {
        if let Some(report) = self.log_rate.take_report() {
            self.disk.write(&mut format!("{} e {report}\n", wall_us()).into_bytes());
            self.disk.report_dropped(report);
        }
    }
}

fn oom_kills(counter: &Path) -> u64 {
    let text = fs::read_to_string(counter).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok()).unwrap_or_default()
}
