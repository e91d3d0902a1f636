//! Threads and listening sockets of the front.
//!
//! All threads accept connections from the same listening sockets. With `SO_REUSEPORT` each thread would have a queue of
//! connections, which would wait while the thread is busy and others are idle. A restart with fewer threads would reset the
//! connections of a queue without a thread.

use std::cell::Cell;
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
use hosting_matchmaker::{ClientKey, Matchmaker};
use hosting_scheduling::raise_priority;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::{JoinSet, LocalSet, spawn_local, yield_now};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::body_budget::free_large_bodies_at_once;
use crate::client_address::{ClientAddresses, Peer};
use crate::connection;
use crate::connection_budget::{Admission, ConnectionBudget};
use crate::durable_waiters::DurableWaiters;
use crate::grpc::{GrpcOptions, GrpcServer, Health};
use crate::measurements::{Measurements, Measurer};
use crate::passing::{Passing, PassingOptions};
use crate::permits::{GrpcPermits, HttpPermits};
use crate::plain_request::REQUEST_BYTES_MAX;
use crate::ray_id::RayIds;
use crate::routes::Plane;
use crate::tls::{ServerCertificate, TlsAcceptors};
use crate::watches::Changes;

/// Pause after a failed `accept`, for example because the process is out of file descriptors.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Time to write the last responses at the end of the grace.
const LAST_RESPONSES_WAIT: Duration = Duration::from_secs(1);
/// Pages of the lobby list that a thread reads at a time.
const PAGES_MAX: usize = 8;
/// Turns of the event loop until it has read all that clients have sent: one polls the sockets, one runs the connections.
const SETTLING_TURNS: usize = 2;

#[derive(Clone, Copy)]
pub struct Timeouts {
    /// For the head of a request, and again for its body.
    pub receive: Duration,
    /// For an idle connection. 0: it closes after each response.
    pub keep_alive: Duration,
    /// Time over which the rate of a reader is measured.
    pub slow_reader: Duration,
    /// Longest wait of a parked request.
    pub parked: Duration,
    /// Longest wait of a stop for a further request on idle connections.
    pub idle_grace: Duration,
}

impl Timeouts {
    pub fn new(receive: Duration, keep_alive: Duration) -> Timeouts {
        let [idle_grace, slow_reader, parked] = [1, 10, 40].map(Duration::from_secs);
        Timeouts { receive, keep_alive, slow_reader, parked, idle_grace }
    }

    /// Returns the timeout of a connection without a request. Without keep-alive, its only request has not begun.
    pub fn idle(&self) -> Duration {
        if self.keep_alive.is_zero() { self.receive } else { self.keep_alive }
    }
}

pub struct FrontOptions {
    pub threads: NonZero<usize>,
    pub listener: TcpListener,
    /// Socket of edge-guard.
    pub edge_listener: Option<UnixListener>,
    pub budget: Arc<ConnectionBudget>,
    pub matchmaker: Arc<Matchmaker>,
    pub duration_bounds: Vec<Duration>,
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
    passing: Arc<PassingOptions>,
    permits: Arc<HttpPermits>,
    grpc_permits: GrpcPermits,
    tls: Option<TlsAcceptors>,
    /// One entry for each thread.
    measurers: Vec<Measurers>,
}

struct Measurers {
    http: Measurer,
    grpc: Measurer,
}

/// State that all connections of a thread share.
pub(crate) struct ThreadContext {
    pub timeouts: Timeouts,
    pub request_bytes_max: usize,
    pub waiters: Rc<DurableWaiters>,
    pub ray_ids: RayIds,
    pub is_stopping: Cell<bool>,
    pub addresses: Arc<ClientAddresses>,
    pub budget: Arc<ConnectionBudget>,
    pub passing: Passing,
    /// Permits of pages of the lobby list, each of which may take a megabyte.
    pub pages: Semaphore,
    shared: Arc<Shared>,
    /// Number of the thread.
    thread: usize,
    stop_begun: Notify,
    is_grace_over: Cell<bool>,
    grace_over: Notify,
    /// Open connections.
    open_http: Cell<usize>,
    pub open_grpc: Cell<usize>,
    /// Connections with a request that is received in part or not answered.
    busy: Cell<usize>,
    /// One of these counts is 0 now.
    is_quieter: Notify,
}

