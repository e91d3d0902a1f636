//! Threads and listening sockets of the front.
//!
//! All threads accept connections from the same listening sockets. With `SO_REUSEPORT` each thread would have a queue of
//! connections, which would wait while the thread is busy and others are idle. A restart with fewer threads would reset the
//! connections of a queue without a thread.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::os::unix::net::UnixListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hosting_journal::DurableSignal;
use hosting_matchmaker::Matchmaker;
use hosting_scheduling::raise_priority;
use hosting_shard::Shard;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;

use crate::certificates::server_certificate::{ServerCertificate, TlsAcceptors};
use crate::connections::client_address::ClientAddresses;
use crate::connections::connection::{self, ACCEPT_PAUSE};
use crate::connections::timeouts::Timeouts;
use crate::grpc::grpc_context::GrpcOptions;
use crate::grpc::grpc_server;
use crate::grpc::health::Health;
use crate::limits::body_budget::free_large_bodies_at_once;
use crate::limits::connection_budget::ConnectionBudget;
use crate::limits::permits::{GrpcPermits, HttpPermits};
use crate::long_polls::watches::Changes;
use crate::measurements::measurer::{Measurements, Measurer};
use crate::measurements::record_allowance::RecordAllowance;
use crate::passing::http_plane::HttpPlane;
use crate::passing::passing_options::{PassingOptions, RequestLimits};
use crate::plain_requests::plain_request::REQUEST_BYTES_MAX;
use crate::requests::ray_id::RayIds;
use crate::requests::routes::Plane;
use crate::responses::decider::Decider;
use crate::responses::durable_waiters::DurableWaiters;
use crate::thread_context::ThreadContext;

/// Pages of the lobby list that a thread reads at a time.
const PAGES_MAX: usize = 8;

pub struct FrontOptions {
    pub threads: NonZero<usize>,
    pub listener: TcpListener,
    /// Socket of edge-guard.
    pub edge_listener: Option<UnixListener>,
    pub budget: Arc<ConnectionBudget>,
    pub matchmaker: Arc<Matchmaker>,
    pub duration_bounds: Vec<Duration>,
    /// Records of failed and slow requests that each namespace has in a second, and as many of others.
    pub records_per_second: u32,
    pub addresses: ClientAddresses,
    pub timeouts: Timeouts,
    pub passing: PassingOptions,
    pub grpc: Option<GrpcOptions>,
    /// With a certificate, the listeners of HTTP and gRPC take TLS only.
    pub certificate: Option<Arc<ServerCertificate>>,
}

/// A running front.
pub struct Front {
    shared: Arc<Shared>,
    changes: Vec<UnboundedSender<(Plane, Changes)>>,
    stop: watch::Sender<Option<Duration>>,
    /// None: the front does not serve gRPC.
    health: Option<Arc<Health>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// State that the threads and the owner of the front share.
struct Shared {
    matchmaker: Arc<Matchmaker>,
    budget: Arc<ConnectionBudget>,
    addresses: Arc<ClientAddresses>,
    timeouts: Timeouts,
    options: Arc<PassingOptions>,
    permits: Arc<HttpPermits>,
    grpc_permits: Arc<GrpcPermits>,
    tls: Option<TlsAcceptors>,
    /// One entry for each thread.
    measurers: Vec<Measurers>,
}

struct Measurers {
    http: Arc<Measurer>,
    grpc: Arc<Measurer>,
}

impl Front {
    /// Starts to serve. Fails if the shard has no journal, or without a free descriptor or thread.
    pub fn start(options: FrontOptions) -> io::Result<Front> {
        free_large_bodies_at_once();
        let no_journal = || io::Error::new(io::ErrorKind::InvalidInput, "the front needs a journal");
        let shard = options.matchmaker.shard.clone();
        let journal = shard.journal().ok_or_else(no_journal)?;
        let FrontOptions { threads, listener, edge_listener, passing, grpc, .. } = options;
        let allowance = new_allowance(options.records_per_second, &shard);
        let new_measurer = || {
            Arc::new(Measurer::new(passing.routes.slugs().len(), options.duration_bounds.clone(), allowance.clone()))
        };
        let of_thread = |_| Measurers { http: new_measurer(), grpc: new_measurer() };
        let measurers = (0..threads.get()).map(of_thread).collect();
        let shared = Arc::new(Shared {
            matchmaker: options.matchmaker,
            budget: options.budget,
            addresses: Arc::new(options.addresses),
            timeouts: options.timeouts,
            permits: Arc::new(HttpPermits::new(passing.requests_max)),
            grpc_permits: Arc::new(GrpcPermits::new(passing.requests_max)),
            options: Arc::new(passing),
            tls: options.certificate.as_ref().map(TlsAcceptors::new).transpose().map_err(io::Error::other)?,
            measurers,
        });
        let (stop, stopped) = watch::channel(None);
        let health = grpc.as_ref().map(|grpc| grpc.health.clone());
        let mut front = Front { shared, changes: Vec::new(), stop, health, threads: Mutex::default() };
        listener.set_nonblocking(true)?;
        if let Some(listener) = &edge_listener {
            listener.set_nonblocking(true)?;
        }
        for number in 0..threads.get() {
            let (changes, changed) = unbounded_channel();
            let sockets = Sockets {
                listener: listener.try_clone()?,
                edge_listener: edge_listener.as_ref().map(UnixListener::try_clone).transpose()?,
                signal: journal.subscribe()?,
                grpc: grpc.as_ref().map(GrpcOptions::try_clone).transpose()?,
            };
            front.changes.push(changes);
            front.threads.get_mut().push(start_thread(
                number,
                front.shared.clone(),
                sockets,
                changed,
                stopped.clone(),
            )?);
        }
        Ok(front)
    }

