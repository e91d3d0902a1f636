//! The threads that call the hosting service. The game loop never waits for these calls.
//!
//! The order of calls is `ready`, due heartbeats, then players. Several threads call for players, so that slow or useless
//! calls delay no other player. After a call with an unknown outcome no call starts for a time, and `ready` is sent again.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Api, ApiResponse, idempotency_key};
use crate::log_line;
use crate::protocol::{REFUSAL_TOKEN_INVALID, REFUSAL_TOKEN_USED};

/// Number of calls for players at the same time.
const CALLERS: usize = 4;
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

enum Message {
    Request(ServiceRequest),
    Response(PlayerCall, ApiResponse),
    End,
}

/// Sends requests to the service thread. Dropping it starts the final calls.
pub struct ServiceRequests(Sender<Message>);

impl ServiceRequests {
    /// Does nothing if the thread has ended.
    pub fn send(&self, request: ServiceRequest) {
        let _ = self.0.send(Message::Request(request));
    }
}

impl Drop for ServiceRequests {
    fn drop(&mut self) {
        let _ = self.0.send(Message::End);
    }
}

struct ServiceClient {
    api: Arc<Api>,
    event_sender: Sender<ServiceEvent>,
    callers: Sender<PlayerCall>,
    jobs: VecDeque<PlayerCall>,
    /// Tokens of the calls that the callers make now.
    called_tokens: Vec<String>,
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

/// Starts the threads. They end after the lobby, or soon after the request sender is dropped.
pub fn start(api: Api) -> (ServiceRequests, Receiver<ServiceEvent>, JoinHandle<()>) {
    let ((message_sender, messages), (event_sender, events), now) = (channel(), channel(), Instant::now());
    let api = Arc::new(api);
    let mut client = ServiceClient {
        callers: start_callers(&api, &message_sender),
        api,
        event_sender,
        jobs: VecDeque::new(),
        called_tokens: Vec::new(),
        connected_tokens: Vec::new(),
        is_ready: false,
        next_heartbeat: now,
        attempts: 0,
        paused_until: now,
    };
    (ServiceRequests(message_sender), events, spawn(move || client.work(&messages)))
}

/// Starts the threads that call for players. They end when the returned sender is dropped.
fn start_callers(api: &Arc<Api>, responses: &Sender<Message>) -> Sender<PlayerCall> {
    let (sender, calls) = channel::<PlayerCall>();
    let calls = Arc::new(Mutex::new(calls));
    for _ in 0..CALLERS {
        let (api, calls, responses) = (api.clone(), calls.clone(), responses.clone());
        spawn(move || {
            let next = || calls.lock().unwrap_or_else(PoisonError::into_inner).recv();
            while let Ok(call) = next() {
                let path = if call.key.is_some() { "players/connected" } else { "players/disconnected" };
                let body = json!({"player_token": call.token});
                let response = api.call(path, &body, call.key.as_deref(), CALL_TIMEOUT);
                let _ = responses.send(Message::Response(call, response));
            }
        });
    }
    sender
}

impl ServiceClient {
    fn work(&mut self, messages: &Receiver<Message>) {
        loop {
            let due = if self.is_ready { self.next_heartbeat } else { self.paused_until };
            let due = due.max(self.paused_until);
            if Instant::now() >= due {
                if let Some(end_reason) = self.send_ready_or_heartbeat() {
                    return self.send_event(ServiceEvent::LobbyEnded(end_reason));
                }
                continue;
            }
            self.start_calls();
            match messages.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(Message::Request(request)) => self.add_job(request),
                Ok(Message::Response(call, response)) => self.finish_call(call, &response),
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return self.end(messages),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn add_job(&mut self, request: ServiceRequest) {
        let since = Instant::now();
        match request {
            ServiceRequest::Connect(token) => {
                self.jobs.push_back(PlayerCall { token, key: Some(idempotency_key()), since });
            }
            ServiceRequest::Disconnect(token) => {
                self.connected_tokens.retain(|other| *other != token);
                self.jobs.retain(|job| job.token != token);
                self.jobs.push_back(PlayerCall { token, key: None, since });
            }
        }
    }

    /// Sends `ready` or a heartbeat. Returns the reason if the lobby has ended.
    fn send_ready_or_heartbeat(&mut self) -> Option<Result<&'static str, String>> {
        let players = json!({"player_tokens": self.connected_tokens});
        let (path, body) = if self.is_ready { ("lobbies/heartbeat", players) } else { ("lobbies/ready", json!({})) };
        let response = self.call(path, &body, CALL_TIMEOUT);
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

    /// Gives waiting jobs to free callers. The calls of one token never overlap.
    fn start_calls(&mut self) {
        if !self.is_ready || Instant::now() < self.paused_until {
            return;
        }
        self.jobs.retain(|job| job.since.elapsed() < RELEASE_AGE_MAX);
        while self.called_tokens.len() < CALLERS {
            let Some(index) = self.jobs.iter().position(|job| !self.called_tokens.contains(&job.token)) else { return };
            let Some(job) = self.jobs.remove(index) else { return };
            self.called_tokens.push(job.token.clone());
            let _ = self.callers.send(job);
        }
    }

    fn finish_call(&mut self, call: PlayerCall, response: &ApiResponse) {
        self.called_tokens.retain(|token| *token != call.token);
        self.record_outcome(response);
        let is_replaced = self.jobs.iter().any(|job| job.token == call.token);
        match response.status {
            // A release of the same player waits.
            _ if is_replaced => {}
            // The job stays first, because a late release could free the slot of the next player.
            _ if !response.is_outcome_known() => self.jobs.push_front(call),
            _ if call.key.is_none() => {}
            200 => {
                self.connected_tokens.push(call.token.clone());
                self.send_event(ServiceEvent::PlayerDecided(call.token, Ok(())));
            }
            // Do not release the slot: after an error the slot does not belong to this client.
            _ => self.send_event(ServiceEvent::PlayerDecided(call.token, Err(refusal_code(response.error_code())))),
        }
    }

    fn call(&mut self, path: &str, body: &Value, timeout: Duration) -> ApiResponse {
        let response = self.api.call(path, body, None, timeout);
        self.record_outcome(&response);
        response
    }

    /// After an unknown outcome, all calls pause.
    fn record_outcome(&mut self, response: &ApiResponse) {
        if response.is_outcome_known() {
            self.attempts = 0;
        } else {
            self.paused_until = Instant::now() + response.retry_delay(self.attempts);
            (self.attempts, self.is_ready) = (self.attempts + 1, false);
        }
    }

    fn end(&mut self, messages: &Receiver<Message>) {
        let started = Instant::now();
        let remaining = || SHUTDOWN_TIMEOUT.saturating_sub(started.elapsed());
        while !self.called_tokens.is_empty()
            && let Ok(message) = messages.recv_timeout(remaining())
        {
            if let Message::Response(call, response) = message {
                self.finish_call(call, &response);
            }
        }
        let tokens = self.jobs.drain(..).map(|job| job.token).chain(self.connected_tokens.drain(..));
        let releases: Vec<_> = tokens.map(|token| ("players/disconnected", json!({"player_token": token}))).collect();
        for (path, body) in std::iter::once(("lobbies/closed", json!({"is_closed": true}))).chain(releases) {
            while !remaining().is_zero() && !self.call(path, &body, remaining().min(CALL_TIMEOUT)).is_outcome_known() {
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
        "PLAYER_TOKEN_INVALID" => REFUSAL_TOKEN_INVALID,
        "PLAYER_TOKEN_WRONG_LOBBY" => 2,
        "PLAYER_TOKEN_CONSUMED" => REFUSAL_TOKEN_USED,
        "PLAYER_TOKEN_EXPIRED" => 4,
        "PLAYER_REMOVED" => 5,
        _ => 7,
    }
}
