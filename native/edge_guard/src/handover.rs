//! Handover of all sockets and routes from an older process to a newer one, over a Unix socket with SCM_RIGHTS.
//! ```text
//! newer                                   older
//! POST /handover, upgrade ──────────────► pauses: reads no datagram, applies no change
//!        ◄────────────────────────────── routes, and sockets with their roles
//! opens everything else that it needs, and exits if it cannot
//! ready ────────────────────────────────►
//!        ◄────────────────────────────── yours (the newer one serves), or kept (nothing has changed)
//! remove an owner ──────────────────────► ends its remaining connections
//!        ◄────────────────────────────── gone
//! ```
//!
//! The older process keeps its open connections until they end. If the older process dies after `ready`, the newer one
//! serves without the confirmation, because it already has the sockets.

mod framing;

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::proxy_protocol::NamedAddresses;
use crate::route_set::RouteSet;
use crate::udp::{LocalAddress, MigratedSession, Player, Rank};
pub use framing::{read_frame, write_frame};

/// Timeout of each read and write during the handover.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketRole {
    Lock,
    Http,
    Https,
    Stream {
        port: u16,
    },
    Datagram {
        port: u16,
    },
    Session {
        port: u16,
        #[serde(rename = "client")]
        sender: SocketAddr,
        /// Local address that the player uses. `None` on a port with only one address, or from an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<LocalAddress>,
        /// Addresses in the PROXY header of the session. `None` without a header, or from an older version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        named: Option<Box<NamedAddresses>>,
        backend: SocketAddr,
        rank: Rank,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoverMessage {
    Routes(RouteSet),
    #[serde(rename = "items")]
    Sockets(Vec<SocketRole>),
    End,
    Ready,
    #[serde(rename = "yours")]
    Confirmed,
    #[serde(rename = "kept")]
    Cancelled,
    #[serde(rename = "remove")]
    RemoveOwner(String),
    #[serde(rename = "gone")]
    OwnerRemoved(String),
    Stop,
}

/// File descriptor that the older process sends and still uses. It is shared and not duplicated, because that process
/// may be out of descriptors.
pub type SharedDescriptor = Arc<dyn AsFd + Send + Sync>;

#[derive(Default)]
pub struct HandoverOffer {
    pub sockets: Vec<(SocketRole, SharedDescriptor)>,
    pub set: RouteSet,
}

#[derive(Debug, Default)]
pub struct ReceivedState {
    pub lock: Option<OwnedFd>,
    pub hosts: [Option<TcpListener>; 2],
    pub inherited: InheritedSockets,
    pub set: RouteSet,
}

/// Sockets of the older process by port number. The routes of the newer process take their sockets from here.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    pub streams: HashMap<u16, TcpListener>,
    pub datagrams: HashMap<u16, UdpSocket>,
    pub sessions: HashMap<u16, Vec<MigratedSession>>,
}

/// Sends all routes and sockets, and waits until the newer process is ready. After an error, the caller must continue
/// to serve.
pub fn send_offer(stream: &UnixStream, offer: &HandoverOffer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    framing::send(stream, &HandoverMessage::Routes(offer.set.clone()), &[])?;
    for part in offer.sockets.chunks(framing::DESCRIPTORS) {
        let sockets = part.iter().map(|(role, _)| role.clone()).collect();
        let descriptors: Vec<_> = part.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
        framing::send(stream, &HandoverMessage::Sockets(sockets), &descriptors)?;
    }
    framing::send(stream, &HandoverMessage::End, &[])?;
    match framing::receive(stream)?.0 {
        HandoverMessage::Ready => Ok(()),
        other => Err(io::Error::other(format!("`ready` was expected and not {other:?}"))),
    }
}

/// Sends the last message of the handover. From then on, the newer process serves.
pub fn confirm(stream: &UnixStream) -> io::Result<()> {
    framing::send(stream, &HandoverMessage::Confirmed, &[])
}

pub fn connect(folder: &Path) -> io::Result<UnixStream> {
    use std::io::{Read, Write};
    let mut stream = UnixStream::connect(folder.join("admin.sock"))?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    stream.write_all(
        b"POST /handover HTTP/1.1\r\nhost: edge\r\nconnection: upgrade\r\nupgrade: hosting-handover\r\n\r\n",
    )?;
    // Read byte by byte: descriptors follow the response head.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
        if head.len() > 4_096 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    if head.starts_with(b"HTTP/1.1 101 ") {
        return Ok(stream);
    }
    Err(io::Error::other(String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned()))
}

