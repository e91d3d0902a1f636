//! Namespaces and the tokens of their clients, as the rules of the matchmaker need them. Python replaces a namespace as a whole when the
//! configuration feed changes it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hosting_core::Id;
use parking_lot::RwLock;

/// Settings of a game mode that decide about requests.
pub struct GameMode {
    pub max_players: u32,
    pub max_players_direct: u32,
    pub max_players_party: u32,
    pub is_find_enabled: bool,
    pub is_taggable: bool,
    pub is_listable: bool,
    /// Whether a request may choose `max_players`.
    pub is_max_players_dynamic: bool,
    /// None: all regions.
    pub regions: Option<HashSet<String>>,
    /// Publicities that a create may request. Empty: create is disabled.
    pub create_publicities: HashSet<String>,
    pub ports: HashMap<String, PortKind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    Number,
    Range,
}

impl GameMode {
    /// Returns a mode without regions and ports, which allows all that a setting can allow.
    #[cfg(test)]
    pub fn example(max_players: u32) -> GameMode {
        GameMode {
            max_players,
            max_players_direct: max_players,
            max_players_party: max_players,
            is_find_enabled: true,
            is_taggable: true,
            is_listable: true,
            is_max_players_dynamic: true,
            regions: None,
            create_publicities: HashSet::new(),
            ports: HashMap::new(),
        }
    }

    /// Returns the largest `max_players` of a request.
    pub fn largest_limit(&self) -> u32 {
        self.max_players.max(self.max_players_direct).max(self.max_players_party)
    }

    pub fn allows_region(&self, region: &str) -> bool {
        self.regions.as_ref().is_none_or(|regions| regions.contains(region))
    }
}

#[derive(Clone)]
pub struct ServiceToken {
    pub sha256: [u8; 32],
    pub token_id: Id,
    /// Unix milliseconds.
    pub expires_ms: Option<u64>,
}

pub struct Namespace {
    pub id: Id,
    /// Name in error messages.
    pub label: String,
    pub version: Id,
    /// Developer group, or the game if no group is known. Rate limits count for it.
    pub group: Id,
    /// Maximum slots of one client address.
    pub source_limit: u32,
    /// Whether find and join need a captcha or a verification.
    pub needs_admission: bool,
    pub modes: HashMap<String, GameMode>,
    /// Host names of web pages that need no token.
    pub hosts: Vec<String>,
    pub service_tokens: Vec<ServiceToken>,
    /// Ids of revoked tokens, sorted. See [`Namespace::sort_revoked`].
    pub revoked: Vec<Id>,
}

impl Namespace {
    /// Returns a namespace without game modes and tokens.
    #[cfg(test)]
    pub fn example(id: Id) -> Namespace {
        Namespace {
            id,
            label: "duels/live".into(),
            version: Id([0x22; 16]),
            group: Id([0x33; 16]),
            source_limit: 4,
            needs_admission: false,
            modes: HashMap::new(),
            hosts: Vec::new(),
            service_tokens: Vec::new(),
            revoked: Vec::new(),
        }
    }

    pub fn sort_revoked(&mut self) {
        self.revoked.sort_unstable_by_key(|id| id.0);
        self.revoked.shrink_to_fit();
    }

    pub fn is_token_revoked(&self, token: Id) -> bool {
        self.revoked.binary_search_by(|revoked| revoked.0.cmp(&token.0)).is_ok()
    }
}

#[derive(Default)]
pub struct Namespaces(RwLock<State>);

#[derive(Default)]
struct State {
    by_id: HashMap<Id, Arc<Namespace>>,
    /// Namespace and place in its list, by SHA-256.
    by_service_token: HashMap<[u8; 32], (Id, u32)>,
    by_host: HashMap<String, Id>,
}

impl Namespaces {
    pub fn put(&self, namespace: Arc<Namespace>) {
        let mut state = self.0.write();
        state.remove(namespace.id);
        for (place, token) in namespace.service_tokens.iter().enumerate() {
            state.by_service_token.insert(token.sha256, (namespace.id, place as u32));
        }
        for host in &namespace.hosts {
            state.by_host.insert(host.clone(), namespace.id);
        }
        state.by_id.insert(namespace.id, namespace);
    }

    pub fn get(&self, id: Id) -> Option<Arc<Namespace>> {
        self.0.read().by_id.get(&id).cloned()
    }

    pub fn of_host(&self, host: &str) -> Option<Arc<Namespace>> {
        let state = self.0.read();
        state.by_id.get(state.by_host.get(host)?).cloned()
    }

    pub fn remove(&self, id: Id) {
        self.0.write().remove(id);
    }

    /// Returns the namespace of a service token, and the token, also if it is revoked or expired.
    pub fn service_token(&self, sha256: &[u8; 32]) -> Option<(Arc<Namespace>, ServiceToken)> {
        let state = self.0.read();
        let (namespace, place) = state.by_service_token.get(sha256)?;
        let namespace = state.by_id.get(namespace)?;
        Some((namespace.clone(), namespace.service_tokens.get(*place as usize)?.clone()))
    }
}

impl State {
    fn remove(&mut self, id: Id) {
        let Some(namespace) = self.by_id.remove(&id) else { return };
        for token in &namespace.service_tokens {
            // A namespace that came later may have taken over the token.
            if self.by_service_token.get(&token.sha256).is_some_and(|(owner, _)| *owner == id) {
                self.by_service_token.remove(&token.sha256);
            }
        }
        for host in &namespace.hosts {
            if self.by_host.get(host) == Some(&id) {
                self.by_host.remove(host);
            }
        }
    }
}

#[cfg(test)]
mod tests;