impl Front {
    /// Starts to serve. Fails if the shard has no journal, or without a free descriptor or thread.
    pub fn start(options: FrontOptions) -> io::Result<Front> {
        let FrontOptions {
            threads,
            listener,
            edge_listener,
            budget,
            matchmaker,
            duration_bounds,
            addresses,
            timeouts,
            passing,
            grpc,
            certificate,
        } = options;
        free_large_bodies_at_once();
        let no_journal = || io::Error::new(io::ErrorKind::InvalidInput, "the front needs a journal");
        let shard = matchmaker.shard.clone();
        let journal = shard.journal().ok_or_else(no_journal)?;
        let new_measurer = || Measurer::new(passing.routes.slugs().len(), duration_bounds.clone());
        let new_measurers = || Measurers { http: new_measurer(), grpc: new_measurer() };
        let measurers = std::iter::repeat_with(new_measurers).take(threads.get()).collect();
        let shared = Arc::new(Shared {
            matchmaker,
            budget,
            addresses: Arc::new(addresses),
            timeouts,
            permits: Arc::new(HttpPermits::new(passing.requests_max)),
            grpc_permits: GrpcPermits::new(passing.requests_max),
            passing: Arc::new(passing),
            tls: certificate.as_ref().map(TlsAcceptors::new).transpose().map_err(io::Error::other)?,
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
        (&self.shared.passing, self.take_all(|measurers| &measurers.http))
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

impl ThreadContext {
    fn new(shared: Arc<Shared>, thread: usize, signal: DurableSignal) -> ThreadContext {
        let limits = shared.passing.limits;
        ThreadContext {
            timeouts: shared.timeouts,
            request_bytes_max: limits.headers_bytes_max.min(limits.body_bytes_max).min(REQUEST_BYTES_MAX),
            passing: Passing::new(shared.passing.clone(), shared.permits.clone(), shared.measurers.len()),
            waiters: DurableWaiters::new(signal, shared.matchmaker.shard.durable()),
            ray_ids: RayIds::new(),
            is_stopping: Cell::new(false),
            addresses: shared.addresses.clone(),
            pages: Semaphore::new(PAGES_MAX),
            budget: shared.budget.clone(),
            shared,
            thread,
            stop_begun: Notify::new(),
            is_grace_over: Cell::new(false),
            grace_over: Notify::new(),
            open_http: Cell::new(0),
            open_grpc: Cell::new(0),
            busy: Cell::new(0),
            is_quieter: Notify::new(),
        }
    }

    pub fn matchmaker(&self) -> &Matchmaker {
        &self.shared.matchmaker
    }

    pub fn measurer(&self) -> &Measurer {
        &self.shared.measurers[self.thread].http
    }

    pub fn grpc_measurer(&self) -> &Measurer {
        &self.shared.measurers[self.thread].grpc
    }

    pub fn tls(&self) -> Option<&TlsAcceptors> {
        self.shared.tls.as_ref()
    }

    pub fn grpc_permits(&self) -> &GrpcPermits {
        &self.shared.grpc_permits
    }

    /// Counts a new connection. Returns None if it is over a limit or has ended.
    pub fn admit(
        &self,
        budget: &Arc<ConnectionBudget>,
        stream: &TcpStream,
        peer: SocketAddr,
    ) -> Option<(Peer, Admission)> {
        let peer = self.addresses.peer(peer, stream.local_addr().ok()?);
        let client = match peer {
            Peer::Client(address) => Some(ClientKey::of(address)),
            Peer::Proxy(_) => None,
        };
        let _ = stream.set_nodelay(true);
        budget.admit(client).map(|admission| (peer, admission))
    }

    /// Waits until the front stops.
    pub async fn stopping(&self) {
        if !self.is_stopping.get() {
            self.stop_begun.notified().await;
        }
    }

    /// Waits until the front stops and its grace is over.
    pub async fn end_of_grace(&self) {
        if !self.is_grace_over.get() {
            self.grace_over.notified().await;
        }
    }

    /// Counts executed requests until their answers are written.
    pub fn begin_answers(self: Rc<Self>, count: usize) -> Answering {
        Answering::new(self, ThreadContext::measurer, count)
    }

    pub fn begin_answer(self: Rc<Self>) -> Answering {
        self.begin_answers(1)
    }

    /// Counts a gRPC call until its response is written.
    pub fn begin_call(self: Rc<Self>) -> Answering {
        Answering::new(self, ThreadContext::grpc_measurer, 1)
    }

    /// Counts a connection as busy. A stop waits for busy connections during its whole grace.
    pub fn begin_request(self: &Rc<Self>) -> Counted {
        Counted::new(self.clone(), |context| &context.busy)
    }

    /// Returns whether all connections are idle, after the front has read all that their clients have sent.
    async fn is_idle(&self) -> bool {
        for _ in 0..SETTLING_TURNS {
            if self.busy.get() > 0 {
                return false;
            }
            yield_now().await;
        }
        self.busy.get() == 0
    }
}

/// Part of a count of a thread, until it is dropped.
pub(crate) struct Counted {
    context: Rc<ThreadContext>,
    count: fn(&ThreadContext) -> &Cell<usize>,
}

impl Counted {
    fn new(context: Rc<ThreadContext>, count: fn(&ThreadContext) -> &Cell<usize>) -> Counted {
        count(&context).update(|count| count + 1);
        Counted { context, count }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let count = (self.count)(&self.context);
        count.update(|count| count - 1);
        if count.get() == 0 {
            self.context.is_quieter.notify_one();
        }
    }
}

/// Requests that count as in flight until it is dropped.
pub(crate) struct Answering {
    context: Rc<ThreadContext>,
    measurer: fn(&ThreadContext) -> &Measurer,
    count: usize,
}

impl Answering {
    fn new(context: Rc<ThreadContext>, measurer: fn(&ThreadContext) -> &Measurer, count: usize) -> Answering {
        measurer(&context).begin(count);
        Answering { context, measurer, count }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        (self.measurer)(&self.context).end(self.count);
    }
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
        let context = Rc::new(ThreadContext::new(shared, number, sockets.signal.clone()));
        LocalSet::new().block_on(&runtime, serve(context, sockets, changed, stopped));
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
    context: Rc<ThreadContext>,
    sockets: Sockets,
    mut changed: UnboundedReceiver<(Plane, Changes)>,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    // SAFETY: a signal has one descriptor, which stays open until the signal is dropped.
    let signal = unsafe { AsyncFd::register_with_interest(sockets.signal, Interest::READABLE) };
    let signal = signal.expect("without the signal no answer is ever sent");
    // None of these tasks ends before the stop, unless it panics.
    let mut background = JoinSet::new();
    background.spawn_local(context.waiters.clone().run(context.matchmaker().shard.clone(), signal));
    let of_changes = context.clone();
    background.spawn_local(async move {
        while let Some((plane, changes)) = changed.recv().await {
            of_changes.passing.watches(plane).take(changes);
        }
        Ok(())
    });
    if let Some(options) = sockets.grpc {
        background.spawn_local(GrpcServer::serve(context.clone(), options));
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
                Ok((stream, peer)) => admit(&context, stream, peer),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
            accepted = accept_edge_guard(edge.as_ref()) => match accepted {
                Ok(stream) => admit_edge_guard(&context, stream),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop((listener, edge));
    context.is_stopping.set(true);
    context.stop_begun.notify_waiters();
    context.passing.watches(Plane::Data).end();
    context.passing.watches(Plane::Control).end();
    drain(&context, stopped).await;
}

async fn drain(context: &ThreadContext, mut stopped: watch::Receiver<Option<Duration>>) {
    let began = Instant::now();
    while context.open_http.get() + context.open_grpc.get() > 0 {
        let grace = stopped.borrow_and_update().unwrap_or_default();
        let idle_end = began + grace.min(context.timeouts.idle_grace);
        if Instant::now() >= began + grace || (Instant::now() >= idle_end && context.is_idle().await) {
            break;
        }
        let is_idle = context.busy.get() == 0;
        tokio::select! {
            () = context.is_quieter.notified() => {}
            () = sleep_until(if is_idle { idle_end } else { began + grace }) => {}
            _ = stopped.changed() => {}
        }
    }
    context.is_grace_over.set(true);
    context.grace_over.notify_waiters();
    // Idle connections of gRPC close on their own, after the last answers.
    let ending = async {
        while context.busy.get() + context.open_grpc.get() > 0 {
            context.is_quieter.notified().await;
        }
    };
    let _ = timeout(LAST_RESPONSES_WAIT, ending).await;
}

async fn accept_edge_guard(listener: Option<&tokio::net::UnixListener>) -> io::Result<UnixStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(stream, _)| stream),
        None => std::future::pending().await,
    }
}

fn admit_edge_guard(context: &Rc<ThreadContext>, stream: UnixStream) {
    if let Some(admission) = context.budget.admit(None) {
        let serving = connection::serve_edge_guard(context.clone(), stream, admission);
        serve_open(context, |context| &context.open_http, serving);
    }
}

/// Runs a connection, which counts as open until its end.
pub(crate) fn serve_open(
    context: &Rc<ThreadContext>,
    count: fn(&ThreadContext) -> &Cell<usize>,
    serving: impl Future<Output = ()> + 'static,
) {
    let open = Counted::new(context.clone(), count);
    spawn_local(async move {
        serving.await;
        drop(open);
    });
}

fn admit(context: &Rc<ThreadContext>, stream: TcpStream, peer: SocketAddr) {
    if let Some((peer, admission)) = context.admit(&context.budget, &stream, peer) {
        let serving = connection::serve(context.clone(), stream, peer, admission);
        serve_open(context, |context| &context.open_http, serving);
    }
}
