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

mod frame;

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::datagram::{Carried, Local, Rank};
use crate::inherited::Inherited;
use crate::routes::Set;
pub use frame::{read_frame, write_frame};

/// How long the other side may take for one step.
const STEP: Duration = Duration::from_secs(10);

/// What a descriptor is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Item {
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
        local: Option<Local>,
        /// Where it leads.
        backend: SocketAddr,
        /// How much it is worth.
        rank: Rank,
    },
}

/// What is said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Frame {
    /// The routes.
    Routes(Set),
    /// Descriptors that come with this frame, and what each is for.
    Items(Vec<Item>),
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
pub type Held = Arc<dyn AsFd + Send + Sync>;

/// What is given.
#[derive(Default)]
pub struct Gift {
    /// Descriptors and what they are for.
    pub items: Vec<(Item, Held)>,
    /// The routes.
    pub set: Set,
}

/// What was taken, sorted.
#[derive(Debug, Default)]
pub struct Taken {
    /// The lock of the folder.
    pub lock: Option<OwnedFd>,
    /// Listeners of hosts: plain, TLS.
    pub hosts: [Option<TcpListener>; 2],
    /// Ports and sessions.
    pub inherited: Inherited,
    /// The routes.
    pub set: Set,
}

/// Gives everything to whoever is on the other end; returns when all has arrived there.
///
/// # Errors
/// The other side's: then nothing has changed.
pub fn give(stream: &UnixStream, gift: &Gift) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
    frame::send(stream, &Frame::Routes(gift.set.clone()), &[])?;
    for part in gift.items.chunks(frame::DESCRIPTORS) {
        let items = part.iter().map(|(item, _)| item.clone()).collect();
        let descriptors: Vec<_> = part.iter().map(|(_, descriptor)| descriptor.as_fd()).collect();
        frame::send(stream, &Frame::Items(items), &descriptors)?;
    }
    frame::send(stream, &Frame::End, &[])?;
    match frame::receive(stream)?.0 {
        Frame::Ready => Ok(()),
        other => Err(io::Error::other(format!("`ready` was expected and not {other:?}"))),
    }
}

/// Says the word after which everything is the other side's.
///
/// # Errors
/// The other side's: then nothing has changed.
pub fn say_yours(stream: &UnixStream) -> io::Result<()> {
    frame::send(stream, &Frame::Yours, &[])
}

/// Asks the process that has the folder for everything.
///
/// # Errors
/// It does not answer, or not as one that gives.
pub fn ask(folder: &Path) -> io::Result<UnixStream> {
    use std::io::{Read, Write};
    let mut stream = UnixStream::connect(folder.join("admin.sock"))?;
    stream.set_read_timeout(Some(STEP))?;
    stream.set_write_timeout(Some(STEP))?;
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
pub fn take(stream: &UnixStream) -> io::Result<Taken> {
    let mut taken = Taken::default();
    loop {
        match frame::receive(stream)? {
            (Frame::Routes(set), _) => taken.set = set,
            (Frame::Items(items), descriptors) if items.len() == descriptors.len() => {
                items.into_iter().zip(descriptors).for_each(|(item, descriptor)| taken.put(item, descriptor));
            }
            (Frame::End, _) => return Ok(taken),
            (other, _) => return Err(io::Error::other(format!("{other:?} is out of place"))),
        }
    }
}

/// Says that all of it is there, and hears that it is ours.
///
/// # Errors
/// The other side's, or that it keeps it after all.
pub fn agree(stream: &UnixStream) -> io::Result<()> {
    frame::send(stream, &Frame::Ready, &[])?;
    match frame::receive(stream) {
        Ok((Frame::Yours, _)) => Ok(()),
        Ok((other, _)) => Err(io::Error::other(format!("`yours` was expected and not {other:?}"))),
        // It has died: there is nobody else who could serve.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
        Err(error) => Err(error),
    }
}

impl Taken {
    fn put(&mut self, item: Item, descriptor: OwnedFd) {
        match item {
            Item::Lock => self.lock = Some(descriptor),
            Item::Http => self.hosts[0] = Some(TcpListener::from(descriptor)),
            Item::Https => self.hosts[1] = Some(TcpListener::from(descriptor)),
            Item::Stream { port } => drop(self.inherited.streams.insert(port, TcpListener::from(descriptor))),
            Item::Datagram { port } => drop(self.inherited.datagrams.insert(port, UdpSocket::from(descriptor))),
            Item::Session { port, client, local, backend, rank } => {
                let session = Carried { number: 0, client, local, backend, rank, socket: Arc::new(descriptor) };
                self.inherited.sessions.entry(port).or_default().push(session);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(stream: &UnixStream) -> io::Result<Taken> {
        let taken = take(stream)?;
        agree(stream).map(|()| taken)
    }

    #[test]
    fn what_is_given_arrives_with_what_it_is_for() {
        let (older, newer) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut items: Vec<(Item, Held)> = vec![(Item::Stream { port }, Arc::new(listener))];
        for number in 0..500 {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let client = SocketAddr::from(([10, 0, 0, 1], number));
            let backend = socket.local_addr().unwrap();
            let local = Some(Local { address: [10, 0, 0, 2].into(), interface: 0 });
            let item = Item::Session { port: 7, client, local, backend, rank: Rank::Answered };
            items.push((item, Arc::new(socket)));
        }
        let gift = Gift { items, set: Set::default() };
        let giving = std::thread::spawn(move || {
            give(&older, &gift).unwrap();
            frame::send(&older, &Frame::Yours, &[]).unwrap();
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
    fn a_session_of_an_older_process_has_no_known_address_of_ours_and_reads_as_before() {
        let text = r#"{"session":{"port":7,"client":"10.0.0.1:5","backend":"127.0.0.1:6","rank":"spoken"}}"#;
        let item: Item = serde_json::from_str(text).unwrap();
        assert!(matches!(item, Item::Session { port: 7, local: None, rank: Rank::Spoken, .. }), "{item:?}");
        assert_eq!(serde_json::to_string(&item).unwrap(), text);
    }

    #[test]
    fn who_keeps_it_after_all_is_believed() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || take_all(&newer));
        give(&older, &Gift::default()).unwrap();
        frame::send(&older, &Frame::Kept, &[]).unwrap();
        assert!(taking.join().unwrap().is_err());
    }

    #[test]
    fn who_dies_after_giving_has_given() {
        let (older, newer) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || take_all(&newer));
        give(&older, &Gift::default()).unwrap();
        drop(older);
        assert!(taking.join().unwrap().is_ok());
    }
}
