//! Signed tokens: `player_`, `lobby_`, `pub_` and `dev_`.
//!
//! Text: kind, underscore, base64url of `(version, key id, content, 128-bit MAC)`. Signing the same content again gives
//! the same text. MACs are blake3 with one key for each kind.

#![allow(missing_docs, reason = "the other names say their content")]

use crate::base64url;

/// A UUID in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Id(pub [u8; 16]);

const VERSION: u8 = 1;
const MAC_LEN: usize = 16;

/// Bytes of a decoded player token before its MAC: `version 1, key id 2, lobby 16, slot 3, generation 4`.
const PLAYER_BODY: usize = 26;
/// Bytes of a decoded `lobby_` token before its MAC: `version 1, key id 2, lobby 16`.
const LOBBY_BODY: usize = 19;
/// Bytes of a decoded `pub_` token before its MAC: `version 1, key id 2, namespace 16, token id 16`.
const PUBLIC_BODY: usize = 35;

/// Bytes of a decoded `dev_` token before its MAC: `version 1, key id 2, namespace 16, token id 16, expiry 8`.
const DEVELOPMENT_BODY: usize = 43;
/// Bytes of a decoded mock player token before its MAC: `version 1, key id 2, hour 4, nonce 16`.
const MOCK_BODY: usize = 23;
const DEVELOPMENT_PREFIX: &str = "dev_";

const PLAYER_PREFIX: &str = "player_";
const LOBBY_PREFIX: &str = "lobby_";
const PUBLIC_PREFIX: &str = "pub_";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRingError {
    /// The current key is not among the keys.
    CurrentMissing,
    /// Two keys have the same id.
    DuplicateId(u16),
}

/// Content of a player token: one use of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlayerToken {
    /// Id of the signing key.
    pub key_id: u16,
    pub lobby: Id,
    pub slot: u32,
    /// Number of the slot use, from 1.
    pub generation: u32,
}

/// Why a text is no player token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenProblem {
    /// The text has another form.
    Malformed,
    /// No key of the ring signed the token.
    Forged,
}

#[derive(Clone)]
struct Key {
    id: u16,
    /// Whether the key was in use before a restore. It then verifies only `pub_` and `dev_` tokens, because tokens of later
    /// lobbies and players may have the same content.
    is_restored: bool,
    player: [u8; 32],
    lobby: [u8; 32],
    public: [u8; 32],
    development: [u8; 32],
    mock: [u8; 32],
}

impl Key {
    fn new(id: u16, secret: &[u8; 32]) -> Key {
        Key {
            id,
            is_restored: false,
            player: blake3::derive_key("hosting player token v1", secret),
            lobby: blake3::derive_key("hosting lobby token v1", secret),
            public: blake3::derive_key("hosting public token v1", secret),
            development: blake3::derive_key("hosting development token v1", secret),
            mock: blake3::derive_key("hosting mock player token v1", secret),
        }
    }
}

/// MAC keys. The current key signs tokens, and all keys verify tokens.
#[derive(Clone)]
pub struct KeyRing {
    keys: Vec<Key>,
    current: usize,
    seed_secret: [u8; 32],
}

impl KeyRing {
    /// Returns a ring of `(id, secret)` keys. `current` is the id of the signing key.
    pub fn new(keys: Vec<(u16, [u8; 32])>, current: u16) -> Result<KeyRing, KeyRingError> {
        let position = keys.iter().position(|(id, _)| *id == current).ok_or(KeyRingError::CurrentMissing)?;
        for (index, (id, _)) in keys.iter().enumerate() {
            if keys[..index].iter().any(|(other, _)| other == id) {
                return Err(KeyRingError::DuplicateId(*id));
            }
        }
        let seed_secret = blake3::derive_key("hosting table secret v1", &keys[position].1);
        let keys = keys.into_iter().map(|(id, secret)| Key::new(id, &secret));
        Ok(KeyRing { keys: keys.collect(), current: position, seed_secret })
    }

    /// Lets a key verify only `pub_` and `dev_` tokens. Returns false for an unknown id and for the current key.
    pub fn mark_restored(&mut self, id: u16) -> bool {
        let current_id = self.current_id();
        let key = self.keys.iter_mut().find(|key| key.id == id && id != current_id);
        key.map(|key| key.is_restored = true).is_some()
    }

