//! All that may wait for a disk, in a thread of its own: the log, the state, and who is told of them. It begins when
//! there is something to write: many a program says nothing.
//!
//! The keeper puts what is to be written on the desk and goes on: it reads what the program writes and keeps its
//! deadlines, whatever the disk does. The desk has room for so much; what does not fit in time is counted as lost. A
//! state stays until it is on the disk, or another one has come, and is written when all lines before it are.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lines::BATCH_BYTES_MOST;
use crate::log::{Log, WRITE_BYTES_MAX};
use crate::state::{State, StateFile, Status};
use crate::times::{now, wall_us};

const _: () = assert!(BATCH_BYTES_MOST <= WRITE_BYTES_MAX);

/// A disk that works is waited for this long, which a pipe bridges; after that not at all until it moves.
const PATIENCE: Duration = Duration::from_millis(200);
const NOTIFY_EVERY: Duration = Duration::from_millis(20);
const LOG_PATIENCE: Duration = Duration::from_secs(10);
const AGAIN_AFTER: Duration = Duration::from_secs(1);
const STACK_BYTES: usize = 128 << 10;

/// The keeper's side: what is put on the desk is written.
pub struct Writing {
    desk: Arc<Desk>,
    /// Until there is something to do.
    idle: Arc<Idle>,
    at_work: Option<Thread>,
}

impl Writing {
    /// By this one.
    pub fn new(scribe: Scribe) -> Self {
        Self { desk: scribe.desk.clone(), idle: Arc::new(Mutex::new(Some(scribe))), at_work: None }
    }

    /// Whole lines for the log.
    pub fn write(&mut self, lines: &mut Vec<u8>) {
        self.begin();
        self.desk.write(lines);
    }

    /// How the run is now.
    pub fn record(&mut self, state: &State) {
        self.begin();
        self.desk.record(state);
    }

    /// Until then, growth of the log is told.
    pub fn follow(&self, until: Duration) {
        self.desk.follow(until);
    }

    /// Waits until the last state is on the disk, but not for longer.
    pub fn wait_recorded(&self, most: Duration) {
        self.desk.wait_recorded(most);
    }

    /// The last of all. Until the disk takes the end the run is not over for anybody: there is nothing else to do.
    pub fn end(mut self, state: &State) {
        self.desk.record(state);
        if let Some(thread) = self.at_work.take() {
            thread.join();
        } else if let Some(scribe) = take(&self.idle) {
            scribe.run();
        }
    }

    /// Where there can be no thread now it is tried again with the next line; what does not fit meanwhile is lost.
    fn begin(&mut self) {
        if self.at_work.is_none() {
            self.at_work = Thread::begin(&self.idle);
        }
    }
}

type Idle = Mutex<Option<Scribe>>;

