//! Addresses by exposure, protocol and mode.

use super::*;

const OWNER: Id = Id([0, 1, 0x22, 0x33, 0x44, 0x55, 0x46, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff]);
const OWNER_TEXT: &str = "00012233-4455-4677-8899-aabbccddeeff";
const PROTOCOLS: [Protocol; 6] =
    [Protocol::Http, Protocol::Https, Protocol::Tcp, Protocol::TcpTls, Protocol::Udp, Protocol::TcpUdp];

fn addresses(job_domain: Option<&str>, has_certificate: bool) -> PlayerAddresses {
    PlayerAddresses {
        job_domain: job_domain.map(str::to_owned),
        advertised: "192.0.2.1".into(),
        node: "node-1.example.com".into(),
        has_certificate,
    }
}

fn all_settings() -> [PlayerAddresses; 4] {
    [(None, false), (None, true), (Some("play.example.com"), false), (Some("play.example.com"), true)]
        .map(|(domain, has_certificate)| addresses(domain, has_certificate))
}

fn address_of(
    addresses: &PlayerAddresses,
    protocol: Protocol,
    exposure: PortExposure,
    kind: OwnerKind,
) -> PlayerAddress {
    address_at("", addresses, protocol, exposure, kind)
}

fn address_at(
    node_host: &str,
    addresses: &PlayerAddresses,
    protocol: Protocol,
    exposure: PortExposure,
    kind: OwnerKind,
) -> PlayerAddress {
    let owner = PortOwner { id: OWNER, kind, region: "eu", node_host };
    addresses.address_of("game", protocol, exposure, owner)
}

fn number(hostname: &str, number: u16, is_tls: bool) -> PlayerAddress {
    PlayerAddress { hostname: hostname.into(), port: PlayerPort::Number(number), is_tls }
}

fn is_tls_protocol(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Https | Protocol::TcpTls)
}

#[test]
fn number_is_at_the_host_of_the_region_or_at_the_advertised_address() {
    for addresses in all_settings() {
        let in_domain = addresses.job_domain.is_some();
        let hostname = if in_domain { "eu.play.example.com" } else { "192.0.2.1" };
        for protocol in PROTOCOLS {
            let is_tls = is_tls_protocol(protocol) && (in_domain || addresses.has_certificate);
            for kind in [OwnerKind::Lobby, OwnerKind::Server] {
                let found = address_of(&addresses, protocol, PortExposure::Number(20_001), kind);
                assert_eq!(found, number(hostname, 20_001, is_tls), "{protocol:?}");
            }
        }
    }
}

/// Only domain mode has ports with host names.
#[test]
fn host_has_the_owner_and_the_standard_port() {
    for has_certificate in [false, true] {
        let addresses = addresses(Some("play.example.com"), has_certificate);
        for (kind, word) in [(OwnerKind::Lobby, "lobby"), (OwnerKind::Server, "server")] {
            let hostname = format!("{OWNER_TEXT}-game.{word}.eu.play.example.com");
            let of = |protocol| address_of(&addresses, protocol, PortExposure::Host, kind);
            assert_eq!(of(Protocol::Http), number(&hostname, 80, false));
            assert_eq!(of(Protocol::Https), number(&hostname, 443, true));
        }
    }
}

#[test]
fn range_is_at_the_node_without_tls() {
    for addresses in all_settings() {
        for protocol in PROTOCOLS {
            for kind in [OwnerKind::Lobby, OwnerKind::Server] {
                let found = address_of(&addresses, protocol, PortExposure::Range(30_000, 30_009), kind);
                let port = PlayerPort::Range(30_000, 30_009);
                assert_eq!(found, PlayerAddress { hostname: "node-1.example.com".into(), port, is_tls: false });
            }
        }
    }
}

#[test]
fn port_of_a_node_is_at_the_host_of_the_node() {
    for addresses in all_settings() {
        let at_node = |exposure| address_at("198.51.100.7", &addresses, Protocol::Udp, exposure, OwnerKind::Lobby);
        assert_eq!(at_node(PortExposure::Number(26_001)), number("198.51.100.7", 26_001, false));
        assert_eq!(at_node(PortExposure::Range(30_000, 30_009)).hostname, "198.51.100.7");
    }
}