/// Receives the routes and sockets of the older process. This process must not serve with them before `accept`.
pub fn receive(stream: &UnixStream) -> io::Result<ReceivedState> {
    let mut received = ReceivedState::default();
    loop {
        match framing::receive(stream)? {
            (HandoverMessage::Routes(set), _) => received.set = set,
            (HandoverMessage::Sockets(sockets), descriptors) if sockets.len() == descriptors.len() => {
                sockets.into_iter().zip(descriptors).for_each(|(role, descriptor)| received.add(role, descriptor));
            }
            (HandoverMessage::End, _) => return Ok(received),
            (other, _) => return Err(io::Error::other(format!("{other:?} is out of place"))),
        }
    }
}

/// Sends `ready` to the older process, and waits until it confirms that it stops serving. A dead process need not
/// confirm.
///
/// After an error the older process serves, and this process must not.
pub fn accept(stream: &UnixStream, older: &OlderProcess) -> io::Result<()> {
    framing::send(stream, &HandoverMessage::Ready, &[])?;
    let mut received = framing::receive(stream);
    if received.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        // The older process can no longer confirm after this call, but its message may have arrived just before.
        stream.shutdown(std::net::Shutdown::Read)?;
        received = framing::receive(stream);
    }
    match received {
        Ok((HandoverMessage::Confirmed, _)) => Ok(()),
        Ok((other, _)) => Err(io::Error::other(format!("`yours` was expected and not {other:?}"))),
        // The older process closed the connection: it gave up and serves, or it died and no other process can serve.
        Err(_) if older.is_dead_within(DEATH_TIMEOUT) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Time between the end of a dying process's connections and the end of the process.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// The process at the other end of a handover, by a PID file descriptor. It is `None` for a process of another container,
/// with a PID that this process cannot see.
#[derive(Debug)]
pub struct OlderProcess(Option<OwnedFd>);

impl OlderProcess {
    pub fn of(stream: &UnixStream) -> io::Result<Self> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `peer` and `length` outlive the call, and the descriptor is open. A new descriptor has no other owner.
        unsafe {
            let (socket, value) = (stream.as_raw_fd(), (&raw mut peer).cast());
            if libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &raw mut length) != 0 {
                return Err(io::Error::last_os_error());
            }
            if peer.pid == 0 {
                return Ok(Self(None));
            }
            let descriptor = libc::syscall(libc::SYS_pidfd_open, peer.pid, 0);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self(Some(OwnedFd::from_raw_fd(descriptor as RawFd))))
        }
    }

    /// Returns false for a process that cannot be seen. The supervisor then starts this process again.
    fn is_dead_within(&self, limit: Duration) -> bool {
        let Some(process) = &self.0 else { return false };
        let mut wanted = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let limit_ms = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `wanted` outlives the call.
        unsafe { libc::poll(&raw mut wanted, 1, limit_ms) == 1 }
    }
}

