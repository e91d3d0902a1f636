//! Addresses: backends, networks of clients, and the key that identifies one client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// Largest path length of a Unix socket in the kernel.
const SOCKET_PATH_MAX: usize = 107;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendAddress {
    Port(SocketAddr),
    /// Unix stream socket (`unix:/absolute/path`).
    Socket(Arc<Path>),
}

impl FromStr for BackendAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') && path.len() <= SOCKET_PATH_MAX => {
                Ok(Self::Socket(Arc::from(Path::new(path))))
            }
            Some(_) => Err(()),
            None => text.parse().map(Self::Port).map_err(|_| ()),
        }
    }
}

impl From<SocketAddr> for BackendAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Port(address)
    }
}

/// IP network such as `10.0.0.0/8`. A bare address is a network with one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IpNetwork {
    address: IpAddr,
    prefix: u32,
}

impl IpNetwork {
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, canonical_ip(address)) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                self.prefix == 0 || (ours.to_bits() ^ theirs.to_bits()) >> (32 - self.prefix) == 0
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                self.prefix == 0 || (ours.to_bits() ^ theirs.to_bits()) >> (128 - self.prefix) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for IpNetwork {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().map_err(|_| ())?)),
            None => (text, None),
        };
        let address = canonical_ip(address.parse().map_err(|_| ())?);
        let prefix_max = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(prefix_max);
        if prefix > prefix_max { Err(()) } else { Ok(Self { address, prefix }) }
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4.
#[must_use]
pub fn canonical_ip(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// Returns the key under which the limits per client count an address.
///
/// An IPv4 address is its own key. All IPv6 addresses of one /64 network share a key.
#[must_use]
pub fn client_key(address: IpAddr) -> IpAddr {
    match canonical_ip(address) {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// Maximum number of networks in which one client counts.
pub const NETWORKS_MAX: usize = 4;

/// Network of clients that share a connection limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientNetwork {
    address: IpAddr,
    weight: u8,
}

impl ClientNetwork {
    /// Returns the factor of the limit of one client that applies to this network.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight.into()
    }
}

/// Returns the networks in which a client counts, the narrowest first.
///
/// One customer can have a /56 or a /48 of IPv6, and a hosting company a /32. The factors limit a whole network to a
/// quarter of all connections with the default settings.
pub fn client_networks(address: IpAddr) -> impl Iterator<Item = ClientNetwork> {
    const IPV4: &[(u32, u8)] = &[(32, 1), (24, 4), (16, 16)];
    const IPV6: &[(u32, u8)] = &[(64, 1), (56, 2), (48, 4), (32, 16)];
    let address = canonical_ip(address);
    let networks = if address.is_ipv4() { IPV4 } else { IPV6 };
    networks.iter().map(move |(prefix, weight)| {
        let network = match address {
            IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & (u32::MAX << (32 - prefix))).into(),
            IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << (128 - prefix))).into(),
        };
        ClientNetwork { address: network, weight: *weight }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_mapped_addresses() {
        let network: IpNetwork = "10.1.0.0/16".parse().unwrap();
        assert!(network.contains("10.1.255.3".parse().unwrap()));
        assert!(network.contains("::ffff:10.1.2.3".parse().unwrap()));
        assert!(!network.contains("10.2.0.0".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<IpNetwork>().unwrap().contains("9.9.9.9".parse().unwrap()));
        assert!("fd00::/8".parse::<IpNetwork>().unwrap().contains("fd12::1".parse().unwrap()));
    }

    #[test]
    fn backend_address_is_a_port_or_an_absolute_socket_path() {
        assert_eq!("127.0.0.1:80".parse(), Ok(BackendAddress::Port(SocketAddr::from(([127, 0, 0, 1], 80)))));
        assert_eq!("unix:/run/api.sock".parse(), Ok(BackendAddress::Socket(Arc::from(Path::new("/run/api.sock")))));
        for wrong in ["127.0.0.1", "unix:", "unix:run/api.sock", "/run/api.sock"] {
            assert_eq!(wrong.parse::<BackendAddress>(), Err(()), "{wrong}");
        }
        assert!(format!("unix:/{}", "x".repeat(106)).parse::<BackendAddress>().is_ok());
        assert!(
            format!("unix:/{}", "x".repeat(107)).parse::<BackendAddress>().is_err(),
            "the system takes no longer path"
        );
    }

    #[test]
    fn too_long_network_prefix_is_refused() {
        assert!("10.0.0.0/33".parse::<IpNetwork>().is_err());
        assert!("::/129".parse::<IpNetwork>().is_err());
    }

    #[test]
    fn ipv6_client_key_is_its_64_network() {
        assert_eq!(
            client_key("2001:db8:1:2:3::4".parse().unwrap()),
            client_key("2001:db8:1:2:ffff::".parse().unwrap())
        );
        assert_ne!(client_key("2001:db8:1:3::4".parse().unwrap()), client_key("2001:db8:1:2::4".parse().unwrap()));
    }
}
