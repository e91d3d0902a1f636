//! Table of served routes: binds sockets, changes backends, closes removed routes, and reports each outcome.
//!
//! A route that cannot be served is retried each second. Its outcome is `Refused` if another program uses the port,
//! because another port number may work. Any other failure is `Unserved`. A removal is reported when all connections of
//! the owner have ended.

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::connection_workers::{ConnectionWorkers, SharedState};
use crate::handover::InheritedSockets;
use crate::http::HttpHandler;
use crate::listener::{Listener, bind_datagram, bind_stream};
use crate::live_route::LiveRoute;
use crate::predecessor::Predecessor;
use crate::route_set::{Protocol, Route, RouteChange, RouteKey, RouteSet};
use crate::tcp::TcpHandler;
use crate::udp::{UdpPort, UdpThreads};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteOutcome {
    Listening(RouteKey, u16, Option<SocketAddr>),
    /// The route is not served, because another program uses the port. The text is the error.
    Refused(RouteKey, u32, String),
    /// The route cannot be served with any port number. The text is the error for the requested port.
    Unserved(RouteKey, u32, String),
    Removed(String),
}

#[derive(Debug)]
pub struct RouteListeners {
    shared: Arc<SharedState>,
    workers: ConnectionWorkers,
    datagrams: Arc<UdpThreads>,
    outcomes: UnboundedSender<RouteOutcome>,
    served: HashMap<RouteKey, ServedRoute>,
    host_listeners: (bool, bool),
    pub inherited: InheritedSockets,
    pub predecessor: Option<Arc<Predecessor>>,
}

#[derive(Debug)]
struct ServedRoute {
    route: Route,
    live: Arc<LiveRoute>,
    socket_owner: ServedBy,
}

