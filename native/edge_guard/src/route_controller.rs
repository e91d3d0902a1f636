//! Control loop: requests routes from the data plane, applies and saves them, until an administration command arrives.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::metrics::{ControlFailure, ThreadCounters};
use crate::operator_log;
use crate::route_client::RouteClient;
use crate::route_listeners::{RouteCounts, RouteListeners, RouteOutcome};
use crate::route_set::route_file::RouteFile;
use crate::route_set::{RouteChange, RouteSet, RouteUpdate};

#[derive(Debug)]
pub enum AdminCommand {
    HandOver(std::os::unix::net::UnixStream),
    Reload,
    /// Stops edge-guard when all open connections have ended or the drain timeout is over. A second `Drain` stops it at
    /// once.
    Drain,
    Stop,
}

#[derive(Debug, Default, Clone)]
pub struct EdgeStatus {
    pub is_started: bool,
    pub is_leaving: bool,
    pub is_connected: bool,
    pub is_saved: bool,
    pub epoch: u64,
    pub version: u64,
    pub counts: RouteCounts,
    pub descriptors: u64,
    pub datagram_sessions: usize,
}

#[derive(Debug)]
pub struct RouteController {
    pub route_listeners: RouteListeners,
    client: RouteClient,
    file: RouteFile,
    set: RouteSet,
    is_saved: bool,
    /// Save in progress. Changes that arrive meanwhile are saved together by the next one.
    save: Option<JoinHandle<io::Result<()>>>,
    has_changed_since_save: bool,
    is_full: bool,
    is_connected: bool,
    is_refusing_sessions: bool,
    /// False before the first response of the data plane. Until then, the saved route set may be incomplete, so all
    /// routes are requested.
    has_response: bool,
    outcome_receiver: UnboundedReceiver<RouteOutcome>,
    counters: Arc<ThreadCounters>,
    status: Arc<Mutex<EdgeStatus>>,
}

#[must_use]
pub fn outcomes() -> (UnboundedSender<RouteOutcome>, UnboundedReceiver<RouteOutcome>) {
    unbounded_channel()
}

impl RouteController {
    pub fn new(
        route_listeners: RouteListeners,
        client: RouteClient,
        (file, set): (RouteFile, RouteSet),
        outcome_receiver: UnboundedReceiver<RouteOutcome>,
        counters: Arc<ThreadCounters>,
        status: Arc<Mutex<EdgeStatus>>,
    ) -> Self {
        let mut control = Self {
            route_listeners,
            client,
            file,
            set,
            is_saved: false,
            save: None,
            has_changed_since_save: false,
            is_full: false,
            is_connected: false,
            is_refusing_sessions: false,
            has_response: false,
            outcome_receiver,
            counters,
            status,
        };
        let result = control.file.save(&control.set);
        control.record_save(result);
        control.publish_status();
        control
    }

