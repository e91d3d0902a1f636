//! MAC keys that come and go while the engine runs (decisions 3, Keys). The ring is not durable here: its file is its
//! owner's, who writes a new key down before it signs anything, and drops only what nothing names.

use super::Engine;
use crate::token::KeyRingError;

impl Engine {
    /// From now on this key signs; those before it verify on.
    ///
    /// # Errors
    /// [`KeyRingError::DuplicateId`]: nothing changed.
    pub fn add_key(&mut self, id: u16, secret: &[u8; 32]) -> Result<(), KeyRingError> {
        self.config.keys.add(id, secret)
    }

    /// Forgets a key that neither signs nor is named by anything here; false, and nothing changed, when it does or is.
    /// What it signed that the engine keeps no record of (`pub_`, `dev_`) is a forgery from now on.
    pub fn drop_key(&mut self, id: u16) -> bool {
        !self.keys_in_use().contains(&id) && self.config.keys.remove(id)
    }
}
