//! Routes and the sockets that serve them: binds what is new, leads elsewhere what moved, closes what went, and says
//! what became of each.
//!
//! What cannot be served is tried again each second. A port that another program has is told as refused: it may be given
//! another number. For every other reason it is told as not served, because another number would meet the same. An end
//! is told when the socket is closed and nothing of it goes on any more.

use std::collections::{BTreeSet, HashMap};
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use crate::datagram::{Datagrams, Port};
use crate::http::Requests;
use crate::inherited::Inherited;
use crate::listener::{Door, bind_datagram, bind_stream};
use crate::live::Live;
use crate::predecessor::Predecessor;
use crate::routes::{Change, Key, Protocol, Route, Set};
use crate::stream::Bytes;
use crate::worker::{Shared, Workers};

/// What became of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Whoever comes is served, and led to this back end from now on.
    Listening(Key, u16, Option<SocketAddr>),
    /// Another program has its port.
    Refused(Key, u32, String),
    /// It cannot be served now, whatever its number.
    Unserved(Key, u32, String),
    /// An owner's routes are gone, and everything that went on over them.
    Removed(String),
}

/// All routes that are served, or ought to be.
#[derive(Debug)]
pub struct Table {
    shared: Arc<Shared>,
    workers: Workers,
    datagrams: Arc<Datagrams>,
    outcomes: UnboundedSender<Outcome>,
    served: HashMap<Key, Served>,
    /// Whether there are listeners for hosts: plain, TLS.
    host_listeners: (bool, bool),
    /// Sockets to begin with.
    pub inherited: Inherited,
    /// A process before this one that still carries connections.
    pub predecessor: Option<Arc<Predecessor>>,
}

#[derive(Debug)]
struct Served {
    route: Route,
    live: Arc<Live>,
    by: By,
}

#[derive(Debug)]
enum By {
    Door(Door),
    Datagrams(Arc<UdpSocket>),
    Host,
    Nothing(Hindrance),
}

/// Why a route is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hindrance {
    reason: String,
    /// Whether another number would help.
    is_of_port: bool,
}

impl Hindrance {
    /// Of the route, or of us.
    fn of_route(reason: impl Into<String>) -> Hindrance {
        Hindrance { reason: reason.into(), is_of_port: false }
    }

    /// Met when its port was opened.
    fn of_port(address: SocketAddr, error: &std::io::Error) -> Hindrance {
        let is_of_port = error.kind() == std::io::ErrorKind::AddrInUse;
        Hindrance { reason: format!("{address}: {error}"), is_of_port }
    }
}

/// How many routes there are of each kind.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// Served.
    pub listening: usize,
    /// Tried again each second.
    pub refused: usize,
}

impl Table {
    /// An empty one.
    pub fn new(
        shared: Arc<Shared>,
        workers: Workers,
        datagrams: Arc<Datagrams>,
        host_listeners: (bool, bool),
        outcomes: UnboundedSender<Outcome>,
    ) -> Self {
        Self {
            shared,
            workers,
            datagrams,
            outcomes,
            served: HashMap::new(),
            host_listeners,
            inherited: Inherited::default(),
            predecessor: None,
        }
    }

    /// Serves what a set has, at the begin.
    pub fn begin(&mut self, set: &Set) {
        for route in set.all() {
            self.put(route.clone());
        }
        // What no route wants is closed.
        self.inherited = Inherited::default();
    }

    /// Follows a change of the set.
    pub fn follow(&mut self, change: &Change, set: &Set) {
        for owner in change.removed.iter().collect::<BTreeSet<_>>() {
            self.remove(owner);
        }
        for key in &change.dropped {
            self.close(key);
        }
        let (moved, others): (Vec<&Route>, Vec<&Route>) = (change.put.iter())
            .filter_map(|key| set.get(key))
            .partition(|route| self.served.get(&route.key).is_some_and(|served| served.route.is_elsewhere(route)));
        // Those that leave a port go first: another one may come to it.
        for route in &moved {
            self.close(&route.key);
        }
        for route in moved.into_iter().chain(others) {
            self.put(route.clone());
        }
    }

    /// Tries what was refused once more.
    pub fn try_again(&mut self) {
        let refused: Vec<Route> = (self.served.values())
            .filter(|served| matches!(served.by, By::Nothing(_)))
            .map(|served| served.route.clone())
            .collect();
        for route in refused {
            let key = route.key.clone();
            let served = self.serve_or_not(route);
            let told = self.served.get(&key).map(|before| &before.by);
            // What hinders it was told, unless it is something else now.
            let is_known = matches!((told, &served.by), (Some(By::Nothing(a)), By::Nothing(b)) if a == b);
            if !is_known {
                self.tell_of(&served);
                self.served.insert(key, served);
            }
        }
    }

    /// Says of each route what became of it, to somebody who may not know.
    pub fn announce(&self) {
        self.served.values().for_each(|served| self.tell_of(served));
    }

