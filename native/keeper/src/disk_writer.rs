//! Thread that does all disk work of a keeper: the log, the state, and notifications.
//!
//! The run loop puts log lines and states into a bounded queue, and waits only a short time for space in it. Lines that
//! do not fit are counted as lost. A state stays queued until it is on disk or a newer state replaces it. The thread
//! starts with the first work.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use crate::clock::{now, wall_us};
use crate::log_lines::BATCH_BYTES_MAX;
use crate::log_rate::DroppedOutput;
use crate::log_segments::{SegmentedLog, WRITE_BYTES_MAX};
use crate::run_state::{RunState, RunStatus, StateFile};

const _: () = assert!(BATCH_BYTES_MAX <= WRITE_BYTES_MAX);

/// Maximum time that the run loop waits for space in the write queue. After the loop has dropped lines, it does not
/// wait again until the disk thread has emptied the queue.
const WRITE_WAIT: Duration = Duration::from_millis(200);
const NOTIFY_INTERVAL: Duration = Duration::from_millis(20);
const LOG_RETRY_LIMIT: Duration = Duration::from_secs(10);
const RETRY_DELAY: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 128 << 10;

pub struct DiskWriterHandle {
    queue: Arc<WriteQueue>,
    unstarted: Arc<Mutex<Option<DiskWriter>>>,
    thread: Option<JoinHandle<()>>,
}

impl DiskWriterHandle {
    pub fn new(writer: DiskWriter) -> Self {
        Self { queue: writer.queue.clone(), unstarted: Arc::new(Mutex::new(Some(writer))), thread: None }
    }

    pub fn write(&mut self, lines: &mut Vec<u8>) {
        self.start_thread();
        self.queue.write(lines);
    }

    pub fn record(&mut self, state: &RunState) {
        self.start_thread();
        self.queue.record(state);
    }

    pub fn follow(&self, until: Duration) {
        self.queue.follow(until);
    }

    /// Notifies the service of output that the rate limit dropped.
    pub fn report_dropped(&self, output: DroppedOutput) {
        self.queue.report_dropped(output);
    }

    pub fn wait_recorded(&self, timeout: Duration) {
        self.queue.wait_recorded(timeout);
    }

    /// Queues the final state of the run, and waits without a timeout until it is on disk.
    pub fn end(mut self, state: &RunState) {
        self.queue.record(state);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        } else if let Some(writer) = take(&self.unstarted) {
            writer.run();
        }
    }

    /// Starts the disk thread. If that fails, the next write tries again.
    fn start_thread(&mut self) {
        if self.thread.is_none() {
            let unstarted = self.unstarted.clone();
            let work = move || {
                if let Some(writer) = take(&unstarted) {
                    writer.run();
                }
            };
            self.thread = Builder::new().stack_size(STACK_BYTES).spawn(work).ok();
        }
    }
}

fn take(unstarted: &Mutex<Option<DiskWriter>>) -> Option<DiskWriter> {
    unstarted.lock().unwrap_or_else(PoisonError::into_inner).take()
}

#[derive(Default)]
struct WriteQueue {
    pending: Mutex<PendingWrites>,
    has_work: Condvar,
    has_changed: Condvar,
}

#[derive(Default)]
struct PendingWrites {
    lines: Vec<u8>,
    lost_lines: u64,
    state: Option<RunState>,
    is_unrecorded: bool,
    follow_until: Option<Duration>,
    dropped: DroppedOutput,
}

impl WriteQueue {
    fn write(&self, lines: &mut Vec<u8>) {
        let mut pending = self.pending();
        if pending.lost_lines == 0 && pending.lines.len() + lines.len() > WRITE_BYTES_MAX {
            let has_no_room = |pending: &mut PendingWrites| pending.lines.len() + lines.len() > WRITE_BYTES_MAX;
            let wait_result = self.has_changed.wait_timeout_while(pending, WRITE_WAIT, has_no_room);
            pending = wait_result.unwrap_or_else(PoisonError::into_inner).0;
        }
        if pending.lost_lines > 0 || pending.lines.len() + lines.len() > WRITE_BYTES_MAX {
            pending.lost_lines += lines.iter().filter(|&&byte| byte == b'\n').count() as u64;
        } else if pending.lines.is_empty() {
            std::mem::swap(&mut pending.lines, lines);
        } else {
            pending.lines.extend_from_slice(lines);
        }
        drop(pending);
        self.has_work.notify_one();
    }

    fn record(&self, state: &RunState) {
        let mut pending = self.pending();
        pending.state = Some(state.clone());
        pending.is_unrecorded = true;
        drop(pending);
        self.has_work.notify_one();
    }

    fn follow(&self, until: Duration) {
        self.pending().follow_until = Some(until);
        self.has_work.notify_one();
    }

    fn report_dropped(&self, output: DroppedOutput) {
        self.pending().dropped.add(output);
        self.has_work.notify_one();
    }

    fn wait_recorded(&self, timeout: Duration) {
        let pending = self.pending();
        if pending.is_unrecorded {
            drop(self.has_changed.wait_timeout_while(pending, timeout, |pending| pending.is_unrecorded));
        }
    }

