//! Rate limits: token buckets by key.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock::monotonic_s;

/// Differences below a nanosecond are rounding errors.
const ROUNDING_S: f64 = 1e-9;

/// One token bucket for each key. The memory is bounded by the number of recently used keys.
///
/// A bucket is stored as the time at which it is full again. Each bucket is full after `burst / per_second` seconds
/// without a request, and is dropped some time later. If the number of keys reaches its limit, the older half is dropped
/// early.
pub struct Buckets {
    keys_max: usize,
    state: Mutex<State>,
}

type Generation = HashMap<Box<[u8]>, f64>;

struct State {
    /// Seconds between two tokens. 0 means that there is no limit.
    interval: f64,
    burst: f64,
    young: Generation,
    old: Generation,
    young_since: f64,
    /// Whether a bucket may have less than no token.
    has_debts: bool,
}

impl Buckets {
    /// A rate of 0 means no limit.
    pub fn new(per_second: f64, burst: u32, keys_max: usize) -> Buckets {
        let state = State {
            interval: interval(per_second),
            burst: f64::from(burst),
            young: HashMap::new(),
            old: HashMap::new(),
            young_since: f64::NEG_INFINITY,
            has_debts: false,
        };
        Buckets { keys_max: (keys_max / 2).max(1), state: Mutex::new(state) }
    }

    /// Changes the rate of all buckets, but does not refill them.
    pub fn change(&self, per_second: f64, burst: u32) {
        let mut state = self.state.lock();
        (state.interval, state.burst) = (interval(per_second), f64::from(burst));
    }

    /// Takes one token from the bucket of `key`. Returns 0, or the seconds until the next token if the bucket is empty.
    pub fn take(&self, key: &[u8], now: f64) -> f64 {
        let (wait, _dropped) = self.state.lock().take(key, now, self.keys_max);
        if wait > ROUNDING_S { wait } else { 0.0 }
    }

    /// Takes one token from the bucket of `key`, also if it is empty. It then takes longer to refill.
    pub fn charge(&self, key: &[u8], now: f64) {
        let _dropped = self.state.lock().charge(key, now, self.keys_max);
    }

    pub fn is_full(&self, key: &[u8], now: f64) -> bool {
        let state = self.state.lock();
        let full_at = state.young.get(key).or_else(|| state.old.get(key));
        state.interval == 0.0 || full_at.is_none_or(|full_at| *full_at <= now + ROUNDING_S)
    }

    /// Returns whether the bucket has no whole token.
    pub fn is_empty(&self, key: &[u8], now: f64) -> bool {
        let state = self.state.lock();
        let full_at = state.young.get(key).or_else(|| state.old.get(key));
        state.interval > 0.0 && full_at.is_some_and(|full_at| state.wait_s(*full_at, now) > ROUNDING_S)
    }

    pub fn put_back(&self, key: &[u8]) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(full_at) = state.young.get_mut(key).or_else(|| state.old.get_mut(key)) {
            *full_at -= state.interval;
        }
    }

    pub fn count(&self) -> usize {
        let state = self.state.lock();
        state.young.len() + state.old.len()
    }
}

/// The caller frees dropped keys after the lock, because they may be fifty thousand.
impl State {
    /// Takes one token if there is one. Returns the time until there is one, and dropped keys.
    fn take(&mut self, key: &[u8], now: f64, keys_max: usize) -> (f64, Generation) {
        if self.interval == 0.0 {
            return (0.0, Generation::new());
        }
        let dropped = self.drop_old_if_due(now, keys_max);
        let full_at = self.full_at(key, now);
        let wait = self.wait_s(full_at, now);
        if wait <= ROUNDING_S {
            self.set(key, full_at + self.interval);
        }
        (wait, dropped)
    }

    fn charge(&mut self, key: &[u8], now: f64, keys_max: usize) -> Generation {
        if self.interval == 0.0 {
            return Generation::new();
        }
        let dropped = self.drop_old_if_due(now, keys_max);
        let full_at = self.full_at(key, now) + self.interval;
        self.has_debts |= full_at > now + self.burst * self.interval;
        self.set(key, full_at);
        dropped
    }

    /// Returns when the bucket of a key is full.
    fn full_at(&self, key: &[u8], now: f64) -> f64 {
        self.young.get(key).or_else(|| self.old.get(key)).map_or(now, |full_at| full_at.max(now))
    }

    /// Returns the time until a bucket that is full at `full_at` has a whole token. Negative if it has more than one.
    fn wait_s(&self, full_at: f64, now: f64) -> f64 {
        full_at - now - (self.burst - 1.0) * self.interval
    }

    fn set(&mut self, key: &[u8], full_at: f64) {
        match self.young.get_mut(key) {
            Some(known) => *known = full_at,
            None => {
                self.young.insert(key.into(), full_at);
            }
        }
    }

