//! Rotation of signing keys. The caller stores a new key before the engine signs with it.

use super::Engine;
use crate::token::KeyRingError;

impl Engine {
    /// Adds a key, which signs all new tokens.
    ///
    /// # Errors
    /// [`KeyRingError::DuplicateId`].
    pub fn add_key(&mut self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        self.config.keys.add(id, secret)
    }

    /// Drops a key. Returns false for the signing key and for a key that a record needs.
    ///
    /// `pub_` and `dev_` tokens have no record, so those of a dropped key become invalid.
    pub fn drop_key(&mut self, id: u16) -> bool {
        !self.keys_in_use().contains(&id) && self.config.keys.remove(id)
    }
}
