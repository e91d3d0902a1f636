//! Limit on open connections, so that one client cannot use all file descriptors.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::client_address::Peer;

/// Part of the connections that one client may have.
const CLIENT_PART: usize = 2;

/// One client: an IPv4 address, or a /64 network of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClientKey {
    V4([u8; 4]),
    V6([u8; 8]),
}

impl ClientKey {
    pub fn of(address: IpAddr) -> ClientKey {
        match address.to_canonical() {
            IpAddr::V4(address) => ClientKey::V4(address.octets()),
            IpAddr::V6(address) => {
                let [a, b, c, d, e, f, g, h, ..] = address.octets();
                ClientKey::V6([a, b, c, d, e, f, g, h])
            }
        }
    }

    /// Returns None unless `bytes` has 4 or 8 bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<ClientKey> {
        match bytes.len() {
            4 => bytes.try_into().ok().map(ClientKey::V4),
            8 => bytes.try_into().ok().map(ClientKey::V6),
            _ => None,
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        match self {
            ClientKey::V4(bytes) => bytes,
            ClientKey::V6(bytes) => bytes,
        }
    }
}

/// Limit on the connections of all clients, and on those of each client.
pub struct ConnectionBudget {
    most: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    all: usize,
    by_client: HashMap<ClientKey, usize>,
}

impl ConnectionBudget {
    pub fn new(most: usize) -> ConnectionBudget {
        ConnectionBudget { most, open: Mutex::default() }
    }

    /// Counts a connection. Without a client, it carries requests of many clients, and counts only towards the total.
    /// Returns false if a limit is reached.
    pub fn enter(&self, client: Option<ClientKey>) -> bool {
        let mut open = self.open.lock();
        let is_admitted = open.all < self.most && client.is_none_or(|client| open.add(client, self.most));
        open.all += usize::from(is_admitted);
        is_admitted
    }

    /// Gives a counted connection to its client, once the client is known. Returns false if the client's limit is reached.
    pub fn introduce(&self, client: ClientKey) -> bool {
        self.open.lock().add(client, self.most)
    }

    /// Ends a counted connection.
    pub fn leave(&self, client: Option<ClientKey>) {
        let mut open = self.open.lock();
        open.all -= 1;
        let Some(client) = client else { return };
        if let Some(count) = open.by_client.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                open.by_client.remove(&client);
            }
        }
    }

    pub fn count(&self) -> usize {
        self.open.lock().all
    }

    /// Counts a connection like [`ConnectionBudget::enter`] until the admission is dropped.
    pub fn admit(self: &Arc<Self>, client: Option<ClientKey>) -> Option<Admission> {
        self.enter(client).then(|| Admission { budget: self.clone(), client })
    }
}

pub struct Admission {
    budget: Arc<ConnectionBudget>,
    client: Option<ClientKey>,
}

impl Admission {
    /// Counts a connection of a proxy for the client that the proxy names. Returns false if the client's limit is reached.
    pub fn introduce(&mut self, peer: Peer) -> bool {
        let Peer::Client(address) = peer else { return true };
        let client = ClientKey::of(address);
        let is_admitted = self.budget.introduce(client);
        self.client = is_admitted.then_some(client);
        is_admitted
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.budget.leave(self.client);
    }
}

impl Open {
    fn add(&mut self, client: ClientKey, most: usize) -> bool {
        let count = self.by_client.entry(client).or_default();
        let is_admitted = *count < (most / CLIENT_PART).max(1);
        *count += usize::from(is_admitted);
        is_admitted
    }
}

#[cfg(test)]
mod tests;
