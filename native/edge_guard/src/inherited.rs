//! Sockets that came from another process of ours, until routes claim them.

use std::collections::HashMap;
use std::net::{TcpListener, UdpSocket};

use crate::udp::MigratedSession;

/// By number of port.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// Listeners.
    pub streams: HashMap<u16, TcpListener>,
    /// UDP ports.
    pub datagrams: HashMap<u16, UdpSocket>,
    /// Sessions, by public port.
    pub sessions: HashMap<u16, Vec<MigratedSession>>,
}
