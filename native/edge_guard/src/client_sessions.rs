//! Sessions of the players of one lobby or server, counted by client address.
//!
//! A session is a TCP connection, a UDP session, a WebSocket, or an HTTP request. An ended session counts for one to two
//! more minutes, so that a player between two HTTP requests is not missing.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hosting_client_addresses::ClientKey;
use serde::Serialize;

/// Client addresses that are counted apart for each owner. All further ones have one count.
const CLIENTS_MAX: usize = 256;
const PERIOD_S: u64 = 60;

/// Session that counts until it is dropped.
#[derive(Debug)]
pub struct ClientSession {
    sessions: Arc<ClientSessions>,
    /// None: one of the further addresses.
    client: Option<ClientKey>,
}

#[derive(Debug)]
pub struct ClientSessions {
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    period: u64,
    by_client: HashMap<ClientKey, SessionCount>,
    others: SessionCount,
}

#[derive(Debug, Default)]
struct SessionCount {
    open: u32,
    /// Sessions that ended in this period, and in the one before.
    ended: [u32; 2],
}

/// Numbers of sessions of one owner.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct OwnerSessions {
    pub owner_id: String,
    /// By address. A network of IPv6 has its first address.
    pub clients: Vec<(IpAddr, u32)>,
    /// Sessions of further addresses.
    pub others: u32,
}

impl Default for ClientSessions {
    fn default() -> Self {
        Self { began: Instant::now(), state: Mutex::default() }
    }
}

impl ClientSession {
    /// Counts a session of a client.
    #[must_use]
    pub fn open(sessions: &Arc<ClientSessions>, address: IpAddr) -> Self {
        let client = sessions.add(ClientKey::of(address));
        Self { sessions: sessions.clone(), client }
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        self.sessions.remove(self.client);
    }
}

impl ClientSessions {
    fn add(&self, client: ClientKey) -> Option<ClientKey> {
        let mut state = self.current_state();
        let is_apart = state.by_client.len() < CLIENTS_MAX || state.by_client.contains_key(&client);
        let client = is_apart.then_some(client);
        state.count_of(client).open += 1;
        client
    }

    fn remove(&self, client: Option<ClientKey>) {
        let mut state = self.current_state();
        let count = state.count_of(client);
        count.open -= 1;
        count.ended[0] = count.ended[0].saturating_add(1);
    }

    #[must_use]
    pub fn read(&self, owner: &str) -> OwnerSessions {
        let state = self.current_state();
        let clients = state.by_client.iter().map(|(client, count)| (first_address(*client), count.total()));
        OwnerSessions { owner_id: owner.to_owned(), clients: clients.collect(), others: state.others.total() }
    }

    fn current_state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.advance(self.began.elapsed().as_secs() / PERIOD_S);
        state
    }
}

impl State {
    fn count_of(&mut self, client: Option<ClientKey>) -> &mut SessionCount {
        match client {
            Some(client) => self.by_client.entry(client).or_default(),
            None => &mut self.others,
        }
    }

    fn advance(&mut self, period: u64) {
        let passed = period - std::mem::replace(&mut self.period, period);
        if passed == 0 {
            return;
        }
        for count in self.by_client.values_mut().chain([&mut self.others]) {
            count.ended = if passed == 1 { [0, count.ended[0]] } else { [0, 0] };
        }
        self.by_client.retain(|_, count| count.total() > 0);
    }
}

impl SessionCount {
    fn total(&self) -> u32 {
        self.ended.iter().fold(self.open, |sum, ended| sum.saturating_add(*ended))
    }
}

fn first_address(client: ClientKey) -> IpAddr {
    match client {
        ClientKey::V4(bytes) => Ipv4Addr::from(bytes).into(),
        ClientKey::V6(bytes) => Ipv6Addr::from_bits(u128::from(u64::from_be_bytes(bytes)) << 64).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn counts(sessions: &ClientSessions) -> Vec<(IpAddr, u32)> {
        let mut clients = sessions.read("a").clients;
        clients.sort_unstable();
        clients
    }

    #[test]
    fn sessions_count_by_client_address() {
        let all = Arc::new(ClientSessions::default());
        let texts = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2"];
        let sessions = texts.map(|text| ClientSession::open(&all, address(text)));
        assert_eq!(counts(&all), [(address("192.0.2.1"), 2), (address("2001:db8::"), 2)]);
        drop(sessions);
        assert_eq!(counts(&all), [(address("192.0.2.1"), 2), (address("2001:db8::"), 2)], "they ended just now");
        let mut state = all.state.lock().unwrap();
        state.advance(1);
        assert_eq!(state.by_client.len(), 2);
        state.advance(2);
        assert!(state.by_client.is_empty(), "an ended session counts for two periods at most");
    }

    #[test]
    fn further_addresses_have_one_count() {
        let all = Arc::new(ClientSessions::default());
        let open = |number: usize| ClientSession::open(&all, IpAddr::from([10, 0, (number >> 8) as u8, number as u8]));
        let sessions: Vec<_> = (0..CLIENTS_MAX + 3).map(open).collect();
        let read = all.read("a");
        assert_eq!((read.clients.len(), read.others), (CLIENTS_MAX, 3));
        drop(sessions);
        assert_eq!(all.read("a").others, 3);
    }
}
