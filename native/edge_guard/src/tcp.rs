//! TCP routes: terminates TLS if configured, connects to the backend, and relays bytes.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::time::timeout;

use crate::address::BackendAddress;
use crate::backend_connect;
use crate::connection_workers::{ConnectionWorker, OpenConnection};
use crate::listener::{ConnectionHandler, prepare};
use crate::live_route::LiveRoute;
use crate::metrics::{ConnectionKind, ConnectionRefusal};
use crate::relay;

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
        match worker.shared.limits.admit(worker.shared.client(peer), Some(&self.live.connections)) {
            Ok(permit) => {
                let open = OpenConnection::new(worker, kind, Some(permit));
                let (live, task_worker) = (self.live.clone(), worker.clone());
                self.live.spawn(&worker.handle, async move {
                    let _open = open;
                    if let Err(refusal) = relay_connection(client, backend, &live, &task_worker).await {
                        task_worker.counters.refused.with_label(refusal).increment();
                    }
                });
            }
            Err(refusal) => worker.counters.refused.with_label(refusal).increment(),
        }
    }
}

async fn relay_connection(
    client: TcpStream,
    backend: SocketAddr,
    live: &LiveRoute,
    worker: &ConnectionWorker,
) -> Result<(), ConnectionRefusal> {
    let timeouts = worker.shared.timeouts();
    let Ok(mut client) = prepare(client) else { return Ok(()) };
    if live.is_tls {
        let acceptor = worker.shared.certificates.tcp();
        let Ok(Ok(mut client)) = timeout(timeouts.handshake, acceptor.accept(client)).await else {
            return Err(ConnectionRefusal::Handshake);
        };
        let mut backend = connect(backend, timeouts.connect).await?;
        if relay::relay_streams(&mut client, &mut backend, timeouts.stream_idle, &worker.counters).await.is_err() {
            reset(client.get_ref().0, &backend);
        }
        return Ok(());
    }
    let mut backend = connect(backend, timeouts.connect).await?;
    if relay::relay_sockets(&mut client, &mut backend, timeouts.stream_idle, &worker.counters).await.is_err() {
        reset(&client, &backend);
    }
    Ok(())
}

async fn connect(backend: SocketAddr, limit: Duration) -> Result<tokio::net::TcpStream, ConnectionRefusal> {
    backend_connect::connect(backend, limit).await.map_err(|_| ConnectionRefusal::Unreachable)
}

/// Resets both connections, so that an error does not look like an orderly end.
fn reset(client: &tokio::net::TcpStream, backend: &tokio::net::TcpStream) {
    for socket in [client, backend] {
        let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
    }
}
