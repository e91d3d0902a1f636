//! UDP proxy: one epoll loop per thread, batched system calls, and one connected backend socket per session.
//!
//! One thread serves each public port. The sender's address and the public port identify a session. On a port that is
//! bound to a wildcard address, the local address that the player uses also belongs to the identity.
//!
//! The sender is the player or a load balancer. If a load balancer must send PROXY headers, the header of the first
//! datagram names the client of the session. The session then counts under the address of this client.

mod backend_socket;
mod datagram_rate;
mod epoll;
mod event_loop;
mod local_address;
mod loop_command;
mod message_batch;
mod port_session_counts;
mod session_table;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use ipnet::IpNet;
use tokio::sync::oneshot;

use crate::data_plane_contact::DataPlaneContact;
use crate::metrics::ThreadCounters;
use epoll::Waker;
pub use local_address::{LocalAddress, is_wildcard, request_destination_address};
use loop_command::LoopCommand;
pub use loop_command::{MigratedSession, SessionLimits, UdpPort};
pub use session_table::{Player, Rank};

#[derive(Debug)]
pub struct UdpThreads {
    threads: Vec<UdpThread>,
}

#[derive(Debug)]
struct UdpThread {
    commands: Mutex<Sender<LoopCommand>>,
    waker: Arc<Waker>,
    counters: Arc<ThreadCounters>,
}

impl UdpThreads {
    /// Starts the UDP threads and divides the limits among them. The threads run until the process ends.
    ///
    /// `proxies` are the networks from which sessions must begin with a PROXY header.
    pub fn start(
        threads: usize,
        bounds: SessionLimits,
        proxies: &[IpNet],
        contact: &Arc<DataPlaneContact>,
    ) -> io::Result<Self> {
        let each = bounds.for_each_thread(threads);
        let start = |number| UdpThread::start(number, each, proxies, contact.clone());
        let threads = (0..threads).map(start).collect::<io::Result<_>>()?;
        Ok(Self { threads })
    }

    pub fn counters(&self) -> impl Iterator<Item = &Arc<ThreadCounters>> {
        self.threads.iter().map(|thread| &thread.counters)
    }

    pub fn open(&self, port: UdpPort, sessions: Vec<MigratedSession>) {
        self.thread(port.number).send(LoopCommand::Open(port, sessions));
    }

    /// Changes the backend of a route, and ends its sessions with the old backend.
    pub fn set_backend(&self, number: u64, backend: Option<SocketAddr>) {
        self.thread(number).send(LoopCommand::SetBackend(number, backend));
    }

    /// Runs `task` in the thread of a route, after all commands that were sent before. `task` must not block.
    pub fn run_in_order(&self, number: u64, task: impl FnOnce() + Send + 'static) {
        self.thread(number).send(LoopCommand::RunTask(Box::new(task)));
    }

    pub fn close(&self, number: u64) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.thread(number).send(LoopCommand::Close(number, done));
        is_done
    }

    /// Pauses all threads and returns all sessions. Datagrams that arrive meanwhile wait in the sockets.
    pub async fn pause(&self) -> Vec<MigratedSession> {
        let mut all = Vec::new();
        for thread in &self.threads {
            let (reply, received_reply) = oneshot::channel();
            thread.send(LoopCommand::Pause(reply));
            all.extend(received_reply.await.unwrap_or_default());
        }
        all
    }

    /// Divides new limits among the threads. Open sessions continue.
    pub fn set_limits(&self, bounds: SessionLimits) {
        let each = bounds.for_each_thread(self.threads.len());
        self.threads.iter().for_each(|thread| thread.send(LoopCommand::SetLimits(each)));
    }

    pub fn resume(&self) {
        self.threads.iter().for_each(|thread| thread.send(LoopCommand::Resume));
    }

    pub async fn close_all(&self) {
        for thread in &self.threads {
            let (done, is_done) = oneshot::channel();
            thread.send(LoopCommand::CloseAll(done));
            let _ = is_done.await;
        }
    }

    fn thread(&self, number: u64) -> &UdpThread {
        &self.threads[number as usize % self.threads.len()]
    }
}

impl UdpThread {
    fn start(
        number: usize,
        bounds: SessionLimits,
        proxies: &[IpNet],
        contact: Arc<DataPlaneContact>,
    ) -> io::Result<Self> {
        let (commands, receiver): (_, Receiver<LoopCommand>) = channel();
        let waker = Arc::new(Waker::new()?);
        let counters = Arc::new(ThreadCounters::default());
        let mut event_loop =
            event_loop::EventLoop::new(bounds, proxies.into(), receiver, waker.clone(), counters.clone(), contact)?;
        std::thread::Builder::new().name(format!("datagram-{number}")).spawn(move || event_loop.run())?;
        Ok(Self { commands: Mutex::new(commands), waker, counters })
    }

    fn send(&self, command: LoopCommand) {
        let _ = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests;
