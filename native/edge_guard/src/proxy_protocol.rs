//! PROXY protocol, version 2.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::TcpStream;

use crate::address::canonical_ip;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";

const COMMAND_PROXY: u8 = 0x21;

/// Returns the PROXY header for a connection from `client` to `server`.
#[must_use]
pub fn encode_header(client: SocketAddr, server: SocketAddr) -> Vec<u8> {
    let mut header = SIGNATURE.to_vec();
    header.push(COMMAND_PROXY);
    match (canonical_ip(client.ip()), canonical_ip(server.ip())) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header.extend([0x11, 0, 12]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        (from, to) => {
            header.extend([0x21, 0, 36]);
            header.extend(to_ipv6(from).octets());
            header.extend(to_ipv6(to).octets());
        }
    }
    header.extend(client.port().to_be_bytes());
    header.extend(server.port().to_be_bytes());
    header
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
    let mut begin = [0; SIGNATURE.len()];
    loop {
        let available = stream.peek(&mut begin).await?;
        if available == 0 || begin[..available] != SIGNATURE[..available] {
            return Ok(None);
        }
        if available == SIGNATURE.len() {
            break;
        }
        // Half of the signature has arrived, and a peek would return at once.
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let mut head = [0; 16];
    read_exact(stream, &mut head).await?;
    let length = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if length > 4_096 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    read_exact(stream, &mut body).await?;
    Ok(addresses(head[12], head[13], &body))
}

fn addresses(command: u8, family: u8, body: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| Some(u16::from_be_bytes([*body.get(at)?, *body.get(at + 1)?]));
    let ipv4_at = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(body.get(at..at + 4)?).ok()?));
    let ipv6_at = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(body.get(at..at + 16)?).ok()?));
    match (command, family) {
        (COMMAND_PROXY, 0x11) => {
            Some((SocketAddr::from((ipv4_at(0)?, port(8)?)), SocketAddr::from((ipv4_at(4)?, port(10)?))))
        }
        (COMMAND_PROXY, 0x21) => {
            Some((SocketAddr::from((ipv6_at(0)?, port(32)?)), SocketAddr::from((ipv6_at(16)?, port(34)?))))
        }
        _ => None,
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
            let header = encode_header(client, server);
            assert_eq!(header[..12], SIGNATURE);
            assert_eq!(usize::from(header[15]), header.len() - 16);
            assert_eq!(addresses(header[12], header[13], &header[16..]), Some((client, server)));
        }
    }

    #[test]
    fn local_command_has_no_client() {
        assert_eq!(addresses(0x20, 0, &[]), None);
        assert_eq!(addresses(COMMAND_PROXY, 0x11, &[1, 2, 3]), None, "too short");
    }
}
