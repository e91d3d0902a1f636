//! Limit on open connections, so that no network of clients can use all file descriptors.

use std::sync::Arc;

use hosting_client_addresses::ClientKey;
use hosting_client_addresses::{ClientNetwork, ConnectionLimits, ConnectionPermit, ConnectionScopes, Speech};
use tokio::sync::oneshot;

use crate::connections::client_address::Peer;

/// Limit on the connections of all clients, and on those of each network of clients. At a limit, a new connection
/// replaces the oldest one that never sent a byte.
pub struct ConnectionBudget(Arc<ConnectionLimits<Shares>>);

/// Maximum number of all connections. Each network has a share of them.
struct Shares(usize);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Scope {
    All,
    Network(ClientNetwork),
}

impl ConnectionScopes for Shares {
    type Scope = Scope;
    const ALL: Scope = Scope::All;

    /// One client leaves half of all connections to others, and a wider network leaves less.
    fn limit(&self, scope: Scope) -> usize {
        match scope {
            Scope::All => self.0,
            Scope::Network(network) => (self.0 - self.0.div_ceil(2 * network.weight())).max(1),
        }
    }
}

impl ConnectionBudget {
    pub fn new(most: usize) -> ConnectionBudget {
        ConnectionBudget(Arc::new(ConnectionLimits::new(Shares(most))))
    }

    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Counts a connection until the admission is dropped. Without a client, it carries requests of many clients, and
    /// counts only towards the total. Returns None if a limit is reached.
    pub fn admit(&self, client: Option<ClientKey>) -> Option<Admission> {
        let networks = client.into_iter().flat_map(ClientKey::networks).map(Scope::Network);
        self.0.admit(networks).ok().map(Admission)
    }
}

pub struct Admission(ConnectionPermit<Shares>);

impl Admission {
    /// Counts a connection of a proxy for the client that the proxy names. Returns false if a limit is reached, or if
    /// another connection has replaced this one.
    pub fn introduce(&mut self, peer: Peer) -> bool {
        let Peer::Client(address) = peer else { return true };
        self.0.count_in(ClientKey::of(address).networks().map(Scope::Network)).is_ok()
    }

    /// Waits until another connection replaces this one.
    pub fn replaced(&self) -> impl Future<Output = ()> + use<> {
        let (sender, receiver) = oneshot::channel();
        self.0.on_replaced(move || {
            let _ = sender.send(());
        });
        async move {
            if receiver.await.is_err() {
                std::future::pending().await
            }
        }
    }

    /// Keeps the connection, because its client has sent a byte. Returns false if another one has replaced it.
    pub fn keep(&self) -> bool {
        self.0.record(Speech::Spoken)
    }
}

#[cfg(test)]
mod tests;
