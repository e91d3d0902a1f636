//! Namespaces as the front needs them, and the tokens of their clients. Python replaces a namespace as a whole when the
//! configuration feed changes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hosting_core::{Id, KeyRing};
use parking_lot::RwLock;
use sha2::{Digest, Sha256};

const SERVICE_TOKEN: &str = "env_";
/// Prefix of a token that all players of a game share.
pub const PUBLIC_TOKEN: &str = "pub_";

pub struct GameMode {
    /// Largest party of a find.
    pub max_players: u32,
    pub is_find_enabled: bool,
    /// None: all regions.
    pub regions: Option<Vec<String>>,
}

impl GameMode {
    pub fn allows_region(&self, region: &str) -> bool {
        self.regions.as_ref().is_none_or(|regions| regions.iter().any(|allowed| allowed == region))
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
    pub version: Id,
    /// Developer group, or the game if no group is known. Rate limits count for it.
    pub group: Id,
    /// Maximum slots of one client address.
    pub source_limit: u32,
    /// Whether find and join need a captcha or a verification.
    pub needs_admission: bool,
    pub modes: HashMap<String, GameMode>,
    pub service_tokens: Vec<ServiceToken>,
    /// Ids of revoked tokens, sorted. See [`Namespace::sort_revoked`].
    pub revoked: Vec<Id>,
}

impl Namespace {
    pub fn sort_revoked(&mut self) {
        self.revoked.sort_unstable_by_key(|id| id.0);
        self.revoked.shrink_to_fit();
    }

    fn is_revoked(&self, token: Id) -> bool {
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
}

/// The holder of a valid token.
pub struct Client {
    pub namespace: Arc<Namespace>,
    /// Id of an `env_` token. Its holder acts for players.
    pub service_token: Option<Id>,
}

impl Client {
    /// Returns the key under which an `env_` token is counted.
    pub fn identity(&self) -> Option<[u8; 32]> {
        let token = self.service_token?;
        let mut identity = [0; 32];
        identity[..16].copy_from_slice(&self.namespace.id.0);
        identity[16..].copy_from_slice(&token.0);
        Some(identity)
    }
}

impl Namespaces {
    pub fn put(&self, namespace: Arc<Namespace>) {
        let mut state = self.0.write();
        state.remove(namespace.id);
        for (place, token) in namespace.service_tokens.iter().enumerate() {
            state.by_service_token.insert(token.sha256, (namespace.id, place as u32));
        }
        state.by_id.insert(namespace.id, namespace);
    }

    pub fn remove(&self, id: Id) {
        self.0.write().remove(id);
    }

    pub fn is_revoked(&self, namespace: Id, token: Id) -> bool {
        self.0.read().by_id.get(&namespace).is_some_and(|namespace| namespace.is_revoked(token))
    }

    /// Returns the namespace of a service token, and the token, also if it is revoked or expired.
    pub fn service_token(&self, sha256: &[u8; 32]) -> Option<(Arc<Namespace>, ServiceToken)> {
        let state = self.0.read();
        let (namespace, place) = state.by_service_token.get(sha256)?;
        let namespace = state.by_id.get(namespace)?;
        Some((namespace.clone(), namespace.service_tokens.get(*place as usize)?.clone()))
    }

    /// Returns None for a token that is wrong, revoked, expired or of another kind.
    pub fn client(&self, keys: &KeyRing, token: &str) -> Option<Client> {
        if token.starts_with(PUBLIC_TOKEN) {
            let (namespace, token_id) = keys.verify_public(token)?;
            let namespace = self.0.read().by_id.get(&namespace)?.clone();
            return (!namespace.is_revoked(token_id)).then_some(Client { namespace, service_token: None });
        }
        if !token.starts_with(SERVICE_TOKEN) {
            return None;
        }
        // A comparison of hashes does not leak the secret through its duration.
        let sha256: [u8; 32] = Sha256::digest(token).into();
        let (namespace, token) = self.service_token(&sha256)?;
        let is_valid = !namespace.is_revoked(token.token_id) && token.expires_ms.is_none_or(|end| end > unix_ms());
        is_valid.then_some(Client { namespace, service_token: Some(token.token_id) })
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
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
