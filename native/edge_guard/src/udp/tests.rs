//! Local addresses of sessions, on both sides of the proxy.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use super::datagram_rate::RateLimit;
use super::*;
use crate::metrics::DatagramDrop;
use crate::proxy_protocol::NamedAddresses;

const NUMBER: u64 = 7;
const SESSIONS_MAX: usize = 99;

fn serve(bind: &str, backend: SocketAddr, sessions: Vec<MigratedSession>) -> (UdpThreads, SocketAddr) {
    serve_behind(&[], bind, backend, sessions)
}

fn serve_behind(
    proxies: &[IpNet],
    bind: &str,
    backend: SocketAddr,
    sessions: Vec<MigratedSession>,
) -> (UdpThreads, SocketAddr) {
    let bounds = SessionLimits {
        sessions: SESSIONS_MAX,
        sessions_per_route: SESSIONS_MAX,
        sessions_per_address: SESSIONS_MAX,
        sessions_per_second: SESSIONS_MAX,
        session_rate: RateLimit { packets_per_second: 99, bytes_per_second: 9_999 },
        port_rate: RateLimit { packets_per_second: 999, bytes_per_second: 99_999 },
        idle: Duration::from_secs(60),
    };
    let threads = UdpThreads::start(1, bounds, proxies, &Arc::default()).unwrap();
    let socket = Arc::new(UdpSocket::bind(bind).unwrap());
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    let port = UdpPort {
        number: NUMBER,
        socket,
        backend: Some(backend),
        sends_proxy_header: false,
        traffic: Arc::default(),
        players: None,
        counts_sessions: false,
    };
    threads.open(port, sessions);
    (threads, address)
}

fn socket() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let address = socket.local_addr().unwrap();
    (socket, address)
}

fn local(last: u8) -> Option<LocalAddress> {
    Some(LocalAddress { address: IpAddr::from([127, 0, 0, last]), interface: 0 })
}

fn migrated_sessions(
    client: SocketAddr,
    local: Option<LocalAddress>,
    backend: SocketAddr,
) -> (MigratedSession, SocketAddr) {
    let (session, address) = socket();
    session.connect(backend).unwrap();
    session.set_nonblocking(true).unwrap();
    let socket = Arc::new(session.into());
    let player = Player { sender: client, local, named: None };
    (MigratedSession { number: NUMBER, player, backend, rank: Rank::Established, socket }, address)
}

#[tokio::test]
async fn migrated_session_without_local_address_continues() {
    let ((process, backend), (player, client)) = (socket(), socket());
    let (session, seen_as) = migrated_sessions(client, None, backend);
    let (threads, public) = serve("0.0.0.0:0", backend, vec![session]);
    let to = SocketAddr::from(([127, 0, 0, 2], public.port()));
    process.send_to(b"as before", seen_as).unwrap();
    assert_eq!(player.recv_from(&mut [0; 16]).unwrap(), (9, SocketAddr::from(([127, 0, 0, 1], public.port()))));
    player.send_to(b"in", to).unwrap();
    assert_eq!(process.recv_from(&mut [0; 16]).unwrap(), (2, seen_as), "a session was begun anew");
    process.send_to(b"out", seen_as).unwrap();
    assert_eq!(player.recv_from(&mut [0; 16]).unwrap(), (3, to));
    let pause = threads.pause().await;
    assert_eq!(pause.iter().map(|session| session.player.local).collect::<Vec<_>>(), [local(2)]);
}

#[tokio::test]
async fn migrated_sessions_of_other_local_addresses_end() {
    let ((_process, backend), (player, client)) = (socket(), socket());
    let sessions = [local(1), local(2), None].map(|local| migrated_sessions(client, local, backend).0);
    let (threads, _) = serve("127.0.0.1:0", backend, sessions.into());
    let pause = threads.pause().await;
    assert_eq!(pause.iter().map(|session| session.player.local).collect::<Vec<_>>(), [None]);
    drop(player);
}

#[tokio::test]
async fn migrated_sessions_continue_if_headers_are_read_as_before() {
    let (_process, backend) = socket();
    let named =
        NamedAddresses { client: "198.51.100.7:5000".parse().unwrap(), server: "203.0.113.1:443".parse().unwrap() };
    let required = "127.0.0.0/8".parse::<IpNet>().unwrap();
    for (proxies, is_named) in [(&[][..], false), (&[required], true)] {
        let sessions = [(1, Some(Box::new(named))), (2, None)].map(|(port, named)| {
            let (session, _) = migrated_sessions(SocketAddr::from(([127, 0, 0, 1], port)), None, backend);
            MigratedSession { player: Player { named, ..session.player }, ..session }
        });
        let (threads, _) = serve_behind(proxies, "127.0.0.1:0", backend, sessions.into());
        let migrated: Vec<_> = threads.pause().await.iter().map(|session| session.player.named.is_some()).collect();
        assert_eq!(migrated, [is_named]);
    }
}

/// Runs the test with this name again in a network namespace of its own. Returns false in the first process.
fn is_in_network_namespace(test: &str) -> bool {
    const MARK: &str = "HOSTING_TEST_NETWORK_NAMESPACE";
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let mut run = std::process::Command::new("unshare");
    run.args(["-rn", "--"]).arg(program).args(["--exact", &format!("{module}::{test}")]).env(MARK, "1");
    let output = run.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains(" 1 passed"), "{text}");
    false
}

fn start_loopback() {
    // SAFETY: plain data, for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request outlives the call.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn sessions_outnumber_the_ephemeral_ports_of_one_address() {
    if !is_in_network_namespace("sessions_outnumber_the_ephemeral_ports_of_one_address") {
        return;
    }
    start_loopback();
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40007").unwrap();
    let process = UdpSocket::bind("127.0.0.1:30000").unwrap();
    process.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (threads, public) = serve("127.0.0.1:31000", process.local_addr().unwrap(), vec![]);
    let players: Vec<UdpSocket> =
        (0..65).map(|number| UdpSocket::bind(("127.0.0.1", 20_000 + number)).unwrap()).collect();
    let mut sessions = std::collections::HashSet::new();
    for player in &players[..64] {
        player.send_to(b"in", public).unwrap();
        let (_, session) = process.recv_from(&mut [0; 8]).unwrap();
        assert!(sessions.insert(session), "{session} is in use twice");
        process.send_to(b"out", session).unwrap();
        player.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!(player.recv_from(&mut [0; 8]).unwrap(), (3, public));
    }
    assert_eq!(sessions.iter().filter(|session| session.ip() == IpAddr::from([127, 0, 0, 1])).count(), 8);
    players[64].send_to(b"in", public).unwrap();
    let dropped = || threads.counters().map(|of| of.dropped.with_label(DatagramDrop::Ports).value()).sum::<u64>();
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while dropped() == 0 {
        assert!(std::time::Instant::now() < end, "the refusal is not counted");
        std::thread::yield_now();
    }
    assert_eq!(dropped(), 1);
}
