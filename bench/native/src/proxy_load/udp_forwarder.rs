//! Minimal UDP forwarder as a baseline of edge-guard, which shows the cost of the machine itself.
//!
//! `forward --to HOST:PORT --ready FILE` uses one socket for players and a connected socket per player for the server.
//! Sessions have no limits and never end.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use super::datagram_batch::{BATCH, DatagramBatch};
use super::echo_server::raise_descriptor_limit;
use super::epoll::Epoll;
use super::udp_load::enlarge_socket_buffers;
use crate::Failure;
use crate::flags::Flags;
use crate::measurement::Measurement;

const PLAYERS: usize = usize::MAX;

struct Session {
    socket: UdpSocket,
    client: libc::sockaddr_in,
}

struct Forwarder {
    server: SocketAddr,
    players: UdpSocket,
    sessions: Vec<Session>,
    by_client: HashMap<(u32, u16), usize>,
    batch: DatagramBatch,
}

pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    raise_descriptor_limit();
    let players = UdpSocket::bind("127.0.0.1:0")?;
    players.set_nonblocking(true)?;
    enlarge_socket_buffers(&players);
    let mut epoll = Epoll::new()?;
    epoll.add(&players, PLAYERS)?;
    std::fs::write(flags.text("ready")?, players.local_addr()?.to_string())?;
    let mut forwarder = Forwarder {
        server: flags.text("to")?.parse()?,
        players,
        sessions: Vec::new(),
        by_client: HashMap::new(),
        batch: DatagramBatch::new(),
    };
    loop {
        let ready = epoll.wait(None)?;
        forwarder.forward_to_players(&ready);
        if ready.contains(&PLAYERS) {
            forwarder.forward_to_server(&epoll)?;
        }
    }
}

impl Forwarder {
    fn forward_to_server(&mut self, epoll: &Epoll) -> Result<(), Failure> {
        for index in 0..self.batch.receive(self.players.as_raw_fd()) {
            let client = self.batch.addresses[index];
            let key = (client.sin_addr.s_addr, client.sin_port);
            let session = match self.by_client.get(&key) {
                Some(session) => *session,
                None => {
                    let socket = UdpSocket::bind("127.0.0.1:0")?;
                    socket.connect(self.server)?;
                    socket.set_nonblocking(true)?;
                    epoll.add(&socket, self.sessions.len())?;
                    self.sessions.push(Session { socket, client });
                    self.by_client.insert(key, self.sessions.len() - 1);
                    self.sessions.len() - 1
                }
            };
            // An unsent datagram counts as lost at the receiver.
            let _ = self.sessions[session].socket.send(self.batch.bytes(index));
        }
        Ok(())
    }

    fn forward_to_players(&mut self, ready: &[usize]) {
        let mut filled = 0;
        for session in ready.iter().filter_map(|number| self.sessions.get(*number)) {
            if filled == BATCH {
                self.batch.send(self.players.as_raw_fd(), std::mem::take(&mut filled));
            }
            let Ok(length) = session.socket.recv(&mut self.batch.buffers[filled]) else { continue };
            (self.batch.iovecs[filled].iov_len, self.batch.addresses[filled]) = (length, session.client);
            filled += 1;
        }
        self.batch.send(self.players.as_raw_fd(), filled);
    }
}
