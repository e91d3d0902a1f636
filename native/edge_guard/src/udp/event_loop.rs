//! Event loop of one UDP thread: forwards datagrams, handles commands, and ends idle sessions.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use hosting_client_addresses::contains;
use ipnet::IpNet;
use slab::Slab;

use super::backend_socket::{self, BackendSockets};
use super::datagram_rate::PortRate;
use super::epoll::{Epoll, Waker};
use super::local_address::{self, LocalAddress};
use super::loop_command::{LoopCommand, MigratedSession, SessionLimits, UdpPort};
use super::message_batch::{AddressInfo, BATCH, MessageBatch, SendResult, is_earlier_error};
use super::session_table::{Player, Rank, SessionTable};
use crate::data_plane_contact::DataPlaneContact;
use crate::metrics::{DatagramDrop, Direction, SessionEnd, ThreadCounters};
use crate::player_sessions::{Admission, PlayerSession, PlayerSessions};
use crate::proxy_protocol::NamedAddresses;
use crate::traffic::Traffic;
use crate::{operator_log, proxy_protocol};

const EVENTS: usize = 256;

/// Maximum number of backend datagrams that one loop turn reads for a session. The loop reads only one if the session
/// had no data in the previous turn.
const READS_PER_SESSION: usize = 16;

const SWEEP_MS: u64 = 250;

/// Epoll token of the waker. Other tokens stand for a port (with the bit `PORT`), or for the slab index and generation
/// of a session.
const WAKER: u64 = u64::MAX;
const PORT: u64 = 1 << 63;

struct ServedPort {
    number: u64,
    socket: Arc<UdpSocket>,
    backend: Option<SocketAddr>,
    is_wildcard: bool,
    sends_proxy_header: bool,
    rate: PortRate,
    traffic: Arc<Traffic>,
    players: Option<Arc<PlayerSessions>>,
    counts_sessions: bool,
}

impl ServedPort {
    /// Returns the header in front of the datagrams of a session, or nothing if the port sends none.
    fn proxy_header(&self, player: &Player) -> Box<[u8]> {
        if !self.sends_proxy_header {
            return Box::default();
        }
        let named = player.named.as_deref().copied().or_else(|| self.addresses(player.sender, player.local));
        let Some(NamedAddresses { client, server }) = named else { return Box::default() };
        proxy_protocol::encode_header(client, server, proxy_protocol::Protocol::Datagram).into()
    }

    /// Returns the count of a new session, or `None` if the port does not count sessions.
    fn begin_player_session(&self, client: IpAddr) -> Result<Option<PlayerSession>, DatagramDrop> {
        let Some(players) = &self.players else { return Ok(None) };
        if !self.counts_sessions {
            return players.has_session(client).then_some(None).ok_or(DatagramDrop::NoSlot);
        }
        match players.begin(client) {
            Admission::Admitted(session) => Ok(session),
            // The player's program sends its first datagrams again.
            Admission::Pending | Admission::Refused => Err(DatagramDrop::NoSlot),
        }
    }

    /// Returns the addresses of a sender that is the client itself.
    fn addresses(&self, sender: SocketAddr, local: Option<LocalAddress>) -> Option<NamedAddresses> {
        let bound = self.socket.local_addr().ok()?;
        let server = SocketAddr::new(local.map_or(bound.ip(), |local| local.address), bound.port());
        Some(NamedAddresses { client: sender, server })
    }
}

pub struct EventLoop {
    bounds: SessionLimits,
    /// Networks from which sessions must begin with a PROXY header.
    proxies: Box<[IpNet]>,
    commands: Receiver<LoopCommand>,
    waker: Arc<Waker>,
    counters: Arc<ThreadCounters>,
    epoll: Epoll,
    ports: Slab<ServedPort>,
    by_number: HashMap<u64, usize>,
    sessions: SessionTable,
    batch: MessageBatch,
    started: Instant,
    turn: u64,
    now_ms: u64,
    swept_ms: u64,
    session_allowance: u64,
    refilled_ms: u64,
    is_paused: bool,
    backend_sockets: BackendSockets,
    has_logged_ports: bool,
    contact: Arc<DataPlaneContact>,
}

