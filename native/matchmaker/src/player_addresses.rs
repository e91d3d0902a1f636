//! Public addresses of ports, which players use.

use hosting_core::{Id, PortExposure, Protocol};
use uuid::Uuid;

/// Owner of a port. The host name of the port has this word.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OwnerKind {
    Lobby,
    Server,
}

/// Lobby or server with public ports.
#[derive(Clone, Copy)]
pub struct PortOwner<'a> {
    pub id: Id,
    pub kind: OwnerKind,
    pub region: &'a str,
    /// Host name or address of the node that has the ports. Empty on a single machine.
    pub node_host: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlayerPort {
    Number(u16),
    Range(u16, u16),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlayerAddress {
    pub hostname: String,
    pub port: PlayerPort,
    pub is_tls: bool,
}

#[derive(Clone)]
pub struct PlayerAddresses {
    /// Domain of player host names. None is local mode: every port has its own number at the advertised address.
    pub job_domain: Option<String>,
    pub advertised: String,
    pub node: String,
    /// For local mode: without a certificate, https and tcp_tls are served without TLS.
    pub has_certificate: bool,
}

impl PlayerAddresses {
    pub fn address_of(
        &self,
        name: &str,
        protocol: Protocol,
        exposure: PortExposure,
        owner: PortOwner<'_>,
    ) -> PlayerAddress {
        let PortOwner { id, kind, region, node_host } = owner;
        let of_node = (!node_host.is_empty()).then(|| node_host.to_owned());
        let has_tls = matches!(protocol, Protocol::Https | Protocol::TcpTls)
            && (self.job_domain.is_some() || self.has_certificate);
        let domain = self.job_domain.as_deref();
        match exposure {
            PortExposure::Range(first, last) => {
                let hostname = of_node.unwrap_or_else(|| self.node.clone());
                PlayerAddress { hostname, port: PlayerPort::Range(first, last), is_tls: false }
            }
            PortExposure::Host => {
                let kind = if kind == OwnerKind::Lobby { "lobby" } else { "server" };
                let hostname =
                    format!("{}-{}.{kind}.{region}.{}", Uuid::from_bytes(id.0), name, domain.unwrap_or_default());
                let number = if protocol == Protocol::Https { 443 } else { 80 };
                PlayerAddress { hostname, port: PlayerPort::Number(number), is_tls: has_tls }
            }
            PortExposure::Number(number) => {
                let of_service =
                    || domain.map_or_else(|| self.advertised.clone(), |domain| format!("{region}.{domain}"));
                let hostname = of_node.unwrap_or_else(of_service);
                PlayerAddress { hostname, port: PlayerPort::Number(number), is_tls: has_tls }
            }
        }
    }
}

#[cfg(test)]
mod tests;