fn take(idle: &Idle) -> Option<Scribe> {
    idle.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The scribe's, without what the standard library makes for each: a name, a handler of overflows, results. That is
/// half of what it costs to begin one, and most programs say a line.
struct Thread(libc::pthread_t);

impl Thread {
    /// None where there can be none now.
    fn begin(idle: &Arc<Idle>) -> Option<Self> {
        extern "C" fn work(idle: *mut libc::c_void) -> *mut libc::c_void {
            // SAFETY: it was given for this, below.
            let idle = unsafe { Arc::from_raw(idle.cast_const().cast::<Idle>()) };
            // Without it the log ends, and the program goes on.
            let _ = catch_unwind(AssertUnwindSafe(|| take(&idle).map(Scribe::run)));
            std::ptr::null_mut()
        }
        let given = Arc::into_raw(idle.clone());
        // SAFETY: plain calls; what they write is ours. Who is begun has what is given, or it is taken back.
        unsafe {
            let (mut thread, mut attributes) = (std::mem::zeroed(), std::mem::zeroed());
            libc::pthread_attr_init(&raw mut attributes);
            libc::pthread_attr_setstacksize(&raw mut attributes, STACK_BYTES);
            let failed = libc::pthread_create(&raw mut thread, &raw const attributes, work, given.cast_mut().cast());
            libc::pthread_attr_destroy(&raw mut attributes);
            if failed != 0 {
                drop(Arc::from_raw(given));
                return None;
            }
            Some(Self(thread))
        }
    }

    fn join(self) {
        // SAFETY: it was begun, and nobody else waits for it.
        unsafe { libc::pthread_join(self.0, std::ptr::null_mut()) };
    }
}

/// Where the keeper puts what is to be written.
#[derive(Default)]
struct Desk {
    pile: Mutex<Pile>,
    has_work: Condvar,
    has_moved: Condvar,
}

#[derive(Default)]
struct Pile {
    lines: Vec<u8>,
    lost: u64,
    state: Option<State>,
    /// Whether a state is not on the disk yet.
    is_unrecorded: bool,
    follow_until: Option<Duration>,
}

impl Desk {
    fn write(&self, lines: &mut Vec<u8>) {
        let mut pile = self.pile();
        if pile.lost == 0 && pile.lines.len() + lines.len() > WRITE_BYTES_MAX {
            let has_no_room = |pile: &mut Pile| pile.lines.len() + lines.len() > WRITE_BYTES_MAX;
            let waited = self.has_moved.wait_timeout_while(pile, PATIENCE, has_no_room);
            pile = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if pile.lost > 0 || pile.lines.len() + lines.len() > WRITE_BYTES_MAX {
            pile.lost += lines.iter().filter(|&&byte| byte == b'\n').count() as u64;
        } else if pile.lines.is_empty() {
            std::mem::swap(&mut pile.lines, lines);
        } else {
            pile.lines.extend_from_slice(lines);
        }
        drop(pile);
        self.has_work.notify_one();
    }

    fn record(&self, state: &State) {
        let mut pile = self.pile();
        pile.state = Some(state.clone());
        pile.is_unrecorded = true;
        // Who is woken finds it free.
        drop(pile);
        self.has_work.notify_one();
    }

    fn follow(&self, until: Duration) {
        self.pile().follow_until = Some(until);
        self.has_work.notify_one();
    }

    fn wait_recorded(&self, most: Duration) {
        let pile = self.pile();
        // Else nobody looks at a clock.
        if pile.is_unrecorded {
            drop(self.has_moved.wait_timeout_while(pile, most, |pile| pile.is_unrecorded));
        }
    }

    /// Waits for work, but not for longer than `most`; lines go into the empty `lines`.
    fn take(&self, lines: &mut Vec<u8>, most: Option<Duration>) -> Pile {
        let has_none = |pile: &mut Pile| {
            pile.lines.is_empty() && pile.lost == 0 && pile.state.is_none() && pile.follow_until.is_none()
        };
        let mut pile = match most {
            Some(most) => {
                let waited = self.has_work.wait_timeout_while(self.pile(), most, has_none);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.has_work.wait_while(self.pile(), has_none).unwrap_or_else(PoisonError::into_inner),
        };
        std::mem::swap(&mut pile.lines, lines);
        let taken = Pile {
            lines: Vec::new(),
            lost: std::mem::take(&mut pile.lost),
            state: pile.state.take(),
            is_unrecorded: false,
            follow_until: pile.follow_until.take(),
        };
        drop(pile);
        if !lines.is_empty() {
            self.has_moved.notify_all();
        }
        taken
    }

    fn recorded(&self) {
        let mut pile = self.pile();
        pile.is_unrecorded = pile.state.is_some();
        drop(pile);
        self.has_moved.notify_all();
    }

    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Who writes it.
pub struct Scribe {
    desk: Arc<Desk>,
    log: Log,
    states: StateFile,
    notify: Option<Notices>,
    lines: Vec<u8>,
    /// Not on the disk yet, and when it is tried again.
    state: Option<(State, Duration)>,
    log_until: Duration,
    follow_until: Duration,
    notified_at: Duration,
    notified_end: u64,
}

impl Scribe {
    /// Of a run of which nothing is to be written yet.
    pub fn new(log: Log, states: StateFile, notify: Option<Notices>) -> Self {
        Self {
            desk: Arc::default(),
            log,
            states,
            notify,
            lines: Vec::new(),
            state: None,
            log_until: Duration::ZERO,
            follow_until: Duration::ZERO,
            notified_at: Duration::ZERO,
            notified_end: 0,
        }
    }

    /// Until the end of the run is on the disk, or its folder is nowhere.
    pub fn run(mut self) {
        loop {
            let due = self.due();
            let work = self.desk.take(&mut self.lines, due);
            self.log.write(&self.lines, wall_us());
            self.lines.clear();
            self.log.lose(work.lost);
            self.log.tell_lost(wall_us());
            if let Some(state) = work.state {
                self.log_until = now() + LOG_PATIENCE;
                self.state = Some((state, Duration::ZERO));
            }
            if let Some(until) = work.follow_until {
                self.follow_until = self.follow_until.max(until);
                self.notified_end = 0;
            }
            if self.is_over() {
                return;
            }
            self.notify_growth();
        }
    }

    fn due(&self) -> Option<Duration> {
        let now = now();
        let due = [
            self.state.as_ref().map(|(_, at)| *at),
            self.log.has_lost().then(|| now + AGAIN_AFTER),
            self.is_growth_untold(now).then(|| self.notified_at + NOTIFY_EVERY),
        ];
        due.into_iter().flatten().min().map(|at| at.saturating_sub(now))
    }

    fn is_over(&mut self) -> bool {
        let Some((state, at)) = &mut self.state else { return false };
        if now() < *at {
            return false;
        }
        let is_end = state.status == Status::Ended;
        if is_end {
            self.log.tell_left_out(wall_us());
        }
        // A log that owes a line is not at its end; but a log that stays out of order does not hold up the end.
        let waits_for_log = is_end && self.log.has_lost() && now() < self.log_until;
        if waits_for_log || self.states.write(state).is_err() {
            *at = now() + AGAIN_AFTER;
            return is_end && self.states.is_nowhere();
        }
        self.state = None;
        self.desk.recorded();
        self.notify("state");
        is_end
    }

    fn is_growth_untold(&self, now: Duration) -> bool {
        self.notify.is_some() && now < self.follow_until && self.notified_end < self.log.end()
    }

    fn notify_growth(&mut self) {
        let now = now();
        if self.is_growth_untold(now) && self.notified_at + NOTIFY_EVERY <= now {
            self.notified_at = now;
            self.notified_end = self.log.end();
            self.notify("log");
        }
    }

    fn notify(&self, what: &str) {
        if let Some(fifo) = self.notify.as_ref().and_then(Notices::open) {
            fifo.tell(what);
        }
    }
}

/// A FIFO that is told of a run.
pub struct Notices {
    path: PathBuf,
    id: String,
}

/// It is open, for one notice.
pub struct Notice<'a> {
    fifo: File,
    id: &'a str,
}

impl Notices {
    /// There, and under this id.
    pub fn new(path: PathBuf, id: String) -> Self {
        Self { path, id }
    }

    /// Whoever reads there looks for himself: it does not matter when nobody does, or when it is full.
    pub fn open(&self) -> Option<Notice<'_>> {
        let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
        opened.ok().map(|fifo| Notice { fifo, id: &self.id })
    }
}

impl Notice<'_> {
    /// That this changed.
    pub fn tell(mut self, what: &str) {
        let _ = self.fifo.write_all(format!("{} {what}\n", self.id).as_bytes());
    }
}
