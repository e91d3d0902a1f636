//! PROXY protocol, versions 1 and 2.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ppp::HeaderResult;
pub use ppp::v2::Protocol;
use ppp::v2::{Addresses, Builder, Command, IPv4, IPv6, Version};
use tokio::net::TcpStream;

use crate::address::canonical_ip;

const SIGNATURE: &[u8] = ppp::v2::PROTOCOL_PREFIX;

const V1_SIGNATURE: &[u8] = b"PROXY ";

/// Largest header of version 1, with its line end.
const V1_BYTES_MAX: usize = 107;

/// Bytes of version 2 before the addresses.
const V2_FIXED_BYTES: usize = 16;

const V2_BYTES_MAX: usize = 4_096;

/// Largest header of [`encode_header`], with two IPv6 addresses and their ports.
pub const ENCODED_BYTES_MAX: usize = V2_FIXED_BYTES + 36;

/// Returns the PROXY header of version 2 for a connection or datagram from `client` to `server`.
#[must_use]
pub fn encode_header(client: SocketAddr, server: SocketAddr, protocol: Protocol) -> Vec<u8> {
    let addresses: Addresses = match (canonical_ip(client.ip()), canonical_ip(server.ip())) {
        (IpAddr::V4(from), IpAddr::V4(to)) => IPv4::new(from, to, client.port(), server.port()).into(),
        (from, to) => IPv6::new(to_ipv6(from), to_ipv6(to), client.port(), server.port()).into(),
    };
    Builder::with_addresses(Version::Two | Command::Proxy, protocol, addresses).build().unwrap_or_default()
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Reads the PROXY header that a trusted proxy sends, and returns its client and server addresses.
///
/// Returns `None` if the stream starts without a header, or if the header has no addresses.
pub async fn read_header(stream: &TcpStream) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
    let length = loop {
        let mut begin = [0; V1_BYTES_MAX];
        let available = stream.peek(&mut begin).await?;
        match header_length(&begin[..available])? {
            HeaderLength::Absent => return Ok(None),
            HeaderLength::Known(length) => break length,
            // A part of the header has arrived, and a peek would return at once.
            HeaderLength::Incomplete => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    };
    let mut header = vec![0; length];
    read_exact(stream, &mut header).await?;
    addresses(&header)
}

#[derive(Debug, PartialEq, Eq)]
enum HeaderLength {
    Absent,
    Incomplete,
    Known(usize),
}

fn header_length(begin: &[u8]) -> io::Result<HeaderLength> {
    let matches = |signature: &[u8]| {
        let length = begin.len().min(signature.len());
        length > 0 && begin[..length] == signature[..length]
    };
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    if matches(SIGNATURE) {
        let Some(fixed) = begin.get(..V2_FIXED_BYTES) else { return Ok(HeaderLength::Incomplete) };
        let length = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        return if length <= V2_BYTES_MAX { Ok(HeaderLength::Known(length)) } else { Err(invalid()) };
    }
    if !matches(V1_SIGNATURE) {
        return Ok(HeaderLength::Absent);
    }
    match begin.iter().position(|byte| *byte == b'\n') {
        Some(end) => Ok(HeaderLength::Known(end + 1)),
        None if begin.len() >= V1_BYTES_MAX => Err(invalid()),
        None => Ok(HeaderLength::Incomplete),
    }
}

fn addresses(header: &[u8]) -> io::Result<Option<(SocketAddr, SocketAddr)>> {
    let ipv4 = |all: IPv4| {
        let client = SocketAddr::from((all.source_address, all.source_port));
        (client, SocketAddr::from((all.destination_address, all.destination_port)))
    };
    let ipv6 = |all: IPv6| {
        let client = SocketAddr::from((all.source_address, all.source_port));
        (client, SocketAddr::from((all.destination_address, all.destination_port)))
    };
    match HeaderResult::parse(header) {
        HeaderResult::V1(Ok(header)) => Ok(match header.addresses {
            ppp::v1::Addresses::Tcp4(all) => Some(ipv4(all)),
            ppp::v1::Addresses::Tcp6(all) => Some(ipv6(all)),
            ppp::v1::Addresses::Unknown => None,
        }),
        // A health check of the proxy itself has the command `LOCAL`.
        HeaderResult::V2(Ok(header)) if header.command == Command::Local => Ok(None),
        HeaderResult::V2(Ok(header)) => Ok(match header.addresses {
            Addresses::IPv4(all) => Some(ipv4(all)),
            Addresses::IPv6(all) => Some(ipv6(all)),
            Addresses::Unspecified | Addresses::Unix(_) => None,
        }),
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Err(io::ErrorKind::InvalidData.into()),
    }
}

async fn read_exact(stream: &TcpStream, buffer: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        stream.readable().await?;
        match stream.try_read(&mut buffer[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips() {
        for (client, server) in [("198.51.100.7:5000", "203.0.113.1:443"), ("[2001:db8::7]:5000", "[2001:db8::1]:443")]
        {
            let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
            let header = encode_header(client, server, Protocol::Stream);
            assert!(header.len() <= ENCODED_BYTES_MAX);
            assert_eq!(header_length(&header).unwrap(), HeaderLength::Known(header.len()));
            assert_eq!(addresses(&header).unwrap(), Some((client, server)));
        }
    }

    #[test]
    fn version_1_is_read() {
        let header = b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n";
        assert_eq!(header_length(b"PROXY TCP4").unwrap(), HeaderLength::Incomplete);
        assert_eq!(header_length(&[header, &b"data"[..]].concat()).unwrap(), HeaderLength::Known(header.len()));
        let named = ("198.51.100.7:5000".parse().unwrap(), "203.0.113.1:443".parse().unwrap());
        assert_eq!(addresses(header).unwrap(), Some(named));
        assert_eq!(addresses(b"PROXY UNKNOWN\r\n").unwrap(), None);
        assert!(addresses(b"PROXY TCP4 here there 1 2\r\n").is_err());
        assert!(header_length(&[b"PROXY ", &[b'x'; 101][..]].concat()).is_err(), "a line without an end");
    }

    #[test]
    fn other_streams_have_no_header() {
        for begin in [&b""[..], b"GET / HTTP/1.1", b"PRI * HTTP/2.0", b"\x16\x03\x01", b"\r\n\r\nx"] {
            assert_eq!(header_length(begin).unwrap(), HeaderLength::Absent, "{begin:?}");
        }
    }

    #[test]
    fn version_2_without_client_or_with_a_wrong_length() {
        let fixed = |command, length| [SIGNATURE, &[command, 0, 0, length]].concat();
        assert_eq!(addresses(&fixed(0x20, 0)).unwrap(), None, "LOCAL");
        assert!(addresses(&[SIGNATURE, &[0x21, 0x11, 0, 3, 1, 2, 3]].concat()).is_err(), "too short");
        assert!(header_length(&[SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat()).is_err(), "too long");
    }
}
