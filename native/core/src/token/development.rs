//! Tokens of a developer's machine: `dev_`, and the `player_` tokens of its mock players, which name no lobby.

use super::{Key, KeyRing, MAC_LEN, PLAYER_PREFIX, VERSION, id_at, is_authentic, key_id_of, open, sign, start_body};
use crate::command::Id;

/// version 1, key id 2, namespace 16, token id 16, expiry 8.
const DEVELOPMENT_BODY: usize = 43;
/// version 1, key id 2, hour 4, nonce 16. Which development token it is for is in the MAC alone.
const MOCK_BODY: usize = 23;
const DEVELOPMENT_PREFIX: &str = "dev_";

impl KeyRing {
    /// A `dev_` token; `expires_ms` is the owner's to understand.
    pub fn sign_development(&self, namespace: Id, token_id: Id, expires_ms: u64) -> String {
        let key = &self.keys[self.current];
        let mut body = [0u8; DEVELOPMENT_BODY + MAC_LEN];
        start_body(&mut body, key.id, namespace);
        body[19..35].copy_from_slice(&token_id.0);
        body[35..43].copy_from_slice(&expires_ms.to_le_bytes());
        sign(&key.development, &mut body, DEVELOPMENT_BODY, DEVELOPMENT_PREFIX)
    }

    /// (namespace, token id, expiry) of an authentic `dev_` token.
    pub fn verify_development(&self, token: &str) -> Option<(Id, Id, u64)> {
        let body: [u8; DEVELOPMENT_BODY + MAC_LEN] = open(token, DEVELOPMENT_PREFIX)?;
        let key = self.key(key_id_of(&body))?;
        let mut expires_ms = [0u8; 8];
        expires_ms.copy_from_slice(&body[35..43]);
        is_authentic(&key.development, &body, DEVELOPMENT_BODY)
            .then(|| (id_at(&body, 3), id_at(&body, 19), u64::from_le_bytes(expires_ms)))
    }

    /// A `player_` token that names no lobby, for one development token.
    pub(crate) fn sign_mock(&self, namespace: Id, token_id: Id, hour: u32, nonce: &[u8; 16]) -> String {
        let key = &self.keys[self.current];
        let mut body = [0u8; MOCK_BODY + MAC_LEN];
        body[0] = VERSION;
        body[1..3].copy_from_slice(&key.id.to_le_bytes());
        body[3..7].copy_from_slice(&hour.to_le_bytes());
        body[7..23].copy_from_slice(nonce);
        sign(&mock_key(key, namespace, token_id), &mut body, MOCK_BODY, PLAYER_PREFIX)
    }

    /// Hour and MAC of an authentic mock player token of that development token.
    pub(crate) fn verify_mock(&self, namespace: Id, token_id: Id, token: &str) -> Option<(u32, [u8; MAC_LEN])> {
        let body: [u8; MOCK_BODY + MAC_LEN] = open(token, PLAYER_PREFIX)?;
        let key = self.key(key_id_of(&body))?;
        let mut mac = [0u8; MAC_LEN];
        mac.copy_from_slice(&body[MOCK_BODY..]);
        let hour = u32::from_le_bytes([body[3], body[4], body[5], body[6]]);
        is_authentic(&mock_key(key, namespace, token_id), &body, MOCK_BODY).then_some((hour, mac))
    }
}

/// The key of the mock players of one development token.
fn mock_key(key: &Key, namespace: Id, token_id: Id) -> [u8; 32] {
    let mut both = [0u8; 32];
    both[..16].copy_from_slice(&namespace.0);
    both[16..].copy_from_slice(&token_id.0);
    *blake3::keyed_hash(&key.mock, &both).as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> KeyRing {
        KeyRing::new(vec![(1, [2; 32])], 1).expect("a ring")
    }

    #[test]
    fn a_development_token_comes_back_with_its_expiry_and_fits() {
        let ring = ring();
        let text = ring.sign_development(Id([7; 16]), Id([8; 16]), u64::MAX);
        assert!(text.starts_with("dev_") && text.len() <= 160, "{text}");
        assert_eq!(ring.verify_development(&text), Some((Id([7; 16]), Id([8; 16]), u64::MAX)));
        assert_eq!(ring.sign_development(Id([7; 16]), Id([8; 16]), u64::MAX), text, "the same bytes each time");
        assert_eq!(ring.verify_public(&text.replace("dev_", "pub_")), None);
    }

    #[test]
    fn a_mock_player_token_is_for_one_development_token() {
        let ring = ring();
        let text = ring.sign_mock(Id([7; 16]), Id([8; 16]), 9, &[3; 16]);
        assert!(text.starts_with("player_") && text.len() <= 64, "{text}");
        assert_eq!(ring.verify_mock(Id([7; 16]), Id([8; 16]), &text).map(|(hour, _)| hour), Some(9));
        assert_eq!(ring.verify_mock(Id([8; 16]), Id([8; 16]), &text), None);
        assert_eq!(ring.verify_mock(Id([7; 16]), Id([7; 16]), &text), None);
    }
}
