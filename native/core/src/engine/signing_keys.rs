//! Rotation of MAC keys. The owner stores a new key before the engine signs with it.

use super::Engine;
use crate::token::KeyRingError;

impl Engine {
    /// Adds a key and signs with it from now on.
    ///
    /// # Errors
    /// [`KeyRingError::DuplicateId`].
    pub fn add_key(&mut self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        self.config.keys.add(id, secret)
    }

    /// Drops a key that neither signs nor is needed by a record. Returns false otherwise.
    ///
    /// `pub_` and `dev_` tokens have no record, so theirs become invalid.
    pub fn drop_key(&mut self, id: u16) -> bool {
        !self.keys_in_use().contains(&id) && self.config.keys.remove(id)
    }
}
