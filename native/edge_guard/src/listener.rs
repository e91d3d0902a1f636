//! Public sockets: binding, and accepting connections.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol as Transport, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use crate::connection_limits::Scope;
use crate::connection_workers::{ConnectionWorker, ConnectionWorkers};
use crate::live_route::LiveRoute;
use crate::metrics::ConnectionRefusal;
use crate::udp;

const PAUSE: Duration = Duration::from_millis(50);

/// Number of connections that a listener accepts before other tasks of its thread run. A flood of connections would
/// otherwise delay the others by the length of the kernel's queue.
const ACCEPTS_PER_TURN: usize = 16;

/// Size of UDP receive buffers. The kernel doubles the size and counts a small datagram as 768 bytes.
///
/// So 4 MiB hold 10,900 datagrams, or 110 ms at 100,000 per second. A thread may wait that long for a busy core. Only
/// waiting datagrams use memory, and `net.ipv4.udp_mem` limits the memory of all sockets together.
const RECEIVE_BUFFER_BYTES: usize = 4 * 1024 * 1024;
const SEND_BUFFER_BYTES: usize = 1024 * 1024;

/// Binds a TCP listener. Fails with `AddrInUse` if another program listens on the port.
///
/// Remaining connections of an earlier listener do not prevent the bind.
pub fn bind_stream(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Transport::TCP))?;
    socket.set_reuse_address(true)?;
    allow_both_families(&socket, address)?;
    socket.bind(&SockAddr::from(address))?;
    socket.listen(4_096)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// Binds a UDP socket without address reuse, so that no other program can bind the same port.
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

/// Sets the buffer sizes of a UDP socket. Without privileges, the kernel reduces them to the system's limit.
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
    // SAFETY: the option is an int, and the descriptor is open.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const size).cast(), length) == 0 }
}

fn allow_both_families(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv6() { socket.set_only_v6(false) } else { Ok(()) }
}

#[derive(Debug)]
pub struct Listener {
    socket: Arc<TcpListener>,
    _open: oneshot::Sender<()>,
}

pub trait ConnectionHandler: Send + Sync + 'static {
    fn serve(&self, client: TcpStream, peer: SocketAddr, worker: &Arc<ConnectionWorker>);
}

impl Listener {
    #[must_use]
    pub fn open(
        socket: TcpListener,
        live: &Arc<LiveRoute>,
        workers: &ConnectionWorkers,
        is_game: bool,
        serve: impl ConnectionHandler,
    ) -> Self {
        let (open, closed) = oneshot::channel();
        let socket = Arc::new(socket);
        let port = socket.local_addr().map_or(0, |address| address.port());
        let own = workers.for_port(port).clone();
        let (runtime, workers, task_socket) = (own.handle.clone(), workers.clone(), socket.clone());
        live.spawn(&runtime, async move {
            tokio::select! {
                _ = closed => {}
                () = accept_connections(task_socket, &own, &workers, is_game, serve) => {}
            }
        });
        Self { socket, _open: open }
    }

    #[must_use]
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    #[must_use]
    pub fn socket(&self) -> Arc<TcpListener> {
        self.socket.clone()
    }
}

async fn accept_connections(
    socket: Arc<TcpListener>,
    own: &Arc<ConnectionWorker>,
    workers: &ConnectionWorkers,
    is_game: bool,
    serve: impl ConnectionHandler,
) {
    let socket = loop {
        // SAFETY: the listener is held here and keeps the descriptor open.
        match unsafe { AsyncFd::register(socket.clone()) } {
            Ok(socket) => break socket,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let mut accepted = 0;
    let scopes = if is_game { &[Scope::All, Scope::Games][..] } else { &[Scope::All] };
    let is_full = || scopes.iter().any(|scope| own.shared.limits.is_full(*scope));
    loop {
        if is_full() {
            own.counters.refused.with_label(ConnectionRefusal::All).increment();
            while is_full() {
                tokio::time::sleep(PAUSE).await;
            }
        }
        let Ok(mut ready) = socket.readable().await else { return };
        // The silent connections that the new one could have replaced may have spoken meanwhile.
        if is_full() {
            continue;
        }
        match ready.try_io(|socket| socket.get_ref().accept()) {
            // Host names share listeners that are not of a game. No node of a cluster has routes by host name.
            Ok(Ok(_)) if is_game && own.shared.contact.is_lost() => {
                own.counters.refused.with_label(ConnectionRefusal::NoDataPlane).increment();
            }
            Ok(Ok((client, peer))) => {
                serve.serve(client, peer, workers.least_loaded(own));
                accepted += 1;
                if accepted % ACCEPTS_PER_TURN == 0 {
                    tokio::task::yield_now().await;
                }
            }
            Ok(Err(error)) if is_client_error(&error) => {}
            Ok(Err(_)) => {
                // Out of descriptors or memory. New connections stay in the socket's queue.
                own.counters.accept_pauses.increment();
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

/// Sets `TCP_NODELAY` and keep-alive on a client's connection. Fails if the client has closed the connection.
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
        let system_max: usize = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap().trim().parse().unwrap();
        let buffer_bytes = SockRef::from(&port).recv_buffer_size().unwrap();
        assert!(buffer_bytes >= 2 * RECEIVE_BUFFER_BYTES.min(system_max), "{buffer_bytes} bytes");
    }
}
