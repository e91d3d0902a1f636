//! Worker threads for TCP. Each has its own runtime, so that a connection stays in one thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::backend_pool::BackendPool;
use crate::config::{Config, Timeouts};
use crate::connection_limits::{ConnectionLimits, ConnectionPermit};
use crate::host_routes::HostRoutes;
use crate::metrics::{ConnectionKind, ThreadCounters};
use crate::request_body::RequestBody;
use crate::tls::Certificates;

#[derive(Debug)]
pub struct SharedState {
    pub config: Config,
    pub timeouts: RwLock<Timeouts>,
    pub limits: Arc<ConnectionLimits>,
    pub hosts: RwLock<HostRoutes>,
    pub certificates: Certificates,
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
        self.config.proxies.iter().any(|network| network.contains(peer.ip()))
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
    _permit: Option<ConnectionPermit>,
}

impl OpenConnection {
    #[must_use]
    pub fn new(worker: &Arc<ConnectionWorker>, kind: ConnectionKind, permit: Option<ConnectionPermit>) -> Self {
        worker.load.fetch_add(1, Relaxed);
        worker.counters.open.with_label(kind).increment();
        worker.counters.opened.with_label(kind).increment();
        Self { worker: worker.clone(), kind, _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.worker.load.fetch_sub(1, Relaxed);
        self.worker.counters.open.with_label(self.kind).decrement();
    }
}
