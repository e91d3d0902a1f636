//! Worker threads for TCP. Each has its own runtime, so that a connection stays in one thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use hosting_client_addresses::Speech;
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::backend_pool::BackendPool;
use crate::config::{Config, ProxyHeader, Timeouts};
use crate::connection_limits::{ConnectionLimits, ConnectionPermit, Destination, client_scopes, scopes};
use crate::data_plane_contact::DataPlaneContact;
use crate::host_routes::HostRoutes;
use crate::live_route::LiveRoute;
use crate::metrics::{ConnectionKind, ConnectionRefusal, ThreadCounters};
use crate::player_sessions::PlayerSessionTable;
use crate::proxy_protocol::{self, NamedAddresses, StreamHeader};
use crate::request_body::RequestBody;
use crate::tls::Certificates;
use crate::traffic::TrafficTable;

#[derive(Debug)]
pub struct SharedState {
    pub config: Config,
    pub timeouts: RwLock<Timeouts>,
    pub limits: Arc<ConnectionLimits>,
    pub hosts: RwLock<HostRoutes>,
    pub certificates: Certificates,
    pub traffic: TrafficTable,
    pub players: Arc<PlayerSessionTable>,
    pub contact: Arc<DataPlaneContact>,
    /// Becomes true when the process drains or was replaced, so that keep-alive connections end.
    pub leave_signal: watch::Sender<bool>,
}

impl SharedState {
    #[must_use]
    pub fn timeouts(&self) -> Timeouts {
        *self.timeouts.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn is_trusted(&self, peer: SocketAddr) -> bool {
        hosting_client_addresses::contains(&self.config.proxies, peer.ip())
    }

    /// Reports whether a peer must begin with a PROXY header.
    #[must_use]
    pub fn requires_proxy_header(&self, peer: SocketAddr) -> bool {
        self.config.proxy_header == ProxyHeader::Required && self.is_trusted(peer)
    }

    /// Returns the address to which the limits per client apply.
    ///
    /// Returns `None` for a trusted proxy, because it forwards connections of many clients.
    #[must_use]
    pub fn client(&self, peer: SocketAddr) -> Option<IpAddr> {
        (!self.is_trusted(peer)).then(|| peer.ip())
    }
}

#[derive(Debug)]
pub struct ConnectionWorker {
    pub handle: Handle,
    pub counters: ThreadCounters,
    pub shared: Arc<SharedState>,
    pub pool: BackendPool<RequestBody>,
    load: AtomicUsize,
}

#[derive(Debug, Clone)]
pub struct ConnectionWorkers(Arc<[Arc<ConnectionWorker>]>);

impl ConnectionWorkers {
    pub fn start(shared: &Arc<SharedState>) -> io::Result<Self> {
        let mut all = Vec::new();
        for number in 0..shared.config.workers {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let worker = Arc::new(ConnectionWorker {
                handle: runtime.handle().clone(),
                counters: ThreadCounters::default(),
                shared: shared.clone(),
                pool: BackendPool::for_each_thread(shared.config.workers, shared.config.limits.connections),
                load: AtomicUsize::new(0),
            });
            let sweeper = worker.clone();
            std::thread::Builder::new().name(format!("stream-{number}")).spawn(move || {
                runtime.block_on(async move {
                    loop {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        sweeper.pool.sweep();
                    }
                })
            })?;
            all.push(worker);
        }
        Ok(Self(all.into()))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<ConnectionWorker>> {
        self.0.iter()
    }

    #[must_use]
    pub fn for_port(&self, port: u16) -> &Arc<ConnectionWorker> {
        &self.0[usize::from(port) % self.0.len()]
    }

    /// Returns the worker with the fewest connections. Prefers `own` on a tie.
    #[must_use]
    pub fn least_loaded<'a>(&'a self, own: &'a Arc<ConnectionWorker>) -> &'a Arc<ConnectionWorker> {
        let least = self.0.iter().min_by_key(|worker| worker.load.load(Relaxed)).unwrap_or(own);
        if least.load.load(Relaxed) < own.load.load(Relaxed) { least } else { own }
    }
}

#[derive(Debug)]
pub struct OpenConnection {
    worker: Arc<ConnectionWorker>,
    kind: ConnectionKind,
    permit: ConnectionPermit,
}

impl OpenConnection {
    /// Admits a connection and serves it in a task of its route. Counts a refusal, also one that `serve` returns.
    pub fn admit<F>(
        worker: &Arc<ConnectionWorker>,
        kind: ConnectionKind,
        client: Option<IpAddr>,
        destination: Destination,
        live: &Arc<LiveRoute>,
        serve: impl FnOnce(Arc<Self>) -> F,
    ) where
        F: Future<Output = Result<(), ConnectionRefusal>> + Send + 'static,
    {
        let permit = match worker.shared.limits.admit(scopes(client, destination)) {
            Ok(permit) => permit,
            Err(full) => return worker.counters.refused.with_label(ConnectionRefusal::from(full)).increment(),
        };
        worker.load.fetch_add(1, Relaxed);
        worker.counters.open.with_label(kind).increment();
        worker.counters.opened.with_label(kind).increment();
        let open = Arc::new(Self { worker: worker.clone(), kind, permit });
        let (serving, counting) = (serve(open.clone()), worker.clone());
        let task = live.spawn(&worker.handle, async move {
            if let Err(refusal) = serving.await {
                counting.counters.refused.with_label(refusal).increment();
            }
        });
        if let Some(task) = task {
            open.permit.on_replaced(move || task.abort());
        }
    }