    fn take(&self, lines: &mut Vec<u8>, timeout: Option<Duration>) -> PendingWrites {
        let is_empty = |pending: &mut PendingWrites| {
            pending.lines.is_empty()
                && pending.lost_lines == 0
                && pending.state.is_none()
                && pending.follow_until.is_none()
                && pending.dropped.bytes == 0
        };
        let mut pending = match timeout {
            Some(timeout) => {
                let wait_result = self.has_work.wait_timeout_while(self.pending(), timeout, is_empty);
                wait_result.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.has_work.wait_while(self.pending(), is_empty).unwrap_or_else(PoisonError::into_inner),
        };
        std::mem::swap(&mut pending.lines, lines);
        let work = PendingWrites {
            lines: Vec::new(),
            lost_lines: std::mem::take(&mut pending.lost_lines),
            state: pending.state.take(),
            is_unrecorded: false,
            follow_until: pending.follow_until.take(),
            dropped: std::mem::take(&mut pending.dropped),
        };
        drop(pending);
        if !lines.is_empty() {
            self.has_changed.notify_all();
        }
        work
    }

    fn mark_recorded(&self) {
        let mut pending = self.pending();
        pending.is_unrecorded = pending.state.is_some();
        drop(pending);
        self.has_changed.notify_all();
    }

    fn pending(&self) -> MutexGuard<'_, PendingWrites> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct DiskWriter {
    queue: Arc<WriteQueue>,
    log: SegmentedLog,
    states: StateFile,
    notify: Option<Notifier>,
    lines: Vec<u8>,
    /// State of the run that is not on disk yet, and the time of the next write attempt.
    state: Option<(RunState, Duration)>,
    log_until: Duration,
    follow_until: Duration,
    notified_at: Duration,
    notified_end: u64,
    /// Dropped output that the service does not know yet.
    unreported: DroppedOutput,
}

impl DiskWriter {
    pub fn new(log: SegmentedLog, states: StateFile, notify: Option<Notifier>) -> Self {
        Self {
            queue: Arc::default(),
            log,
            states,
            notify,
            lines: Vec::new(),
            state: None,
            log_until: Duration::ZERO,
            follow_until: Duration::ZERO,
            notified_at: Duration::ZERO,
            notified_end: 0,
            unreported: DroppedOutput::default(),
        }
    }

    /// Runs the disk thread until the end of the run is on disk, or the run folder is removed.
    pub fn run(mut self) {
        loop {
            let deadline = self.next_deadline();
            let work = self.queue.take(&mut self.lines, deadline);
            self.log.write(&self.lines, wall_us());
            self.lines.clear();
            self.log.add_lost_lines(work.lost_lines);
            self.log.report_lost_lines(wall_us());
            self.unreported.add(work.dropped);
            self.notify_dropped();
            if let Some(state) = work.state {
                self.log_until = now() + LOG_RETRY_LIMIT;
                self.state = Some((state, Duration::ZERO));
            }
            if let Some(until) = work.follow_until {
                self.follow_until = self.follow_until.max(until);
                self.notified_end = 0;
            }
            if self.record_due_state() {
                return;
            }
            self.notify_growth();
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = now();
        let due = [
            self.state.as_ref().map(|(_, at)| *at),
            self.log.has_unreported_loss().then(|| now + RETRY_DELAY),
            self.has_unnotified_growth(now).then(|| self.notified_at + NOTIFY_INTERVAL),
        ];
        due.into_iter().flatten().min().map(|at| at.saturating_sub(now))
    }

    fn record_due_state(&mut self) -> bool {
        let Some((state, at)) = &mut self.state else { return false };
        if now() < *at {
            return false;
        }
        let is_end = state.status == RunStatus::Ended;
        if is_end {
            self.log.report_omitted_lines(wall_us());
        }
        // The end waits for lines that could not be written, but not longer than `LOG_RETRY_LIMIT`.
        let waits_for_log = is_end && self.log.has_unreported_loss() && now() < self.log_until;
        if waits_for_log || self.states.write(state).is_err() {
            *at = now() + RETRY_DELAY;
            return is_end && self.states.is_folder_removed();
        }
        self.state = None;
        self.queue.mark_recorded();
        self.notify("state");
        is_end
    }

    fn has_unnotified_growth(&self, now: Duration) -> bool {
        self.notify.is_some() && now < self.follow_until && self.notified_end < self.log.end()
    }

    fn notify_growth(&mut self) {
        let now = now();
        if self.has_unnotified_growth(now) && self.notified_at + NOTIFY_INTERVAL <= now {
            self.notified_at = now;
            self.notified_end = self.log.end();
            self.notify("log");
        }
    }

    /// Keeps the number for the next attempt if the service does not read it.
    fn notify_dropped(&mut self) {
        let DroppedOutput { lines, bytes } = self.unreported;
        if bytes > 0 && self.notify(&format!("dropped {lines} {bytes}")) {
            self.unreported = DroppedOutput::default();
        }
    }

    /// Returns true if the notification is in the FIFO.
    fn notify(&self, change: &str) -> bool {
        self.notify.as_ref().and_then(Notifier::open).is_some_and(|fifo| fifo.send(change))
    }
}

/// FIFO of the service. The keeper writes `<id> log` or `<id> state` when the log or the state of a run has changed.
/// It writes `<id> dropped <lines> <bytes>` after the log's rate limit dropped output.
pub struct Notifier {
    path: PathBuf,
    id: String,
}

pub struct OpenNotifier<'a> {
    fifo: File,
    id: &'a str,
}

impl Notifier {
    pub fn new(path: PathBuf, id: String) -> Self {
        Self { path, id }
    }

    /// Opens the FIFO without waiting for a reader.
    ///
    /// Returns `None` if no process reads the FIFO. That is no error, because notifications are only hints.
    pub fn open(&self) -> Option<OpenNotifier<'_>> {
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
        opened.ok().map(|fifo| OpenNotifier { fifo, id: &self.id })
    }
}

impl OpenNotifier<'_> {
    /// Returns true if the notification is in the FIFO. A line is shorter than `PIPE_BUF`, so it is never partly there.
    pub fn send(mut self, change: &str) -> bool {
        self.fifo.write_all(format!("{} {change}\n", self.id).as_bytes()).is_ok()
    }
}