impl EventLoop {
    pub fn new(
        bounds: SessionLimits,
        proxies: Box<[IpNet]>,
        commands: Receiver<LoopCommand>,
        waker: Arc<Waker>,
        counters: Arc<ThreadCounters>,
        contact: Arc<DataPlaneContact>,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(waker.fd(), WAKER)?;
        Ok(Self {
            bounds,
            proxies,
            commands,
            waker,
            counters,
            epoll,
            ports: Slab::new(),
            by_number: HashMap::new(),
            sessions: SessionTable::default(),
            batch: MessageBatch::new(),
            started: Instant::now(),
            turn: 0,
            now_ms: 0,
            swept_ms: 0,
            session_allowance: bounds.sessions_per_second as u64,
            refilled_ms: 0,
            is_paused: false,
            backend_sockets: BackendSockets::default(),
            has_logged_ports: false,
            contact,
        })
    }

    pub fn run(&mut self) {
        // SAFETY: plain data.
        let mut events: [libc::epoll_event; EVENTS] = unsafe { std::mem::zeroed() };
        loop {
            let count = self.epoll.wait(&mut events, if self.sessions.len() > 0 { SWEEP_MS as i32 } else { 1_000 });
            self.turn += 1;
            self.now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
            if !self.is_paused {
                self.receive_from_backends(&events[..count]);
                for event in &events[..count] {
                    let token = event.u64;
                    if token != WAKER && token & PORT != 0 {
                        self.receive_from_players((token & !PORT) as usize);
                    }
                }
                self.sweep();
            }
            if events[..count].iter().any(|event| { event.u64 } == WAKER) {
                self.waker.drain();
                while let Ok(command) = self.commands.try_recv() {
                    self.handle_command(command);
                }
            }
        }
    }

    fn receive_from_players(&mut self, port: usize) {
        let Some(served) = self.ports.get(port) else { return };
        let (fd, backend) = (served.socket.as_raw_fd(), served.backend);
        let info = if served.is_wildcard { AddressInfo::SenderAndLocal } else { AddressInfo::Sender };
        let Ok(count) = self.batch.receive(fd, 0, BATCH, info) else { return };
        let mut index = 0;
        while index < count {
            let Some(sender) = self.batch.sender(index) else {
                index += 1;
                continue;
            };
            let local = self.batch.local(index);
            let session = match (self.sessions.find(port, sender, local), backend) {
                (Some(session), _) => self.remove_repeated_header(session, index).map(|()| session),
                (None, Some(_)) if self.contact.is_lost() => Err(DatagramDrop::NoDataPlane),
                (None, Some(backend)) => self
                    .take_first_header(port, (sender, local), index)
                    .and_then(|named| self.open_session(port, Player { sender, local, named }, backend)),
                (None, None) => Err(DatagramDrop::NoBackend),
            };
            match session {
                Ok(session) => {
                    let mut end = index + 1;
                    while end < count
                        && self.batch.sender(end) == Some(sender)
                        && self.batch.local(end) == local
                        && self.remove_repeated_header(session, end).is_ok()
                    {
                        end += 1;
                    }
                    match self.exceeded_rate(port, session, index..end) {
                        Some(reason) => self.counters.dropped.with_label(reason).add((end - index) as u64),
                        None => {
                            let to = self.sessions.at(session);
                            let sent = self.batch.send_with_header(to.socket.as_raw_fd(), index..end, &to.proxy_header);
                            self.sessions.record_player_packet(session, self.now_ms);
                            self.count(port, Direction::In, sent, DatagramDrop::Backend);
                        }
                    }
                    index = end;
                }
                Err(reason) => {
                    self.counters.dropped.with_label(reason).increment();
                    index += 1;
                }
            }
        }
    }

    fn is_proxy(&self, sender: SocketAddr) -> bool {
        contains(&self.proxies, sender.ip())
    }

    /// Removes the PROXY header of the first datagram of a session, and returns the addresses that it names.
    ///
    /// Returns `None` if headers of this sender are not read.
    fn take_first_header(
        &mut self,
        port: usize,
        (sender, local): (SocketAddr, Option<LocalAddress>),
        index: usize,
    ) -> Result<Option<Box<NamedAddresses>>, DatagramDrop> {
        if !self.is_proxy(sender) {
            return Ok(None);
        }
        let header = proxy_protocol::datagram_header(self.batch.datagram(index)).ok().flatten();
        let header = header.ok_or(DatagramDrop::ProxyHeader)?;
        if header.named.is_none() && header.length == self.batch.datagram(index).len() {
            // A health check of the load balancer.
            return Err(DatagramDrop::ProxyHeader);
        }
        let named = header.named.or_else(|| self.ports[port].addresses(sender, local));
        self.batch.remove_front(index, header.length);
        named.map(|named| Some(Box::new(named))).ok_or(DatagramDrop::ProxyHeader)
    }

