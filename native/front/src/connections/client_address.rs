//! Addresses of clients: trusted proxies, `X-Forwarded-For`, and PROXY headers.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;

use hosting_client_addresses::{contains, forwarded_client};
use http::header::{HeaderMap, HeaderName, HeaderValue};
use ipnet::IpNet;
use ppp::v2::{Addresses, Command, Header, PROTOCOL_PREFIX};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::connections::socket_owner;

pub const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Bytes of a PROXY header before its addresses.
const FIXED_BYTES: usize = 16;
const HEADER_BYTES_MAX: usize = 4_096;

/// Rules that find the client of a connection and of a request.
#[derive(Default)]
pub struct ClientAddresses {
    /// Networks of trusted proxies. Their connections have requests of many clients.
    pub proxies: Vec<IpNet>,
    /// Networks of proxies before edge-guard. Their connections have requests of many clients, too.
    pub edge_proxies: Vec<IpNet>,
    /// Whether connections of trusted proxies begin with a PROXY header of version 2.
    pub has_proxy_headers: bool,
    /// Users of the game servers of this machine. They are never trusted proxies, also with the address of one.
    pub game_servers: Vec<RangeInclusive<u32>>,
}

/// Peer of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    Client(IpAddr),
    /// A trusted proxy, which names the client of each request.
    Proxy(IpAddr),
}

impl ClientAddresses {
    pub fn peer(&self, peer: SocketAddr, local: SocketAddr) -> Peer {
        let (peer, local) = (canonical(peer), canonical(local));
        if self.trusts(peer.ip()) && !self.is_game_server(peer, local) {
            Peer::Proxy(peer.ip())
        } else {
            Peer::Client(peer.ip())
        }
    }

    /// Returns the peer that a PROXY header of a trusted proxy names.
    pub fn named_peer(&self, proxy: IpAddr, named: Option<IpAddr>) -> Peer {
        let peer = named.map_or(proxy, |address| address.to_canonical());
        if self.trusts(peer) { Peer::Proxy(peer) } else { Peer::Client(peer) }
    }

    /// Returns the peer that a PROXY header of edge-guard names.
    pub fn edge_peer(&self, named: Option<IpAddr>) -> Peer {
        match self.named_peer(Ipv4Addr::LOCALHOST.into(), named) {
            Peer::Client(peer) if contains(&self.edge_proxies, peer) => Peer::Proxy(peer),
            peer => peer,
        }
    }

    /// Returns the client of a request with these headers.
    pub fn client_of(&self, peer: Peer, headers: &HeaderMap) -> IpAddr {
        self.named_client(peer, headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes))
    }

    /// Returns the client of a request with at most one header that names it.
    pub fn client(&self, peer: Peer, forwarded_for: Option<&[u8]>) -> IpAddr {
        self.named_client(peer, forwarded_for)
    }

    fn named_client<'a>(
        &self,
        peer: Peer,
        forwarded_for: impl IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
    ) -> IpAddr {
        match peer {
            Peer::Client(client) => client,
            Peer::Proxy(proxy) => forwarded_client(&self.proxies, proxy, forwarded_for),
        }
    }

    pub fn trusts(&self, address: IpAddr) -> bool {
        contains(&self.proxies, address)
    }

    fn is_game_server(&self, peer: SocketAddr, local: SocketAddr) -> bool {
        if self.game_servers.is_empty() {
            return false;
        }
        match socket_owner::owner(peer, local) {
            Some(user) => self.game_servers.iter().any(|users| users.contains(&user)),
            // A closed socket has no user any more. No game server is on another machine.
            None => !socket_owner::is_on_other_machine(peer.ip()),
        }
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Reads latitude and longitude in degrees. Returns None for an invalid value.
pub fn coordinates(text: &[u8]) -> Option<(f64, f64)> {
    let (latitude, longitude) = std::str::from_utf8(text).ok()?.split_once(',')?;
    let degrees = |text: &str| text.trim().parse::<f64>().ok();
    let (latitude, longitude) = (degrees(latitude)?, degrees(longitude)?);
    let is_valid = (-90.0..=90.0).contains(&latitude) && (-180.0..=180.0).contains(&longitude);
    is_valid.then_some((latitude, longitude))
}

/// Reads a PROXY header of version 2. Returns the client's address, or None for a header without one.
pub async fn read_proxy_header(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<IpAddr>> {
    let mut bytes = vec![0; FIXED_BYTES];
    stream.read_exact(&mut bytes).await?;
    let length = FIXED_BYTES + usize::from(u16::from_be_bytes([bytes[14], bytes[15]]));
    if !bytes.starts_with(PROTOCOL_PREFIX) || length > HEADER_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    bytes.resize(length, 0);
    stream.read_exact(&mut bytes[FIXED_BYTES..]).await?;
    let header = Header::try_from(&bytes[..]).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    let client = match (header.command, header.addresses) {
        (Command::Proxy, Addresses::IPv4(addresses)) => Some(addresses.source_address.into()),
        (Command::Proxy, Addresses::IPv6(addresses)) => Some(IpAddr::from(addresses.source_address).to_canonical()),
        _ => None,
    };
    Ok(client)
}

#[cfg(test)]
mod tests;
