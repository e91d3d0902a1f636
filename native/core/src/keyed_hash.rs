//! Keyed hashes of secrets and of table keys.
//!
//! [`HashKey`] hashes client addresses, idempotency keys and channel secrets, which are never stored in the clear.
//! `TableSeed` is secret, so that clients cannot choose table keys that collide.

use core::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::command::{ChannelId, Id, Idempotency, Source};

/// Hash key of a data directory. It is never rotated, because new hashes are compared with stored ones.
pub struct HashKey {
    source: [u8; 32],
    caller: [u8; 32],
    message: [u8; 32],
    channel: [u8; 32],
}

impl HashKey {
    /// Derives a key for each kind of hash from the 32 secret bytes of the data directory.
    pub fn new(key: [u8; 32]) -> HashKey {
        HashKey {
            source: blake3::derive_key("hosting client address v1", &key),
            caller: blake3::derive_key("hosting idempotency key v1", &key),
            message: blake3::derive_key("hosting idempotency message v1", &key),
            channel: blake3::derive_key("hosting event channel v1", &key),
        }
    }

    /// Returns the keyed hash of a namespace and client address. Never returns 0, which means "no address".
    pub fn source(&self, namespace: Id, address: &[u8]) -> Source {
        first_u64(&hash_parts(&self.source, [&namespace.0, address, &[]])).max(1)
    }

    /// Hashes the secret of an event channel.
    pub fn channel(&self, secret: &[u8]) -> ChannelId {
        hash_pair(&self.channel, secret, &[])
    }

    /// Hashes the pairs `(caller, key)` and `(operation, message)`.
    pub fn idempotency(&self, caller: &[u8], key: &[u8], operation: &str, message: &[u8]) -> Idempotency {
        Idempotency {
            key: hash_pair(&self.caller, caller, key),
            message: hash_pair(&self.message, operation.as_bytes(), message),
        }
    }
}

impl core::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("HashKey(..)")
    }
}

// Includes the length of the first part, so that different pairs have different hashes.
fn hash_pair(key: &[u8; 32], first: &[u8], second: &[u8]) -> [u8; 16] {
    let mut short = [0u8; 16];
    let hash = hash_parts(key, [&(first.len() as u64).to_le_bytes(), first, second]);
    short.copy_from_slice(&hash.as_bytes()[..16]);
    short
}

fn hash_parts(key: &[u8; 32], parts: [&[u8]; 3]) -> blake3::Hash {
    let mut buffer = [0u8; 256];
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len <= buffer.len() {
        let mut at = 0;
        for part in parts {
            buffer[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        return blake3::keyed_hash(key, &buffer[..len]);
    }
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize()
}

fn first_u64(hash: &blake3::Hash) -> u64 {
    let bytes = hash.as_bytes();
    u64::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]])
}

pub(crate) struct TableSeed {
    shared: SharedSeed,
    seed: u64,
}

impl TableSeed {
    pub(crate) fn new(secret: &[u8; 32]) -> TableSeed {
        let hash = blake3::Hash::from_bytes(blake3::derive_key("hosting table seed v1", secret));
        let seed = first_u64(&hash);
        TableSeed { shared: SharedSeed::from_u64(seed.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15), seed }
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(bytes);
        hasher.finish()
    }

    pub(crate) fn words(&self, first: u64, second: u64) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write_u64(first);
        hasher.write_u64(second);
        hasher.finish()
    }
}
