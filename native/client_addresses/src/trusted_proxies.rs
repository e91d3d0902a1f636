//! Networks of trusted proxies, and the client that a proxy names in `X-Forwarded-For`.

use std::net::IpAddr;

use ipnet::IpNet;

/// Returns whether an address is in one of the networks. An IPv4-mapped IPv6 address counts as IPv4.
#[must_use]
pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    let address = address.to_canonical();
    networks.iter().any(|network| network.contains(&address))
}

/// Returns the client of a request that a trusted proxy has sent: the rightmost forwarded address that is not a trusted
/// proxy. An invalid entry and all entries left of it are ignored.
///
/// `lines` are the values of the `X-Forwarded-For` headers in their order.
pub fn forwarded_client<'a>(
    proxies: &[IpNet],
    proxy: IpAddr,
    lines: impl IntoIterator<Item = &'a [u8], IntoIter: DoubleEndedIterator>,
) -> IpAddr {
    let mut client = proxy;
    for entry in lines.into_iter().rev().flat_map(|line| line.rsplit(|byte| *byte == b',')) {
        let Some(address) = forwarded_address(entry.trim_ascii()) else { break };
        client = address;
        if !contains(proxies, address) {
            break;
        }
    }
    client
}

/// Reads an address, `[address]:port` or `address:port`.
fn forwarded_address(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?;
    let address = match text.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?.0,
        None if text.bytes().filter(|byte| *byte == b':').count() == 1 => text.split_once(':')?.0,
        None => text,
    };
    // The zone of an IPv6 address means nothing on another machine.
    let address = match address.split_once('%') {
        Some((address, _)) if address.contains(':') => address,
        _ => address,
    };
    address.parse().ok().map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn proxies() -> Vec<IpNet> {
        ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().unwrap()).to_vec()
    }

    fn client(lines: &[&str]) -> IpAddr {
        forwarded_client(&proxies(), address("10.0.0.1"), lines.iter().map(|line| line.as_bytes()))
    }

    #[test]
    fn network_contains_mapped_addresses() {
        for (contained, expected) in
            [("10.9.0.1", true), ("::ffff:10.9.0.1", true), ("11.0.0.1", false), ("2001:db8::1", true), ("::1", false)]
        {
            assert_eq!(contains(&proxies(), address(contained)), expected, "{contained}");
        }
    }

    #[test]
    fn client_is_the_rightmost_address_that_is_no_proxy() {
        for (line, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("192.0.2.9, 192.0.2.1", "192.0.2.1"),
            ("192.0.2.1, 10.0.0.2", "192.0.2.1"),
            ("192.0.2.1,10.0.0.2,10.0.0.3", "192.0.2.1"),
            ("10.0.0.2", "10.0.0.2"),
            ("192.0.2.1, unknown, 10.0.0.2", "10.0.0.2"),
            ("unknown", "10.0.0.1"),
            ("", "10.0.0.1"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("[2001:db9::1]:4711", "2001:db9::1"),
            ("[2001:db9::1]", "2001:db9::1"),
            ("2001:db9::1", "2001:db9::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("[2001:db9::1", "10.0.0.1"),
            ("fe80::1%eth0", "fe80::1"),
            ("192.0.2.1%eth0", "10.0.0.1"),
        ] {
            assert_eq!(client(&[line]), address(expected), "{line:?}");
        }
    }

    #[test]
    fn several_headers_are_one_list() {
        assert_eq!(client(&[]), address("10.0.0.1"));
        assert_eq!(client(&["192.0.2.9", "192.0.2.1, 10.0.0.2", "10.0.0.3"]), address("192.0.2.1"));
        assert_eq!(client(&["192.0.2.9", ""]), address("10.0.0.1"));
    }
}
