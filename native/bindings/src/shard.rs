//! One engine, its journal and the lock that orders them: a command is decided, applied and handed to the journal
//! under one mutex, so that journal order is engine order. Owns nothing of Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hosting_core::{Answer, Context, Credit, Engine, EventBuffer, Lsn, Ms};
use hosting_journal::{Journal, Machine as _, RealMachine};
use parking_lot::{Condvar, Mutex, MutexGuard};

pub struct Machine {
    pub engine: Engine,
    buffer: EventBuffer,
}

pub struct Shard {
    machine: Mutex<Machine>,
    /// None: measurements without a journal; every answer may leave at once.
    pub journal: Option<Journal>,
    /// When the timer thread means to wake; a command that makes an earlier deadline pokes it.
    pub timer_target: AtomicU64,
    pub timer_wake: Condvar,
    pub timer: Mutex<TimerOrders>,
}

/// What the timer thread is told; set before it is woken, so that no order is lost while it is awake.
#[derive(Default)]
pub struct TimerOrders {
    pub is_poked: bool,
    pub is_stopped: bool,
}

/// A panic half-way through a command would leave memory that no journal describes: the process ends instead, and
/// recovery starts from what is durable.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("engine: a command panicked; ending the process so that recovery starts from the journal");
            std::process::abort();
        }
    }
}

impl Shard {
    pub fn new(engine: Engine, journal: Option<Journal>) -> Arc<Shard> {
        Arc::new(Shard {
            machine: Mutex::new(Machine { engine, buffer: EventBuffer::default() }),
            journal,
            timer_target: AtomicU64::new(0),
            timer_wake: Condvar::new(),
            timer: Mutex::default(),
        })
    }

    pub fn now(&self) -> Ms {
        match &self.journal {
            Some(journal) => journal.clock().service_ms(),
            None => RealMachine.boot_ms(),
        }
    }

    pub fn durable(&self) -> Lsn {
        self.journal.as_ref().map_or(Lsn::MAX, Journal::durable)
    }

    /// Runs one command: time and credit in, events to the journal.
    pub fn run<R>(&self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> R) -> R {
        let mut machine = self.machine.lock();
        let _guard = AbortOnPanic;
        let Machine { engine, buffer } = &mut *machine;
        let credit = match &self.journal {
            Some(journal) => {
                let credit = journal.credit();
                Credit { total: credit.total, reserve: credit.reserve, largest: credit.largest }
            }
            None => Credit::UNLIMITED,
        };
        let first = engine.last_lsn() + 1;
        let result = command(engine, &mut Context { now: self.now(), credit, events: buffer });
        if buffer.count > 0 {
            if let Some(journal) = &self.journal {
                journal.submit(first, buffer.count, &buffer.bytes);
            }
            buffer.bytes.clear();
            buffer.count = 0;
            self.wake_timer_before(engine.next_deadline());
        }
        result
    }

    /// As `run`, for commands with an answer: what is durable already needs no waiting.
    pub fn ask<T>(&self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> Answer<T>) -> Answer<T> {
        let mut answer = self.run(command);
        if answer.wait <= self.durable() {
            answer.wait = 0;
        }
        answer
    }

    pub fn read(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock()
    }

    fn wake_timer_before(&self, deadline: Option<Ms>) {
        if deadline.is_some_and(|deadline| deadline < self.timer_target.load(Ordering::Acquire)) {
            self.timer.lock().is_poked = true;
            self.timer_wake.notify_one();
        }
    }
}
