//! One engine, its journal, and the mutex under which commands run, so that journal order equals engine order.

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
    /// Journal of the shard, or `None` in measurements without a journal.
    pub journal: Option<Journal>,
    /// Time at which the timer thread wakes. A command with an earlier deadline notifies the thread.
    pub timer_target: AtomicU64,
    pub timer_wake: Condvar,
    pub timer: Mutex<TimerOrders>,
}

/// Requests to the timer thread. They are set before its wake-up, so that none is lost.
#[derive(Default)]
pub struct TimerOrders {
    pub is_poked: bool,
    pub is_stopped: bool,
}

/// Aborts the process if a command panics, because the memory may then differ from the journal.
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

    /// Runs one command with the current time and credit, and submits its events to the journal.
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

    /// Runs a command with an answer. The LSN of the answer becomes 0 if it is already durable.
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
