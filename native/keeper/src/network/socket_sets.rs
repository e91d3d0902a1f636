//! Sets of sockets that the programs count.

use std::io;
use std::os::fd::OwnedFd;

use super::bpf::create_map;
use super::rules::NetworkRules;

/// Map flag: entries take memory only while they exist. A program cannot wait for memory, so its insertion can fail
/// below the limit.
const NO_PREALLOCATION: u32 = 1;
/// Maximum number of sockets with a buffer above the default of the kernel.
const ENLARGED_SOCKETS_MAX: u32 = 8;

/// Sets of counted sockets. Their sizes are the limits. The programs keep the maps.
pub struct SocketSets {
    /// Sockets that are not bound to an own port.
    pub clients: OwnedFd,
    pub owned: OwnedFd,
    pub accepted: OwnedFd,
    /// Sockets with a buffer above the default. The keys are addresses, because there is no cookie in `setsockopt`.
    pub enlarged: OwnedFd,
}

impl SocketSets {
    pub fn create(rules: &NetworkRules) -> io::Result<Self> {
        Ok(Self {
            clients: create_map(rules.sockets_max, 0)?,
            owned: create_map(rules.owned_max(), 0)?,
            // Without memory for an entry, the connection gets the smallest buffer.
            accepted: create_map(rules.connections_max, NO_PREALLOCATION)?,
            enlarged: create_map(ENLARGED_SOCKETS_MAX, 0)?,
        })
    }
}
