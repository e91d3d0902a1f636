//! The thread that decides: asks for routes, follows them, keeps them, and does what administrators say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;

use crate::follow::Source;
use crate::log;
use crate::metrics::{Counters, Failure};
use crate::routes::{Answer, Change, Disk, Set};
use crate::table::{Outcome, Standing, Table};

/// What can be told to the control thread.
#[derive(Debug)]
pub enum Order {
    /// Give everything to the process on the other end.
    HandOver(std::os::unix::net::UnixStream),
    /// Read the settings again.
    ReadAgain,
    /// End gently, a second time at once.
    Drain,
    /// End now.
    Stop,
}

/// How things stand, for whoever asks.
#[derive(Debug, Default, Clone)]
pub struct Status {
    /// Routes were read and tried.
    pub has_begun: bool,
    /// On its way out.
    pub is_leaving: bool,
    /// The last question was answered.
    pub is_connected: bool,
    /// The set on disk is the set in memory.
    pub is_kept: bool,
    /// Of the set.
    pub epoch: u64,
    /// Of the set.
    pub version: u64,
    /// Routes.
    pub standing: Standing,
    /// How many descriptors there may be.
    pub descriptors: u64,
    /// How many UDP sessions there may be.
    pub datagram_sessions: usize,
}

/// Everything that the control thread has.
#[derive(Debug)]
pub struct Control {
    /// Routes and sockets.
    pub table: Table,
    source: Source,
    disk: Disk,
    set: Set,
    is_kept: bool,
    /// Whether keeping failed last.
    is_full: bool,
    is_connected: bool,
    /// Whether this process was ever answered: what it began with is not taken for what the source thinks it has.
    has_been_answered: bool,
    told: UnboundedReceiver<Outcome>,
    counters: Arc<Counters>,
    status: Arc<Mutex<Status>>,
}

/// A channel for outcomes.
#[must_use]
pub fn outcomes() -> (UnboundedSender<Outcome>, UnboundedReceiver<Outcome>) {
    unbounded_channel()
}

impl Control {
    /// Begins with a set and a table that serves it.
    pub fn new(
        table: Table,
        source: Source,
        (disk, set): (Disk, Set),
        told: UnboundedReceiver<Outcome>,
        counters: Arc<Counters>,
        status: Arc<Mutex<Status>>,
    ) -> Self {
        let mut control = Self {
            table,
            source,
            disk,
            set,
            is_kept: false,
            is_full: false,
            is_connected: false,
            has_been_answered: false,
            told,
            counters,
            status,
        };
        control.keep();
        control.show();
        control
    }

    /// Asks and follows until it is told something.
    pub async fn until_told(&mut self, orders: &mut UnboundedReceiver<Order>) -> Order {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_known = self.has_been_answered && self.set.is_whole();
            let cursor = if is_known { (self.set.epoch, self.set.version) } else { (0, 0) };
            let question = self.source.question(cursor, self.is_kept);
            tokio::select! {
                Some(order) = orders.recv() => return order,
                Some(outcome) = self.told.recv() => {
                    // Whatever else is there goes with the same question.
                    self.source.tell(outcome);
                    while let Ok(outcome) = self.told.try_recv() {
                        self.source.tell(outcome);
                    }
                }
                answer = self.source.ask(&question) => match answer {
                    Ok(answer) => {
                        self.source.answered(&question);
                        self.has_been_answered = true;
                        self.follow(answer);
                    }
                    Err(problem) => self.miss(&problem),
                },
                _ = second.tick(), if self.table.standing().refused > 0 || !self.is_kept => {
                    self.table.try_again();
                    self.keep();
                }
            }
            self.show();
        }
    }

    fn follow(&mut self, answer: Answer) {
        for (key, port, problem) in &answer.unreadable {
            log::say(&format!("a route of {} cannot be read: {problem}", key.owner));
            self.counters.failures.of(Failure::Route).one();
            self.source.tell(Outcome::Unserved(key.clone(), *port, problem.clone()));
        }
        let before = (self.set.epoch, self.set.version, self.set.newest_epoch);
        let change = self.set.take(&answer);
        self.table.follow(&change, &self.set);
        if !self.is_connected || before.0 != answer.epoch {
            // It may have forgotten what it was told.
            self.is_connected = true;
            self.table.announce();
            log::say(&format!("routes come from epoch {}", answer.epoch));
            if self.set.is_older() {
                let newest = self.set.newest_epoch;
                log::say(&format!("epoch {newest} was here before: what it brought stays until a newer one comes"));
            }
        }
        let after = (self.set.epoch, self.set.version, self.set.newest_epoch);
        self.is_kept = self.is_kept && before == after && change == Change::default();
        self.keep();
    }

    fn keep(&mut self) {
        if self.is_kept {
            return;
        }
        match self.disk.keep(&self.set) {
            Ok(()) => (self.is_kept, self.is_full) = (true, false),
            Err(error) => {
                // Tried again each second, and said once.
                if !std::mem::replace(&mut self.is_full, true) {
                    log::say(&format!("routes are not kept: {error}"));
                }
                self.counters.failures.of(Failure::Disk).one();
            }
        }
    }

    fn miss(&mut self, problem: &str) {
        self.source.failed();
        self.counters.failures.of(Failure::Follow).one();
        if std::mem::take(&mut self.is_connected) {
            log::say(&format!("the data plane does not answer ({problem}); everything goes on with the last routes"));
        }
    }

    /// The routes just now.
    #[must_use]
    pub fn set(&self) -> &Set {
        &self.set
    }

    /// What became of a route, once this process asks nobody any more.
    pub async fn outcome(&mut self) -> Option<Outcome> {
        self.told.recv().await
    }

    /// Writes down how things stand.
    fn show(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.has_begun = true;
        status.is_connected = self.is_connected;
        status.is_kept = self.is_kept;
        status.epoch = self.set.epoch;
        status.version = self.set.version;
        status.standing = self.table.standing();
    }
}
