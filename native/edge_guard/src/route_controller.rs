//! The thread that decides: asks for routes, follows them, keeps them, and does what administrators say.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;

use crate::metrics::{ControlFailure, ThreadCounters};
use crate::operator_log;
use crate::route_client::RouteClient;
use crate::route_set::{RouteChange, RouteFile, RouteSet, RouteUpdate};
use crate::route_table::{RouteCounts, RouteOutcome, RouteTable};

/// What can be told to the control thread.
#[derive(Debug)]
pub enum AdminCommand {
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
pub struct EdgeStatus {
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
    pub counts: RouteCounts,
    /// How many descriptors there may be.
    pub descriptors: u64,
    /// How many UDP sessions there may be.
    pub datagram_sessions: usize,
}

/// Everything that the control thread has.
#[derive(Debug)]
pub struct RouteController {
    /// Routes and sockets.
    pub table: RouteTable,
    client: RouteClient,
    file: RouteFile,
    set: RouteSet,
    is_kept: bool,
    /// Whether keeping failed last.
    is_full: bool,
    is_connected: bool,
    /// Whether this process was ever answered: what it began with is not taken for what the source thinks it has.
    has_been_answered: bool,
    outcomes_in: UnboundedReceiver<RouteOutcome>,
    counters: Arc<ThreadCounters>,
    status: Arc<Mutex<EdgeStatus>>,
}

/// A channel for outcomes.
#[must_use]
pub fn outcomes() -> (UnboundedSender<RouteOutcome>, UnboundedReceiver<RouteOutcome>) {
    unbounded_channel()
}

impl RouteController {
    /// Begins with a set and a table that serves it.
    pub fn new(
        table: RouteTable,
        client: RouteClient,
        (file, set): (RouteFile, RouteSet),
        outcomes_in: UnboundedReceiver<RouteOutcome>,
        counters: Arc<ThreadCounters>,
        status: Arc<Mutex<EdgeStatus>>,
    ) -> Self {
        let mut control = Self {
            table,
            client,
            file,
            set,
            is_kept: false,
            is_full: false,
            is_connected: false,
            has_been_answered: false,
            outcomes_in,
            counters,
            status,
        };
        control.save();
        control.publish_status();
        control
    }

    /// Asks and follows until it is told something.
    pub async fn run_until_command(&mut self, commands: &mut UnboundedReceiver<AdminCommand>) -> AdminCommand {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_known = self.has_been_answered && self.set.is_complete();
            let cursor = if is_known { (self.set.epoch, self.set.version) } else { (0, 0) };
            let call = self.client.next_call(cursor, self.is_kept);
            tokio::select! {
                Some(command) = commands.recv() => return command,
                Some(outcome) = self.outcomes_in.recv() => {
                    // Whatever else is there goes with the same question.
                    self.client.report(outcome);
                    while let Ok(outcome) = self.outcomes_in.try_recv() {
                        self.client.report(outcome);
                    }
                }
                answer = self.client.send(&call) => match answer {
                    Ok(answer) => {
                        self.client.succeeded(&call);
                        self.has_been_answered = true;
                        self.follow(answer);
                    }
                    Err(problem) => self.record_failure(&problem),
                },
                _ = second.tick(), if self.table.counts().refused > 0 || !self.is_kept => {
                    self.table.retry_unserved();
                    self.save();
                }
            }
            self.publish_status();
        }
    }

    fn follow(&mut self, answer: RouteUpdate) {
        for (key, port, problem) in &answer.unreadable {
            operator_log::write_line(&format!("a route of {} cannot be read: {problem}", key.owner));
            self.counters.failures.of(ControlFailure::Route).one();
            self.client.report(RouteOutcome::Unserved(key.clone(), *port, problem.clone()));
        }
        let before = (self.set.epoch, self.set.version, self.set.newest_epoch);
        let change = self.set.take(&answer);
        self.table.follow(&change, &self.set);
        if !self.is_connected || before.0 != answer.epoch {
            // It may have forgotten what it was told.
            self.is_connected = true;
            self.table.report_all();
            operator_log::write_line(&format!("routes come from epoch {}", answer.epoch));
            if self.set.is_from_older_epoch() {
                let newest = self.set.newest_epoch;
                operator_log::write_line(&format!(
                    "epoch {newest} was here before: what it brought stays until a newer one comes"
                ));
            }
        }
        let after = (self.set.epoch, self.set.version, self.set.newest_epoch);
        self.is_kept = self.is_kept && before == after && change == RouteChange::default();
        self.save();
    }

    fn save(&mut self) {
        if self.is_kept {
            return;
        }
        match self.file.save(&self.set) {
            Ok(()) => (self.is_kept, self.is_full) = (true, false),
            Err(error) => {
                // Tried again each second, and said once.
                if !std::mem::replace(&mut self.is_full, true) {
                    operator_log::write_line(&format!("routes are not kept: {error}"));
                }
                self.counters.failures.of(ControlFailure::Disk).one();
            }
        }
    }

    fn record_failure(&mut self, problem: &str) {
        self.client.failed();
        self.counters.failures.of(ControlFailure::Follow).one();
        if std::mem::take(&mut self.is_connected) {
            operator_log::write_line(&format!(
                "the data plane does not answer ({problem}); everything goes on with the last routes"
            ));
        }
    }

    /// The routes just now.
    #[must_use]
    pub fn set(&self) -> &RouteSet {
        &self.set
    }

    /// What became of a route, once this process asks nobody any more.
    pub async fn outcome(&mut self) -> Option<RouteOutcome> {
        self.outcomes_in.recv().await
    }

    /// Writes down how things stand.
    fn publish_status(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.has_begun = true;
        status.is_connected = self.is_connected;
        status.is_kept = self.is_kept;
        status.epoch = self.set.epoch;
        status.version = self.set.version;
        status.counts = self.table.counts();
    }
}