    /// Adds a key, which becomes the current one.
    pub fn add(&mut self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        if self.has(id) {
            return Err(KeyRingError::DuplicateId(id));
        }
        self.current = self.keys.len();
        self.keys.push(Key::new(id, secret));
        Ok(())
    }

    /// Removes a key. Returns false for an unknown id and for the current key.
    pub fn remove(&mut self, id: u16) -> bool {
        let current_id = self.current_id();
        let Some(position) = self.keys.iter().position(|key| key.id == id && id != current_id) else { return false };
        self.keys.remove(position);
        self.current -= usize::from(position < self.current);
        true
    }

    /// Returns all key ids, oldest first.
    pub fn ids(&self) -> Vec<u16> {
        self.keys.iter().map(|key| key.id).collect()
    }

    pub fn current_id(&self) -> u16 {
        self.keys[self.current].id
    }

    pub fn has(&self, key_id: u16) -> bool {
        self.key(key_id).is_some()
    }

    /// Signs a `pub_` token.
    pub fn sign_public(&self, namespace: Id, token_id: Id) -> String {
        let key = &self.keys[self.current];
        let mut body = [0u8; PUBLIC_BODY + MAC_LEN];
        start_body(&mut body, key.id, namespace);
        body[19..35].copy_from_slice(&token_id.0);
        sign(&key.public, &mut body, PUBLIC_BODY, PUBLIC_PREFIX)
    }

    /// Verifies a `pub_` token. Returns `(namespace, token id)`.
    pub fn verify_public(&self, token: &str) -> Option<(Id, Id)> {
        let body: [u8; PUBLIC_BODY + MAC_LEN] = open(token, PUBLIC_PREFIX)?;
        let key = self.key(key_id_of(&body))?;
        is_authentic(&key.public, &body, PUBLIC_BODY).then(|| (id_at(&body, 3), id_at(&body, 19)))
    }

    /// Signs a `lobby_` token. Returns None for an unknown key id.
    pub fn sign_lobby(&self, key_id: u16, lobby: Id) -> Option<String> {
        let key = self.lobby_key(key_id)?;
        let mut body = [0u8; LOBBY_BODY + MAC_LEN];
        start_body(&mut body, key.id, lobby);
        Some(sign(&key.lobby, &mut body, LOBBY_BODY, LOBBY_PREFIX))
    }

    /// Verifies a `lobby_` token. Returns the lobby id.
    pub fn verify_lobby(&self, token: &str) -> Option<Id> {
        let body: [u8; LOBBY_BODY + MAC_LEN] = open(token, LOBBY_PREFIX)?;
        let key = self.lobby_key(key_id_of(&body))?;
        is_authentic(&key.lobby, &body, LOBBY_BODY).then(|| id_at(&body, 3))
    }

    /// Signs a `player_` token. Returns None for an unknown key id.
    pub fn sign_player(&self, token: &PlayerToken) -> Option<String> {
        let key = self.lobby_key(token.key_id)?;
        let mut body = [0u8; PLAYER_BODY + MAC_LEN];
        start_body(&mut body, key.id, token.lobby);
        body[19..22].copy_from_slice(&token.slot.to_le_bytes()[..3]);
        body[22..26].copy_from_slice(&token.generation.to_le_bytes());
        Some(sign(&key.player, &mut body, PLAYER_BODY, PLAYER_PREFIX))
    }

    /// Verifies the MAC of a `player_` token, but not the state of its slot.
    pub fn verify_player(&self, token: &str) -> Option<PlayerToken> {
        self.check_player(token).ok()
    }

    /// Verifies the MAC of a `player_` token like [`KeyRing::verify_player`].
    pub fn check_player(&self, token: &str) -> Result<PlayerToken, TokenProblem> {
        let body: [u8; PLAYER_BODY + MAC_LEN] = open(token, PLAYER_PREFIX).ok_or(TokenProblem::Malformed)?;
        let key = self.lobby_key(key_id_of(&body)).ok_or(TokenProblem::Forged)?;
        if !is_authentic(&key.player, &body, PLAYER_BODY) {
            return Err(TokenProblem::Forged);
        }
        Ok(PlayerToken {
            key_id: key.id,
            lobby: id_at(&body, 3),
            slot: u32::from_le_bytes([body[19], body[20], body[21], 0]),
            generation: u32::from_le_bytes([body[22], body[23], body[24], body[25]]),
        })
    }

    pub(crate) fn seed_secret(&self) -> &[u8; 32] {
        &self.seed_secret
    }

