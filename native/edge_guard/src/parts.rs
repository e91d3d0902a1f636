//! What an edge-guard is made of: threads, and what is known to all of them.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::admin::Admin;
use crate::config::Config;
use crate::control::{Order, Status};
use crate::datagram::{Bounds, Datagrams};
use crate::hosts::Hosts;
use crate::http::Requests;
use crate::limits::{Limits, fit_descriptors};
use crate::listener::Door;
use crate::live::Live;
use crate::metrics::Counters;
use crate::tls::Certificates;
use crate::worker::{Shared, Workers};

/// What lives as long as the process.
pub struct Parts {
    /// The settings file.
    pub path: PathBuf,
    /// What every connection may need to know.
    pub shared: Arc<Shared>,
    /// Threads for streams.
    pub workers: Workers,
    /// Threads for datagrams.
    pub datagrams: Arc<Datagrams>,
    /// What the control thread counts.
    pub counters: Arc<Counters>,
    /// How things stand.
    pub status: Arc<Mutex<Status>>,
}

impl Parts {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system's.
    pub fn start(config: Config, path: PathBuf, certificates: Certificates) -> std::io::Result<Self> {
        let bounds = Bounds::from(&config);
        let shared = Arc::new(Shared {
            limits: Arc::new(Limits::new(&config.limits)),
            hosts: RwLock::new(Hosts::new(&config.backends)),
            certificates,
            leaving: watch::Sender::new(false),
            times: RwLock::new(config.timeouts),
            config,
        });
        let workers = Workers::start(&shared)?;
        let datagrams = Arc::new(Datagrams::start(shared.config.workers, bounds)?);
        Ok(Self { path, shared, workers, datagrams, counters: Arc::default(), status: Arc::default() })
    }

    /// Other certificates, limits and times from now on; who is in stays in. Nothing changes when anything is wrong.
    ///
    /// # Errors
    /// Every problem.
    pub fn read_again(&self) -> Result<(), Vec<String>> {
        let mut config = Config::read(&self.path)?;
        self.shared.certificates.read_again(&config)?;
        let (limits, descriptors) = fit_descriptors(&config.limits);
        config.limits = limits;
        self.shared.limits.change(&config.limits);
        *self.shared.times.write().unwrap_or_else(PoisonError::into_inner) = config.timeouts;
        self.datagrams.bound(Bounds::from(&config));
        self.show_room(descriptors, config.limits.datagram_sessions);
        Ok(())
    }

    /// Writes down how much there may be.
    pub fn show_room(&self, descriptors: u64, datagram_sessions: usize) {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        (status.descriptors, status.datagram_sessions) = (descriptors, datagram_sessions);
    }

    /// The listeners for everybody who is reached by host.
    pub fn host_doors(&self, sockets: [Option<TcpListener>; 2]) -> [Option<Door>; 2] {
        let open = |socket: TcpListener, is_tls| {
            let live = Live::new(is_tls, None, false);
            Door::open(socket, &live, &self.workers, Requests { live: live.clone(), by_host: true })
        };
        let [http, https] = sockets;
        [http.map(|socket| open(socket, false)), https.map(|socket| open(socket, true))]
    }

    /// The administrators' door.
    pub fn admin(&self, orders: UnboundedSender<Order>, doors: &[Option<Door>; 2]) -> Admin {
        let at = |door: &Option<Door>| -> Option<SocketAddr> { door.as_ref().and_then(Door::address) };
        Admin {
            status: self.status.clone(),
            orders,
            workers: self.workers.clone(),
            datagrams: self.datagrams.clone(),
            counters: self.counters.clone(),
            listeners: [("http", at(&doors[0])), ("https", at(&doors[1]))],
        }
    }

    /// How much goes on: connections of players and UDP sessions.
    pub fn busy(&self) -> u64 {
        use crate::metrics::Kind::{Http, Https, Tcp, TcpTls};
        let streams = self
            .workers
            .iter()
            .flat_map(|worker| [Tcp, TcpTls, Http, Https].map(|kind| worker.counters.open.of(kind).now()));
        let sessions = self.datagrams.counters().map(|counters| counters.sessions.now());
        streams.chain(sessions).fold(0, u64::wrapping_add)
    }
}
