//! Addresses of clients: trusted proxies, the keys and networks in which a client counts, and limits on connections.
//!
//! The front and edge-guard follow the same rules.

mod client_key;
mod connection_limits;
mod trusted_proxies;

pub use client_key::{ClientKey, ClientNetwork};
pub use connection_limits::{ConnectionLimits, ConnectionPermit, ConnectionScopes, Speech};
pub use trusted_proxies::{contains, forwarded_client};
