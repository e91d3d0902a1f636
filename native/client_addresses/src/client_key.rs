//! The key that identifies one client, and the networks in which it counts.

use std::net::IpAddr;

/// One client: an IPv4 address, or a /64 network of IPv6. Limits per client count by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientKey {
    /// IPv4 address.
    V4([u8; 4]),
    /// The first 8 bytes of an IPv6 address.
    V6([u8; 8]),
}

impl ClientKey {
    /// Returns the client at an address. An IPv4-mapped IPv6 address is the IPv4 client.
    #[must_use]
    pub fn of(address: IpAddr) -> ClientKey {
        match address.to_canonical() {
            IpAddr::V4(address) => ClientKey::V4(address.octets()),
            IpAddr::V6(address) => ClientKey::V6(((address.to_bits() >> 64) as u64).to_be_bytes()),
        }
    }

    /// Returns None unless `bytes` has 4 or 8 bytes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<ClientKey> {
        match bytes.len() {
            4 => bytes.try_into().ok().map(ClientKey::V4),
            8 => bytes.try_into().ok().map(ClientKey::V6),
            _ => None,
        }
    }

    /// Returns 4 or 8 bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            ClientKey::V4(bytes) => bytes,
            ClientKey::V6(bytes) => bytes,
        }
    }

    /// Returns the networks in which the connections of a client count, the narrowest first.
    ///
    /// One customer can have a /56 or a /48 of IPv6, and a hosting company a /32.
    pub fn networks(self) -> impl Iterator<Item = ClientNetwork> {
        const IPV4: &[(u32, u8)] = &[(32, 1), (24, 4), (16, 16)];
        const IPV6: &[(u32, u8)] = &[(64, 1), (56, 2), (48, 4), (32, 16)];
        let networks = match self {
            ClientKey::V4(_) => IPV4,
            ClientKey::V6(_) => IPV6,
        };
        networks.iter().map(move |(prefix, weight)| ClientNetwork { first: self.masked(*prefix), weight: *weight })
    }

    fn masked(self, prefix: u32) -> ClientKey {
        match self {
            ClientKey::V4(bytes) => {
                ClientKey::V4((u32::from_be_bytes(bytes) & u32::MAX << (32 - prefix)).to_be_bytes())
            }
            ClientKey::V6(bytes) => {
                ClientKey::V6((u64::from_be_bytes(bytes) & u64::MAX << (64 - prefix)).to_be_bytes())
            }
        }
    }
}

/// Network of clients that share a connection limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork {
    first: ClientKey,
    weight: u8,
}

impl ClientNetwork {
    /// Returns 1 for the network of one client. A wider network has a larger weight, and so a higher limit.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(address: &str) -> ClientKey {
        ClientKey::of(address.parse().unwrap())
    }

    #[test]
    fn ipv4_address_is_one_client() {
        assert_eq!(client("192.0.2.1"), ClientKey::V4([192, 0, 2, 1]));
        assert_ne!(client("192.0.2.1"), client("192.0.2.2"));
        assert_eq!(client("192.0.2.1").as_bytes(), [192, 0, 2, 1]);
    }

    #[test]
    fn ipv4_mapped_address_is_the_ipv4_client() {
        assert_eq!(client("::ffff:192.0.2.1"), client("192.0.2.1"));
    }

    #[test]
    fn ipv6_network_of_64_bits_is_one_client() {
        assert_eq!(client("2001:db8:1:2::1"), client("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(client("2001:db8:1:2::1"), client("2001:db8:1:3::1"));
        assert_eq!(client("2001:db8:1:2::1").as_bytes(), [0x20, 0x01, 0x0d, 0xb8, 0, 1, 0, 2]);
        assert_ne!(client("::1"), client("127.0.0.1"));
    }

    #[test]
    fn client_survives_its_bytes() {
        for known in [client("192.0.2.1"), client("2001:db8:1:2::1"), client("::")] {
            assert_eq!(ClientKey::from_bytes(known.as_bytes()), Some(known));
        }
        for length in [0, 1, 3, 5, 7, 9, 16] {
            assert_eq!(ClientKey::from_bytes(&vec![0; length]), None, "{length} bytes");
        }
    }

    /// Returns the weights of the networks that two addresses share.
    fn shared_weights(one: &str, other: &str) -> Vec<usize> {
        let pairs = client(one).networks().zip(client(other).networks());
        pairs.filter(|(one, other)| one == other).map(|(shared, _)| shared.weight()).collect()
    }

    #[test]
    fn clients_share_the_networks_around_them() {
        for (one, other, weights) in [
            ("2001:db8:1:200::1", "2001:db8:1:200::2", &[1, 2, 4, 16][..]),
            ("2001:db8:1:200::1", "2001:db8:1:2ff::1", &[2, 4, 16]),
            ("2001:db8:1:200::1", "2001:db8:1:300::1", &[4, 16]),
            ("2001:db8:1::1", "2001:db8:2::1", &[16]),
            ("2001:db8::1", "2001:db9::1", &[]),
            ("192.0.2.1", "::ffff:192.0.2.1", &[1, 4, 16]),
            ("192.0.2.1", "192.0.2.2", &[4, 16]),
            ("192.0.2.1", "192.0.3.1", &[16]),
            ("192.0.2.1", "192.1.2.1", &[]),
        ] {
            assert_eq!(shared_weights(one, other), weights, "{one} and {other}");
        }
    }

    #[test]
    fn network_of_one_client_is_not_a_wider_one() {
        let networks: Vec<_> = client("192.0.0.0").networks().collect();
        assert_eq!(networks.len(), 3);
        assert!(networks[0] != networks[1] && networks[1] != networks[2]);
    }
}
