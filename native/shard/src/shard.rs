//! Execution of commands on one engine under a lock. So the journal has their events in the order of execution.

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use hosting_core::{
    CommandOutcome, Context, Credit, Engine, EngineConfig, EventBuffer, KeyRing, KeyRingError, Lsn, Ms, PortRange,
};
use hosting_journal::{
    DurableSignal, Journal, OpenError, Options, RealFiles, RealTimeAndRandom, RecoverySummary, TimeAndRandom as _,
};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard};

use crate::expiry_thread::ExpiryThread;
use crate::replayed_engine::ReplayedEngine;

/// Lowest public port that the settings allow. An image has the quarantine of every port, whatever the range of the service.
const PUBLIC_PORT_MIN: u16 = 1_024;

pub struct Shard {
    state: Mutex<State>,
    /// Copy of the engine's key ring, so that token checks need no engine lock.
    keys: RwLock<KeyRing>,
    journal: Option<Journal>,
    change_signal: OnceLock<DurableSignal>,
    pub(crate) expiry_thread: ExpiryThread,
}

struct State {
    engine: Engine,
    buffer: EventBuffer,
}

/// Guard that aborts the process if a command panics, because the engine may then differ from the journal.
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
    /// Opens a journal, and replays it into an empty engine.
    pub fn open(mut engine: Engine, options: Options) -> Result<(Arc<Shard>, RecoverySummary), OpenError> {
        let mut state = ReplayedEngine::new(&mut engine);
        let (journal, recovered) = hosting_journal::open(options, Arc::new(RealFiles), &mut state)?;
        engine.finish_recovery(journal.clock().service_ms());
        Ok((Shard::new(engine, Some(journal)), recovered))
    }

    /// Returns a shard for an engine that is already recovered. Without a journal, every change counts as durable.
    pub fn new(engine: Engine, journal: Option<Journal>) -> Arc<Shard> {
        let keys = RwLock::new(engine.keys().clone());
        let state = Mutex::new(State { engine, buffer: EventBuffer::default() });
        let (change_signal, expiry_thread) = (OnceLock::new(), ExpiryThread::default());
        Arc::new(Shard { state, keys, journal, change_signal, expiry_thread })
    }

    /// Starts the thread that compacts the journal. [`Shard::close`] stops the thread, also in the middle of a compaction.
    ///
    /// During a compaction, a second engine is in memory.
    pub fn start_compaction(self: &Arc<Shard>) -> Result<(), OpenError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let shard = self.clone();
        let number = self.engine().shard();
        journal.start_compaction(move || {
            let ports = PortRange { first: PUBLIC_PORT_MIN, last: u16::MAX };
            let keys = shard.keys().clone();
            ReplayedEngine::new(Engine::new(EngineConfig { ports, ..EngineConfig::new(number, keys) }))
        })
    }

    /// Stops the expiry thread and writes the pending events to the journal. A second call does nothing.
    pub fn close(&self) {
        self.expiry_thread.stop();
        if let Some(journal) = &self.journal {
            journal.shutdown();
        }
    }

    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_ref()
    }

    /// Returns an eventfd that is signalled when a change that readers follow is durable: see
    /// [`hosting_core::ChangeMarks`]. None without a journal. All callers get the same one.
    pub fn subscribe_changes(&self) -> io::Result<Option<DurableSignal>> {
        let Some(journal) = &self.journal else { return Ok(None) };
        let signal = journal.subscribe()?;
        Ok(Some(self.change_signal.get_or_init(|| signal).clone()))
    }

    /// Returns the service time. With a journal, it never decreases, not even over restarts.
    pub fn now(&self) -> Ms {
        match &self.journal {
            Some(journal) => journal.clock().service_ms(),
            None => RealTimeAndRandom.boot_ms(),
        }
    }

    pub fn durable(&self) -> Lsn {
        self.journal.as_ref().map_or(Lsn::MAX, Journal::durable)
    }

    /// Runs one command with the current time, and submits its events to the journal.
    ///
    /// The context also has the journal credit.
    pub fn run<R>(&self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> R) -> R {
        let mut guard = self.engine();
        let State { engine, buffer } = &mut *guard.state;
        let credit = match &self.journal {
            Some(journal) => {
                let credit = journal.credit();
                Credit { total: credit.total, reserve: credit.reserve, largest: credit.largest }
            }
            None => Credit::UNLIMITED,
        };
        let first = engine.last_lsn() + 1;
        let followed = self.change_signal.get().map(|signal| (signal, engine.change_marks()));
        let result = command(engine, &mut Context { now: self.now(), credit, events: buffer });
        if buffer.count > 0 {
            if let Some(journal) = &self.journal {
                journal.submit(first, buffer.count, &buffer.bytes);
            }
            buffer.bytes.clear();
            buffer.count = 0;
            self.expiry_thread.wake_before(engine.next_deadline());
        }
        if let Some((signal, marks)) = followed
            && engine.change_marks().is_newer(marks)
            && !signal.request(engine.last_lsn())
        {
            signal.signal();
        }
        result
    }

    /// Runs a command and returns its outcome. Sets the outcome's `wait` to 0 if that LSN is already durable.
    pub fn execute<T>(
        &self,
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>,
    ) -> CommandOutcome<T> {
        let mut outcome = self.run(command);
        if outcome.wait <= self.durable() {
            outcome.wait = 0;
        }
        outcome
    }

    pub fn keys(&self) -> RwLockReadGuard<'_, KeyRing> {
        self.keys.read()
    }

    /// Adds a key, which becomes the current one.
    pub fn add_key(&self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        // Locked before the engine changes, so that tokens with the new key are verifiable at once.
        let mut keys = self.keys.write();
        keys.add(id, secret)?;
        self.run(|engine, _| engine.add_key(id, secret))
    }

    /// Removes a key that no record needs. Returns false for another key.
    pub fn drop_key(&self, id: u16) -> bool {
        self.run(|engine, _| engine.drop_key(id)) && self.keys.write().remove(id)
    }

    /// Locks the engine for methods that create no events.
    pub fn engine(&self) -> EngineGuard<'_> {
        let state = self.state.lock();
        EngineGuard { _abort: AbortOnPanic, state }
    }
}

/// The locked engine.
pub struct EngineGuard<'a> {
    // Dropped first, so that a panic ends the process before another thread gets the lock.
    _abort: AbortOnPanic,
    state: MutexGuard<'a, State>,
}

impl Deref for EngineGuard<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.state.engine
    }
}

impl DerefMut for EngineGuard<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.state.engine
    }
}
