//! UDP: an epoll loop of its own per thread, batched system calls, one connected socket for each player and port.
//!
//! Owns the threads and what they are told. A public port belongs to one thread; a session is the pair of a player's
//! address and a public port, and where that has all addresses of the machine (`local`), the one that is spoken to. What
//! a thread does is in `turn`, who may stay when there is no room in `sessions`, which port has most in `crowds`.

mod batch;
mod crowds;
mod epoll;
mod local;
mod sessions;
mod turn;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::config::Config;
use crate::metrics::Counters;
use epoll::Waker;
pub use local::{Local, ask, is_everywhere};
pub use sessions::Rank;

/// A public port that players may speak to.
#[derive(Debug)]
pub struct Port {
    /// The number of its route.
    pub number: u64,
    /// Bound, and not yet read from.
    pub socket: Arc<UdpSocket>,
    /// Where the process is.
    pub backend: Option<SocketAddr>,
}

/// A session that comes from another process, or goes to one.
#[derive(Debug)]
pub struct Carried {
    /// The number of its route.
    pub number: u64,
    /// The player.
    pub client: SocketAddr,
    /// The address of ours that it speaks to, where a port has several.
    pub local: Option<Local>,
    /// Where its socket is connected to.
    pub backend: SocketAddr,
    /// How much it is worth.
    pub rank: Rank,
    /// The connected socket.
    pub socket: Arc<OwnedFd>,
}

/// What a thread is told.
enum Order {
    Open(Port, Vec<Carried>),
    Lead(u64, Option<SocketAddr>),
    Close(u64, oneshot::Sender<()>),
    /// All that was told before is done.
    Then(Box<dyn FnOnce() + Send>),
    /// Stop reading, and say what there is.
    Rest(oneshot::Sender<Vec<Carried>>),
    /// Other bounds from now on.
    Bound(Bounds),
    /// Go on as before.
    GoOn,
    /// Everything belongs to another process now.
    Forget(oneshot::Sender<()>),
}

/// How many, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
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

impl Bounds {
    fn of_each(self, threads: usize) -> Self {
        Self {
            sessions: self.sessions.div_ceil(threads),
            sessions_per_second: self.sessions_per_second.div_ceil(threads),
            ..self
        }
    }
}

impl From<&Config> for Bounds {
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
pub struct Datagrams {
    threads: Vec<Thread>,
}

#[derive(Debug)]
struct Thread {
    orders: Mutex<Sender<Order>>,
    waker: Arc<Waker>,
    counters: Arc<Counters>,
}

impl Datagrams {
    /// Starts so many threads, among which the bounds are shared. They end with the process.
    ///
    /// # Errors
    /// The system gives no thread, or no descriptors for its loop.
    pub fn start(threads: usize, bounds: Bounds) -> io::Result<Self> {
        let each = bounds.of_each(threads);
        let threads = (0..threads).map(|number| Thread::start(number, each)).collect::<io::Result<_>>()?;
        Ok(Self { threads })
    }

    /// What each thread counts.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<Counters>> {
        self.threads.iter().map(|thread| &thread.counters)
    }

    /// Serves a port, with sessions that it has already.
    pub fn open(&self, port: Port, sessions: Vec<Carried>) {
        self.thread(port.number).order(Order::Open(port, sessions));
    }

    /// Leads a port elsewhere; sessions that lead to where the process was end.
    pub fn lead(&self, number: u64, backend: Option<SocketAddr>) {
        self.thread(number).order(Order::Lead(number, backend));
    }

    /// Does this when all that was told of a port before holds for every datagram that is read from then on. It runs in
    /// the port's thread and must not wait.
    pub fn then(&self, number: u64, act: impl FnOnce() + Send + 'static) {
        self.thread(number).order(Order::Then(Box::new(act)));
    }

    /// Closes a port; the answer comes when its socket and its sessions are gone.
    pub fn close(&self, number: u64) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.thread(number).order(Order::Close(number, done));
        is_done
    }

    /// Stops reading everywhere and says which sessions there are. What arrives meanwhile waits in the sockets.
    pub async fn rest(&self) -> Vec<Carried> {
        let mut all = Vec::new();
        for thread in &self.threads {
            let (say, said) = oneshot::channel();
            thread.order(Order::Rest(say));
            all.extend(said.await.unwrap_or_default());
        }
        all
    }

    /// Other bounds from now on, for all threads together. Sessions that are there and go on stay.
    pub fn bound(&self, bounds: Bounds) {
        let each = bounds.of_each(self.threads.len());
        self.threads.iter().for_each(|thread| thread.order(Order::Bound(each)));
    }

    /// Goes on after a rest.
    pub fn go_on(&self) {
        self.threads.iter().for_each(|thread| thread.order(Order::GoOn));
    }

    /// Closes everything after a rest: another process has it.
    pub async fn forget(&self) {
        for thread in &self.threads {
            let (done, is_done) = oneshot::channel();
            thread.order(Order::Forget(done));
            let _ = is_done.await;
        }
    }

    fn thread(&self, number: u64) -> &Thread {
        &self.threads[number as usize % self.threads.len()]
    }
}

impl Thread {
    fn start(number: usize, bounds: Bounds) -> io::Result<Self> {
        let (orders, told): (_, Receiver<Order>) = channel();
        let waker = Arc::new(Waker::new()?);
        let counters = Arc::new(Counters::default());
        let mut turns = turn::Turns::new(bounds, told, waker.clone(), counters.clone())?;
        std::thread::Builder::new().name(format!("datagram-{number}")).spawn(move || turns.run())?;
        Ok(Self { orders: Mutex::new(orders), waker, counters })
    }

    fn order(&self, order: Order) {
        // The thread lives as long as the process.
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests;