    /// Removes the PROXY header of a later datagram of a session. Does nothing if headers of its sender are not read.
    ///
    /// Fails if the header is malformed or names another client than the first one. Replies to both clients would go to
    /// the same address of the load balancer.
    fn remove_repeated_header(&mut self, session: usize, index: usize) -> Result<(), DatagramDrop> {
        let player = &self.sessions.at(session).player;
        let Some(named) = &player.named else { return Ok(()) };
        let header = proxy_protocol::datagram_header(self.batch.datagram(index));
        let Some(header) = header.map_err(|_| DatagramDrop::ProxyHeader)? else { return Ok(()) };
        if header.named.map_or(player.sender, |repeated| repeated.client) != named.client {
            return Err(DatagramDrop::ProxyHeader);
        }
        self.batch.remove_front(index, header.length);
        Ok(())
    }

    /// Counts datagrams of a player. Returns the reason to drop them if they exceed the rate of the session or port.
    fn exceeded_rate(&mut self, port: usize, session: usize, indices: std::ops::Range<usize>) -> Option<DatagramDrop> {
        let (packets, bytes) = (indices.len(), self.batch.bytes(indices));
        if !self.sessions.rate(session).admit(self.bounds.session_rate, self.now_ms, packets, bytes) {
            return Some(DatagramDrop::SessionRate);
        }
        let is_new = self.sessions.at(session).rank() == Rank::New;
        let served = self.ports.get_mut(port)?;
        let is_admitted = served.rate.admit(self.bounds.port_rate, self.now_ms, (packets, bytes), is_new);
        (!is_admitted).then_some(DatagramDrop::PortRate)
    }

    fn receive_from_backends(&mut self, events: &[libc::epoll_event]) {
        let mut filled = 0;
        let mut batch_port = None;
        for event in events {
            let token = event.u64;
            if token & PORT != 0 {
                continue;
            }
            let index = (token & 0x7fff_ffff) as usize;
            let Some(session) = self.sessions.get(index, (token >> 31) as u32) else { continue };
            let (sender, local) = (session.player.sender, session.player.local);
            let (port, fd) = (session.port, session.socket.as_raw_fd());
            let maximum = if self.sessions.has_more(index, self.turn) { READS_PER_SESSION } else { 1 };
            if batch_port.is_some_and(|batch_port| batch_port != port) || BATCH - filled < maximum {
                self.flush(batch_port, &mut filled);
            }
            batch_port = Some(port);
            match self.batch.receive(fd, filled, maximum, AddressInfo::Omitted) {
                Ok(count) => {
                    (filled..filled + count).for_each(|at| self.batch.set_recipient(at, sender, local));
                    filled += count;
                    self.sessions.record_reply(index, self.now_ms);
                }
                Err(error) if is_earlier_error(&error) => {}
                Err(_) => {}
            }
        }
        self.flush(batch_port, &mut filled);
    }

    fn flush(&mut self, port: Option<usize>, filled: &mut usize) {
        let count = std::mem::take(filled);
        let Some(port) = port.filter(|port| count > 0 && self.ports.contains(*port)) else { return };
        let sent = self.batch.send(self.ports[port].socket.as_raw_fd(), 0..count);
        self.count(port, Direction::Out, sent, DatagramDrop::Client);
    }

    fn count(&self, port: usize, direction: Direction, sent: SendResult, drop: DatagramDrop) {
        self.ports[port].traffic.add_packets(direction, sent.datagrams, sent.bytes);
        self.counters.datagrams.with_label(direction).add(sent.datagrams);
        self.counters.datagram_bytes.with_label(direction).add(sent.bytes);
        if sent.dropped > 0 {
            self.counters.dropped.with_label(drop).add(sent.dropped);
        }
    }

