//! The set of routes, and the rules for changing it.
//!
//! Each update has the epoch of the data plane, which rises with each start of the data plane. An update is the
//! complete set of routes, or a change of it. Three rules decide about removals:
//!
//! - Updates of an epoch remove no routes before the first complete set of that epoch.
//! - Later updates remove the routes of the owners that they list as removed. A complete set that is not empty also
//!   removes all routes that it does not have.
//! - A data plane of an older epoch than the newest one seen can remove only routes that it added itself.
//!
//! So a data plane that has lost its data ends no game. A restore by the operator ends all games. The first complete
//! set after it replaces all routes, also if the set is empty or of an older epoch.

pub mod route_file;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::wire;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RouteKey {
    pub owner: String,
    pub port_name: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    Http,
    Https,
    Tcp,
    TcpTls,
    Udp,
    /// TCP and UDP with the same port number.
    TcpUdp,
}

impl Protocol {
    #[must_use]
    pub fn has_streams(self) -> bool {
        self != Protocol::Udp
    }

    #[must_use]
    pub fn has_datagrams(self) -> bool {
        matches!(self, Protocol::Udp | Protocol::TcpUdp)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    #[serde(flatten)]
    pub key: RouteKey,
    pub protocol: Protocol,
    /// Public port, or 0 if players use the host name.
    pub port: u16,
    /// Host name in lower case, or empty if the route has a port.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    pub is_tls: bool,
    /// Host name for which TLS needs a certificate. Empty in routes of an older data plane.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub server_name: String,
    /// True if each connection and datagram to the game server begins with a PROXY header.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sends_proxy_header: bool,
    /// True if sessions are counted by client address.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counts_sessions: bool,
    /// True if sessions of an address without a slot are refused.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub requires_slot: bool,
    /// Address of the game server, or `None` before it listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend: Option<SocketAddr>,
}

impl Route {
    pub fn from_wire(sent: wire::Route) -> Result<Self, (RouteKey, String)> {
        let key = RouteKey { owner: sent.owner_id, port_name: sent.port_name };
        match Self::read(&key, &sent.protocol, sent.port, &sent.host, (&sent.backend_address, sent.backend_port)) {
            Ok((protocol, port, backend)) => {
                let host = sent.host.to_ascii_lowercase();
                let server_name = sent.server_name.to_ascii_lowercase();
                let (is_tls, sends_proxy_header) = (sent.is_tls, sent.sends_proxy_header);
                let (counts_sessions, requires_slot) = (sent.counts_sessions, sent.requires_slot);
                Ok(Self {
                    key,
                    protocol,
                    port,
                    host,
                    is_tls,
                    server_name,
                    sends_proxy_header,
                    counts_sessions,
                    requires_slot,
                    backend,
                })
            }
            Err(problem) => Err((key, problem)),
        }
    }

    fn read(
        key: &RouteKey,
        protocol: &str,
        port: u32,
        host: &str,
        backend: (&str, u32),
    ) -> Result<(Protocol, u16, Option<SocketAddr>), String> {
        let protocol = match protocol {
            "http" => Protocol::Http,
            "https" => Protocol::Https,
            "tcp" => Protocol::Tcp,
            "tcp_tls" => Protocol::TcpTls,
            "udp" => Protocol::Udp,
            "tcp_udp" => Protocol::TcpUdp,
            other => return Err(format!("protocol `{other}` is not known")),
        };
        let port = u16::try_from(port).map_err(|_| format!("port {port} is greater than 65535"))?;
        let by_host = matches!(protocol, Protocol::Http | Protocol::Https) && !host.is_empty();
        if key.owner.is_empty() || key.port_name.is_empty() || (port == 0 && !by_host) {
            return Err("a route needs an owner, a port name, and a port (or a host for http and https)".to_owned());
        }
        let backend = match backend {
            ("", _) => None,
            (address, port) => {
                let address: IpAddr = address.parse().map_err(|_| format!("`{address}` is no IP address"))?;
                let port = u16::try_from(port).ok().filter(|port| *port != 0);
                Some(SocketAddr::new(address, port.ok_or("the backend has no port")?))
            }
        };
        Ok((protocol, port, backend))
    }

    #[must_use]
    pub fn needs_other_socket(&self, other: &Self) -> bool {
        let socket = |route: &Self| (route.protocol, route.port, route.is_tls, route.sends_proxy_header);
        socket(self) != socket(other) || self.host != other.host
    }
}

/// Parsed response of the data plane to a request for routes.
#[derive(Debug, Default, Clone)]
pub struct RouteUpdate {
    pub epoch: u64,
    pub version: u64,
    pub is_complete: bool,
    /// Last restore of the data plane, or empty.
    pub restore_id: String,
    pub routes: Vec<Route>,
    /// Key, port and error of each route that is invalid.
    pub unreadable: Vec<(RouteKey, u32, String)>,
    pub removed: Vec<String>,
}

impl RouteUpdate {
    #[must_use]
    pub fn from_wire(sent: wire::FollowResponse) -> Self {
        let mut answer = Self {
            epoch: sent.epoch,
            version: sent.version,
            is_complete: sent.is_complete,
            restore_id: sent.restore_id,
            removed: sent.removed,
            ..Self::default()
        };
        for route in sent.routes {
            let port = route.port;
            match Route::from_wire(route) {
                Ok(route) => answer.routes.push(route),
                Err((key, problem)) => answer.unreadable.push((key, port, problem)),
            }
        }
        answer
    }
}

/// Changes that a route update has made to the route set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RouteChange {
    /// Lobbies and servers that the update removes. Some had no routes, but each removal is reported to the data plane.
    pub removed: Vec<String>,
    /// Removed routes of lobbies and servers that keep other routes.
    pub dropped: Vec<RouteKey>,
    pub put: Vec<RouteKey>,
}

