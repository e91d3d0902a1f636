//! The thread that calls the hosting service. The game loop never waits for these calls.
//!
//! The order of calls is `ready`, due heartbeats, then players. After a call with an unknown outcome all calls pause,
//! and `ready` is sent again.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, ApiResponse, idempotency_key};
use crate::log_line;
use crate::protocol::REFUSAL_TOKEN_USED;

const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(3);
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// Age at which a release is dropped. The service releases slots that no heartbeat lists.
const RELEASE_AGE_MAX: Duration = Duration::from_secs(60);

/// Order to confirm or release the player with this token.
#[derive(Debug, PartialEq)]
pub enum ServiceRequest {
    Connect(String),
    Disconnect(String),
}

pub enum ServiceEvent {
    /// Result of `connected` for a player token, with the reason of a rejection.
    PlayerDecided(String, Result<(), u8>),
    /// The lobby has ended. Err: the lobby token is not valid.
    LobbyEnded(Result<&'static str, String>),
}

struct ServiceClient {
    api: Api,
    event_sender: Sender<ServiceEvent>,
    jobs: VecDeque<PlayerCall>,
    connected_tokens: Vec<String>,
    is_ready: bool,
    next_heartbeat: Instant,
    attempts: u32,
    paused_until: Instant,
}

/// `connected` with its idempotency key, or `disconnected` without a key.
struct PlayerCall {
    token: String,
    key: Option<String>,
    since: Instant,
}

/// Starts the thread. The thread ends after the lobby, or soon after the order sender is dropped.
pub fn start(api: Api) -> (Sender<ServiceRequest>, Receiver<ServiceEvent>, JoinHandle<()>) {
    let ((request_sender, requests), (event_sender, events), now) = (channel(), channel(), Instant::now());
    let (jobs, connected_tokens) = (VecDeque::new(), Vec::new());
    let mut client = ServiceClient {
        api,
        event_sender,
        jobs,
        connected_tokens,
        is_ready: false,
        next_heartbeat: now,
        attempts: 0,
        paused_until: now,
    };
    (request_sender, events, spawn(move || client.work(&requests)))
}

impl ServiceClient {
    fn work(&mut self, requests: &Receiver<ServiceRequest>) {
        loop {
            let wake_time = if self.is_ready && self.jobs.is_empty() { self.next_heartbeat } else { self.paused_until };
            let since = Instant::now();
            match requests.recv_timeout(wake_time.max(self.paused_until).saturating_duration_since(since)) {
                Ok(ServiceRequest::Connect(token)) => {
                    self.jobs.push_back(PlayerCall { token, key: Some(idempotency_key()), since })
                }
                Ok(ServiceRequest::Disconnect(token)) => {
                    self.connected_tokens.retain(|other| *other != token);
                    self.jobs.retain(|job| job.token != token);
                    self.jobs.push_back(PlayerCall { token, key: None, since });
                }
                Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) if self.is_ready && Instant::now() < self.next_heartbeat => {
                    self.send_next_job()
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(end_reason) = self.send_ready_or_heartbeat() {
                        return self.send_event(ServiceEvent::LobbyEnded(end_reason));
                    }
                }
            }
        }
    }

    /// Sends `ready` or a heartbeat. Returns the reason if the lobby has ended.
    fn send_ready_or_heartbeat(&mut self) -> Option<Result<&'static str, String>> {
        let players = json!({"player_tokens": self.connected_tokens});
        let (path, body) = if self.is_ready { ("lobbies/heartbeat", players) } else { ("lobbies/ready", json!({})) };
        let response = self.call(path, &body, None, CALL_TIMEOUT);
        match response.status {
            200 if self.is_ready => self.next_heartbeat = Instant::now() + HEARTBEAT_INTERVAL,
            200 => {
                self.is_ready = true;
                log_line("reported to the hosting service that the lobby is ready");
            }
            410 => return Some(Ok("the hosting service has ended this lobby")),
            401 | 403 | 404 => {
                return Some(Err(format!("the hosting service refused the lobby token: {}", response.error_code())));
            }
            _ if response.is_outcome_known() => self.paused_until = Instant::now() + HEARTBEAT_INTERVAL,
            _ => {}
        }
        None
    }

    fn send_next_job(&mut self) {
        self.jobs.retain(|job| job.since.elapsed() < RELEASE_AGE_MAX);
        let Some(job) = self.jobs.pop_front() else { return };
        let path = if job.key.is_some() { "players/connected" } else { "players/disconnected" };
        let response = self.call(path, &json!({"player_token": job.token}), job.key.as_deref(), CALL_TIMEOUT);
        match response.status {
            // The job stays first, because a late release could free the slot of the next player.
            _ if !response.is_outcome_known() => self.jobs.push_front(job),
            _ if job.key.is_none() => {}
            200 => {
                self.connected_tokens.push(job.token.clone());
                self.send_event(ServiceEvent::PlayerDecided(job.token, Ok(())));
            }
            // Do not release the slot: after an error the slot does not belong to this client.
            _ => self.send_event(ServiceEvent::PlayerDecided(job.token, Err(refusal_code(response.error_code())))),
        }
    }

    /// Makes one call. After an unknown outcome all calls pause.
    fn call(&mut self, path: &str, body: &Value, key: Option<&str>, timeout: Duration) -> ApiResponse {
        let response = self.api.call(path, body, key, timeout);
        if response.is_outcome_known() {
            self.attempts = 0;
        } else {
            self.paused_until = Instant::now() + response.retry_delay(self.attempts);
            (self.attempts, self.is_ready) = (self.attempts + 1, false);
        }
        response
    }

    fn end(&mut self) {
        let started = Instant::now();
        let remaining = || SHUTDOWN_TIMEOUT.saturating_sub(started.elapsed());
        let tokens = self.jobs.drain(..).map(|job| job.token).chain(self.connected_tokens.drain(..));
        let releases: Vec<_> = tokens.map(|token| ("players/disconnected", json!({"player_token": token}))).collect();
        for (path, body) in std::iter::once(("lobbies/closed", json!({"is_closed": true}))).chain(releases) {
            while !remaining().is_zero()
                && !self.call(path, &body, None, remaining().min(CALL_TIMEOUT)).is_outcome_known()
            {
                sleep(self.paused_until.saturating_duration_since(Instant::now()).min(remaining()));
            }
        }
    }

    fn send_event(&self, event: ServiceEvent) {
        let _ = self.event_sender.send(event);
    }
}

fn refusal_code(code: &str) -> u8 {
    match code {
        "PLAYER_TOKEN_INVALID" => 1,
        "PLAYER_TOKEN_WRONG_LOBBY" => 2,
        "PLAYER_TOKEN_CONSUMED" => REFUSAL_TOKEN_USED,
        "PLAYER_TOKEN_EXPIRED" => 4,
        "PLAYER_REMOVED" => 5,
        _ => 7,
    }
}