    fn open_session(&mut self, port: usize, player: Player, backend: SocketAddr) -> Result<usize, DatagramDrop> {
        let address = player.client();
        // Spoofed source ports must not keep the owner of the address out.
        let own = if self.sessions.address_count(address) >= self.bounds.sessions_per_address {
            Some(self.sessions.evictable_of_address(address).ok_or(DatagramDrop::Address)?)
        } else {
            None
        };
        let player_session = self.ports[port].begin_player_session(address)?;
        // Checked first, so that a full port takes nothing from the session rate of others.
        let other = match own {
            Some(own) if self.sessions.at(own).port == port => None,
            _ => self.choose_eviction(port)?.filter(|other| Some(*other) != own),
        };
        if !self.may_open_session(self.has_many_sessions(port, own.or(other))) {
            return Err(DatagramDrop::Rate);
        }
        for evicted in own.into_iter().chain(other) {
            self.end(evicted, SessionEnd::Evicted);
        }
        let socket = self.backend_sockets.connect(backend).map_err(|error| self.reason_of(&error))?;
        let header = self.ports[port].proxy_header(&player);
        let index = self.sessions.insert(port, player, socket, Rank::New, self.now_ms);
        self.sessions.set_proxy_header(index, header);
        self.sessions.set_player_session(index, player_session);
        if self.poll_session(index).is_err() {
            self.sessions.remove(index);
            return Err(DatagramDrop::Descriptors);
        }
        self.sessions.count_with_owner(index, &self.ports[port].traffic);
        self.counters.sessions.increment();
        self.counters.sessions_begun.increment();
        Ok(index)
    }

    /// Returns the reason why no socket to the backend could be opened. Logs a lack of ports once.
    fn reason_of(&mut self, error: &io::Error) -> DatagramDrop {
        if !backend_socket::is_out_of_ports(error) {
            return DatagramDrop::Descriptors;
        }
        if !std::mem::replace(&mut self.has_logged_ports, true) {
            operator_log::write_line(
                "no local port is free for a new UDP session: widen net.ipv4.ip_local_port_range with sysctl",
            );
        }
        DatagramDrop::Ports
    }

