//! PROXY protocol, versions 1 and 2.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ppp::HeaderResult;
pub use ppp::v2::Protocol;
use ppp::v2::{Addresses, Builder, Command, IPv4, IPv6, Version};
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;

const SIGNATURE: &[u8] = ppp::v2::PROTOCOL_PREFIX;

const V1_SIGNATURE: &[u8] = b"PROXY ";

/// Largest header of version 1, with its line end.
const V1_BYTES_MAX: usize = 107;

/// Bytes of version 2 before the addresses.
const V2_FIXED_BYTES: usize = 16;

const V2_BYTES_MAX: usize = 4_096;

/// Largest header of [`encode_header`], with two IPv6 addresses and their ports.
pub const ENCODED_BYTES_MAX: usize = V2_FIXED_BYTES + 36;

/// Client that a PROXY header names, and the address to which it connected or sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedAddresses {
    pub client: SocketAddr,
    pub server: SocketAddr,
}

/// Begin of a connection from a trusted proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamHeader {
    Absent,
    /// Header that names no client, such as one of a health check.
    Unnamed,
    Named(NamedAddresses),
}

/// PROXY header of version 2 at the begin of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHeader {
    pub length: usize,
    /// `None` for the command `LOCAL`: the trusted proxy itself is the client.
    pub named: Option<NamedAddresses>,
}

