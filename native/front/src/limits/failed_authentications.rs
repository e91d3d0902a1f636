//! Limit of failed authentications: it bounds how many wrong tokens of one client address reach Python and its databases.
//!
//! Each failure takes a token from the bucket of its address. The bounded map of buckets is the only memory of failures.
//! While a bucket is not full, each request takes its token before it is passed on. So concurrent requests stay within the
//! rate. A request gets the token back unless its authentication fails. With a full bucket any number of concurrent requests
//! may fail. The refill then takes longer by as many tokens.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

use hosting_matchmaker::{Buckets, ClientKey, monotonic_s};
use http::header::{AUTHORIZATION, HeaderMap};
use parking_lot::Mutex;

use crate::requests::bearer_header::bearer_token;

/// Bound on each of the two generations of remembered credentials.
const GENERATION_MAX: usize = 10_000;
/// Code of an answer that needed no look-up.
const TOKEN_MISSING: &str = "TOKEN_MISSING";

pub struct FailedAuthentications {
    failures: Arc<Buckets>,
    succeeded: Mutex<RecentCredentials>,
    /// Its key is random. So no client finds credentials with the hash of other ones.
    hash: RandomState,
}

/// Too many authentications of the client address have failed.
#[derive(Debug, PartialEq, Eq)]
pub struct TooManyFailures;

/// Result of the authentication of a passed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    Succeeded,
    Failed,
    /// The answer does not tell whether the credentials are valid.
    Unknown,
}

impl AttemptOutcome {
    /// `is_ok` and `is_unauthenticated` are those of Python's answer, and `code` is its error code. The success of an
    /// operation that needs no token does not tell whether its token is valid.
    pub fn of(is_ok: bool, is_unauthenticated: bool, code: Option<&str>, needs_token: bool) -> AttemptOutcome {
        if is_unauthenticated && code != Some(TOKEN_MISSING) {
            AttemptOutcome::Failed
        } else if is_ok && needs_token {
            AttemptOutcome::Succeeded
        } else {
            AttemptOutcome::Unknown
        }
    }
}

impl FailedAuthentications {
    pub fn new(failures: Arc<Buckets>) -> FailedAuthentications {
        FailedAuthentications { failures, succeeded: Mutex::default(), hash: RandomState::new() }
    }

    /// Refuses a request that [`FailedAuthentications::admit`] would refuse now. So it need not wait for a permit before.
    /// `is_valid` returns whether the front itself knows that the token is valid.
    pub fn check(
        &self,
        client: ClientKey,
        headers: &HeaderMap,
        is_valid: impl FnOnce() -> bool,
    ) -> Result<(), TooManyFailures> {
        let is_limited = |credentials| {
            !self.succeeded.lock().contains(credentials)
                && self.failures.is_empty(client.as_bytes(), monotonic_s())
                && !is_valid()
        };
        if self.credentials(headers).is_some_and(is_limited) { Err(TooManyFailures) } else { Ok(()) }
    }

    /// Admits a request that is about to be passed on. Requests without credentials are always admitted, and have no
    /// attempt.
    pub fn admit(
        &self,
        client: ClientKey,
        headers: &HeaderMap,
        is_valid: impl FnOnce() -> bool,
    ) -> Result<Option<Attempt<'_>>, TooManyFailures> {
        let Some(credentials) = self.credentials(headers) else { return Ok(None) };
        let now = monotonic_s();
        let charge = if self.succeeded.lock().contains(credentials) {
            Charge::None
        } else if self.failures.is_full(client.as_bytes(), now) {
            Charge::OnFailure
        } else if is_valid() {
            Charge::None
        } else if self.failures.take(client.as_bytes(), now) > 0.0 {
            return Err(TooManyFailures);
        } else {
            Charge::Taken
        };
        Ok(Some(Attempt { limit: self, client, credentials, charge }))
    }

    /// Returns whether the credentials of a request have authenticated lately.
    pub fn have_succeeded(&self, headers: &HeaderMap) -> bool {
        self.credentials(headers).is_some_and(|credentials| self.succeeded.lock().contains(credentials))
    }

    /// Counts credentials that the front itself has found to be wrong.
    pub fn fail(&self, client: ClientKey) -> Result<(), TooManyFailures> {
        if self.failures.take(client.as_bytes(), monotonic_s()) > 0.0 { Err(TooManyFailures) } else { Ok(()) }
    }

    /// Returns the hash of the credentials of a request.
    fn credentials(&self, headers: &HeaderMap) -> Option<u64> {
        if !headers.contains_key(AUTHORIZATION) {
            return None;
        }
        let mut hasher = self.hash.build_hasher();
        match bearer_token(headers) {
            // Its spellings in a header are the same credentials.
            Ok(token) => token.hash(&mut hasher),
            // Python may read another one of several headers than the front.
            Err(_) => headers.get_all(AUTHORIZATION).iter().for_each(|value| value.as_bytes().hash(&mut hasher)),
        }
        Some(hasher.finish())
    }
}

/// Credentials that were passed on to Python. If an attempt with unknown credentials is dropped before its end, it counts
/// as failed, because Python may have looked them up.
pub struct Attempt<'a> {
    limit: &'a FailedAuthentications,
    client: ClientKey,
    credentials: u64,
    charge: Charge,
}

/// How an attempt counts against its client address.
enum Charge {
    None,
    /// It takes a token from the bucket if it fails.
    OnFailure,
    /// It has taken a token from the bucket.
    Taken,
}

impl Attempt<'_> {
    pub fn end(mut self, outcome: AttemptOutcome) {
        if outcome == AttemptOutcome::Failed {
            // A known token may be revoked or expired by now.
            if self.limit.succeeded.lock().remove(self.credentials) {
                self.charge = Charge::OnFailure;
            }
            return;
        }
        if outcome == AttemptOutcome::Succeeded {
            self.limit.succeeded.lock().insert(self.credentials);
        }
        if matches!(self.charge, Charge::Taken) {
            self.limit.failures.put_back(self.client.as_bytes());
        }
        self.charge = Charge::None;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if matches!(self.charge, Charge::OnFailure) {
            self.limit.failures.charge(self.client.as_bytes(), monotonic_s());
        }
    }
}

/// Hashes of credentials that have authenticated lately. If the young generation is full, the old one is forgotten.
#[derive(Default)]
struct RecentCredentials {
    young: HashSet<u64>,
    old: HashSet<u64>,
}

impl RecentCredentials {
    fn contains(&self, credentials: u64) -> bool {
        self.young.contains(&credentials) || self.old.contains(&credentials)
    }

    fn insert(&mut self, credentials: u64) {
        if self.young.contains(&credentials) {
            return;
        }
        if self.young.len() >= GENERATION_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(credentials);
    }

    fn remove(&mut self, credentials: u64) -> bool {
        let was_young = self.young.remove(&credentials);
        self.old.remove(&credentials) || was_young
    }
}

#[cfg(test)]
mod tests;