    fn key(&self, id: u16) -> Option<&Key> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Returns a key for the tokens of lobbies and players.
    fn lobby_key(&self, id: u16) -> Option<&Key> {
        self.key(id).filter(|key| !key.is_restored)
    }
}

impl KeyRing {
    /// Signs a `dev_` token that contains `expires_ms`. `verify_development` does not check the expiry; its caller must.
    pub fn sign_development(&self, namespace: Id, token_id: Id, expires_ms: u64) -> String {
        let key = &self.keys[self.current];
        let mut body = [0u8; DEVELOPMENT_BODY + MAC_LEN];
        start_body(&mut body, key.id, namespace);
        body[19..35].copy_from_slice(&token_id.0);
        body[35..43].copy_from_slice(&expires_ms.to_le_bytes());
        sign(&key.development, &mut body, DEVELOPMENT_BODY, DEVELOPMENT_PREFIX)
    }

    /// Verifies a `dev_` token. Returns `(namespace, token id, expiry)`.
    pub fn verify_development(&self, token: &str) -> Option<(Id, Id, u64)> {
        let body: [u8; DEVELOPMENT_BODY + MAC_LEN] = open(token, DEVELOPMENT_PREFIX)?;
        let key = self.key(key_id_of(&body))?;
        let mut expires_ms = [0u8; 8];
        expires_ms.copy_from_slice(&body[35..43]);
        is_authentic(&key.development, &body, DEVELOPMENT_BODY)
            .then(|| (id_at(&body, 3), id_at(&body, 19), u64::from_le_bytes(expires_ms)))
    }

    /// Signs a mock `player_` token: it belongs to no lobby and works only with the development token `token_id`.
    pub(crate) fn sign_mock(&self, namespace: Id, token_id: Id, hour: u32, nonce: &[u8; 16]) -> String {
        let key = &self.keys[self.current];
        let mut body = [0u8; MOCK_BODY + MAC_LEN];
        body[0] = VERSION;
        body[1..3].copy_from_slice(&key.id.to_le_bytes());
        body[3..7].copy_from_slice(&hour.to_le_bytes());
        body[7..23].copy_from_slice(nonce);
        sign(&mock_key(key, namespace, token_id), &mut body, MOCK_BODY, PLAYER_PREFIX)
    }

    /// Verifies a mock player token and returns `(hour of signing in service time, MAC)`, or None if it is invalid.
    pub(crate) fn verify_mock(&self, namespace: Id, token_id: Id, token: &str) -> Option<(u32, [u8; MAC_LEN])> {
        let body: [u8; MOCK_BODY + MAC_LEN] = open(token, PLAYER_PREFIX)?;
        let key = self.lobby_key(key_id_of(&body))?;
        let mut mac = [0u8; MAC_LEN];
        mac.copy_from_slice(&body[MOCK_BODY..]);
        let hour = u32::from_le_bytes([body[3], body[4], body[5], body[6]]);
        is_authentic(&mock_key(key, namespace, token_id), &body, MOCK_BODY).then_some((hour, mac))
    }
}

fn mock_key(key: &Key, namespace: Id, token_id: Id) -> [u8; 32] {
    let mut both = [0u8; 32];
    both[..16].copy_from_slice(&namespace.0);
    both[16..].copy_from_slice(&token_id.0);
    *blake3::keyed_hash(&key.mock, &both).as_bytes()
}

impl core::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let ids: Vec<u16> = self.keys.iter().map(|key| key.id).collect();
        write!(f, "KeyRing {{ ids: {ids:?}, current: {} }}", self.current_id())
    }
}

fn start_body(body: &mut [u8], key_id: u16, id: Id) {
    body[0] = VERSION;
    body[1..3].copy_from_slice(&key_id.to_le_bytes());
    body[3..19].copy_from_slice(&id.0);
}

fn key_id_of(body: &[u8]) -> u16 {
    u16::from_le_bytes([body[1], body[2]])
}

fn id_at(body: &[u8], at: usize) -> Id {
    let mut id = Id::default();
    id.0.copy_from_slice(&body[at..at + 16]);
    id
}

fn mac(key: &[u8; 32], body: &[u8]) -> u128 {
    let mut short = [0u8; MAC_LEN];
    short.copy_from_slice(&blake3::keyed_hash(key, body).as_bytes()[..MAC_LEN]);
    u128::from_le_bytes(short)
}