    /// Requests and applies route changes until an administration command arrives, and returns the command.
    pub async fn run_until_command(&mut self, commands: &mut UnboundedReceiver<AdminCommand>) -> AdminCommand {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_set_complete = self.has_response && self.set.is_complete();
            let cursor = if is_set_complete { self.set.cursor() } else { ("", 0, 0) };
            let call = self.client.next_call(cursor, self.is_saved);
            tokio::select! {
                Some(command) = commands.recv() => return command,
                Some(outcome) = self.outcome_receiver.recv() => {
                    // All pending outcomes go with the same request.
                    self.client.report(outcome);
                    while let Ok(outcome) = self.outcome_receiver.try_recv() {
                        self.client.report(outcome);
                    }
                }
                response = self.client.send(&call) => match response {
                    Ok(response) => {
                        self.client.succeeded(&call);
                        if std::mem::take(&mut self.is_refusing_sessions) {
                            operator_log::write_line("the data plane answers again; new sessions are accepted");
                        }
                        self.has_response = true;
                        self.apply(response);
                    }
                    Err(problem) => self.record_failure(&problem),
                },
                _ = second.tick(), if self.route_listeners.counts().refused > 0 || !self.is_saved => {
                    self.route_listeners.retry_unserved();
                    self.start_save();
                }
                result = end_of(&mut self.save), if self.save.is_some() => self.record_save(result),
            }
            self.publish_status();
        }
    }

    fn apply(&mut self, response: RouteUpdate) {
        for (key, port, problem) in &response.unreadable {
            operator_log::write_line(&format!("a route of {} is invalid: {problem}", key.owner));
            self.counters.failures.with_label(ControlFailure::Route).increment();
            self.client.report(RouteOutcome::Unserved(key.clone(), *port, problem.clone()));
        }
        let before = (self.set.epoch, self.set.version, self.set.newest_epoch, self.set.restore_id.clone());
        let change = self.set.take(&response);
        self.route_listeners.apply(&change, &self.set);
        if !self.is_connected || before.0 != response.epoch || before.3 != response.restore_id {
            // The source may have lost the reported outcomes.
            self.is_connected = true;
            self.route_listeners.report_outcomes();
            operator_log::write_line(&format!("following the routes of epoch {}", response.epoch));
            if self.set.is_from_older_epoch() {
                let newest = self.set.newest_epoch;
                operator_log::write_line(&format!(
                    "epoch {newest} is newer: its routes stay until a newer epoch replaces them"
                ));
            }
        }
        let after = (self.set.epoch, self.set.version, self.set.newest_epoch, self.set.restore_id.clone());
        if before != after || change != RouteChange::default() {
            (self.is_saved, self.has_changed_since_save) = (false, true);
        }
        self.start_save();
    }

    /// Saves the routes in another thread, because the syncs of a slow disk would delay the outcomes of other routes.
    fn start_save(&mut self) {
        if !self.is_saved && self.save.is_none() {
            self.has_changed_since_save = false;
            let (file, set) = (self.file.clone(), self.set.clone());
            self.save = Some(tokio::task::spawn_blocking(move || file.save(&set)));
        }
    }

    /// Waits for the save in progress. A later process must not find its file replaced by older routes.
    pub async fn finish_save(&mut self) {
        while self.save.is_some() {
            let result = end_of(&mut self.save).await;
            self.record_save(result);
        }
    }

    fn record_save(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => (self.is_saved, self.is_full) = (!self.has_changed_since_save, false),
            Err(error) => {
                // Retried each second, and logged once.
                if !std::mem::replace(&mut self.is_full, true) {
                    operator_log::write_line(&format!("cannot save the routes: {error}"));
                }
                self.counters.failures.with_label(ControlFailure::Disk).increment();
                return;
            }
        }
        if self.has_changed_since_save {
            self.start_save();
        }
    }

    fn record_failure(&mut self, problem: &str) {
        self.client.failed();
        self.counters.failures.with_label(ControlFailure::Follow).increment();
        if std::mem::take(&mut self.is_connected) {
            operator_log::write_line(&format!("the data plane does not answer ({problem}); serving the last routes"));
        }
        if self.client.has_lost_contact() && !std::mem::replace(&mut self.is_refusing_sessions, true) {
            operator_log::write_line("the data plane has been silent for too long; new sessions are refused");
        }
    }

    #[must_use]
    pub fn set(&self) -> &RouteSet {
        &self.set
    }

    /// Waits for the next route outcome and does not report it to the data plane. Use this only after a handover, when
    /// the newer process reports outcomes.
    pub async fn outcome(&mut self) -> Option<RouteOutcome> {
        self.outcome_receiver.recv().await
    }

    fn publish_status(&self) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.is_started = true;
        status.is_connected = self.is_connected;
        status.is_saved = self.is_saved;
        status.epoch = self.set.epoch;
        status.version = self.set.version;
        status.counts = self.route_listeners.counts();
    }
}

/// Waits for the end of a save, and takes it out.
async fn end_of(save: &mut Option<JoinHandle<io::Result<()>>>) -> io::Result<()> {
    let Some(running) = save else { return Ok(()) };
    let result = running.await.map_err(io::Error::other).and_then(|result| result);
    *save = None;
    result
}
