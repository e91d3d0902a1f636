//! Giving everything to a newer process, or taking it from an older one: sockets by SCM_RIGHTS, and what they are.
//!
//! ```text
//! newer                                   older
//! POST /handover, upgrade ──────────────► rests: reads no datagram, follows no change
//!        ◄────────────────────────────── the set, and sockets with what they are for
//! opens what it has to have besides, and may not get; ends if so
//! ready ────────────────────────────────►
//!        ◄────────────────────────────── yours (from here on it serves), or kept (nothing has changed)
//! remove an owner ──────────────────────► cuts what it still carries for it
//!        ◄────────────────────────────── gone
//! ```
//!
//! An older process that dies after `ready` has left everything to the newer one, since the sockets are there already.
//! Connections that began in the older one go on in it until they end.

mod framing;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::inherited::InheritedSockets;
use crate::route_set::RouteSet;
use crate::udp::{LocalAddress, MigratedSession, Rank};
pub use framing::{read_frame, write_frame};

/// How long the other side may take for one step.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

/// What a descriptor is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketRole {
    /// The lock of the folder.
    Lock,
    /// The listener of plain HTTP by host.
    Http,
    /// The listener of HTTPS by host.
    Https,
    /// The listener of a public port.
    Stream {
        /// Its number.
        port: u16,
    },
    /// The socket of a public UDP port.
    Datagram {
        /// Its number.
        port: u16,
    },
    /// The socket of a UDP session.
    Session {
        /// The public port.
        port: u16,
        /// The player.
        client: SocketAddr,
        /// The address of ours that it speaks to. Older processes say nothing of it, nor does one that has one only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        local: Option<LocalAddress>,
        /// Where it leads.
        backend: SocketAddr,
        /// How much it is worth.
        rank: Rank,
    },
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HandoverMessage {
    /// The routes.
    Routes(RouteSet),
    /// Descriptors that come with this frame, and what each is for.
    Items(Vec<SocketRole>),
    /// That was all.
    End,
    /// All of it has arrived.
    Ready,
    /// It is the newer one's from here on.
    Yours,
    /// It is the older one's still.
    Kept,
    /// An owner has to go.
    Remove(String),
    /// It has gone.
    Gone(String),
    /// End now.
    Stop,
}

/// A descriptor that is given, and still its owner's: there may be no room for as many again.
pub type SharedDescriptor = Arc<dyn AsFd + Send + Sync>;

/// What is given.
#[derive(Default)]
pub struct HandoverOffer {
    /// Descriptors and what they are for.
    pub items: Vec<(SocketRole, SharedDescriptor)>,
    /// The routes.
    pub set: RouteSet,
}

/// What was taken, sorted.
#[derive(Debug, Default)]
pub struct ReceivedState {
    /// The lock of the folder.
    pub lock: Option<OwnedFd>,
    /// Listeners of hosts: plain, TLS.
    pub hosts: [Option<TcpListener>; 2],
    /// Ports and sessions.
    pub inherited: InheritedSockets,
    /// The routes.
    pub set: RouteSet,
}

/// Gives everything to whoever is on the other end; returns when all has arrived there.
///
/// # Errors
/// The other side's: then nothing has changed.
pub fn send_offer(stream: &UnixStream, gift: &HandoverOffer) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    framing::send(stream, &HandoverMessage::Routes(gift.set.clone()), &[])?;
    for part in gift.items.chunks(framing::DESCRIPTORS) {
        let items = part.iter().map(|(item, _)| item.clone()).collect();
        let descriptors: Vec<_> = part.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
        framing::send(stream, &HandoverMessage::Items(items), &descriptors)?;
    }
    framing::send(stream, &HandoverMessage::End, &[])?;
    match framing::receive(stream)?.0 {
        HandoverMessage::Ready => Ok(()),
        other => Err(io::Error::other(format!("`ready` was expected and not {other:?}"))),
    }
}

/// Says the word after which everything is the other side's.
///
/// # Errors
/// The other side's: then nothing has changed.
pub fn confirm(stream: &UnixStream) -> io::Result<()> {
    framing::send(stream, &HandoverMessage::Yours, &[])
}