#[derive(Debug)]
enum ServedBy {
    Port { listener: Option<Listener>, datagrams: Option<Arc<UdpSocket>> },
    Host,
    Failed(ServeError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct ServeError {
    reason: String,
    /// True if the route can be served on another port.
    is_port_error: bool,
}

impl ServeError {
    fn of_route(reason: impl Into<String>) -> ServeError {
        ServeError { reason: reason.into(), is_port_error: false }
    }

    fn for_port(address: SocketAddr, error: &std::io::Error) -> ServeError {
        let is_port_error = error.kind() == std::io::ErrorKind::AddrInUse;
        ServeError { reason: format!("{address}: {error}"), is_port_error }
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RouteCounts {
    pub listening: usize,
    pub refused: usize,
}

impl RouteListeners {
    pub fn new(
        shared: Arc<SharedState>,
        workers: ConnectionWorkers,
        datagrams: Arc<UdpThreads>,
        host_listeners: (bool, bool),
        outcomes: UnboundedSender<RouteOutcome>,
    ) -> Self {
        Self {
            shared,
            workers,
            datagrams,
            outcomes,
            served: HashMap::new(),
            host_listeners,
            inherited: InheritedSockets::default(),
            predecessor: None,
        }
    }

    pub fn serve_all(&mut self, set: &RouteSet) {
        for route in set.all() {
            self.put(route.clone());
        }
        self.inherited = InheritedSockets::default();
    }

    pub fn apply(&mut self, change: &RouteChange, set: &RouteSet) {
        for owner in change.removed.iter().collect::<BTreeSet<_>>() {
            self.remove(owner);
        }
        for key in &change.dropped {
            self.close(key);
        }
        let (moved, unmoved): (Vec<&Route>, Vec<&Route>) =
            (change.put.iter()).filter_map(|key| set.get(key)).partition(|route| {
                self.served.get(&route.key).is_some_and(|served| served.route.needs_other_socket(route))
            });
        // Frees ports first: another route may need them.
        for route in &moved {
            self.close(&route.key);
        }
        for route in moved.into_iter().chain(unmoved) {
            self.put(route.clone());
        }
    }

    pub fn retry_unserved(&mut self) {
        let refused: Vec<Route> = (self.served.values())
            .filter(|served| matches!(served.socket_owner, ServedBy::Failed(_)))
            .map(|served| served.route.clone())
            .collect();
        for route in refused {
            let key = route.key.clone();
            let served = self.try_serve(route);
            let reported = self.served.get(&key).map(|before| &before.socket_owner);
            // Reports a failure only once.
            let is_reported =
                matches!((reported, &served.socket_owner), (Some(ServedBy::Failed(a)), ServedBy::Failed(b)) if a == b);
            if !is_reported {
                self.report_outcome(&served);
                self.served.insert(key, served);
            }
        }
    }

    pub fn report_outcomes(&self) {
        self.served.values().for_each(|served| self.report_outcome(served));
    }

    #[must_use]
    pub fn counts(&self) -> RouteCounts {
        let refused = self.served.values().filter(|served| matches!(served.socket_owner, ServedBy::Failed(_))).count();
        RouteCounts { listening: self.served.len() - refused, refused }
    }

    pub fn sockets(&self) -> (Vec<&Listener>, Vec<(u64, &Arc<UdpSocket>)>) {
        let (mut listeners, mut datagrams) = (Vec::new(), Vec::new());
        for served in self.served.values() {
            match &served.socket_owner {
                ServedBy::Port { listener, datagrams: socket } => {
                    listeners.extend(listener);
                    datagrams.extend(socket.as_ref().map(|socket| (served.live.number, socket)));
                }
                ServedBy::Host | ServedBy::Failed(_) => {}
            }
        }
        (listeners, datagrams)
    }

    /// Closes all listeners. Open connections continue until they end or their route is removed.
    pub fn stop_accepting(&mut self) {
        for served in self.served.values_mut() {
            served.socket_owner = ServedBy::Host;
        }
    }

    pub fn remove(&mut self, owner: &str) {
        let keys: Vec<RouteKey> = self.served.keys().filter(|key| key.owner == owner).cloned().collect();
        let ends: Vec<_> = keys.iter().filter_map(|key| self.close(key)).collect();
        let (outcomes, owner) = (self.outcomes.clone(), owner.to_owned());
        let (predecessor, shared) = (self.predecessor.clone(), self.shared.clone());
        tokio::spawn(async move {
            if let Some(predecessor) = predecessor {
                predecessor.remove(&owner).await;
            }
            for (live, datagrams) in ends {
                live.wait_ended().await;
                if let Some(closed) = datagrams {
                    let _ = closed.await;
                }
            }
            shared.traffic.end(&owner);
            shared.players.end(&owner);
            let _ = outcomes.send(RouteOutcome::Removed(owner));
        });
    }

    fn put(&mut self, route: Route) {
        if let Some(served) = self.served.get_mut(&route.key)
            && !matches!(served.socket_owner, ServedBy::Failed(_))
        {
            served.live.set_backend(route.backend.map(Into::into));
            if route.protocol.has_datagrams() {
                self.datagrams.set_backend(served.live.number, route.backend);
            }
            served.route = route;
            let key = served.route.key.clone();
            return self.report_outcome(&self.served[&key]);
        }
        let key = route.key.clone();
        let served = self.try_serve(route);
        self.report_outcome(&served);
        self.served.insert(key, served);
    }

    fn try_serve(&mut self, route: Route) -> ServedRoute {
        let traffic = self.shared.traffic.of_owner(&route.key.owner);
        let owner = &route.key.owner;
        let players = route.counts_sessions.then(|| self.shared.players.of_owner(owner, route.requires_slot));
        let backend = route.backend.map(Into::into);
        let live = LiveRoute::for_port(route.is_tls, backend, route.sends_proxy_header, traffic, players);
        let socket_owner = self.serve(&route, &live).unwrap_or_else(ServedBy::Failed);
        ServedRoute { route, live, socket_owner }
    }

    fn serve(&mut self, route: &Route, live: &Arc<LiveRoute>) -> Result<ServedBy, ServeError> {
        if route.is_tls && self.shared.certificates.is_empty() {
            return Err(ServeError::of_route("no certificate is configured"));
        }
        let name = if route.server_name.is_empty() { &route.host } else { &route.server_name };
        if route.is_tls && !name.is_empty() && !self.shared.certificates.has_host(name) {
            return Err(ServeError::of_route(format!("no certificate for {name}")));
        }
        if route.port == 0 { self.serve_host(route, live) } else { self.serve_port(route, live) }
    }

    fn serve_host(&self, route: &Route, live: &Arc<LiveRoute>) -> Result<ServedBy, ServeError> {
        let is_tls = route.protocol == Protocol::Https;
        let has_listener = if is_tls { self.host_listeners.1 } else { self.host_listeners.0 };
        if !has_listener {
            let name = if is_tls { "https" } else { "http" };
            return Err(ServeError::of_route(format!("no listener for {name}")));
        }
        let mut hosts = self.shared.hosts.write().unwrap_or_else(PoisonError::into_inner);
        if hosts.has(is_tls, &route.host) {
            return Err(ServeError::of_route("another route has this host"));
        }
        hosts.put(is_tls, &route.host, live);
        Ok(ServedBy::Host)
    }

    fn serve_port(&mut self, route: &Route, live: &Arc<LiveRoute>) -> Result<ServedBy, ServeError> {
        let address = SocketAddr::new(self.shared.config.bind, route.port);
        let refused = |error: std::io::Error| ServeError::for_port(address, &error);
        let (mut stream, mut datagram) = (None, None);
        if route.protocol.has_streams() {
            let inherited = self.inherited.streams.remove(&route.port);
            stream = inherited.filter(|socket| socket.local_addr().is_ok_and(|is| is == address));
            if stream.is_none() {
                stream = Some(bind_stream(address).map_err(refused)?);
            }
        }
        if route.protocol.has_datagrams() {
            let inherited = self.inherited.datagrams.remove(&route.port);
            datagram = inherited.filter(|socket| socket.local_addr().is_ok_and(|is| is == address));
            if datagram.is_none() {
                datagram = Some(bind_datagram(address).map_err(refused)?);
            }
        }
        // Both sockets are bound, so the route is served completely or not at all.
        let datagrams = datagram.map(|socket| {
            let socket = Arc::new(socket);
            let sessions = self.inherited.sessions.remove(&route.port).unwrap_or_default();
            let port = UdpPort {
                number: live.number,
                socket: socket.clone(),
                backend: route.backend,
                sends_proxy_header: route.sends_proxy_header,
                traffic: live.traffic.clone(),
                players: live.players.clone(),
                counts_sessions: !route.protocol.has_streams(),
            };
            self.datagrams.open(port, sessions);
            socket
        });
        let listener = stream.map(|socket| match route.protocol {
            Protocol::Http | Protocol::Https => {
                Listener::open(socket, live, &self.workers, true, HttpHandler { live: live.clone(), by_host: false })
            }
            _ => Listener::open(socket, live, &self.workers, true, TcpHandler { live: live.clone() }),
        });
        Ok(ServedBy::Port { listener, datagrams })
    }

    fn close(&mut self, key: &RouteKey) -> Option<(Arc<LiveRoute>, Option<oneshot::Receiver<()>>)> {
        let served = self.served.remove(key)?;
        let route = &served.route;
        served.live.end();
        if route.port == 0 {
            let mut hosts = self.shared.hosts.write().unwrap_or_else(PoisonError::into_inner);
            hosts.remove(route.protocol == Protocol::Https, &route.host, &served.live);
        }
        let datagrams = route.protocol.has_datagrams().then(|| self.datagrams.close(served.live.number));
        Some((served.live, datagrams))
    }

    fn report_outcome(&self, served: &ServedRoute) {
        let Route { key, port, backend, .. } = &served.route;
        let listening = RouteOutcome::Listening(key.clone(), *port, *backend);
        let outcomes = self.outcomes.clone();
        let report = move |outcome| drop(outcomes.send(outcome));
        match &served.socket_owner {
            ServedBy::Failed(error) => {
                let kind = if error.is_port_error { RouteOutcome::Refused } else { RouteOutcome::Unserved };
                report(kind(key.clone(), u32::from(*port), error.reason.clone()));
            }
            // The UDP thread applies the change in order, after datagrams that it reads before.
            ServedBy::Port { datagrams: Some(_), .. } => {
                self.datagrams.run_in_order(served.live.number, move || report(listening))
            }
            // A backend applies to all later connections.
            ServedBy::Port { .. } | ServedBy::Host => report(listening),
        }
    }
}

#[cfg(test)]
mod tests;
