//! What an edge-guard is made of, and what it begins with: threads, listeners of hosts, the routes and sockets of
//! before.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;

use crate::admin::Admin;
use crate::config::{Config, Listen};
use crate::control::{Order, Status};
use crate::datagram::{Bounds, Datagrams};
use crate::folder::Lock;
use crate::handover::{self, Taken};
use crate::hosts::Hosts;
use crate::http::Requests;
use crate::limits::{Limits, fit_descriptors};
use crate::listener::{Door, bind_stream};
use crate::live::Live;
use crate::log;
use crate::metrics::Counters;
use crate::predecessor::Predecessor;
use crate::routes::{Disk, Set};
use crate::tls::Certificates;
use crate::worker::{Shared, Workers};

/// What a life begins with.
pub struct Begin {
    /// The folder is ours.
    pub lock: Lock,
    /// Sockets and routes.
    pub taken: Taken,
    /// Who had them before and still carries connections.
    pub predecessor: Option<Arc<Predecessor>>,
}

impl Begin {
    /// With the routes on disk.
    pub fn alone(lock: Lock, folder: &Path) -> Self {
        Self { lock, taken: Taken { set: load(folder), ..Taken::default() }, predecessor: None }
    }

    /// With everything of the process that has the folder.
    ///
    /// # Errors
    /// It does not give it.
    pub fn after_another(folder: &Path) -> std::io::Result<Self> {
        let stream = handover::ask(folder)?;
        let mut taken = handover::take(&stream)?;
        let lock = taken.lock.take().ok_or_else(|| std::io::Error::other("the lock did not come"))?;
        Ok(Self { lock: Lock::inherit(lock)?, taken, predecessor: Some(Predecessor::new(stream)?) })
    }
}

fn load(folder: &Path) -> Set {
    Disk::new(folder).load().unwrap_or_else(|error| {
        // Never seen unless somebody wrote into it. All routes come again when the data plane answers.
        log::say(&format!("routes: {error}; set aside as routes.damaged"));
        let _ = std::fs::rename(folder.join("routes"), folder.join("routes.damaged"));
        Set::default()
    })
}

/// A name that no other process has.
pub fn instance() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_or_else(
        |_| format!("{}-{:?}", std::process::id(), std::time::SystemTime::now()),
        |uuid| uuid.trim().to_owned(),
    )
}

/// Signals become orders.
///
/// # Errors
/// The system's.
pub fn hear_signals(orders: &UnboundedSender<Order>) -> std::io::Result<()> {
    let kinds: [(SignalKind, fn() -> Order); 3] = [
        (SignalKind::terminate(), || Order::Drain),
        (SignalKind::interrupt(), || Order::Drain),
        (SignalKind::hangup(), || Order::ReadAgain),
    ];
    for (kind, order) in kinds {
        let mut signals = signal(kind)?;
        let orders = orders.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                let _ = orders.send(order());
            }
        });
    }
    Ok(())
}

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
    ///
    /// # Errors
    /// Where it cannot listen, and why: they are asked for in the settings, so there is no going on without them.
    pub fn host_doors(&self, taken: &mut [Option<TcpListener>; 2]) -> Result<[Option<Door>; 2], String> {
        let config = &self.shared.config;
        let mut open = |index: usize, listen: &Option<Listen>, is_tls| -> Result<Option<Door>, String> {
            let Some(listen) = listen else { return Ok(None) };
            let socket = match taken[index].take().filter(|socket| is_meant(listen, socket)) {
                Some(socket) => socket,
                None => listen_on(listen).map_err(|error| format!("cannot listen on {listen}: {error}"))?,
            };
            let live = Live::new(is_tls, None, false);
            Ok(Some(Door::open(socket, &live, &self.workers, Requests { live: live.clone(), by_host: true })))
        };
        Ok([open(0, &config.http, false)?, open(1, &config.https, true)?])
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

fn listen_on(listen: &Listen) -> std::io::Result<TcpListener> {
    match listen {
        Listen::Address(address) => bind_stream(*address),
        Listen::Inherited(number) => {
            // SAFETY: whoever started us says that this descriptor is ours; nothing else here uses its number, since
            // descriptors are taken from the lowest free number and this one is taken.
            let socket = TcpListener::from(unsafe { OwnedFd::from_raw_fd(*number) });
            socket.set_nonblocking(true)?;
            socket.local_addr()?;
            Ok(socket)
        }
    }
}

/// Whether a listener of before is the one that the settings ask for.
fn is_meant(listen: &Listen, socket: &TcpListener) -> bool {
    match (listen, socket.local_addr()) {
        (Listen::Inherited(_), Ok(_)) => true,
        (Listen::Address(wanted), Ok(is)) => {
            wanted.ip() == is.ip() && (wanted.port() == 0 || wanted.port() == is.port())
        }
        (_, Err(_)) => false,
    }
}