/// Asks the process that has the folder for everything.
///
/// # Errors
/// It does not answer, or not as one that gives.
pub fn connect(folder: &Path) -> io::Result<UnixStream> {
    use std::io::{Read, Write};
    let mut stream = UnixStream::connect(folder.join("admin.sock"))?;
    stream.set_read_timeout(Some(STEP_TIMEOUT))?;
    stream.set_write_timeout(Some(STEP_TIMEOUT))?;
    stream.write_all(
        b"POST /handover HTTP/1.1\r\nhost: edge\r\nconnection: upgrade\r\nupgrade: hosting-handover\r\n\r\n",
    )?;
    // Byte by byte: what follows the head is not text, and descriptors come with it.
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

/// Takes everything, which is the other side's still.
///
/// # Errors
/// The other side's.
pub fn receive(stream: &UnixStream) -> io::Result<ReceivedState> {
    let mut taken = ReceivedState::default();
    loop {
        match framing::receive(stream)? {
            (HandoverMessage::Routes(set), _) => taken.set = set,
            (HandoverMessage::Items(items), descriptors) if items.len() == descriptors.len() => {
                items.into_iter().zip(descriptors).for_each(|(item, descriptor)| taken.add(item, descriptor));
            }
            (HandoverMessage::End, _) => return Ok(taken),
            (other, _) => return Err(io::Error::other(format!("{other:?} is out of place"))),
        }
    }
}

/// Says that all of it is there, and hears that it is ours.
///
/// # Errors
/// The other side's, or that it keeps it after all.
pub fn accept(stream: &UnixStream) -> io::Result<()> {
    framing::send(stream, &HandoverMessage::Ready, &[])?;
    match framing::receive(stream) {
        Ok((HandoverMessage::Yours, _)) => Ok(()),
        Ok((other, _)) => Err(io::Error::other(format!("`yours` was expected and not {other:?}"))),
        // It has died: there is nobody else who could serve.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(error),
    }
}

impl ReceivedState {
    fn add(&mut self, item: SocketRole, descriptor: OwnedFd) {
        match item {
            SocketRole::Lock => self.lock = Some(descriptor),
            SocketRole::Http => self.hosts[0] = Some(TcpListener::from(descriptor)),
            SocketRole::Https => self.hosts[1] = Some(TcpListener::from(descriptor)),
            SocketRole::Stream { port } => drop(self.inherited.streams.insert(port, TcpListener::from(descriptor))),
            SocketRole::Datagram { port } => drop(self.inherited.datagrams.insert(port, UdpSocket::from(descriptor))),
            SocketRole::Session { port, client, local, backend, rank } => {
                let session = MigratedSession { number: 0, client, local, backend, rank, socket: Arc::new(descriptor) };
                self.inherited.sessions.entry(port).or_default().push(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(stream: &UnixStream) -> io::Result<ReceivedState> {
        let taken = receive(stream)?;
        accept(stream).map(|()| taken)
    }

    #[test]
    fn sockets_arrive_with_their_roles() {
        let (older, newer) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut items: Vec<(SocketRole, SharedDescriptor)> = vec![(SocketRole::Stream { port }, Arc::new(listener))];
        for number in 0..500 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let client = SocketAddr::from(([10, 0, 0, 1], number));
            let backend = socket.local_addr().unwrap();
            let local = Some(LocalAddress { address: [10, 0, 0, 2].into(), interface: 0 });
            let item = SocketRole::Session { port: 7, client, local, backend, rank: Rank::Answered };
            items.push((item, Arc::new(socket)));
        }
        let gift = HandoverOffer { items, set: RouteSet::default() };
        let giving = std::thread::spawn(move || {
            send_offer(&older, &gift).unwrap();
            framing::send(&older, &HandoverMessage::Yours, &[]).unwrap();
        });
        let taken = take_all(&newer).unwrap();
        giving.join().unwrap();
        assert_eq!(taken.inherited.streams[&port].local_addr().unwrap().port(), port);
        let sessions = &taken.inherited.sessions[&7];
        assert_eq!(sessions.len(), 500);
        for session in sessions {
            assert_eq!(session.local.unwrap().address, std::net::IpAddr::from([10, 0, 0, 2]));
            let socket = UdpSocket::from(session.socket.try_clone().unwrap());
            assert_eq!(socket.local_addr().unwrap(), session.backend, "descriptors and their names are mixed up");
        }
    }

    #[test]
    fn session_role_without_local_address_is_accepted() {
        let text = r#"{"session":{"port":7,"client":"10.0.0.1:5","backend":"127.0.0.1:6","rank":"spoken"}}"#;
        let item: SocketRole = serde_json::from_str(text).unwrap();
        assert!(matches!(item, SocketRole::Session { port: 7, local: None, rank: Rank::Spoken, .. }), "{item:?}");
        assert_eq!(serde_json::to_string(&item).unwrap(), text);
    }

    #[test]
    fn kept_message_cancels_the_handover() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || take_all(&newer));
        send_offer(&older, &HandoverOffer::default()).unwrap();
        framing::send(&older, &HandoverMessage::Kept, &[]).unwrap();
        assert!(taking.join().unwrap().is_err());
    }

    #[test]
    fn death_after_the_offer_completes_the_handover() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || take_all(&newer));
        send_offer(&older, &HandoverOffer::default()).unwrap();
        drop(older);
        assert!(taking.join().unwrap().is_ok());
    }
}
