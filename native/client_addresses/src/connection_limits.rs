//! Limits on open connections, and the order in which new connections replace silent ones.
//!
//! A connection counts in several scopes, and each scope has a limit. If a scope is full, a new connection replaces the
//! oldest connection of this scope that never sent a byte. If there is none, the new connection is refused. Connections
//! that have also received nothing go before those that have received bytes.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Debug, Formatter};
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// One in this number of connections may be silent. So a flood of silent connections leaves descriptors to others.
const SILENT_SHARE: usize = 4;
/// Number of silent connections that is always allowed. Clients may connect in a burst before they speak.
const SILENT_MIN: usize = 1_024;

/// Scopes of the connections of a server, with their limits.
pub trait ConnectionScopes {
    /// Connections that share a limit, for example those of one network.
    type Scope: Copy + Eq + Hash;
    /// The scope of all connections.
    const ALL: Self::Scope;

    /// Returns the maximum number of connections in a scope.
    fn limit(&self, scope: Self::Scope) -> usize;
}

/// Progress of a connection. A connection that never sent a byte can be replaced by a new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Speech {
    /// Neither side has sent a byte.
    Silent,
    /// The client has received bytes and sent none, as in protocols in which the server speaks first.
    Listening,
    /// The client has sent a byte.
    Spoken,
}

/// Open connections of a server.
pub struct ConnectionLimits<S: ConnectionScopes>(Mutex<State<S>>);

/// Permit for one connection. A drop releases the permit.
pub struct ConnectionPermit<S: ConnectionScopes> {
    limits: Arc<ConnectionLimits<S>>,
    number: u64,
}

struct State<S: ConnectionScopes> {
    scopes: S,
    counts: HashMap<S::Scope, Counts>,
    /// Connections by their numbers, which rise with each admission.
    connections: HashMap<u64, Connection<S::Scope>>,
    silent: usize,
    admitted: u64,
}

#[derive(Default)]
struct Counts {
    all: usize,
    /// Silent and listening connections, in the order in which they are replaced.
    replaceable: BTreeSet<(Speech, u64)>,
}

struct Connection<T> {
    speech: Speech,
    scopes: Vec<T>,
    on_replaced: Option<Box<dyn FnOnce() + Send>>,
}

impl<S: ConnectionScopes> ConnectionLimits<S> {
    /// Returns limits without connections.
    #[must_use]
    pub fn new(scopes: S) -> Self {
        Self(Mutex::new(State { scopes, counts: HashMap::new(), connections: HashMap::new(), silent: 0, admitted: 0 }))
    }

    /// Changes the limits for new connections.
    pub fn change(&self, change: impl FnOnce(&mut S)) {
        change(&mut self.0.lock().scopes);
    }

    /// Reports whether no connection to a scope can be admitted, not even in place of another one.
    #[must_use]
    pub fn is_full(&self, scope: S::Scope) -> bool {
        let state = self.0.lock();
        state.is_full(scope) && state.oldest(scope).is_none()
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.lock().connections.len()
    }

    /// Returns the number of connections that have neither sent nor received a byte.
    #[must_use]
    pub fn silent_count(&self) -> usize {
        self.0.lock().silent
    }

    /// Admits a silent connection to some scopes, the narrowest first, and to [`ConnectionScopes::ALL`].
    ///
    /// # Errors
    ///
    /// Returns the first scope that is full and has no connection to replace.
    pub fn admit(
        self: &Arc<Self>,
        scopes: impl IntoIterator<Item = S::Scope>,
    ) -> Result<ConnectionPermit<S>, S::Scope> {
        let scopes: Vec<_> = scopes.into_iter().chain([S::ALL]).collect();
        let mut state = self.0.lock();
        state.make_room(&scopes)?;
        let silent_max = (state.scopes.limit(S::ALL) / SILENT_SHARE).max(SILENT_MIN);
        if state.silent >= silent_max
            && let Some(oldest) = state.oldest(S::ALL)
        {
            state.replace(oldest);
        }
        state.admitted += 1;
        let number = state.admitted;
        state.join(&scopes, number, Speech::Silent);
        state.silent += 1;
        state.connections.insert(number, Connection { speech: Speech::Silent, scopes, on_replaced: None });
        Ok(ConnectionPermit { limits: self.clone(), number })
    }
}

impl<S: ConnectionScopes> ConnectionPermit<S> {
    /// Sets the function that is called if another connection replaces this one. Calls it at once if one has.
    pub fn on_replaced(&self, call: impl FnOnce() + Send + 'static) {
        match self.limits.0.lock().connections.get_mut(&self.number) {
            Some(connection) => connection.on_replaced = Some(Box::new(call)),
            None => call(),
        }
    }

