//! Thread and listening socket of the front.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use hosting_journal::DurableSignal;
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::{Notify, watch};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep;

use crate::client_address::{ClientAddresses, Peer};
use crate::connection;
use crate::connection_budget::{Admission, ClientKey, ConnectionBudget};
use crate::durable_waiters::DurableWaiters;
use crate::handed_over::{HandedOver, HandedOverQueue};
use crate::measurements::{Measurements, Measurer};
use crate::operations::Operations;
use crate::plain_request::REQUEST_BYTES_MAX;
use crate::ray_id::RayIds;

/// Pause after a failed `accept`, for example because the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

#[derive(Clone, Copy)]
pub struct Timeouts {
    /// For the first byte of a connection, and for a client that does not read its answer.
    pub receive: Duration,
    /// For an idle connection.
    pub keep_alive: Duration,
}

pub struct FrontOptions {
    pub listener: TcpListener,
    pub budget: Arc<ConnectionBudget>,
    pub operations: Operations,
    pub duration_bounds: Vec<Duration>,
    pub addresses: ClientAddresses,
    pub timeouts: Timeouts,
    /// Smallest limit of the API on the bytes of a request. Python gets longer requests.
    pub request_bytes_max: usize,
}

/// A running front.
pub struct Front {
    shared: Arc<Shared>,
    stop: watch::Sender<Option<Duration>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the thread shares with the owner of the front.
struct Shared {
    operations: Operations,
    measurer: Measurer,
    handed_over: HandedOverQueue,
}

/// State that all connections of a thread share.
pub(crate) struct ThreadContext {
    pub timeouts: Timeouts,
    pub request_bytes_max: usize,
    pub waiters: Rc<DurableWaiters>,
    pub ray_ids: RayIds,
    pub is_stopping: Cell<bool>,
    pub addresses: ClientAddresses,
    pub budget: Arc<ConnectionBudget>,
    shared: Arc<Shared>,
    answering: Cell<usize>,
    all_answered: Notify,
}

impl Front {
    /// Starts to serve. Fails if the shard has no journal, or without a free descriptor or thread.
    pub fn start(options: FrontOptions) -> io::Result<Front> {
        let FrontOptions { listener, budget, operations, duration_bounds, addresses, timeouts, request_bytes_max } =
            options;
        let no_journal = || io::Error::new(io::ErrorKind::InvalidInput, "the front needs a journal");
        let signal = operations.shard.journal().ok_or_else(no_journal)?.subscribe()?;
        listener.set_nonblocking(true)?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(None);
        let measurer = Measurer::new(operations.answers.codes().len(), duration_bounds);
        let shared = Arc::new(Shared { operations, measurer, handed_over: HandedOverQueue::new()? });
        let of_thread = shared.clone();
        let run = move || {
            let context = ThreadContext::new(budget, addresses, timeouts, request_bytes_max, of_thread);
            LocalSet::new().block_on(&runtime, serve(Rc::new(context), listener, signal, stopped));
        };
        let run = || {
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                eprintln!("front: the thread panicked; ending the process so that a new one serves");
                std::process::abort();
            }
        };
        let thread = Builder::new().name("front".into()).spawn(run)?;
        Ok(Front { shared, stop, thread: Mutex::new(Some(thread)) })
    }

    pub fn handed_over(&self) -> &HandedOverQueue {
        &self.shared.handed_over
    }

    /// Returns the codes by their number, and what happened since the last call.
    pub fn take_measurements(&self) -> (&[&'static str], Measurements) {
        (self.shared.operations.answers.codes(), self.shared.measurer.take())
    }

    /// Closes the listener and the idle connections, and ends the thread after the answers of plain requests, or after
    /// `grace`. A second call only changes the time of the first.
    pub fn stop(&self, grace: Duration) {
        let _ = self.stop.send(Some(grace));
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
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
    fn new(
        budget: Arc<ConnectionBudget>,
        addresses: ClientAddresses,
        timeouts: Timeouts,
        request_bytes_max: usize,
        shared: Arc<Shared>,
    ) -> ThreadContext {
        let waiters = DurableWaiters::new(shared.operations.shard.durable());
        ThreadContext {
            budget,
            timeouts,
            request_bytes_max: request_bytes_max.min(REQUEST_BYTES_MAX),
            waiters,
            ray_ids: RayIds::new(),
            is_stopping: Cell::new(false),
            addresses,
            shared,
            answering: Cell::new(0),
            all_answered: Notify::new(),
        }
    }

    pub fn operations(&self) -> &Operations {
        &self.shared.operations
    }

    pub fn measurer(&self) -> &Measurer {
        &self.shared.measurer
    }

    /// Gives a connection to Python, or closes it if too many wait for Python.
    pub fn hand_over(&self, stream: TcpStream, unread: Vec<u8>, admission: Option<Admission>) {
        if let Ok(stream) = stream.into_std() {
            self.shared.handed_over.push(HandedOver { stream, unread, admission });
        }
    }

    /// Counts executed requests until their answers are written. The thread ends after that.
    pub fn begin_answers(&self, count: usize) -> Answering<'_> {
        self.answering.set(self.answering.get() + count);
        self.measurer().set_in_flight(self.answering.get());
        Answering { context: self, count }
    }
}

pub(crate) struct Answering<'a> {
    context: &'a ThreadContext,
    count: usize,
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        let left = self.context.answering.get() - self.count;
        self.context.answering.set(left);
        self.context.measurer().set_in_flight(left);
        if left == 0 {
            self.context.all_answered.notify_waiters();
        }
    }
}

async fn serve(
    context: Rc<ThreadContext>,
    listener: TcpListener,
    signal: DurableSignal,
    mut stopped: watch::Receiver<Option<Duration>>,
) {
    // SAFETY: a signal has one descriptor, which stays open until the signal is dropped.
    let signal = unsafe { AsyncFd::register_with_interest(signal, Interest::READABLE) };
    let signal = signal.expect("without the signal no answer is ever sent");
    let waking = spawn_local(context.waiters.clone().run(context.operations().shard.clone(), signal));
    let listener = tokio::net::TcpListener::from_std(listener).expect("the runtime has its I/O driver");
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => admit(&context, stream, peer),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
    drop(listener);
    context.is_stopping.set(true);
    while context.answering.get() > 0 {
        let grace = stopped.borrow_and_update().unwrap_or_default();
        tokio::select! {
            () = context.all_answered.notified() => break,
            () = sleep(grace) => break,
            _ = stopped.changed() => {}
        }
    }
    waking.abort();
}

fn admit(context: &Rc<ThreadContext>, stream: TcpStream, peer: SocketAddr) {
    let Ok(local) = stream.local_addr() else { return };
    let _ = stream.set_nodelay(true);
    let peer = context.addresses.peer(peer, local);
    let client = match peer {
        Peer::Client(address) => Some(ClientKey::of(address)),
        Peer::Proxy(_) => None,
    };
    if let Some(admission) = context.budget.admit(client) {
        spawn_local(connection::serve(context.clone(), stream, peer, admission));
    }
}