    #[must_use]
    pub fn permit(&self) -> &ConnectionPermit {
        &self.permit
    }

    /// Reads the PROXY header of a trusted proxy, and counts the client that it names.
    pub async fn read_proxy_header(
        &self,
        client: &TcpStream,
        peer: SocketAddr,
    ) -> Result<Option<NamedAddresses>, ConnectionRefusal> {
        let shared = &self.worker.shared;
        if !shared.is_trusted(peer) {
            return Ok(None);
        }
        let header = timeout(shared.timeouts().head, proxy_protocol::read_stream_header(client)).await;
        let named = match header {
            Ok(Ok(StreamHeader::Named(named))) => named,
            Ok(Ok(StreamHeader::Absent)) if !shared.requires_proxy_header(peer) => return Ok(None),
            Ok(Ok(StreamHeader::Unnamed)) => return Ok(None),
            Ok(Ok(StreamHeader::Absent) | Err(_)) | Err(_) => return Err(ConnectionRefusal::Proxy),
        };
        if let Some(client) = shared.client(named.client) {
            self.permit.count_in(client_scopes(client))?;
        }
        Ok(Some(named))
    }

    /// Waits for the first byte of a client that speaks first.
    pub async fn wait_first_byte(&self, client: &TcpStream) -> Result<(), ConnectionRefusal> {
        let first_byte = self.worker.shared.timeouts().first_byte;
        // A closed connection is readable as well. The caller notices its end.
        timeout(first_byte, client.readable()).await.map_err(|_| ConnectionRefusal::FirstByte)?.ok();
        self.permit.record(Speech::Spoken);
        Ok(())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.worker.load.fetch_sub(1, Relaxed);
        self.worker.counters.open.with_label(self.kind).decrement();
    }
}

/// Count of an upgraded connection, beside the one of its HTTP connection.
#[derive(Debug)]
pub struct OpenTunnel(Arc<ConnectionWorker>);

impl OpenTunnel {
    #[must_use]
    pub fn new(worker: &Arc<ConnectionWorker>) -> Self {
        worker.load.fetch_add(1, Relaxed);
        worker.counters.open.with_label(ConnectionKind::WebSocket).increment();
        worker.counters.opened.with_label(ConnectionKind::WebSocket).increment();
        Self(worker.clone())
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.load.fetch_sub(1, Relaxed);
        self.0.counters.open.with_label(ConnectionKind::WebSocket).decrement();
    }
}