#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSet {
    pub epoch: u64,
    pub version: u64,
    /// Newest epoch of a data plane so far. A data plane of an older epoch can remove only routes that it added itself.
    pub newest_epoch: u64,
    /// Restore of the data plane that last sent routes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub restore_id: String,
    /// All restores seen. An older copy of the data directory has one of them, and is no new restore.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    restore_ids: BTreeSet<String>,
    /// Epoch of the data plane that last sent a complete set of routes.
    #[serde(default)]
    whole_epoch: u64,
    /// Lobbies and servers that were added by a data plane of an older epoch than `newest_epoch`.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    of_older: BTreeSet<String>,
    #[serde(with = "as_list")]
    routes: BTreeMap<RouteKey, Route>,
}

impl RouteSet {
    pub fn take(&mut self, answer: &RouteUpdate) -> RouteChange {
        let is_restored =
            answer.is_complete && !answer.restore_id.is_empty() && self.restore_ids.insert(answer.restore_id.clone());
        if is_restored {
            self.newest_epoch = 0;
        }
        let is_from_older_epoch = answer.epoch < self.newest_epoch;
        if answer.is_complete {
            self.whole_epoch = answer.epoch;
        }
        let may_remove = !is_from_older_epoch && self.whole_epoch == answer.epoch;
        let is_removable = |owner: &&String| may_remove || self.of_older.contains(*owner) || !self.has(owner);
        let removed = answer.removed.iter().filter(is_removable).cloned().collect();
        let mut change = RouteChange { removed, ..RouteChange::default() };
        if answer.is_complete && (is_restored || !answer.routes.is_empty()) && !is_from_older_epoch {
            self.add_missing_owners(answer, &mut change);
        }
        for owner in &change.removed {
            self.routes.retain(|key, _| key.owner != *owner);
            self.of_older.remove(owner);
        }
        for key in &change.dropped {
            self.routes.remove(key);
        }
        if is_from_older_epoch {
            let owners = answer.routes.iter().map(|route| &route.key.owner);
            let added_owners: Vec<String> = owners.filter(|owner| !self.has(owner)).cloned().collect();
            self.of_older.extend(added_owners);
        } else {
            self.of_older.clear();
        }
        for route in &answer.routes {
            if self.routes.get(&route.key) != Some(route) {
                self.routes.insert(route.key.clone(), route.clone());
                change.put.push(route.key.clone());
            }
        }
        self.epoch = answer.epoch;
        self.version = answer.version;
        self.restore_id.clone_from(&answer.restore_id);
        self.newest_epoch = self.newest_epoch.max(answer.epoch);
        change
    }

    /// Returns restore, epoch and version of the set.
    #[must_use]
    pub fn cursor(&self) -> (&str, u64, u64) {
        (&self.restore_id, self.epoch, self.version)
    }

    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.whole_epoch == self.epoch
    }

    #[must_use]
    pub fn is_from_older_epoch(&self) -> bool {
        self.epoch < self.newest_epoch
    }

    fn has(&self, owner: &str) -> bool {
        let first = RouteKey { owner: owner.to_owned(), port_name: String::new() };
        self.routes.range(first..).next().is_some_and(|(key, _)| key.owner == owner)
    }

    fn add_missing_owners(&self, answer: &RouteUpdate, change: &mut RouteChange) {
        // Invalid routes are not missing.
        let present: BTreeSet<&RouteKey> = (answer.routes.iter().map(|route| &route.key))
            .chain(answer.unreadable.iter().map(|(key, _, _)| key))
            .collect();
        let owners: BTreeSet<&str> = present.iter().map(|key| key.owner.as_str()).collect();
        for key in self.routes.keys() {
            if !owners.contains(key.owner.as_str()) {
                if change.removed.last() != Some(&key.owner) {
                    change.removed.push(key.owner.clone());
                }
            } else if !present.contains(key) {
                change.dropped.push(key.clone());
            }
        }
    }

    #[must_use]
    pub fn get(&self, key: &RouteKey) -> Option<&Route> {
        self.routes.get(key)
    }

    pub fn all(&self) -> impl Iterator<Item = &Route> {
        self.routes.values()
    }
}

mod as_list {
    //! Serializes the route map as a list, because each route contains its key.
    use super::{BTreeMap, Deserialize, Route, RouteKey};

    pub fn serialize<S: serde::Serializer>(routes: &BTreeMap<RouteKey, Route>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(routes.values())
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<RouteKey, Route>, D::Error> {
        let routes = Vec::<Route>::deserialize(from)?;
        Ok(routes.into_iter().map(|route| (route.key.clone(), route)).collect())
    }
}

#[cfg(test)]
mod tests;
