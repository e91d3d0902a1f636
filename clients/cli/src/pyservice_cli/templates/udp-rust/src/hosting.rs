//! Calls to the hosting service: `LobbyServer` for the game server, `find` for players.

use std::collections::HashSet;
use std::env;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::Agent;

const HEARTBEAT: Duration = Duration::from_secs(3);
/// Tokens that are checked at the same time. Further ones have to come again.
const CONFIRMING_MAX: usize = 64;

/// The game server of a lobby. Without the variables of the service it is local: every token is valid.
pub struct LobbyServer {
    api: Option<Arc<Api>>,
    players: Arc<Mutex<HashSet<String>>>,
    confirming: HashSet<String>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

struct Answer {
    token: String,
    address: SocketAddr,
    is_valid: bool,
}

impl LobbyServer {
    pub fn from_environment() -> Self {
        let variables = env::var("HOSTING_API_URL").ok().zip(env::var("HOSTING_LOBBY_TOKEN").ok());
        let api = variables.map(|(url, token)| Arc::new(Api::new(&url, &token)));
        Self { api, players: Arc::default(), confirming: HashSet::new(), answers: channel() }
    }

    /// Returns the number to bind for the port with this name.
    pub fn port(&self, name: &str) -> u16 {
        let variable = env::var(format!("PORT_{}", name.to_uppercase().replace('-', "_")));
        variable.ok().and_then(|text| text.parse().ok()).unwrap_or(7777)
    }

    /// Returns the address on which the server listens.
    pub fn bind_address(&self) -> String {
        env::var("HOSTING_BIND_ADDRESS").unwrap_or_else(|_| "127.0.0.1".into())
    }

    /// Lets players in, and sends heartbeats from now on. The process ends when the lobby has ended.
    pub fn ready(&self) {
        println!("ready");
        let Some(api) = self.api.clone() else { return };
        let players = self.players.clone();
        thread::spawn(move || {
            api.repeat("lobbies/ready", &json!({}), Duration::MAX);
            loop {
                let tokens: Vec<String> = players.lock().unwrap().iter().cloned().collect();
                let (status, _) = api.call("lobbies/heartbeat", &json!({ "player_tokens": tokens }), &random_key());
                if matches!(status, 401 | 403 | 404 | 410) {
                    println!("the lobby has ended");
                    process::exit(0);
                }
                thread::sleep(HEARTBEAT);
            }
        });
    }

    /// Asks the service whether a player may play. `confirmed` has the answer later.
    pub fn confirm(&mut self, token: &str, address: SocketAddr) {
        if self.confirming.len() >= CONFIRMING_MAX || !self.confirming.insert(token.to_owned()) {
            return;
        }
        let (api, answers, token) = (self.api.clone(), self.answers.0.clone(), token.to_owned());
        thread::spawn(move || {
            let body = json!({ "player_token": token });
            let is_valid = api.is_none_or(|api| api.repeat("players/connected", &body, Duration::from_secs(10)) == 200);
            answers.send(Answer { token, address, is_valid }).ok();
        });
    }

    /// Returns the players that the service has confirmed since the last call.
    pub fn confirmed(&mut self) -> Vec<(String, SocketAddr)> {
        let answers: Vec<Answer> = self.answers.1.try_iter().collect();
        for answer in &answers {
            self.confirming.remove(&answer.token);
        }
        let valid: Vec<_> = answers.into_iter().filter(|answer| answer.is_valid).collect();
        self.players.lock().unwrap().extend(valid.iter().map(|answer| answer.token.clone()));
        valid.into_iter().map(|answer| (answer.token, answer.address)).collect()
    }

    /// Frees the slot of a player that has left.
    pub fn release(&self, token: &str) {
        self.players.lock().unwrap().remove(token);
        let (Some(api), body) = (self.api.clone(), json!({ "player_token": token })) else { return };
        thread::spawn(move || api.repeat("players/disconnected", &body, Duration::from_secs(60)));
    }
}

/// Returns the host, port and token of a reserved slot in a lobby.
pub fn find(game_mode: &str) -> Result<(String, u16, String), String> {
    let variable = |name| env::var(name).map_err(|_| format!("{name} is not set"));
    let api = Api::new(&variable("HOSTING_API_URL")?, &variable("HOSTING_PUBLIC_TOKEN")?);
    let (status, found) = api.call("lobbies/find", &json!({ "game_modes": [game_mode] }), &random_key());
    let port = found["ports"].as_object().and_then(|ports| ports.values().next()).cloned().unwrap_or_default();
    match (port["hostname"].as_str(), port["port"].as_u64(), found["player"]["token"].as_str()) {
        (Some(host), Some(port), Some(token)) => Ok((host.to_owned(), port as u16, token.to_owned())),
        _ => Err(format!("{status} {}", found["detail"].as_str().unwrap_or("no answer"))),
    }
}

/// Returns a random number that an attacker cannot guess.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

fn random_key() -> String {
    format!("{:016x}{:016x}", random(), random())
}

struct Api {
    agent: Agent,
    url: String,
    bearer: String,
}

impl Api {
    fn new(url: &str, token: &str) -> Self {
        // The service waits up to 45 s for a starting lobby.
        let config = Agent::config_builder().timeout_global(Some(Duration::from_secs(60)));
        let agent = config.http_status_as_error(false).build().new_agent();
        Self { agent, url: format!("{url}/matchmaker/"), bearer: format!("Bearer {token}") }
    }

    /// Repeats a call under one key until its outcome is known. Returns its status.
    fn repeat(&self, path: &str, body: &Value, total: Duration) -> u16 {
        let (key, begin) = (random_key(), Instant::now());
        loop {
            let (status, answer) = self.call(path, body, &key);
            if !matches!(status, 0 | 408 | 429 | 500..) || begin.elapsed() >= total {
                if status >= 400 {
                    println!("{path}: {status} {}", answer["detail"].as_str().unwrap_or_default());
                }
                return status;
            }
            thread::sleep(Duration::from_millis(500 + random() % 500));
        }
    }

    /// Returns the status and the JSON of a response. Without a response the status is 0.
    fn call(&self, path: &str, body: &Value, key: &str) -> (u16, Value) {
        let request = self.agent.post(format!("{}{path}", self.url)).header("authorization", &self.bearer);
        let request = request.header("content-type", "application/json").header("idempotency-key", key);
        let response = request.send(body.to_string()).and_then(|mut response| {
            let content = response.body_mut().read_to_vec()?;
            Ok((response.status().as_u16(), serde_json::from_slice(&content).unwrap_or_default()))
        });
        response.unwrap_or_else(|error: ureq::Error| (0, json!({ "detail": error.to_string() })))
    }
}
