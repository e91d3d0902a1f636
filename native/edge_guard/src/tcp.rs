//! TCP routes: terminates TLS if configured, connects to the backend, and relays bytes.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::address::BackendAddress;
use crate::backend_connect;
use crate::client_sessions::ClientSession;
use crate::connection_limits::Destination;
use crate::connection_workers::{ConnectionWorker, OpenConnection};
use crate::listener::{ConnectionHandler, prepare};
use crate::live_route::LiveRoute;
use crate::metrics::{ConnectionKind, ConnectionRefusal};
use crate::proxy_protocol::{self, NamedAddresses};
use crate::relay::{self, RelayCounters, RelayLimits};

/// Time that a trusted proxy has to begin an optional PROXY header. Afterwards the stream is taken for one without a
/// header, in which the server speaks first.
const PROXY_HEADER_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub struct TcpHandler {
    pub live: Arc<LiveRoute>,
}

impl ConnectionHandler for TcpHandler {
    fn serve(&self, client: TcpStream, peer: SocketAddr, worker: &Arc<ConnectionWorker>) {
        let kind = if self.live.is_tls { ConnectionKind::TcpTls } else { ConnectionKind::Tcp };
        // The player sees the closed connection before anything is set up.
        let Some(BackendAddress::Port(backend)) = self.live.backend() else {
            return worker.counters.refused.with_label(ConnectionRefusal::NoBackend).increment();
        };
        let destination = Destination::Game(self.live.number);
        OpenConnection::admit(worker, kind, worker.shared.client(peer), destination, &self.live, |open| {
            let (live, worker) = (self.live.clone(), worker.clone());
            async move { relay_connection((client, peer), backend, &live, &worker, &open).await }
        });
    }
}

async fn relay_connection(
    (client, peer): (TcpStream, SocketAddr),
    backend: SocketAddr,
    live: &LiveRoute,
    worker: &ConnectionWorker,
    open: &OpenConnection,
) -> Result<(), ConnectionRefusal> {
    let timeouts = worker.shared.timeouts();
    let Ok(mut client) = prepare(client) else { return Ok(()) };
    let may_lack_header = !live.is_tls && worker.shared.is_trusted(peer) && !worker.shared.requires_proxy_header(peer);
    let is_proxy_silent = may_lack_header && timeout(PROXY_HEADER_WAIT, client.readable()).await.is_err();
    let named = if is_proxy_silent { None } else { open.read_proxy_header(&client, peer).await? };
    let server = client.local_addr().map_err(|_| ConnectionRefusal::Unreachable)?;
    let counters = RelayCounters { thread: &worker.counters, owner: &live.traffic };
    let player = named.map_or(peer, |named| named.client).ip();
    let _session = match &live.players {
        Some(players) => players.admit(player).await.ok_or(ConnectionRefusal::NoSlot)?,
        None => None,
    };
    let addresses = live.sends_proxy_header.then(|| named.unwrap_or(NamedAddresses { client: peer, server }));
    if live.is_tls {
        open.wait_first_byte(&client).await?;
        let acceptor = worker.shared.certificates.tcp();
        let Ok(Ok(mut client)) = timeout(timeouts.handshake, acceptor.accept(client)).await else {
            return Err(ConnectionRefusal::Handshake);
        };
        let mut backend = connect(backend, addresses, timeouts.connect).await?;
        let _counted = ClientSession::open(&live.traffic.sessions, player);
        let limits = RelayLimits::idle(timeouts.stream_idle);
        if relay::relay_streams(&mut client, &mut backend, limits, counters).await.is_err() {
            reset(client.get_ref().0, &backend);
        }
        return Ok(());
    }
    let mut backend = connect(backend, addresses, timeouts.connect).await?;
    let _counted = ClientSession::open(&live.traffic.sessions, player);
    let limits = RelayLimits { idle: timeouts.stream_idle, first: Some((timeouts.first_byte, open.permit())) };
    if let Err(error) = relay::relay_sockets(&mut client, &mut backend, limits, counters).await {
        reset(&client, &backend);
        if error.kind() == std::io::ErrorKind::TimedOut && open.permit().is_silent() {
            return Err(ConnectionRefusal::FirstByte);
        }
    }
    Ok(())
}

/// Connects to the game server, and sends the PROXY header if `addresses` has the client and the public address.
async fn connect(
    backend: SocketAddr,
    addresses: Option<NamedAddresses>,
    limit: Duration,
) -> Result<tokio::net::TcpStream, ConnectionRefusal> {
    let mut stream = backend_connect::connect(backend, limit).await.map_err(|_| ConnectionRefusal::Unreachable)?;
    if let Some(NamedAddresses { client, server }) = addresses {
        let header = proxy_protocol::encode_header(client, server, proxy_protocol::Protocol::Stream);
        // The header fits into the empty send buffer, so this does not wait for the game server.
        stream.write_all(&header).await.map_err(|_| ConnectionRefusal::Unreachable)?;
    }
    Ok(stream)
}

/// Resets both connections, so that an error does not look like an orderly end.
fn reset(client: &tokio::net::TcpStream, backend: &tokio::net::TcpStream) {
    for socket in [client, backend] {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
}
