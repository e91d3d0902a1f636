//! Scopes of the connection limits: all, game servers, a route, and the networks of a client. The limit of file descriptors.

use std::net::IpAddr;

use hosting_client_addresses::{ClientKey, ClientNetwork, ConnectionScopes};

use crate::config::LimitSettings;
use crate::metrics::ConnectionRefusal;

/// One in this number of connections is reserved for the configured backends (API and sites).
const RESERVED_SHARE: usize = 8;

pub type ConnectionLimits = hosting_client_addresses::ConnectionLimits<Maxima>;
pub type ConnectionPermit = hosting_client_addresses::ConnectionPermit<Maxima>;

/// Limited resource that a connection uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// Port of a game server, by the number of its route.
    Game(u64),
    /// Listener for host names, before the first request selects the route.
    Hosts,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    All,
    Games,
    Route(u64),
    Network(ClientNetwork),
}

/// Maximum number of connections in each scope.
#[derive(Debug)]
pub struct Maxima {
    reserves_connections: bool,
    all: usize,
    games: usize,
    route: usize,
    address: usize,
}

impl Maxima {
    /// `has_backends` reserves a share of the connections for configured backends.
    #[must_use]
    pub fn new(settings: &LimitSettings, has_backends: bool) -> Self {
        let all = settings.connections;
        Self {
            reserves_connections: has_backends,
            all,
            games: if has_backends { (all - all / RESERVED_SHARE).max(1) } else { all },
            route: settings.connections_per_route,
            address: settings.connections_per_address,
        }
    }

    pub fn change(&mut self, settings: &LimitSettings) {
        *self = Self::new(settings, self.reserves_connections);
    }
}

impl ConnectionScopes for Maxima {
    type Scope = Scope;
    const ALL: Scope = Scope::All;

    fn limit(&self, scope: Scope) -> usize {
        match scope {
            Scope::All => self.all,
            Scope::Games => self.games,
            Scope::Route(_) => self.route,
            // With the default settings, the widest network has a quarter of all connections.
            Scope::Network(network) => self.address.saturating_mul(network.weight()),
        }
    }
}

impl From<Scope> for ConnectionRefusal {
    fn from(full: Scope) -> Self {
        match full {
            Scope::All | Scope::Games => Self::All,
            Scope::Route(_) => Self::Route,
            Scope::Network(_) => Self::Address,
        }
    }
}

/// Returns the scopes of a new connection.
///
/// `client` is `None` for a trusted proxy, which has no limit per client.
pub fn scopes(client: Option<IpAddr>, destination: Destination) -> impl Iterator<Item = Scope> {
    let of_game = match destination {
        Destination::Game(route) => Some([Scope::Route(route), Scope::Games]),
        Destination::Hosts => None,
    };
    client.into_iter().flat_map(client_scopes).chain(of_game.into_iter().flatten())
}

pub fn client_scopes(client: IpAddr) -> impl Iterator<Item = Scope> {
    ClientKey::of(client).networks().map(Scope::Network)
}

/// Raises the limit of file descriptors. Returns settings that fit the new limit, and this limit.
///
/// A connection needs two descriptors, and a UDP session needs one. If there are too few, connections and UDP sessions
/// get half each.
#[must_use]
pub fn fit_descriptors(settings: &LimitSettings) -> (LimitSettings, u64) {
    let needed_descriptors = needed_descriptors(settings) + RESERVED_DESCRIPTORS;
    let available = raise_descriptors(needed_descriptors);
    (fit_to_descriptors(settings, available), available)
}

/// Descriptors reserved for routes, pooled connections, pipes and the process itself.
const RESERVED_DESCRIPTORS: u64 = 8_192;

fn needed_descriptors(settings: &LimitSettings) -> u64 {
    2 * settings.connections as u64 + settings.datagram_sessions as u64
}

fn fit_to_descriptors(settings: &LimitSettings, available: u64) -> LimitSettings {
    let free =
        usize::try_from(available.saturating_sub(RESERVED_DESCRIPTORS.min(available / 10))).unwrap_or(usize::MAX);
    // Connections or UDP sessions get more than half if the others need less.
    let for_connections = (2 * settings.connections).min(free.saturating_sub(settings.datagram_sessions).max(free / 2));
    LimitSettings {
        connections: (for_connections / 2).max(1),
        datagram_sessions: settings.datagram_sessions.min(free - for_connections).max(1),
        ..settings.clone()
    }
}

fn raise_descriptors(needed_descriptors: u64) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` outlives the calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) != 0 {
            return 1_024;
        }
        if limit.rlim_max < needed_descriptors {
            // Only privileged processes may raise the hard limit.
            let raised = libc::rlimit { rlim_cur: needed_descriptors, rlim_max: needed_descriptors };
            if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) == 0 {
                return needed_descriptors;
            }
        }
        let raised_soft = libc::rlimit { rlim_cur: limit.rlim_max, rlim_max: limit.rlim_max };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised_soft) == 0 {
            raised_soft.rlim_cur
        } else {
            limit.rlim_cur
        }
    }
}

#[cfg(test)]
mod tests;