impl ReceivedState {
    fn add(&mut self, role: SocketRole, descriptor: OwnedFd) {
        match role {
            SocketRole::Lock => self.lock = Some(descriptor),
            SocketRole::Http => self.hosts[0] = Some(TcpListener::from(descriptor)),
            SocketRole::Https => self.hosts[1] = Some(TcpListener::from(descriptor)),
            SocketRole::Stream { port } => drop(self.inherited.streams.insert(port, TcpListener::from(descriptor))),
            SocketRole::Datagram { port } => drop(self.inherited.datagrams.insert(port, UdpSocket::from(descriptor))),
            SocketRole::Session { port, sender, local, named, backend, rank } => {
                let player = Player { sender, local, named };
                let session = MigratedSession { number: 0, player, backend, rank, socket: Arc::new(descriptor) };
                self.inherited.sessions.entry(port).or_default().push(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(port: u16) -> NamedAddresses {
        let client = SocketAddr::from(([198, 51, 100, 7], port));
        NamedAddresses { client, server: SocketAddr::from(([203, 0, 113, 1], 443)) }
    }

    fn receive_and_accept(stream: &UnixStream) -> io::Result<ReceivedState> {
        let received = receive(stream)?;
        accept(stream, &OlderProcess::of(stream)?).map(|()| received)
    }

    /// Returns a process that has ended. Both ends of the connections in these tests are in one living process.
    fn dead_process() -> OlderProcess {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        // SAFETY: the child was not waited for, so its PID is its own.
        let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
        assert!(descriptor >= 0);
        child.wait().unwrap();
        // SAFETY: the descriptor is new.
        OlderProcess(Some(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) }))
    }

    #[test]
    fn sockets_arrive_with_their_roles() {
        let (older, newer) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut sockets: Vec<(SocketRole, SharedDescriptor)> = vec![(SocketRole::Stream { port }, Arc::new(listener))];
        for number in 0..500 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let sender = SocketAddr::from(([10, 0, 0, 1], number));
            let named = (number % 2 == 1).then(|| Box::new(named(number)));
            let backend = socket.local_addr().unwrap();
            let local = Some(LocalAddress { address: [10, 0, 0, 2].into(), interface: 0 });
            let role = SocketRole::Session { port: 7, sender, local, named, backend, rank: Rank::Answered };
            sockets.push((role, Arc::new(socket)));
        }
        let offer = HandoverOffer { sockets, set: RouteSet::default() };
        let older_thread = std::thread::spawn(move || {
            send_offer(&older, &offer).unwrap();
            framing::send(&older, &HandoverMessage::Confirmed, &[]).unwrap();
        });
        let received = receive_and_accept(&newer).unwrap();
        older_thread.join().unwrap();
        assert_eq!(received.inherited.streams[&port].local_addr().unwrap().port(), port);
        let sessions = &received.inherited.sessions[&7];
        assert_eq!(sessions.len(), 500);
        for session in sessions {
            let number = session.player.sender.port();
            assert_eq!(session.player.local.unwrap().address, std::net::IpAddr::from([10, 0, 0, 2]));
            assert_eq!(session.player.named.as_deref().copied(), (number % 2 == 1).then(|| named(number)));
            let socket = UdpSocket::from(session.socket.try_clone().unwrap());
            assert_eq!(socket.local_addr().unwrap(), session.backend, "descriptors and their names are mixed up");
        }
    }

    #[test]
    fn session_role_has_the_named_client() {
        let text = r#"{"session":{"port":7,"client":"10.0.0.1:5","named":{"client":"198.51.100.7:5000","server":"203.0.113.1:443"},"backend":"127.0.0.1:6","rank":"begun"}}"#;
        let role: SocketRole = serde_json::from_str(text).unwrap();
        assert!(matches!(&role, SocketRole::Session { named: Some(is), .. } if **is == named(5_000)), "{role:?}");
        assert_eq!(serde_json::to_string(&role).unwrap(), text);
    }

    /// An older version replies to `client`, so this field is the sender of the datagrams in every version.
    #[test]
    fn session_role_without_local_address_is_accepted() {
        let text = r#"{"session":{"port":7,"client":"10.0.0.1:5","backend":"127.0.0.1:6","rank":"spoken"}}"#;
        let role: SocketRole = serde_json::from_str(text).unwrap();
        assert!(
            matches!(role, SocketRole::Session { port: 7, local: None, named: None, rank: Rank::Established, .. }),
            "{role:?}"
        );
        assert_eq!(serde_json::to_string(&role).unwrap(), text);
    }

    #[test]
    fn kept_message_cancels_the_handover() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || receive_and_accept(&newer));
        send_offer(&older, &HandoverOffer::default()).unwrap();
        framing::send(&older, &HandoverMessage::Cancelled, &[]).unwrap();
        assert!(taking.join().unwrap().is_err());
    }

    #[test]
    fn death_after_the_offer_completes_the_handover() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || receive(&newer).and_then(|_| accept(&newer, &dead_process())));
        send_offer(&older, &HandoverOffer::default()).unwrap();
        drop(older);
        assert!(taking.join().unwrap().is_ok());
    }

    #[test]
    fn older_process_that_gives_up_serves_alone() {
        // With an unread `ready`, the newer process sees a reset. Otherwise it sees the end of the stream.
        let attempts = [true, false].map(|reads_ready| {
            let (older, newer) = UnixStream::pair().unwrap();
            framing::send(&older, &HandoverMessage::End, &[]).unwrap();
            let taking = std::thread::spawn(move || receive_and_accept(&newer));
            if reads_ready {
                framing::receive::<HandoverMessage>(&older).unwrap();
            } else {
                let mut waiting = [0_u8; 1];
                // SAFETY: the buffer has room for one byte.
                let peeked = unsafe { libc::recv(older.as_raw_fd(), waiting.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
                assert_eq!(peeked, 1);
            }
            taking
        });
        for taking in attempts {
            assert!(taking.join().unwrap().is_err(), "the older process lives");
        }
    }
}