/// Returns the PROXY header of version 2 for a connection or datagram from `client` to `server`.
#[must_use]
pub fn encode_header(client: SocketAddr, server: SocketAddr, protocol: Protocol) -> Vec<u8> {
    let addresses: Addresses = match (client.ip().to_canonical(), server.ip().to_canonical()) {
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

/// Reads the PROXY header with which a connection of a trusted proxy begins.
pub async fn read_stream_header(stream: &TcpStream) -> io::Result<StreamHeader> {
    let length = loop {
        let mut begin = [0; V1_BYTES_MAX];
        let available = stream.peek(&mut begin).await?;
        match header_length(&begin[..available])? {
            HeaderLength::Absent => return Ok(StreamHeader::Absent),
            HeaderLength::Known(length) => break length,
            // A part of the header has arrived, and a peek would return at once.
            HeaderLength::Incomplete => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    };
    let mut header = vec![0; length];
    read_exact(stream, &mut header).await?;
    Ok(named_addresses(&header)?.map_or(StreamHeader::Unnamed, StreamHeader::Named))
}

/// Returns the PROXY header with which a datagram of a trusted proxy begins, or `None` if it begins with other data.
///
/// Version 1 does not exist for datagrams, so such a line is data. Fails if a header of version 2 is malformed, or belongs
/// to a stream.
pub fn datagram_header(datagram: &[u8]) -> io::Result<Option<DatagramHeader>> {
    if !datagram.starts_with(SIGNATURE) {
        return Ok(None);
    }
    let HeaderLength::Known(length) = header_length(datagram)? else { return Err(invalid_data()) };
    let bytes = datagram.get(..length).ok_or_else(invalid_data)?;
    let header = ppp::v2::Header::try_from(bytes).map_err(|_| invalid_data())?;
    let named = match (header.command, header.protocol) {
        (Command::Local, _) => None,
        (Command::Proxy, Protocol::Datagram) => Some(v2_addresses(header.addresses).ok_or_else(invalid_data)?),
        (Command::Proxy, Protocol::Stream | Protocol::Unspecified) => return Err(invalid_data()),
    };
    Ok(Some(DatagramHeader { length, named }))
}

fn invalid_data() -> io::Error {
    io::ErrorKind::InvalidData.into()
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
    if matches(SIGNATURE) {
        let Some(fixed) = begin.get(..V2_FIXED_BYTES) else { return Ok(HeaderLength::Incomplete) };
        let length = V2_FIXED_BYTES + usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
        return if length <= V2_BYTES_MAX { Ok(HeaderLength::Known(length)) } else { Err(invalid_data()) };
    }
    if !matches(V1_SIGNATURE) {
        return Ok(HeaderLength::Absent);
    }
    match begin.iter().position(|byte| *byte == b'\n') {
        Some(end) => Ok(HeaderLength::Known(end + 1)),
        None if begin.len() >= V1_BYTES_MAX => Err(invalid_data()),
        None => Ok(HeaderLength::Incomplete),
    }
}

/// Returns the addresses in a header, or `None` if it has none.
fn named_addresses(header: &[u8]) -> io::Result<Option<NamedAddresses>> {
    match HeaderResult::parse(header) {
        HeaderResult::V1(Ok(header)) => Ok(match header.addresses {
            ppp::v1::Addresses::Tcp4(all) => v2_addresses(Addresses::IPv4(all)),
            ppp::v1::Addresses::Tcp6(all) => v2_addresses(Addresses::IPv6(all)),
            ppp::v1::Addresses::Unknown => None,
        }),
        // A health check of the proxy itself has the command `LOCAL`.
        HeaderResult::V2(Ok(header)) if header.command == Command::Local => Ok(None),
        HeaderResult::V2(Ok(header)) => Ok(v2_addresses(header.addresses)),
        HeaderResult::V1(Err(_)) | HeaderResult::V2(Err(_)) => Err(invalid_data()),
    }
}

fn v2_addresses(addresses: Addresses) -> Option<NamedAddresses> {
    let named = |client: (IpAddr, u16), server: (IpAddr, u16)| NamedAddresses {
        client: SocketAddr::new(client.0.to_canonical(), client.1),
        server: SocketAddr::new(server.0.to_canonical(), server.1),
    };
    match addresses {
        Addresses::IPv4(IPv4 { source_address, source_port, destination_address, destination_port }) => {
            Some(named((source_address.into(), source_port), (destination_address.into(), destination_port)))
        }
        Addresses::IPv6(IPv6 { source_address, source_port, destination_address, destination_port }) => {
            Some(named((source_address.into(), source_port), (destination_address.into(), destination_port)))
        }
        Addresses::Unspecified | Addresses::Unix(_) => None,
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
            assert_eq!(named_addresses(&header).unwrap(), Some(NamedAddresses { client, server }));
        }
    }

    fn named(client: &str, server: &str) -> NamedAddresses {
        NamedAddresses { client: client.parse().unwrap(), server: server.parse().unwrap() }
    }

    /// Returns a header of version 2 with one byte of command, one of family and transport, and the rest.
    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[command, family], &length, rest].concat()
    }

    const IPV4: &[u8] = &[198, 51, 100, 7, 203, 0, 113, 1, 0x13, 0x88, 0x01, 0xbb];

    #[test]
    fn datagram_header_names_the_client() {
        for (client, server) in [("198.51.100.7:5000", "203.0.113.1:443"), ("[2001:db8::7]:5000", "[2001:db8::1]:443")]
        {
            let named = named(client, server);
            let mut datagram = encode_header(named.client, named.server, Protocol::Datagram);
            let length = datagram.len();
            datagram.extend(b"payload");
            assert_eq!(datagram_header(&datagram).unwrap(), Some(DatagramHeader { length, named: Some(named) }));
        }
    }

    #[test]
    fn datagram_header_includes_its_type_length_values() {
        let header = v2(0x21, 0x12, &[IPV4, &[0x04, 0, 3, 1, 2, 3]].concat());
        let expected = DatagramHeader { length: 34, named: Some(named("198.51.100.7:5000", "203.0.113.1:443")) };
        assert_eq!(datagram_header(&[&header[..], b"payload"].concat()).unwrap(), Some(expected));
    }

    #[test]
    fn mapped_ipv6_client_is_an_ipv4_client() {
        let mapped = |last: [u8; 4]| [&[0; 10][..], &[0xff, 0xff], &last].concat();
        let addresses = [&mapped([198, 51, 100, 7])[..], &mapped([203, 0, 113, 1]), &[0x13, 0x88, 0x01, 0xbb]].concat();
        let header = datagram_header(&v2(0x21, 0x22, &addresses)).unwrap().unwrap();
        assert_eq!(header.named, Some(named("198.51.100.7:5000", "203.0.113.1:443")));
    }

    #[test]
    fn local_datagram_header_names_no_client() {
        for header in [v2(0x20, 0, &[]), v2(0x20, 0x12, IPV4)] {
            let expected = DatagramHeader { length: header.len(), named: None };
            assert_eq!(datagram_header(&header).unwrap(), Some(expected));
        }
    }

    #[test]
    fn truncated_datagram_header_is_malformed() {
        let header = v2(0x21, 0x12, IPV4);
        for length in SIGNATURE.len()..header.len() {
            assert!(datagram_header(&header[..length]).is_err(), "{length} bytes");
        }
        assert!(datagram_header(&header).is_ok());
    }

    #[test]
    fn datagram_header_needs_addresses_of_datagrams() {
        for (command, family, rest, what) in [
            (0x21, 0x11, IPV4, "a stream"),
            (0x21, 0x10, IPV4, "no transport"),
            (0x21, 0x02, IPV4, "no family"),
            (0x21, 0x00, &[], "no family and transport"),
            (0x21, 0x12, &IPV4[1..], "too short for its family"),
            (0x21, 0x22, IPV4, "too short for its family"),
            (0x21, 0x32, &[1; 216], "a Unix socket"),
            (0x22, 0x12, IPV4, "an unknown command"),
            (0x11, 0x12, IPV4, "an unknown version"),
            (0x21, 0x12, &[1; 4_096], "too long"),
        ] {
            assert!(datagram_header(&v2(command, family, rest)).is_err(), "{what}");
        }
    }

    #[test]
    fn other_datagrams_have_no_header() {
        let v1 = b"PROXY UDP4 198.51.100.7 203.0.113.1 5000 443\r\n";
        for datagram in [&b""[..], b"x", v1, b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n", &SIGNATURE[..11]] {
            assert_eq!(datagram_header(datagram).unwrap(), None, "{datagram:?}");
        }
    }

    #[test]
    fn version_1_is_read() {
        let header = b"PROXY TCP4 198.51.100.7 203.0.113.1 5000 443\r\n";
        assert_eq!(header_length(b"PROXY TCP4").unwrap(), HeaderLength::Incomplete);
        assert_eq!(header_length(&[header, &b"data"[..]].concat()).unwrap(), HeaderLength::Known(header.len()));
        assert_eq!(named_addresses(header).unwrap(), Some(named("198.51.100.7:5000", "203.0.113.1:443")));
        assert_eq!(named_addresses(b"PROXY UNKNOWN\r\n").unwrap(), None);
        assert!(named_addresses(b"PROXY TCP4 here there 1 2\r\n").is_err());
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
        assert_eq!(named_addresses(&v2(0x20, 0, &[])).unwrap(), None, "LOCAL");
        assert!(named_addresses(&[SIGNATURE, &[0x21, 0x11, 0, 3, 1, 2, 3]].concat()).is_err(), "too short");
        assert!(header_length(&[SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat()).is_err(), "too long");
    }
}
