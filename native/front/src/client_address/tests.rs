use super::*;

fn rules() -> ClientAddresses {
    let proxies = ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().expect("a network")).to_vec();
    ClientAddresses { proxies, ..ClientAddresses::default() }
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn peer_in_a_trusted_network_is_a_proxy() {
    let local = "10.0.0.9:80".parse().expect("an address");
    for (peer, expected) in [
        ("10.1.2.3:1", Peer::Proxy(address("10.1.2.3"))),
        ("[::ffff:10.1.2.3]:1", Peer::Proxy(address("10.1.2.3"))),
        ("[2001:db8::1]:1", Peer::Proxy(address("2001:db8::1"))),
        ("192.0.2.1:1", Peer::Client(address("192.0.2.1"))),
    ] {
        assert_eq!(rules().peer(peer.parse().expect("an address"), local), expected);
    }
}

#[test]
fn proxy_names_the_client_of_a_request() {
    let proxy = Peer::Proxy(address("10.0.0.1"));
    for (forwarded_for, expected) in
        [(None, "10.0.0.1"), (Some(&b"192.0.2.9, 192.0.2.1:4711, 10.0.0.2"[..]), "192.0.2.1")]
    {
        assert_eq!(rules().client(proxy, forwarded_for), address(expected));
    }
    let lines = ["192.0.2.9", "192.0.2.1, 10.0.0.2"].map(|line| (FORWARDED_FOR, line.parse().expect("a value")));
    assert_eq!(rules().client_of(proxy, &HeaderMap::from_iter(lines)), address("192.0.2.1"));
}

#[test]
fn client_without_a_proxy_cannot_name_another_address() {
    let client = Peer::Client(address("192.0.2.1"));
    assert_eq!(rules().client(client, Some(b"192.0.2.2")), address("192.0.2.1"));
}

#[test]
fn proxy_header_names_a_client_or_a_further_proxy() {
    let proxy = address("10.0.0.1");
    assert_eq!(rules().named_peer(proxy, Some(address("192.0.2.1"))), Peer::Client(address("192.0.2.1")));
    assert_eq!(rules().named_peer(proxy, Some(address("10.0.0.2"))), Peer::Proxy(address("10.0.0.2")));
    assert_eq!(rules().named_peer(proxy, None), Peer::Proxy(proxy));
}

#[test]
fn game_server_is_never_a_proxy() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let local = listener.local_addr().expect("bound");
    let _client = std::net::TcpStream::connect(local).expect("listening");
    let (_server, peer) = listener.accept().expect("connected");
    // SAFETY: the call has no arguments.
    let user = unsafe { libc::geteuid() };
    let proxies = vec!["127.0.0.0/8".parse().expect("a network")];
    for (game_servers, expected) in [
        (Vec::new(), Peer::Proxy(peer.ip())),
        (vec![user..=user], Peer::Client(peer.ip())),
        (vec![user + 1..=user + 9], Peer::Proxy(peer.ip())),
    ] {
        let rules = ClientAddresses { proxies: proxies.clone(), game_servers, ..ClientAddresses::default() };
        assert_eq!(rules.peer(peer, local), expected);
    }
}

/// Returns the result of reading a PROXY header, and the bytes after it.
async fn read_header(bytes: &[u8]) -> (Option<Option<IpAddr>>, Vec<u8>) {
    let mut stream = bytes;
    let named = read_proxy_header(&mut stream).await.ok();
    (named, stream.to_vec())
}

#[tokio::test(flavor = "current_thread")]
async fn proxy_header_ends_before_the_first_request() {
    let [v4, local] = [
        b"\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\0\x01\0\x02GET",
        b"\x20\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01\0\x01\0\x02GET",
    ]
    .map(|rest| [PROTOCOL_PREFIX, &rest[..]].concat());
    let mut v6 = [PROTOCOL_PREFIX, b"\x21\x21\0\x24"].concat();
    v6.extend_from_slice(&[0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    v6.extend_from_slice(&[0; 20]);
    v6.extend_from_slice(b"GET");
    for (header, expected) in [(v4, Some(address("192.0.2.1"))), (local, None), (v6, Some(address("2001:db8::1")))] {
        assert_eq!(read_header(&header).await, (Some(expected), b"GET".to_vec()));
        assert_eq!(read_header(&header[..20]).await.0, None, "a partial header");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn other_beginnings_are_no_proxy_headers() {
    let long = [PROTOCOL_PREFIX, b"\x21\x11\xff\xff", &[0; 70_000]].concat();
    for bytes in [&b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"[..], b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"", &long] {
        assert_eq!(read_header(bytes).await.0, None);
    }
}

#[test]
fn proxies_before_edge_guard_name_their_clients() {
    let networks = |text: &str| vec![text.parse().expect("a network")];
    let rules = ClientAddresses {
        proxies: networks("10.0.0.0/8"),
        edge_proxies: networks("192.0.2.0/24"),
        ..ClientAddresses::default()
    };
    let [trusted, proxy, client] = ["10.0.0.1", "192.0.2.1", "198.51.100.1"].map(address);
    assert_eq!(rules.edge_peer(Some(trusted)), Peer::Proxy(trusted));
    assert_eq!(rules.edge_peer(Some(proxy)), Peer::Proxy(proxy));
    assert_eq!(rules.edge_peer(Some(client)), Peer::Client(client));
    assert_eq!(rules.edge_peer(None), Peer::Client(Ipv4Addr::LOCALHOST.into()));
    assert_eq!(rules.named_peer(trusted, Some(proxy)), Peer::Client(proxy), "only edge-guard is behind these proxies");
}

/// Returns a header for the client 192.0.2.1, with a version and command, a family, and further bytes.
fn header(version: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    [PROTOCOL_PREFIX, &[version, family, 0, addresses.len() as u8], addresses].concat()
}

#[tokio::test(flavor = "current_thread")]
async fn extensions_and_unix_addresses_of_proxy_headers() {
    let addresses = b"\xc0\0\x02\x01\x7f\0\0\x01\0\x01\0\x02";
    let extended = [&addresses[..], b"\x04\0\x01a"].concat();
    let mapped = [&[0; 10], &b"\xff\xff\xc0\0\x02\x01"[..], &[0; 20]].concat();
    for (bytes, expected) in [
        (header(0x21, 0x11, &extended), Some(Some(address("192.0.2.1")))),
        (header(0x21, 0x21, &mapped), Some(Some(address("192.0.2.1")))),
        (header(0x21, 0x31, &[0; 216]), Some(None)),
        (header(0x11, 0x11, addresses), None),
        (header(0x22, 0x11, addresses), None),
        (header(0x21, 0x11, &addresses[..11]), None),
    ] {
        assert_eq!(read_header(&bytes).await.0, expected, "{}", bytes.escape_ascii());
    }
}