    /// Wakes the parked requests that wait for these changes.
    pub fn take_changes(&self, plane: Plane, changes: Changes) {
        for thread in &self.changes {
            let _ = thread.send((plane, changes.clone()));
        }
    }

    /// Sets the status of all services in the health service of gRPC.
    pub fn set_serving(&self, is_serving: bool) {
        if let Some(health) = &self.health {
            health.set_serving(is_serving);
        }
    }

    /// Returns what happened over gRPC since the last call.
    pub fn take_grpc_measurements(&self) -> Measurements {
        self.take_all(|measurers| &measurers.grpc)
    }

    /// Returns the names of operations and codes, and what happened over HTTP since the last call.
    pub fn take_measurements(&self) -> (&PassingOptions, Measurements) {
        (&self.shared.options, self.take_all(|measurers| &measurers.http))
    }

    fn take_all(&self, measurer: impl Fn(&Measurers) -> &Measurer) -> Measurements {
        let taken = self.shared.measurers.iter().map(|measurers| measurer(measurers).take());
        let sum = |mut sum: Measurements, other| {
            sum.add(other);
            sum
        };
        taken.reduce(sum).unwrap_or_default()
    }

    /// Closes the listener, and serves the open connections on. Each gets one more answer, with `connection: close`. A
    /// thread ends without connections, after [`Timeouts::idle_grace`] if all are idle, or after `grace`. A second call only changes
    /// the time of the first.
    ///
    /// Connections that the front has not accepted stay in the backlog if another process has the listener too.
    pub fn stop(&self, grace: Duration) {
        if let Some(health) = &self.health {
            health.end();
        }
        let _ = self.stop.send(Some(grace));
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl Shared {
    fn context(&self, measurer: &Arc<Measurer>, signal: DurableSignal) -> ThreadContext {
        let RequestLimits { headers_bytes_max, body_bytes_max, .. } = self.options.limits;
        ThreadContext {
            matchmaker: self.matchmaker.clone(),
            addresses: self.addresses.clone(),
            timeouts: self.timeouts,
            tls: self.tls.clone(),
            options: self.options.clone(),
            permits: self.permits.clone(),
            planes: HttpPlane::of_both(&self.options, &self.permits, self.measurers.len()),
            request_bytes_max: headers_bytes_max.min(body_bytes_max).min(REQUEST_BYTES_MAX),
            measurer: measurer.clone(),
            decider: Decider {
                matchmaker: self.matchmaker.clone(),
                options: self.options.clone(),
                measurer: measurer.clone(),
                long_request: Arc::new(Semaphore::new(1)),
            },
            ray_ids: RayIds::new(),
            waiters: DurableWaiters::new(signal, self.matchmaker.shard.durable()),
            pages: Semaphore::new(PAGES_MAX),
            shutdown: Rc::default(),
        }
    }
}

/// Returns the allowance of records that all threads share.
fn new_allowance(per_second: u32, shard: &Arc<Shard>) -> Arc<RecordAllowance> {
    let of_lobby = shard.clone();
    Arc::new(RecordAllowance::new(per_second, move |lobby| of_lobby.engine().namespace_of_lobby(lobby)))
}

fn start_thread(
    number: usize,
    shared: Arc<Shared>,
    sockets: Sockets,
    changed: UnboundedReceiver<(Plane, Changes)>,
    stopped: watch::Receiver<Option<Duration>>,
) -> io::Result<JoinHandle<()>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let run = move || {
        // Without the privilege, the thread has a short time slice only.
        let _ = raise_priority(hosting_scheduling::NICE);
        LocalSet::new().block_on(&runtime, serve(shared, number, sockets, changed, stopped));
    };
    let run = || {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            eprintln!("front: a thread panicked; ending the process so that a new one serves");
            std::process::abort();
        }
    };
    Builder::new().name(format!("front-{number}")).spawn(run)
}

struct Sockets {
    listener: TcpListener,
    edge_listener: Option<UnixListener>,
    signal: DurableSignal,
    grpc: Option<GrpcOptions>,
}

async fn serve(
    shared: Arc<Shared>,
    thread: usize,
    sockets: Sockets,
    mut changed: UnboundedReceiver<(Plane, Changes)>,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    let measurers = &shared.measurers[thread];
    let context = Rc::new(shared.context(&measurers.http, sockets.signal.clone()));
    // SAFETY: a signal has one descriptor, which stays open until the signal is dropped.
    let signal = unsafe { AsyncFd::register_with_interest(sockets.signal, Interest::READABLE) };
    let signal = signal.expect("without the signal no answer is ever sent");
    // None of these tasks ends before the stop, unless it panics.
    let mut background = JoinSet::new();
    background.spawn_local(context.waiters.clone().run(context.matchmaker.shard.clone(), signal));
    let of_changes = context.clone();
    background.spawn_local(async move {
        while let Some((plane, changes)) = changed.recv().await {
            of_changes.planes.of(plane).watches.take(changes);
        }
        Ok(())
    });
    if let Some(options) = sockets.grpc {
        background.spawn_local(grpc_server::serve(
            context.clone(),
            measurers.grpc.clone(),
            shared.grpc_permits.clone(),
            options,
        ));
    }
    let has_driver = "the runtime has its I/O driver";
    let listener = tokio::net::TcpListener::from_std(sockets.listener).expect(has_driver);
    let edge = sockets.edge_listener.map(|listener| tokio::net::UnixListener::from_std(listener).expect(has_driver));
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(ended) = background.join_next() => panic!("a task of the front has ended: {ended:?}"),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => admit(&context, &shared.budget, stream, peer),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            accepted = accept_edge_guard(edge.as_ref()) => match accepted {
                Ok(stream) => admit_edge_guard(&context, &shared.budget, stream),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop((listener, edge));
    context.shutdown.begin();
    context.planes.data.watches.end();
    context.planes.control.watches.end();
    context.shutdown.drain(context.timeouts.idle_grace, stopped).await;
}

async fn accept_edge_guard(listener: Option<&tokio::net::UnixListener>) -> io::Result<UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

fn admit_edge_guard(context: &Rc<ThreadContext>, budget: &ConnectionBudget, stream: UnixStream) {
    if let Some(admission) = budget.admit(None) {
        context.shutdown.serve_http(connection::serve_edge_guard(context.clone(), stream, admission));
    }
}

fn admit(context: &Rc<ThreadContext>, budget: &Arc<ConnectionBudget>, stream: TcpStream, peer: SocketAddr) {
    if let Some((peer, admission)) = connection::admit(&context.addresses, budget, &stream, peer) {
        context.shutdown.serve_http(connection::serve(context.clone(), stream, peer, admission));
    }
}
