//! Threads and state that live as long as the process.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::admin_server::AdminServer;
use crate::config::Config;
use crate::connection_limits::{ConnectionLimits, Maxima, fit_descriptors};
use crate::connection_workers::{ConnectionWorkers, SharedState};
use crate::data_plane_contact::DataPlaneContact;
use crate::host_routes::HostRoutes;
use crate::http::HttpHandler;
use crate::listener::Listener;
use crate::live_route::LiveRoute;
use crate::metrics::ThreadCounters;
use crate::route_controller::{AdminCommand, EdgeStatus};
use crate::tls::Certificates;
use crate::traffic::TrafficTable;
use crate::udp::{SessionLimits, UdpThreads};

pub struct ProcessContext {
    pub path: PathBuf,
    pub shared: Arc<SharedState>,
    pub workers: ConnectionWorkers,
    pub datagrams: Arc<UdpThreads>,
    pub counters: Arc<ThreadCounters>,
    pub status: Arc<Mutex<EdgeStatus>>,
}

impl ProcessContext {
    pub fn start(config: Config, path: PathBuf, certificates: Certificates) -> std::io::Result<Self> {
        let bounds = SessionLimits::from(&config);
        let shared = Arc::new(SharedState {
            limits: Arc::new(ConnectionLimits::new(Maxima::new(&config.limits, !config.backends.is_empty()))),
            hosts: RwLock::new(HostRoutes::new(&config.backends)),
            certificates,
            traffic: TrafficTable::default(),
            players: Arc::default(),
            contact: Arc::new(DataPlaneContact::new(config.silence)),
            leave_signal: watch::Sender::new(false),
            timeouts: RwLock::new(config.timeouts),
            config,
        });
        let workers = ConnectionWorkers::start(&shared)?;
        let datagrams = Arc::new(UdpThreads::start(
            shared.config.workers,
            bounds,
            shared.config.header_senders(),
            &shared.contact,
        )?);
        Ok(Self { path, shared, workers, datagrams, counters: Arc::default(), status: Arc::default() })
    }

    /// Reloads certificates, limits and timeouts. Open connections continue. After an error, the old settings stay.
    pub fn reload(&self) -> Result<(), Vec<String>> {
        let mut config = Config::read(&self.path)?;
        self.shared.certificates.reload(&config)?;
        let (limits, descriptors) = fit_descriptors(&config.limits);
        config.limits = limits;
        self.shared.limits.change(|maxima| maxima.change(&config.limits));
        *self.shared.timeouts.write().unwrap_or_else(PoisonError::into_inner) = config.timeouts;
        self.datagrams.set_limits(SessionLimits::from(&config));
        self.publish_capacity(descriptors, config.limits.datagram_sessions);
        Ok(())
    }

    pub fn publish_capacity(&self, descriptors: u64, datagram_sessions: usize) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        (status.descriptors, status.datagram_sessions) = (descriptors, datagram_sessions);
    }

    pub fn open_host_listeners(&self, sockets: [Option<TcpListener>; 2]) -> [Option<Listener>; 2] {
        let open = |socket: TcpListener, is_tls| {
            let live = LiveRoute::new(is_tls, None);
            Listener::open(socket, &live, &self.workers, false, HttpHandler { live: live.clone(), by_host: true })
        };
        let [http, https] = sockets;
        [http.map(|socket| open(socket, false)), https.map(|socket| open(socket, true))]
    }

    pub fn admin(&self, commands: UnboundedSender<AdminCommand>, listeners: &[Option<Listener>; 2]) -> AdminServer {
        let at = |listener: &Option<Listener>| -> Option<SocketAddr> { listener.as_ref().and_then(Listener::address) };
        AdminServer {
            status: self.status.clone(),
            commands,
            workers: self.workers.clone(),
            datagrams: self.datagrams.clone(),
            counters: self.counters.clone(),
            listeners: [("http", at(&listeners[0])), ("https", at(&listeners[1]))],
        }
    }

    /// Returns the number of open connections and UDP sessions.
    pub fn active_count(&self) -> u64 {
        use crate::metrics::ConnectionKind::{Http, Https, Tcp, TcpTls};
        let streams = self
            .workers
            .iter()
            .flat_map(|worker| [Tcp, TcpTls, Http, Https].map(|kind| worker.counters.open.with_label(kind).value()));
        let sessions = self.datagrams.counters().map(|counters| counters.sessions.value());
        streams.chain(sessions).fold(0, u64::wrapping_add)
    }
}
