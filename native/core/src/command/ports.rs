//! Public ports of lobbies and dynamic servers: wishes, leases, routes. No behaviour.

use super::{Id, Lsn};

/// Numbers of ports, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortRange {
    /// The first.
    pub first: u16,
    /// The last; before `first`: there are none.
    pub last: u16,
}

impl PortRange {
    /// How many.
    pub fn len(self) -> usize {
        (usize::from(self.last) + 1).saturating_sub(usize::from(self.first))
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether a number is one of them.
    pub fn contains(self, number: u16) -> bool {
        (self.first..=self.last).contains(&number)
    }
}

/// How a port is spoken to (decisions 5.9).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Protocol {
    /// HTTP and WebSocket.
    Http = 1,
    /// The same within TLS.
    Https = 2,
    /// Any stream.
    Tcp = 3,
    /// The same within TLS, which ends at edge-guard.
    TcpTls = 4,
    /// Datagrams.
    Udp = 5,
}

impl Protocol {
    /// Whether it has the numbers of datagrams, not those of streams.
    pub fn is_datagram(self) -> bool {
        self == Protocol::Udp
    }

    /// As it stands in journals.
    pub fn from_byte(byte: u8) -> Option<Protocol> {
        let all = [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TcpTls, Protocol::Udp];
        all.into_iter().find(|protocol| *protocol as u8 == byte)
    }
}

/// What players connect to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reached {
    /// A number of edge-guard's own; 0 in a wish: any.
    Number(u16),
    /// A host name, on the usual numbers of the protocol.
    Host,
    /// The process itself, on these numbers of the machine; nothing is leased.
    Range(u16, u16),
}

/// A port that somebody wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WantedPort<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its protocol.
    pub protocol: Protocol,
    /// How it is to be reached.
    pub reached: Reached,
}

/// Where a process listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backend {
    /// IP literal.
    pub address: Box<str>,
    /// 1 to 65535.
    pub port: u16,
}

/// A port that somebody has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeasedPort {
    /// Its name.
    pub name: Box<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// How it is reached; a number is not 0.
    pub reached: Reached,
    /// Where its process listens, once that is known.
    pub backend: Option<Backend>,
}

/// One way in, as edge-guard is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Route {
    /// The lobby or server.
    pub owner: Id,
    /// A dynamic server.
    pub is_server: bool,
    /// Region name id.
    pub region: Box<str>,
    /// Its port: a number or a host.
    pub port: LeasedPort,
}

/// What is new to a follower of routes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Routes {
    /// To ask with next time.
    pub version: Lsn,
    /// These are all.
    pub is_complete: bool,
    /// New and changed ones: of each owner all of its ports.
    pub changed: Vec<Route>,
    /// Owners whose routes have to go, until [`crate::Engine::ports_returned`].
    pub removed: Vec<Id>,
}

/// Ports for a dynamic server. Class: new place.
#[derive(Clone, Debug)]
pub struct Lease<'a> {
    /// The server.
    pub owner: Id,
    /// Its environment.
    pub namespace: Id,
    /// Region name id.
    pub region: &'a str,
    /// What it needs; names differ.
    pub ports: &'a [WantedPort<'a>],
    /// A random number.
    pub random: u64,
}
