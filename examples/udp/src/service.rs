//! The thread that calls the hosting service. The game loop never waits for these calls.
//!
//! The order of calls is `ready`, due heartbeats, then players. After a call with an unknown outcome all calls pause,
//! and `ready` is sent again.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Answer, Api, idempotency_key};
use crate::protocol::TOKEN_USED;
use crate::say;

const HEARTBEAT: Duration = Duration::from_secs(3);
const CALL: Duration = Duration::from_secs(3);
const END: Duration = Duration::from_secs(5);
/// Age at which a release is dropped. The service releases slots that no heartbeat lists.
const RELEASE: Duration = Duration::from_secs(60);

/// Order to confirm or release the player with this token.
#[derive(Debug, PartialEq)]
pub enum Order {
    Ask(String),
    Leave(String),
}

pub enum News {
    /// Result of `connected` for a player token, with the reason of a rejection.
    Decided(String, Result<(), u8>),
    /// The lobby has ended. Err: the lobby token is not valid.
    Over(Result<&'static str, String>),
}

struct Clerk {
    api: Api,
    news: Sender<News>,
    line: VecDeque<Job>,
    here: Vec<String>,
    is_ready: bool,
    heartbeat: Instant,
    tries: u32,
    paused_until: Instant,
}

/// `connected` with its idempotency key, or `disconnected` without a key.
struct Job {
    token: String,
    key: Option<String>,
    since: Instant,
}

/// Starts the thread. The thread ends after the lobby, or soon after the order sender is dropped.
pub fn start(api: Api) -> (Sender<Order>, Receiver<News>, JoinHandle<()>) {
    let ((order, orders), (news, heard), now) = (channel(), channel(), Instant::now());
    let (line, here) = (VecDeque::new(), Vec::new());
    let mut clerk = Clerk { api, news, line, here, is_ready: false, heartbeat: now, tries: 0, paused_until: now };
    (order, heard, spawn(move || clerk.work(&orders)))
}

impl Clerk {
    fn work(&mut self, orders: &Receiver<Order>) {
        loop {
            let due = if self.is_ready && self.line.is_empty() { self.heartbeat } else { self.paused_until };
            let since = Instant::now();
            match orders.recv_timeout(due.max(self.paused_until).saturating_duration_since(since)) {
                Ok(Order::Ask(token)) => self.line.push_back(Job { token, key: Some(idempotency_key()), since }),
                Ok(Order::Leave(token)) => {
                    self.here.retain(|other| *other != token);
                    self.line.retain(|job| job.token != token);
                    self.line.push_back(Job { token, key: None, since });
                }
                Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) if self.is_ready && Instant::now() < self.heartbeat => self.say_who(),
                Err(RecvTimeoutError::Timeout) => {
                    if let Some(over) = self.say_that_we_live() {
                        return self.tell(News::Over(over));
                    }
                }
            }
        }
    }

    /// Sends `ready` or a heartbeat. Returns the reason if the lobby has ended.
    fn say_that_we_live(&mut self) -> Option<Result<&'static str, String>> {
        let players = json!({"player_tokens": self.here});
        let (path, body) = if self.is_ready { ("lobbies/heartbeat", players) } else { ("lobbies/ready", json!({})) };
        let answer = self.call(path, &body, None, CALL);
        match answer.status {
            200 if self.is_ready => self.heartbeat = Instant::now() + HEARTBEAT,
            200 => {
                self.is_ready = true;
                say("reported to the hosting service that the lobby is ready");
            }
            410 => return Some(Ok("the hosting service has ended this lobby")),
            401 | 403 | 404 => {
                return Some(Err(format!("the hosting service refused the lobby token: {}", answer.code())));
            }
            _ if answer.is_decided() => self.paused_until = Instant::now() + HEARTBEAT,
            _ => {}
        }
        None
    }

    fn say_who(&mut self) {
        self.line.retain(|job| job.since.elapsed() < RELEASE);
        let Some(job) = self.line.pop_front() else { return };
        let path = if job.key.is_some() { "players/connected" } else { "players/disconnected" };
        let answer = self.call(path, &json!({"player_token": job.token}), job.key.as_deref(), CALL);
        match answer.status {
            // The job stays first, because a late release could free the slot of the next player.
            _ if !answer.is_decided() => self.line.push_front(job),
            _ if job.key.is_none() => {}
            200 => {
                self.here.push(job.token.clone());
                self.tell(News::Decided(job.token, Ok(())));
            }
            // Do not release the slot: after an error the slot does not belong to this client.
            _ => self.tell(News::Decided(job.token, Err(refusal(answer.code())))),
        }
    }

    /// Makes one call. After an unknown outcome all calls pause.
    fn call(&mut self, path: &str, body: &Value, key: Option<&str>, time: Duration) -> Answer {
        let answer = self.api.call(path, body, key, time);
        if answer.is_decided() {
            self.tries = 0;
        } else {
            self.paused_until = Instant::now() + answer.pause(self.tries);
            (self.tries, self.is_ready) = (self.tries + 1, false);
        }
        answer
    }

    fn end(&mut self) {
        let began = Instant::now();
        let left = || END.saturating_sub(began.elapsed());
        let tokens = self.line.drain(..).map(|job| job.token).chain(self.here.drain(..));
        let releases: Vec<_> = tokens.map(|token| ("players/disconnected", json!({"player_token": token}))).collect();
        for (path, body) in std::iter::once(("lobbies/closed", json!({"is_closed": true}))).chain(releases) {
            while !left().is_zero() && !self.call(path, &body, None, left().min(CALL)).is_decided() {
                sleep(self.paused_until.saturating_duration_since(Instant::now()).min(left()));
            }
        }
    }

    fn tell(&self, news: News) {
        let _ = self.news.send(news);
    }
}

fn refusal(code: &str) -> u8 {
    match code {
        "PLAYER_TOKEN_INVALID" => 1,
        "PLAYER_TOKEN_WRONG_LOBBY" => 2,
        "PLAYER_TOKEN_CONSUMED" => TOKEN_USED,
        "PLAYER_TOKEN_EXPIRED" => 4,
        "PLAYER_REMOVED" => 5,
        _ => 7,
    }
}
