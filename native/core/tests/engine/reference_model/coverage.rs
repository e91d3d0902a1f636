//! Coverage of (command, outcome) pairs, with the pairs that must occur.

use std::collections::BTreeMap;
use std::fmt::Write;

use hosting_core::Refusal;

#[derive(Default)]
pub struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

pub const REQUIRED: &[(&str, &[&str])] = &[
    (
        "attach",
        &[
            "attached",
            "replayed",
            "replayed: MATCHMAKER_LOBBY_STOPPED",
            "IDEMPOTENCY_KEY_REUSED",
            "MATCHMAKER_TOO_MANY_LOBBIES",
            "STORAGE_FULL",
        ],
    ),
    ("ready", &["ready", "repeated", "MATCHMAKER_LOBBY_STOPPED", "TOKEN_EXPIRED", "STORAGE_FULL"]),
    (
        "find",
        &[
            "reserved",
            "at once",
            "lobby starting",
            "lobby needed",
            "held",
            "shared",
            "replayed",
            "created",
            "replayed: MATCHMAKER_LOBBY_STOPPED",
            "IDEMPOTENCY_KEY_REUSED",
            "MATCHMAKER_NO_AVAILABLE_LOBBIES",
            "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
            "BODY_INVALID",
            "MATCHMAKER_TOO_MANY_LOBBIES",
            "STORAGE_FULL",
        ],
    ),
    (
        "create",
        &[
            "created",
            "shared",
            "replayed",
            "replayed: MATCHMAKER_LOBBY_STOPPED",
            "IDEMPOTENCY_KEY_REUSED",
            "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
            "BODY_INVALID",
            "MATCHMAKER_TOO_MANY_LOBBIES",
            "CAPACITY_EXHAUSTED",
            "STORAGE_FULL",
        ],
    ),
    (
        "join",
        &[
            "reserved",
            "at once",
            "lobby starting",
            "held",
            "shared",
            "replayed",
            "kept slot again",
            "reserved anew",
            "joined anew",
            "replayed: MATCHMAKER_LOBBY_STOPPED",
            "IDEMPOTENCY_KEY_REUSED",
            "MATCHMAKER_LOBBY_NOT_FOUND",
            "MATCHMAKER_LOBBY_STOPPED",
            "MATCHMAKER_JOIN_DISABLED",
            "MATCHMAKER_LOBBY_DRAINING",
            "MATCHMAKER_LOBBY_CLOSED",
            "BODY_INVALID",
            "MATCHMAKER_TOO_MANY_PLAYERS_FROM_SOURCE",
            "MATCHMAKER_LOBBY_FULL",
            "PLAYER_TOKEN_INVALID",
            "PLAYER_TOKEN_WRONG_LOBBY",
            "STORAGE_FULL",
        ],
    ),
    ("release_hold", &["done"]),
    (
        "connected",
        &[
            "connected",
            "replayed",
            "IDEMPOTENCY_KEY_REUSED",
            "PLAYER_TOKEN_INVALID",
            "PLAYER_TOKEN_WRONG_LOBBY",
            "PLAYER_REMOVED",
            "PLAYER_TOKEN_CONSUMED",
            "PLAYER_TOKEN_EXPIRED",
            "TOKEN_EXPIRED",
            "STORAGE_FULL",
        ],
    ),
    (
        "disconnected",
        &[
            "released",
            "freed",
            "kept",
            "kept freed",
            "repeated",
            "replayed",
            "IDEMPOTENCY_KEY_REUSED",
            "PLAYER_TOKEN_INVALID",
            "PLAYER_TOKEN_WRONG_LOBBY",
            "TOKEN_EXPIRED",
            "STORAGE_FULL",
        ],
    ),
    ("set_closed", &["set", "repeated", "MATCHMAKER_LOBBY_STOPPED", "TOKEN_EXPIRED", "STORAGE_FULL"]),
    ("set_state", &["set", "repeated", "MATCHMAKER_LOBBY_STOPPED", "TOKEN_EXPIRED", "STORAGE_FULL"]),
    (
        "state",
        &[
            "value",
            "none",
            "returned to a server",
            "MATCHMAKER_LOBBY_NOT_FOUND",
            "MATCHMAKER_LOBBY_STOPPED",
            "TOKEN_EXPIRED",
        ],
    ),
    (
        "heartbeat",
        &[
            "spoken",
            "listed",
            "listed and freed",
            "BODY_INVALID",
            "BODY_INVALID for several tokens",
            "MATCHMAKER_LOBBY_STOPPED",
            "TOKEN_EXPIRED",
            "STORAGE_FULL",
        ],
    ),
    ("detach", &["removed", "removed before", "MATCHMAKER_LOBBY_NOT_FOUND", "STORAGE_FULL"]),
    (
        "stop",
        &[
            "marked",
            "marked before",
            "not idle",
            "MATCHMAKER_LOBBY_STOPPED",
            "MATCHMAKER_LOBBY_NOT_FOUND",
            "STORAGE_FULL",
        ],
    ),
    ("end", &["removed", "removed before", "MATCHMAKER_LOBBY_NOT_FOUND", "STORAGE_FULL"]),
    ("advance", &["done"]),
    (
        "hold",
        &[
            "resolved",
            "MATCHMAKER_LOBBY_START_FAILED Exited",
            "MATCHMAKER_LOBBY_START_FAILED StartTimeout",
            "MATCHMAKER_LOBBY_START_FAILED Silent",
            "MATCHMAKER_LOBBY_START_FAILED Removed",
        ],
    ),
    ("restart", &["same hash", "same hash from the first event", "with a new key", "without an old key"]),
    ("facts", &["all read", "some read"]),
    ("token", &["older than 32 uses", "of another ring", "not given yet"]),
];

const ELSEWHERE: &[&str] = &["PORTS_EXHAUSTED", "SERVER_NOT_FOUND", "IN_USE", "OVERLOADED", "RATE_LIMITED"];

impl Coverage {
    pub fn count(&mut self, command: &'static str, outcome: &'static str) {
        *self.0.entry((command, outcome)).or_default() += 1;
    }

    pub fn add(&mut self, other: Coverage) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }

    pub fn table(&self) -> String {
        let mut table = String::new();
        let mut last = "";
        for ((command, outcome), count) in &self.0 {
            let command = if *command == last { "" } else { *command };
            let _ = writeln!(table, "{command:<14} {outcome:<44} {count:>9}");
            if !command.is_empty() {
                last = command;
            }
        }
        table
    }

    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        for (command, outcomes) in REQUIRED {
            let never = outcomes.iter().filter(|outcome| !self.0.contains_key(&(*command, **outcome)));
            missing.extend(never.map(|outcome| format!("{command}: {outcome}")));
        }
        let is_seen = |slug: &str| self.0.keys().any(|(_, outcome)| outcome.contains(slug));
        let is_here = |slug: &&&str| !ELSEWHERE.contains(slug);
        missing.extend(
            Refusal::SLUGS.iter().filter(is_here).filter(|slug| !is_seen(slug)).map(|slug| format!("slug {slug}")),
        );
        missing
    }
}
