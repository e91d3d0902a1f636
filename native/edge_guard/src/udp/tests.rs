//! Migrated sessions and their local addresses.

use std::net::IpAddr;

use super::*;

const NUMBER: u64 = 7;

fn serve(bind: &str, backend: SocketAddr, sessions: Vec<MigratedSession>) -> (UdpThreads, SocketAddr) {
    let bounds = SessionLimits {
        sessions: 9,
        sessions_per_route: 9,
        sessions_per_address: 9,
        sessions_per_second: 9,
        session_rate: RateLimit { packets_per_second: 9, bytes_per_second: 999 },
        port_rate: RateLimit { packets_per_second: 9, bytes_per_second: 999 },
        idle: Duration::from_secs(60),
    };
    let threads = UdpThreads::start(1, bounds).unwrap();
    let socket = Arc::new(UdpSocket::bind(bind).unwrap());
    socket.set_nonblocking(true).unwrap();
    let address = socket.local_addr().unwrap();
    threads.open(UdpPort { number: NUMBER, socket, backend: Some(backend), sends_proxy_header: false }, sessions);
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
    (MigratedSession { number: NUMBER, client, local, backend, rank: Rank::Established, socket }, address)
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
    assert_eq!(pause.iter().map(|session| session.local).collect::<Vec<_>>(), [local(2)]);
}

#[tokio::test]
async fn migrated_sessions_of_other_local_addresses_end() {
    let ((_process, backend), (player, client)) = (socket(), socket());
    let sessions = [local(1), local(2), None].map(|local| migrated_sessions(client, local, backend).0);
    let (threads, _) = serve("127.0.0.1:0", backend, sessions.into());
    let pause = threads.pause().await;
    assert_eq!(pause.iter().map(|session| session.local).collect::<Vec<_>>(), [None]);
    drop(player);
}
