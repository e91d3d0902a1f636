use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteType};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

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
fn only_a_proxy_names_the_client_of_a_request() {
    let (proxy, client) = (Peer::Proxy(address("10.0.0.1")), Peer::Client(address("192.0.2.5")));
    for (peer, forwarded_for, expected) in [
        (proxy, None, "10.0.0.1"),
        (proxy, Some(&b"192.0.2.9, 192.0.2.1:4711, 10.0.0.2"[..]), "192.0.2.1"),
        (client, Some(b"192.0.2.2"), "192.0.2.5"),
    ] {
        assert_eq!(rules().client(peer, forwarded_for), address(expected));
    }
    let lines = ["192.0.2.9", "192.0.2.1, 10.0.0.2"].map(|line| (FORWARDED_FOR, line.parse().expect("a value")));
    assert_eq!(rules().client_of(proxy, &HeaderMap::from_iter(lines)), address("192.0.2.1"));
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

/// Runs the test with this name again in a network namespace of its own. Returns false in the first process.
fn is_in_network_namespace(test: &str) -> bool {
    const MARK: &str = "HOSTING_TEST_NETWORK_NAMESPACE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("this program");
    let (_, module) = module_path!().split_once("::").expect("a crate and a module");
    let mut run = std::process::Command::new("unshare");
    run.args(["-rn", "--"]).arg(program).args(["--exact", &format!("{module}::{test}")]).env(MARK, "1");
    let output = run.output().expect("unshare");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" 1 passed"), "{text}");
    false
}

/// Gives the loopback interface further addresses, and routes to other machines.
fn configure_loopback() {
    const INDEX: u32 = 1;
    let mut link = LinkMessage::default();
    (link.header.index, link.header.flags, link.header.change_mask) = (INDEX, LinkFlags::Up, LinkFlags::Up);
    change_network(RouteNetlinkMessage::SetLink(link));
    for (own, prefix) in [("203.0.113.1", 32), ("203.0.113.2", 32), ("2001:db8::1", 128)] {
        let mut message = AddressMessage::default();
        message.header.family = address(own).into();
        (message.header.index, message.header.prefix_len) = (INDEX, prefix);
        message.attributes = vec![AddressAttribute::Local(address(own))];
        change_network(RouteNetlinkMessage::NewAddress(message));
    }
    for (other, prefix) in [("198.51.100.0", 24), ("2001:db9::", 32)] {
        let mut message = RouteMessage::default();
        message.header.address_family = address(other).into();
        message.header.destination_prefix_length = prefix;
        (message.header.table, message.header.kind) = (RouteHeader::RT_TABLE_MAIN, RouteType::Unicast);
        message.attributes = vec![RouteAttribute::Destination(address(other).into()), RouteAttribute::Oif(INDEX)];
        change_network(RouteNetlinkMessage::NewRoute(message));
    }
}

fn change_network(change: RouteNetlinkMessage) {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_ACK;
    let mut message = NetlinkMessage::new(header, NetlinkPayload::from(change));
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let kernel = Socket::new(NETLINK_ROUTE).expect("a socket");
    kernel.send_to(&bytes, &NetlinkAddress::new(0, 0), 0).expect("sent");
    let mut answer = Vec::with_capacity(4096);
    kernel.recv(&mut answer, 0).expect("an answer");
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).expect("an answer");
    assert!(matches!(&answer.payload, NetlinkPayload::Error(error) if error.code.is_none()), "{answer:?}");
}

#[test]
fn connection_without_an_owner_is_trusted_only_from_another_machine() {
    if !is_in_network_namespace("connection_without_an_owner_is_trusted_only_from_another_machine") {
        return;
    }
    configure_loopback();
    // The kernel adds the route of a new IPv6 address a moment later.
    let began = std::time::Instant::now();
    while socket_owner::is_on_other_machine(address("2001:db8::1")) && began.elapsed().as_secs() < 30 {
        std::thread::yield_now();
    }
    let proxies = ["0.0.0.0/0", "::/0"].map(|network| network.parse().expect("a network")).to_vec();
    let rules = ClientAddresses { proxies, game_servers: vec![1..=9], ..ClientAddresses::default() };
    for (peer, is_proxy) in [
        ("127.0.0.1", false),
        ("127.0.0.2", false),
        ("203.0.113.1", false),
        ("203.0.113.2", false),
        ("::1", false),
        ("2001:db8::1", false),
        ("198.51.100.1", true),
        ("2001:db9::1", true),
        // Without a route, the kernel cannot tell.
        ("192.0.2.1", false),
    ] {
        let peer = address(peer);
        let local = address(if peer.is_ipv4() { "203.0.113.1" } else { "2001:db8::1" });
        let expected = if is_proxy { Peer::Proxy(peer) } else { Peer::Client(peer) };
        assert_eq!(rules.peer(SocketAddr::new(peer, 40_000), SocketAddr::new(local, 80)), expected);
    }
}

/// Returns the result of reading a PROXY header, and the bytes after it.
async fn read_header(bytes: &[u8]) -> (Option<Option<IpAddr>>, Vec<u8>) {
    let mut stream = bytes;
    let named = read_proxy_header(&mut stream).await.ok();
    (named, stream.to_vec())
}

const ADDRESSES: &[u8] = b"\xc0\0\x02\x01\x7f\0\0\x01\0\x01\0\x02";

/// Returns a header with a version and command, a family, and further bytes.
fn header(version: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
    [PROTOCOL_PREFIX, &[version, family, 0, addresses.len() as u8], addresses].concat()
}

#[tokio::test(flavor = "current_thread")]
async fn proxy_header_ends_before_the_first_request() {
    let extended = [ADDRESSES, b"\x04\0\x01a"].concat();
    let v6 = [&b"\x20\x01\x0d\xb8"[..], &[0; 11], &[1], &[0; 20]].concat();
    let mapped = [&[0; 10], &b"\xff\xff\xc0\0\x02\x01"[..], &[0; 20]].concat();
    for (header, expected) in [
        (header(0x21, 0x11, ADDRESSES), Some("192.0.2.1")),
        (header(0x21, 0x11, &extended), Some("192.0.2.1")),
        (header(0x21, 0x21, &v6), Some("2001:db8::1")),
        (header(0x21, 0x21, &mapped), Some("192.0.2.1")),
        (header(0x20, 0x11, ADDRESSES), None),
        (header(0x21, 0x31, &[0; 216]), None),
    ] {
        let expected = Some(expected.map(address));
        assert_eq!(read_header(&[&header, &b"GET"[..]].concat()).await, (expected, b"GET".to_vec()));
        assert_eq!(read_header(&header[..20]).await.0, None, "a partial header");
    }
}

#[tokio::test(flavor = "current_thread")]
async fn other_beginnings_are_no_proxy_headers() {
    for bytes in [
        b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec(),
        Vec::new(),
        [PROTOCOL_PREFIX, b"\x21\x11\xff\xff", &[0; 70_000]].concat(),
        header(0x11, 0x11, ADDRESSES),
        header(0x22, 0x11, ADDRESSES),
        header(0x21, 0x11, &ADDRESSES[..11]),
    ] {
        assert_eq!(read_header(&bytes).await.0, None);
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