    /// Counts the connection in further scopes, the narrowest first.
    ///
    /// # Errors
    ///
    /// Returns the first scope that is full and has no connection to replace, or [`ConnectionScopes::ALL`] if another
    /// connection has replaced this one.
    pub fn count_in(&self, scopes: impl IntoIterator<Item = S::Scope>) -> Result<(), S::Scope> {
        let mut state = self.limits.0.lock();
        let connection = state.connections.get(&self.number).ok_or(S::ALL)?;
        let speech = connection.speech;
        let missing: Vec<_> = scopes.into_iter().filter(|scope| !connection.scopes.contains(scope)).collect();
        state.make_room(&missing)?;
        state.join(&missing, self.number, speech);
        if let Some(connection) = state.connections.get_mut(&self.number) {
            connection.scopes.extend(missing);
        }
        Ok(())
    }

    /// Records that the client has sent (`Spoken`) or received (`Listening`) bytes. Returns false if another connection
    /// has replaced this one.
    pub fn record(&self, speech: Speech) -> bool {
        let state = &mut *self.limits.0.lock();
        let Some(connection) = state.connections.get_mut(&self.number) else { return false };
        if connection.speech < speech {
            for scope in &connection.scopes {
                if let Some(counts) = state.counts.get_mut(scope) {
                    counts.remove_replaceable(connection.speech, self.number);
                    counts.add_replaceable(speech, self.number);
                }
            }
            state.silent -= usize::from(connection.speech == Speech::Silent);
            connection.speech = speech;
            connection.on_replaced.take_if(|_| speech == Speech::Spoken);
        }
        true
    }

    /// Returns whether no byte was sent in either direction.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        let state = self.limits.0.lock();
        state.connections.get(&self.number).is_some_and(|connection| connection.speech == Speech::Silent)
    }
}

impl<S: ConnectionScopes> Drop for ConnectionPermit<S> {
    fn drop(&mut self) {
        self.limits.0.lock().remove(self.number);
    }
}

impl<S: ConnectionScopes> State<S> {
    fn is_full(&self, scope: S::Scope) -> bool {
        self.counts.get(&scope).map_or(0, |counts| counts.all) >= self.scopes.limit(scope)
    }

    fn oldest(&self, scope: S::Scope) -> Option<u64> {
        self.counts.get(&scope)?.replaceable.first().map(|(_, number)| *number)
    }

    /// Replaces a connection in each of these scopes that is full. Replaces none if it has to refuse.
    fn make_room(&mut self, scopes: &[S::Scope]) -> Result<(), S::Scope> {
        let full: Vec<_> = scopes.iter().copied().filter(|scope| self.is_full(*scope)).collect();
        if let Some(refusing) = full.iter().find(|scope| self.oldest(**scope).is_none()) {
            return Err(*refusing);
        }
        for scope in full {
            // The connection that left a narrow scope may have left a wider one too.
            if self.is_full(scope)
                && let Some(oldest) = self.oldest(scope)
            {
                self.replace(oldest);
            }
        }
        Ok(())
    }

    fn replace(&mut self, number: u64) {
        if let Some(call) = self.remove(number).and_then(|connection| connection.on_replaced) {
            call();
        }
    }

    fn join(&mut self, scopes: &[S::Scope], number: u64, speech: Speech) {
        for scope in scopes {
            let counts = self.counts.entry(*scope).or_default();
            counts.all += 1;
            counts.add_replaceable(speech, number);
        }
    }

    fn remove(&mut self, number: u64) -> Option<Connection<S::Scope>> {
        let connection = self.connections.remove(&number)?;
        for scope in &connection.scopes {
            if let Entry::Occupied(mut entry) = self.counts.entry(*scope) {
                entry.get_mut().all -= 1;
                entry.get_mut().remove_replaceable(connection.speech, number);
                if entry.get().all == 0 {
                    entry.remove();
                }
            }
        }
        self.silent -= usize::from(connection.speech == Speech::Silent);
        Some(connection)
    }
}

impl Counts {
    fn add_replaceable(&mut self, speech: Speech, number: u64) {
        if speech != Speech::Spoken {
            self.replaceable.insert((speech, number));
        }
    }

    fn remove_replaceable(&mut self, speech: Speech, number: u64) {
        if self.replaceable.remove(&(speech, number)) && self.replaceable.is_empty() {
            // An emptied set would keep memory.
            self.replaceable = BTreeSet::new();
        }
    }
}

impl<S: ConnectionScopes> Debug for ConnectionLimits<S> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConnectionLimits").finish_non_exhaustive()
    }
}

impl<S: ConnectionScopes> Debug for ConnectionPermit<S> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ConnectionPermit").field("number", &self.number).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
