//! Minimal UDP forwarder as a baseline of edge-guard, which shows the cost of the machine itself.
//!
//! `forward --to HOST:PORT --ready FILE` uses one socket for players and a connected socket per player for the server.
//! Sessions have no limits and never end.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use super::batch::{BATCH, Batch};
use super::datagrams::make_room;
use super::poll::Poll;
use super::serve::raise_descriptors;
use crate::Failure;
use crate::figures::Figures;
use crate::flags::Flags;

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
    batch: Batch,
}

pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    raise_descriptors();
    let players = UdpSocket::bind("127.0.0.1:0")?;
    players.set_nonblocking(true)?;
    make_room(&players);
    let mut poll = Poll::new()?;
    poll.add(&players, PLAYERS)?;
    std::fs::write(flags.text("ready")?, players.local_addr()?.to_string())?;
    let mut forwarder = Forwarder {
        server: flags.text("to")?.parse()?,
        players,
        sessions: Vec::new(),
        by_client: HashMap::new(),
        batch: Batch::new(),
    };
    loop {
        let ready = poll.wait(None)?;
        forwarder.back(&ready);
        if ready.contains(&PLAYERS) {
            forwarder.there(&poll)?;
        }
    }
}

impl Forwarder {
    fn there(&mut self, poll: &Poll) -> Result<(), Failure> {
        for place in 0..self.batch.receive(self.players.as_raw_fd()) {
            let client = self.batch.names[place];
            let key = (client.sin_addr.s_addr, client.sin_port);
            let session = match self.by_client.get(&key) {
                Some(session) => *session,
                None => {
                    let socket = UdpSocket::bind("127.0.0.1:0")?;
                    socket.connect(self.server)?;
                    socket.set_nonblocking(true)?;
                    poll.add(&socket, self.sessions.len())?;
                    self.sessions.push(Session { socket, client });
                    self.by_client.insert(key, self.sessions.len() - 1);
                    self.sessions.len() - 1
                }
            };
            // An unsent datagram counts as lost at the receiver.
            let _ = self.sessions[session].socket.send(self.batch.bytes(place));
        }
        Ok(())
    }

    fn back(&mut self, ready: &[usize]) {
        let mut filled = 0;
        for session in ready.iter().filter_map(|number| self.sessions.get(*number)) {
            if filled == BATCH {
                self.batch.send(self.players.as_raw_fd(), std::mem::take(&mut filled));
            }
            let Ok(length) = session.socket.recv(&mut self.batch.rooms[filled]) else { continue };
            (self.batch.parts[filled].iov_len, self.batch.names[filled]) = (length, session.client);
            filled += 1;
        }
        self.batch.send(self.players.as_raw_fd(), filled);
    }
}