    /// How many there are.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let refused = self.served.values().filter(|served| matches!(served.by, By::Nothing(_))).count();
        Standing { listening: self.served.len() - refused, refused }
    }

    /// Each listener with its port, and each UDP port with its number: to give them to another process.
    pub fn sockets(&self) -> (Vec<&Door>, Vec<(u64, &Arc<UdpSocket>)>) {
        let (mut doors, mut datagrams) = (Vec::new(), Vec::new());
        for served in self.served.values() {
            match &served.by {
                By::Door(door) => doors.push(door),
                By::Datagrams(socket) => datagrams.push((served.live.number, socket)),
                By::Host | By::Nothing(_) => {}
            }
        }
        (doors, datagrams)
    }

    /// Takes connections no more: another process does. What goes on, goes on, and can still be removed.
    pub fn step_back(&mut self) {
        for served in self.served.values_mut() {
            served.by = By::Host;
        }
    }

    /// Ends everything of an owner, and says so when it is over.
    pub fn remove(&mut self, owner: &str) {
        let keys: Vec<Key> = self.served.keys().filter(|key| key.owner == owner).cloned().collect();
        let ends: Vec<_> = keys.iter().filter_map(|key| self.close(key)).collect();
        let (outcomes, owner) = (self.outcomes.clone(), owner.to_owned());
        let predecessor = self.predecessor.clone();
        tokio::spawn(async move {
            if let Some(predecessor) = predecessor {
                predecessor.remove(&owner).await;
            }
            for (live, datagrams) in ends {
                live.wait_until_over().await;
                if let Some(closed) = datagrams {
                    let _ = closed.await;
                }
            }
            let _ = outcomes.send(Outcome::Removed(owner));
        });
    }

    fn put(&mut self, route: Route) {
        if let Some(served) = self.served.get_mut(&route.key)
            && !matches!(served.by, By::Nothing(_))
        {
            served.live.lead_to(route.backend.map(Into::into));
            if route.protocol == Protocol::Udp {
                self.datagrams.lead(served.live.number, route.backend);
            }
            served.route = route;
            let key = served.route.key.clone();
            return self.tell_of(&self.served[&key]);
        }
        let key = route.key.clone();
        let served = self.serve_or_not(route);
        self.tell_of(&served);
        self.served.insert(key, served);
    }

    fn serve_or_not(&mut self, route: Route) -> Served {
        let live = Live::new(route.is_tls, route.backend.map(Into::into), false);
        let by = self.serve(&route, &live).unwrap_or_else(By::Nothing);
        Served { route, live, by }
    }

    fn serve(&mut self, route: &Route, live: &Arc<Live>) -> Result<By, Hindrance> {
        if route.is_tls && self.shared.certificates.is_empty() {
            return Err(Hindrance::of_route("there is no certificate"));
        }
        if route.port == 0 { self.serve_host(route, live) } else { self.serve_port(route, live) }
    }

    fn serve_host(&self, route: &Route, live: &Arc<Live>) -> Result<By, Hindrance> {
        let is_tls = route.protocol == Protocol::Https;
        let has_listener = if is_tls { self.host_listeners.1 } else { self.host_listeners.0 };
        if !has_listener {
            let name = if is_tls { "https" } else { "http" };
            return Err(Hindrance::of_route(format!("there is no listener for {name}")));
        }
        let mut hosts = self.shared.hosts.write().unwrap_or_else(PoisonError::into_inner);
        if hosts.has(is_tls, &route.host) {
            return Err(Hindrance::of_route("another route has this host"));
        }
        hosts.put(is_tls, &route.host, live);
        Ok(By::Host)
    }

    fn serve_port(&mut self, route: &Route, live: &Arc<Live>) -> Result<By, Hindrance> {
        let address = SocketAddr::new(self.shared.config.bind, route.port);
        let refused = |error: std::io::Error| Hindrance::of_port(address, &error);
        if route.protocol == Protocol::Udp {
            let inherited = self.inherited.datagrams.remove(&route.port);
            let socket = match inherited.filter(|socket| socket.local_addr().is_ok_and(|is| is == address)) {
                Some(socket) => socket,
                None => bind_datagram(address).map_err(refused)?,
            };
            let socket = Arc::new(socket);
            let sessions = self.inherited.sessions.remove(&route.port).unwrap_or_default();
            self.datagrams.open(Port { number: live.number, socket: socket.clone(), backend: route.backend }, sessions);
            return Ok(By::Datagrams(socket));
        }
        let inherited = self.inherited.streams.remove(&route.port);
        let socket = match inherited.filter(|socket| socket.local_addr().is_ok_and(|is| is == address)) {
            Some(socket) => socket,
            None => bind_stream(address).map_err(refused)?,
        };
        let door = match route.protocol {
            Protocol::Http | Protocol::Https => {
                Door::open(socket, live, &self.workers, Requests { live: live.clone(), by_host: false })
            }
            Protocol::Tcp | Protocol::TcpTls | Protocol::Udp => {
                Door::open(socket, live, &self.workers, Bytes { live: live.clone() })
            }
        };
        Ok(By::Door(door))
    }

    fn close(&mut self, key: &Key) -> Option<(Arc<Live>, Option<oneshot::Receiver<()>>)> {
        let served = self.served.remove(key)?;
        let route = &served.route;
        served.live.end();
        if route.port == 0 {
            let mut hosts = self.shared.hosts.write().unwrap_or_else(PoisonError::into_inner);
            hosts.remove(route.protocol == Protocol::Https, &route.host, &served.live);
        }
        let datagrams = (route.protocol == Protocol::Udp).then(|| self.datagrams.close(served.live.number));
        Some((served.live, datagrams))
    }

    fn tell_of(&self, served: &Served) {
        let Route { key, port, backend, .. } = &served.route;
        let listening = Outcome::Listening(key.clone(), *port, *backend);
        // Whoever listens lives as long as the process.
        let outcomes = self.outcomes.clone();
        let tell = move |outcome| drop(outcomes.send(outcome));
        match &served.by {
            By::Nothing(hindrance) => {
                let kind = if hindrance.is_of_port { Outcome::Refused } else { Outcome::Unserved };
                tell(kind(key.clone(), u32::from(*port), hindrance.reason.clone()));
            }
            // What `live` says holds for each connection and request that comes after it was said.
            By::Door(_) | By::Host => tell(listening),
            // The port's thread leads elsewhere only when it comes to what it was told, and reads datagrams before that.
            By::Datagrams(_) => self.datagrams.then(served.live.number, move || tell(listening)),
        }
    }
}

#[cfg(test)]
mod tests;