    fn choose_eviction(&self, port: usize) -> Result<Option<usize>, DatagramDrop> {
        if self.sessions.port_count(port) >= self.bounds.sessions_per_route {
            self.sessions.evictable_at_port(port, self.now_ms).ok_or(DatagramDrop::Route).map(Some)
        } else if self.sessions.len() >= self.bounds.sessions {
            self.sessions.evictable_for_port(port, self.now_ms).ok_or(DatagramDrop::Full).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Reports whether a port has at least half as many sessions as the port of `evicted`.
    ///
    /// `evicted` is the session that a new session of the port would evict. Such a port is probably flooded.
    fn has_many_sessions(&self, port: usize, evicted: Option<usize>) -> bool {
        evicted.is_some_and(|evicted| {
            let others = self.sessions.port_count(self.sessions.at(evicted).port);
            2 * self.sessions.port_count(port) >= others
        })
    }

    fn poll_session(&self, index: usize) -> io::Result<()> {
        let session = self.sessions.at(index);
        let token = (u64::from(session.generation) << 31 | index as u64) & !PORT;
        self.epoll.add(session.socket.as_raw_fd(), token)
    }

    /// Counts a new session against the limit per second. Returns false if the limit is reached.
    ///
    /// A port with `has_many_sessions` leaves half of the limit to other ports.
    fn may_open_session(&mut self, has_many_sessions: bool) -> bool {
        let maximum = self.bounds.sessions_per_second as u64;
        let refill = (self.now_ms - self.refilled_ms) * maximum / 1_000;
        if refill > 0 {
            self.session_allowance = (self.session_allowance + refill).min(maximum);
            self.refilled_ms = self.now_ms;
        }
        let reserved = if has_many_sessions { maximum / 2 } else { 0 };
        let is_allowed = self.session_allowance > reserved;
        self.session_allowance -= u64::from(is_allowed);
        is_allowed
    }

    fn end(&mut self, index: usize, reason: SessionEnd) {
        let session = self.sessions.remove(index);
        // Another process may have a duplicate of the socket, so closing does not remove it from epoll.
        self.epoll.remove(session.socket.as_raw_fd());
        self.counters.sessions.decrement();
        self.counters.sessions_ended.with_label(reason).increment();
    }

    fn sweep(&mut self) {
        if self.now_ms - self.swept_ms < SWEEP_MS {
            return;
        }
        self.swept_ms = self.now_ms;
        let idle_ms = u64::try_from(self.bounds.idle.as_millis()).unwrap_or(u64::MAX);
        self.sessions.idle(self.now_ms, idle_ms).into_iter().for_each(|index| self.end(index, SessionEnd::Idle));
    }

    fn handle_command(&mut self, command: LoopCommand) {
        match command {
            LoopCommand::Open(port, sessions) => self.open(port, sessions),
            LoopCommand::SetBackend(number, backend) => {
                let Some(port) = self.by_number.get(&number).copied() else { return };
                if self.ports[port].backend != backend {
                    self.ports[port].backend = backend;
                    self.end_port_sessions(port, SessionEnd::Route);
                }
            }
            LoopCommand::Close(number, done) => {
                if let Some(port) = self.by_number.remove(&number) {
                    self.end_port_sessions(port, SessionEnd::Route);
                    self.close(port);
                }
                let _ = done.send(());
            }
            LoopCommand::RunTask(task) => task(),
            LoopCommand::Pause(reply) => {
                self.is_paused = true;
                self.set_port_polling(false);
                let _ = reply.send(self.migrated_sessions());
            }
            LoopCommand::SetLimits(bounds) => self.bounds = bounds,
            LoopCommand::Resume => {
                self.is_paused = false;
                self.set_port_polling(true);
            }
            LoopCommand::CloseAll(done) => {
                let ports: Vec<usize> = self.by_number.drain().map(|(_, port)| port).collect();
                for port in ports {
                    self.end_port_sessions(port, SessionEnd::HandedOver);
                    self.close(port);
                }
                let _ = done.send(());
            }
        }
    }

    fn open(&mut self, port: UdpPort, sessions: Vec<MigratedSession>) {
        let UdpPort { number, socket, backend, sends_proxy_header, traffic, players, counts_sessions } = port;
        let bound = socket.local_addr().map(|address| address.ip().to_canonical()).ok();
        let is_wildcard = bound.is_some_and(local_address::is_wildcard);
        if is_wildcard {
            local_address::request_destination_address(&*socket);
        }
        let rate = PortRate::default();
        let served = ServedPort {
            number,
            socket,
            backend,
            is_wildcard,
            sends_proxy_header,
            rate,
            traffic,
            players,
            counts_sessions,
        };
        let index = self.ports.insert(served);
        self.by_number.insert(number, index);
        for MigratedSession { mut player, backend: session_backend, rank, socket, .. } in sessions {
            // The new socket may not receive datagrams for that local address.
            let can_receive = is_wildcard || player.local.is_none_or(|local| Some(local.address) == bound);
            player.local = player.local.filter(|_| is_wildcard);
            let is_new = self.sessions.index_of(index, player.sender, player.local).is_none();
            // False if the setting has changed. The next datagram then begins a session with or without a header.
            let has_same_headers = player.named.is_some() == self.is_proxy(player.sender);
            let is_valid = Some(session_backend) == backend && can_receive && is_new && has_same_headers;
            if is_valid && self.sessions.len() < self.bounds.sessions {
                let header = self.ports[index].proxy_header(&player);
                let players = self.ports[index].players.as_ref().filter(|_| self.ports[index].counts_sessions);
                let player_session = players.map(|players| players.adopt(player.client()));
                let session = self.sessions.insert(index, player, socket, rank, self.now_ms);
                self.sessions.set_proxy_header(session, header);
                self.sessions.count_with_owner(session, &self.ports[index].traffic);
                self.sessions.set_player_session(session, player_session);
                self.counters.sessions.increment();
                if self.poll_session(session).is_err() {
                    self.end(session, SessionEnd::Route);
                }
            }
        }
        // Cannot fail for lack of descriptors, which the bind has checked.
        let _ = self.epoll.add(self.ports[index].socket.as_raw_fd(), PORT | index as u64);
    }

    fn close(&mut self, port: usize) {
        let served = self.ports.remove(port);
        self.epoll.remove(served.socket.as_raw_fd());
    }

    fn end_port_sessions(&mut self, port: usize, reason: SessionEnd) {
        let indices: Vec<usize> =
            self.sessions.iter().filter(|(_, session)| session.port == port).map(|(index, _)| index).collect();
        indices.into_iter().for_each(|index| self.end(index, reason));
    }

    /// Starts or stops polling of ports and sessions. During a pause, polled sockets would wake the loop repeatedly.
    fn set_port_polling(&self, is_enabled: bool) {
        for (index, served) in &self.ports {
            let fd = served.socket.as_raw_fd();
            if is_enabled {
                let _ = self.epoll.add(fd, PORT | index as u64);
            } else {
                self.epoll.remove(fd);
            }
        }
        for (index, session) in self.sessions.iter() {
            if is_enabled {
                let _ = self.poll_session(index);
            } else {
                self.epoll.remove(session.socket.as_raw_fd());
            }
        }
    }

    fn migrated_sessions(&self) -> Vec<MigratedSession> {
        let mut all = Vec::new();
        for (_, session) in self.sessions.iter() {
            let served = &self.ports[session.port];
            if let Some(backend) = served.backend {
                let (player, rank, socket) = (session.player.clone(), session.rank(), session.socket.clone());
                all.push(MigratedSession { number: served.number, player, backend, rank, socket });
            }
        }
        all
    }
}
