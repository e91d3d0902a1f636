//! Sockets that wait for players: how they are bound, and how connections are taken from them.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol as Transport, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::live_route::LiveRoute;
use crate::metrics::ConnectionRefusal;
use crate::udp;
use crate::worker::{Worker, Workers};

/// How long nothing is accepted when descriptors ran out, or all connections are there.
const PAUSE: Duration = Duration::from_millis(50);

/// How much of a UDP port may wait for us, and for the network. The system doubles both, and counts a small datagram as
/// 768 bytes: 4 MiB are 10,900 of them, which is 110 ms of 100,000 a second. A thread that shares its core with game
/// servers may have to wait for so long now and then. Nothing is taken that does not wait, and all ports together have
/// what the system gives UDP (`net.ipv4.udp_mem`).
const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
const SEND_BUFFER_BYTES: usize = 1024 * 1024;

/// Binds a listener. A port that another program listens on is refused: the address may be used again only while old
/// connections of it linger.
///
/// # Errors
/// The system's; `AddrInUse` when another program has the port.
pub fn bind_stream(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Transport::TCP))?;
    socket.set_reuse_address(true)?;
    allow_both_families(&socket, address)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(4_096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Binds a UDP socket. Here nothing may be shared: two programs that both allow it would both have the port.
///
/// # Errors
/// The system's; `AddrInUse` when another program has the port.
pub fn bind_datagram(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Transport::UDP))?;
    allow_both_families(&socket, address)?;
    set_buffer_sizes(&socket);
    if udp::is_wildcard(address.ip()) {
        udp::request_destination_address(&socket);
    }
    socket.bind(&SockAddr::from(address))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// What arrives while its thread waits for a turn has to wait, too. Only the privileged may have more than the system's
/// bound; less is no fault.
fn set_buffer_sizes(socket: &Socket) {
    if !force_buffer_size(socket, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES) {
        let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
    }
    if !force_buffer_size(socket, libc::SO_SNDBUFFORCE, SEND_BUFFER_BYTES) {
        let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    }
}

fn force_buffer_size(socket: &Socket, option: libc::c_int, size: usize) -> bool {
    let size = size as libc::c_int;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, which lives through the call; the descriptor is open.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const size).cast(), length) == 0 }
}

fn allow_both_families(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() { socket.set_only_v6(false) } else { Ok(()) }
}

/// A listener whose connections are taken until it is dropped.
#[derive(Debug)]
pub struct Listener {
    socket: Arc<TcpListener>,
    _open: oneshot::Sender<()>,
}

/// What is done with a connection that was taken: runs on the worker that is given.
pub trait ConnectionHandler: Send + Sync + 'static {
    /// Takes over a connection.
    fn serve(&self, client: TcpStream, peer: SocketAddr, worker: &Arc<Worker>);
}

impl Listener {
    /// Takes connections of a socket on behalf of a route; ends with it.
    #[must_use]
    pub fn open(socket: TcpListener, live: &Arc<LiveRoute>, workers: &Workers, serve: impl ConnectionHandler) -> Self {
        let (open, closed) = oneshot::channel();
        let socket = Arc::new(socket);
        let port = socket.local_addr().map_or(0, |address| address.port());
        let own = workers.for_port(port).clone();
        let (on, workers, taken) = (own.handle.clone(), workers.clone(), socket.clone());
        live.spawn(&on, async move {
            tokio::select! {
                _ = closed => {}
                () = take_connections(taken, &own, &workers, serve) => {}
            }
        });
        Self { socket, _open: open }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Its socket, to give it to another process.
    #[must_use]
    pub fn socket(&self) -> Arc<TcpListener> {
        self.socket.clone()
    }
}

async fn take_connections(
    socket: Arc<TcpListener>,
    own: &Arc<Worker>,
    workers: &Workers,
    serve: impl ConnectionHandler,
) {
    let socket = loop {
        // SAFETY: the descriptor is the listener's own, and stays open as long as the listener that is held here.
        match unsafe { AsyncFd::register(socket.clone()) } {
            Ok(socket) => break socket,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    loop {
        if own.shared.limits.is_full() {
            own.counters.refused.of(ConnectionRefusal::All).one();
            while own.shared.limits.is_full() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let Ok(mut ready) = socket.readable().await else { return };
        match ready.try_io(|socket| socket.get_ref().accept()) {
            Ok(Ok((client, peer))) => serve.serve(client, peer, workers.least_loaded(own)),
            Ok(Err(error)) if is_client_error(&error) => {}
            Ok(Err(_)) => {
                // Out of descriptors or memory. Whoever waits keeps waiting in the socket's queue.
                own.counters.accept_pauses.one();
                tokio::time::sleep(PAUSE).await;
            }
            Err(_would_block) => {}
        }
    }
}

fn is_client_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// Makes a player's connection ready to be served: no delay of small writes, and a peer that is gone is found out.
///
/// # Errors
/// The connection is gone already.
pub fn prepare(client: TcpStream) -> io::Result<tokio::net::TcpStream> {
    client.set_nonblocking(true)?;
    client.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(15));
    SockRef::from(&client).set_tcp_keepalive(&keepalive)?;
    tokio::net::TcpStream::from_std(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn udp_socket_buffers_are_enlarged() {
        let port = bind_datagram(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let bound: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
        let room = SockRef::from(&port).recv_buffer_size().unwrap();
        // What the system tells is twice what it was asked for.
        assert!(room >= 2 * RECEIVE_BUFFER_BYTES.min(bound), "{room} bytes");
    }
}