    /// Drops the older half of the keys if it is due, and returns it.
    fn drop_old_if_due(&mut self, now: f64, keys_max: usize) -> Generation {
        if now - self.young_since < self.burst * self.interval && self.young.len() < keys_max {
            return Generation::new();
        }
        let mut dropped = std::mem::replace(&mut self.old, std::mem::take(&mut self.young));
        self.young_since = now;
        if !std::mem::take(&mut self.has_debts) {
            return dropped;
        }
        for (key, full_at) in dropped.extract_if(|_, full_at| *full_at > now) {
            if self.old.len() < keys_max {
                self.old.entry(key).or_insert(full_at);
            }
        }
        self.has_debts = self.old.values().any(|full_at| *full_at > now + self.burst * self.interval);
        dropped
    }
}

fn interval(per_second: f64) -> f64 {
    if per_second == 0.0 { 0.0 } else { 1.0 / per_second }
}

/// A limit on the operations of game clients, back ends and lobby servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Of a client: of its service token, or of its address without one.
    Client,
    /// Of the address of a service token's holder.
    Address,
    ClientGroup,
    /// Of a lobby server.
    Lobby,
}

impl Limit {
    pub const ALL: [Limit; 4] = [Limit::Client, Limit::Address, Limit::ClientGroup, Limit::Lobby];

    /// Name of the limit in settings, errors and metrics.
    pub fn slug(self) -> &'static str {
        match self {
            Limit::Client => "client",
            Limit::Address => "address",
            Limit::ClientGroup => "client_group",
            Limit::Lobby => "lobby",
        }
    }
}

/// A used up limit.
#[derive(Debug, PartialEq)]
pub struct Exceeded {
    pub limit: Limit,
    /// Time until the next token.
    pub wait_s: f64,
}

#[derive(Clone)]
pub struct ClientLimits {
    pub tokens: Arc<Buckets>,
    pub token_addresses: Arc<Buckets>,
    pub client_addresses: Arc<Buckets>,
    pub groups: Arc<Buckets>,
    pub lobbies: Arc<Buckets>,
}

#[cfg(test)]
impl ClientLimits {
    /// Returns limits with these bursts, which do not refill during a test.
    pub fn example([tokens, token_addresses, client_addresses, groups]: [u32; 4]) -> ClientLimits {
        let buckets = |burst| Arc::new(Buckets::new(1e-3, burst, 1_000));
        ClientLimits {
            tokens: buckets(tokens),
            token_addresses: buckets(token_addresses),
            client_addresses: buckets(client_addresses),
            groups: buckets(groups),
            lobbies: buckets(tokens),
        }
    }

    /// Returns the tokens left in the buckets of a client: of its token, its address with and without one, and its group.
    pub fn left(&self, token: &[u8], address: &[u8], group: &[u8]) -> [usize; 4] {
        let keys = [
            (&self.tokens, token),
            (&self.token_addresses, address),
            (&self.client_addresses, address),
            (&self.groups, group),
        ];
        keys.map(|(buckets, key)| {
            let now = monotonic_s();
            let count = (0..1_000).take_while(|_| buckets.take(key, now) == 0.0).count();
            (0..count).for_each(|_| buckets.put_back(key));
            count
        })
    }
}

impl ClientLimits {
    /// Takes one token from the bucket of a lobby server.
    pub fn admit_lobby_server(&self, key: &[u8]) -> Result<(), Exceeded> {
        let wait_s = self.lobbies.take(key, monotonic_s());
        if wait_s > 0.0 { Err(Exceeded { limit: Limit::Lobby, wait_s }) } else { Ok(()) }
    }

    pub fn admit(&self, token: Option<&[u8]>, address: &[u8], group: &[u8]) -> Result<(), Exceeded> {
        let limits = OperationLimits {
            tokens: (Limit::Client, &self.tokens),
            token_addresses: (Limit::Address, &self.token_addresses),
            client_addresses: (Limit::Client, &self.client_addresses),
            groups: (Limit::ClientGroup, &self.groups),
        };
        limits.admit(token, address, Some(group)).map_err(|(limit, wait_s)| Exceeded { limit, wait_s })
    }
}

/// Limits of the requests to an operation, each with its name.
pub struct OperationLimits<'a, Name> {
    pub tokens: (Name, &'a Buckets),
    pub token_addresses: (Name, &'a Buckets),
    pub client_addresses: (Name, &'a Buckets),
    pub groups: (Name, &'a Buckets),
}

impl<Name: Copy> OperationLimits<'_, Name> {
    /// Takes one token from the bucket of each key, or none if one of them is empty. `token` identifies an access token.
    /// Other clients count by their address alone.
    ///
    /// The group comes last, so that a client over its own limit leaves the group its tokens. An error has the name of the
    /// limit that is used up, and the seconds until its next token.
    pub fn admit(&self, token: Option<&[u8]>, address: &[u8], group: Option<&[u8]>) -> Result<(), (Name, f64)> {
        let now = monotonic_s();
        let own = match token {
            Some(token) => [Some((self.tokens, token)), Some((self.token_addresses, address))],
            None => [Some((self.client_addresses, address)), None],
        };
        let of_group = group.map(|group| (self.groups, group));
        let keys = || own.into_iter().chain([of_group]).flatten();
        for (number, ((name, buckets), key)) in keys().enumerate() {
            let wait_s = buckets.take(key, now);
            if wait_s > 0.0 {
                keys().take(number).for_each(|((_, taken), key)| taken.put_back(key));
                return Err((name, wait_s));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
