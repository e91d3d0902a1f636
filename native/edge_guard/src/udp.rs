//! UDP: an epoll loop of its own per thread, batched system calls, one connected socket for each player and port.
//!
//! Owns the threads and what they are told. A public port belongs to one thread; a session is the pair of a player's
//! address and a public port, and where that has all addresses of the machine (`local`), the one that is spoken to. What
//! a thread does is in `turn`, who may stay when there is no room in `sessions`, which port has most in `crowds`.

mod epoll;
mod event_loop;
mod local_address;
mod message_batch;
mod port_counts;
mod session_table;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::config::Config;
use crate::metrics::ThreadCounters;
use epoll::Waker;
pub use local_address::{LocalAddress, is_wildcard, request_destination_address};
pub use session_table::Rank;

/// A public port that players may speak to.
#[derive(Debug)]
pub struct UdpPort {
    /// The number of its route.
    pub number: u64,
    /// Bound, and not yet read from.
    pub socket: Arc<UdpSocket>,
    /// Where the process is.
    pub backend: Option<SocketAddr>,
}

/// A session that comes from another process, or goes to one.
#[derive(Debug)]
pub struct MigratedSession {
    /// The number of its route.
    pub number: u64,
    /// The player.
    pub client: SocketAddr,
    /// The address of ours that it speaks to, where a port has several.
    pub local: Option<LocalAddress>,
    /// Where its socket is connected to.
    pub backend: SocketAddr,
    /// How much it is worth.
    pub rank: Rank,
    /// The connected socket.
    pub socket: Arc<OwnedFd>,
}

/// What a thread is told.
enum LoopCommand {
    Open(UdpPort, Vec<MigratedSession>),
    Lead(u64, Option<SocketAddr>),
    Close(u64, oneshot::Sender<()>),
    /// All that was told before is done.
    Then(Box<dyn FnOnce() + Send>),
    /// Stop reading, and say what there is.
    Rest(oneshot::Sender<Vec<MigratedSession>>),
    /// Other bounds from now on.
    Bound(SessionLimits),
    /// Go on as before.
    GoOn,
    /// Everything belongs to another process now.
    Forget(oneshot::Sender<()>),
}

/// How many, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct SessionLimits {
    /// Sessions of one thread.
    pub sessions: usize,
    /// Of one port.
    pub sessions_per_route: usize,
    /// Of one client address, in one thread.
    pub sessions_per_address: usize,
    /// That may begin in a second, in one thread.
    pub sessions_per_second: usize,
    /// How long one may carry nothing.
    pub idle: Duration,
}

impl SessionLimits {
    fn for_each_thread(self, threads: usize) -> Self {
        Self {
            sessions: self.sessions.div_ceil(threads),
            sessions_per_second: self.sessions_per_second.div_ceil(threads),
            ..self
        }
    }
}

impl From<&Config> for SessionLimits {
    fn from(config: &Config) -> Self {
        Self {
            sessions: config.limits.datagram_sessions,
            sessions_per_route: config.limits.datagram_sessions_per_route,
            sessions_per_address: config.limits.datagram_sessions_per_address,
            sessions_per_second: config.limits.datagram_sessions_per_second,
            idle: config.timeouts.datagram_idle,
        }
    }
}

/// All threads.
#[derive(Debug)]
pub struct UdpThreads {
    threads: Vec<UdpThread>,
}

#[derive(Debug)]
struct UdpThread {
    orders: Mutex<Sender<LoopCommand>>,
    waker: Arc<Waker>,
    counters: Arc<ThreadCounters>,
}

impl UdpThreads {
    /// Starts so many threads, among which the bounds are shared. They end with the process.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptors for its loop.
    pub fn start(threads: usize, bounds: SessionLimits) -> io::Result<Self> {
        let each = bounds.for_each_thread(threads);
        let threads = (0..threads).map(|number| UdpThread::start(number, each)).collect::<io::Result<_>>()?;
        Ok(Self { threads })
    }

    /// What each thread counts.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<ThreadCounters>> {
        self.threads.iter().map(|thread| &thread.counters)
    }

    /// Serves a port, with sessions that it has already.
    pub fn open(&self, port: UdpPort, sessions: Vec<MigratedSession>) {
        self.thread(port.number).order(LoopCommand::Open(port, sessions));
    }

    /// Leads a port elsewhere; sessions that lead to where the process was end.
    pub fn set_backend(&self, number: u64, backend: Option<SocketAddr>) {
        self.thread(number).order(LoopCommand::Lead(number, backend));
    }

    /// Does this when all that was told of a port before holds for every datagram that is read from then on. It runs in
    /// the port's thread and must not wait.
    pub fn run_in_order(&self, number: u64, act: impl FnOnce() + Send + 'static) {
        self.thread(number).order(LoopCommand::Then(Box::new(act)));
    }

    /// Closes a port; the answer comes when its socket and its sessions are gone.
    pub fn close(&self, number: u64) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.thread(number).order(LoopCommand::Close(number, done));
        is_done
    }

    /// Stops reading everywhere and says which sessions there are. What arrives meanwhile waits in the sockets.
    pub async fn pause(&self) -> Vec<MigratedSession> {
        let mut all = Vec::new();
        for thread in &self.threads {
            let (say, said) = oneshot::channel();
            thread.order(LoopCommand::Rest(say));
            all.extend(said.await.unwrap_or_default());
        }
        all
    }

    /// Other bounds from now on, for all threads together. Sessions that are there and go on stay.
    pub fn set_limits(&self, bounds: SessionLimits) {
        let each = bounds.for_each_thread(self.threads.len());
        self.threads.iter().for_each(|thread| thread.order(LoopCommand::Bound(each)));
    }

    /// Goes on after a rest.
    pub fn resume(&self) {
        self.threads.iter().for_each(|thread| thread.order(LoopCommand::GoOn));
    }

    /// Closes everything after a rest: another process has it.
    pub async fn close_all(&self) {
        for thread in &self.threads {
            let (done, is_done) = oneshot::channel();
            thread.order(LoopCommand::Forget(done));
            let _ = is_done.await;
        }
    }

    fn thread(&self, number: u64) -> &UdpThread {
        &self.threads[number as usize % self.threads.len()]
    }
}

impl UdpThread {
    fn start(number: usize, bounds: SessionLimits) -> io::Result<Self> {
        let (orders, told): (_, Receiver<LoopCommand>) = channel();
        let waker = Arc::new(Waker::new()?);
        let counters = Arc::new(ThreadCounters::default());
        let mut turns = event_loop::EventLoop::new(bounds, told, waker.clone(), counters.clone())?;
        std::thread::Builder::new().name(format!("datagram-{number}")).spawn(move || turns.run())?;
        Ok(Self { orders: Mutex::new(orders), waker, counters })
    }

    fn order(&self, order: LoopCommand) {
        // The thread lives as long as the process.
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests;