fn sign(key: &[u8; 32], body: &mut [u8], body_len: usize, prefix: &str) -> String {
    let mac = mac(key, &body[..body_len]);
    body[body_len..].copy_from_slice(&mac.to_le_bytes());
    let mut text = String::with_capacity(prefix.len() + (body.len() * 4).div_ceil(3));
    text.push_str(prefix);
    base64url::encode_into(body, &mut text);
    text
}

fn open<const N: usize>(token: &str, prefix: &str) -> Option<[u8; N]> {
    let text = token.as_bytes().strip_prefix(prefix.as_bytes())?;
    base64url::decode::<N>(text).filter(|body| body[0] == VERSION)
}

/// Reports whether the MAC after the first `body_len` bytes is correct. Compares in constant time.
fn is_authentic(key: &[u8; 32], body: &[u8], body_len: usize) -> bool {
    let mut claimed_mac = [0u8; MAC_LEN];
    claimed_mac.copy_from_slice(&body[body_len..]);
    core::hint::black_box(mac(key, &body[..body_len]) ^ u128::from_le_bytes(claimed_mac)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(ids: &[u16], current: u16) -> KeyRing {
        let keys = ids.iter().map(|id| (*id, [*id as u8 + 1; 32])).collect();
        KeyRing::new(keys, current).expect("a ring")
    }

    fn token() -> PlayerToken {
        PlayerToken { key_id: 1, lobby: Id([7; 16]), slot: 65_534, generation: u32::MAX }
    }

    #[test]
    fn player_token_round_trips_within_64_characters() {
        let ring = ring(&[1], 1);
        let text = ring.sign_player(&token()).expect("signed");
        assert!(text.starts_with("player_") && text.len() <= 64, "{text}");
        assert_eq!(ring.verify_player(&text), Some(token()));
        assert_eq!(ring.sign_player(&token()).as_ref(), Some(&text), "the same bytes each time");
    }

    #[test]
    fn every_changed_character_is_rejected() {
        let ring = ring(&[1], 1);
        let texts = [
            ring.sign_player(&token()).expect("signed"),
            ring.sign_lobby(1, Id([7; 16])).expect("signed"),
            ring.sign_public(Id([7; 16]), Id([8; 16])),
            ring.sign_development(Id([7; 16]), Id([8; 16]), 9),
            ring.sign_mock(Id([7; 16]), Id([8; 16]), 9, &[3; 16]),
        ];
        for text in texts {
            for at in 0..text.len() {
                for other in "ABwx09-_=.~".chars() {
                    let mut changed: Vec<char> = text.chars().collect();
                    if changed[at] == other {
                        continue;
                    }
                    changed[at] = other;
                    let changed: String = changed.into_iter().collect();
                    assert_eq!(ring.verify_player(&changed), None, "{changed}");
                    assert_eq!(ring.verify_lobby(&changed), None, "{changed}");
                    assert_eq!(ring.verify_public(&changed), None, "{changed}");
                    assert_eq!(ring.verify_development(&changed), None, "{changed}");
                    assert_eq!(ring.verify_mock(Id([7; 16]), Id([8; 16]), &changed), None, "{changed}");
                }
            }
            for changed in [format!("{text}A"), text[..text.len() - 1].to_owned(), format!(" {text}"), String::new()] {
                assert_eq!(ring.verify_player(&changed), None, "{changed}");
                assert_eq!(ring.verify_lobby(&changed), None, "{changed}");
                assert_eq!(ring.verify_public(&changed), None, "{changed}");
            }
        }
    }

    #[test]
    fn token_kinds_are_not_interchangeable() {
        let ring = ring(&[1], 1);
        let lobby = ring.sign_lobby(1, Id([7; 16])).expect("signed");
        assert_eq!(ring.verify_lobby(&lobby), Some(Id([7; 16])));
        assert_eq!(ring.verify_player(&lobby.replace("lobby_", "player_")), None);
        assert_eq!(ring.verify_public(&lobby.replace("lobby_", "pub_")), None);
        let mock = ring.sign_mock(Id([7; 16]), Id([8; 16]), 9, &[3; 16]);
        assert_eq!(ring.verify_player(&mock), None);
        assert_eq!(ring.verify_mock(Id([7; 16]), Id([8; 16]), &ring.sign_player(&token()).expect("signed")), None);
    }

    #[test]
    fn ring_adds_a_signing_key_and_removes_others() {
        let mut grown = ring(&[1], 1);
        let old = grown.sign_public(Id([1; 16]), Id([2; 16]));
        grown.add(2, &[3; 32]).expect("a new id");
        assert_eq!((grown.current_id(), grown.ids()), (2, vec![1, 2]));
        assert_eq!(grown.sign_public(Id([1; 16]), Id([2; 16])), ring(&[1, 2], 2).sign_public(Id([1; 16]), Id([2; 16])));
        assert!(grown.verify_public(&old).is_some());
        assert_eq!(grown.add(1, &[9; 32]), Err(KeyRingError::DuplicateId(1)));
        assert!(!grown.remove(2) && !grown.remove(7), "neither the signing key nor an unknown key can be removed");
        assert!(grown.remove(1));
        assert_eq!((grown.current_id(), grown.ids()), (2, vec![2]));
        assert_eq!(grown.verify_public(&old), None);
    }

    #[test]
    fn old_keys_verify_and_the_current_key_signs() {
        let old = ring(&[1], 1);
        let new = ring(&[1, 2], 2);
        let text = old.sign_public(Id([1; 16]), Id([2; 16]));
        assert_eq!(new.verify_public(&text), Some((Id([1; 16]), Id([2; 16]))));
        let newer = new.sign_public(Id([1; 16]), Id([2; 16]));
        assert_ne!(newer, text);
        assert_eq!(old.verify_public(&newer), None, "a key that the ring does not have");
        assert_eq!(new.sign_player(&token()), old.sign_player(&token()), "signed with the key that the token names");
        assert_eq!(new.sign_lobby(3, Id([1; 16])), None);
    }

    #[test]
    fn restored_key_verifies_only_public_and_development_tokens() {
        let (before, mut ring) = (ring(&[1], 1), ring(&[1, 2], 2));
        assert!(ring.mark_restored(1));
        let (namespace, id, nonce) = (Id([3; 16]), Id([4; 16]), [5; 16]);
        assert_eq!(ring.verify_public(&before.sign_public(namespace, id)), Some((namespace, id)));
        let development = before.sign_development(namespace, id, 9);
        assert_eq!(ring.verify_development(&development), Some((namespace, id, 9)));
        let player = before.sign_player(&token()).expect("signed");
        assert_eq!(ring.check_player(&player), Err(TokenProblem::Forged));
        assert_eq!(ring.verify_lobby(&before.sign_lobby(1, id).expect("signed")), None);
        assert_eq!(ring.verify_mock(namespace, id, &before.sign_mock(namespace, id, 1, &nonce)), None);
        assert_eq!((ring.sign_lobby(1, id), ring.sign_player(&token())), (None, None));
        assert!(!ring.mark_restored(2), "the current key signs");
        assert!(!ring.mark_restored(3), "it is unknown");
    }

    #[test]
    fn ring_needs_its_current_key_and_distinct_ids() {
        assert_eq!(KeyRing::new(vec![(1, [0; 32])], 2).err(), Some(KeyRingError::CurrentMissing));
        let twice = vec![(1, [0; 32]), (1, [1; 32])];
        assert_eq!(KeyRing::new(twice, 1).err(), Some(KeyRingError::DuplicateId(1)));
    }

    #[test]
    fn development_token_round_trips_with_expiry() {
        let ring = ring(&[1], 1);
        let text = ring.sign_development(Id([7; 16]), Id([8; 16]), u64::MAX);
        assert!(text.starts_with("dev_") && text.len() <= 160, "{text}");
        assert_eq!(ring.verify_development(&text), Some((Id([7; 16]), Id([8; 16]), u64::MAX)));
        assert_eq!(ring.sign_development(Id([7; 16]), Id([8; 16]), u64::MAX), text, "the same bytes each time");
        assert_eq!(ring.verify_public(&text.replace("dev_", "pub_")), None);
    }

    #[test]
    fn mock_token_verifies_for_one_development_token() {
        let ring = ring(&[1], 1);
        let text = ring.sign_mock(Id([7; 16]), Id([8; 16]), 9, &[3; 16]);
        assert!(text.starts_with("player_") && text.len() <= 64, "{text}");
        assert_eq!(ring.verify_mock(Id([7; 16]), Id([8; 16]), &text).map(|(hour, _)| hour), Some(9));
        assert_eq!(ring.verify_mock(Id([8; 16]), Id([8; 16]), &text), None);
        assert_eq!(ring.verify_mock(Id([7; 16]), Id([7; 16]), &text), None);
    }
}
