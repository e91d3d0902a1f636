//! An edge-guard that serves, until it ends: by order, gently, or because a newer one has taken over.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

use crate::begin::{Begin, Opened, instance};
use crate::control::{Control, Order, outcomes};
use crate::datagram::Carried;
use crate::folder::Lock;
use crate::follow::Source;
use crate::handover::{self, Frame, Gift, Held, Item, read_frame, write_frame};
use crate::listener::Door;
use crate::log;
use crate::metrics::Failure;
use crate::parts::Parts;
use crate::routes::Disk;
use crate::table::{Outcome, Table};

fn to_async(stream: std::os::unix::net::UnixStream) -> std::io::Result<UnixStream> {
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Reads frames in a task of its own: a half-read one must not be dropped.
fn hear_frames(mut from: OwnedReadHalf) -> UnboundedReceiver<Frame> {
    let (say, said) = unbounded_channel();
    tokio::spawn(async move {
        while let Ok(frame) = read_frame(&mut from).await {
            let _ = say.send(frame);
        }
    });
    said
}

/// What serves.
pub struct Life {
    parts: Parts,
    control: Control,
    doors: [Option<Door>; 2],
    lock: Lock,
    told: UnboundedReceiver<Order>,
    admin: tokio::task::JoinHandle<()>,
}

impl Life {
    /// Begins to serve.
    pub fn begin(parts: Parts, begin: Begin, descriptors: u64) -> Self {
        let Begin { lock, set, inherited, predecessor, opened } = begin;
        let Opened { hosts, admin: socket, orders, told } = opened;
        let folder = &parts.shared.config.folder;
        let doors = parts.host_doors(hosts);
        let (say, outcomes) = outcomes();
        let has = (doors[0].is_some(), doors[1].is_some());
        let mut table = Table::new(parts.shared.clone(), parts.workers.clone(), parts.datagrams.clone(), has, say);
        table.inherited = inherited;
        table.predecessor = predecessor;
        table.begin(&set);
        let source = Source::new(&parts.shared.config.source, &parts.shared.config.edge_id, &instance());
        let kept = (Disk::new(folder), set);
        let control = Control::new(table, source, kept, outcomes, parts.counters.clone(), parts.status.clone());
        parts.show_room(descriptors, parts.shared.config.limits.datagram_sessions);
        let admin = tokio::spawn(Arc::new(parts.admin(orders, &doors)).serve(socket.listener));
        Self { parts, control, doors, lock, told, admin }
    }

    /// Serves until the end, and says with which code.
    pub async fn until_the_end(mut self) -> u8 {
        loop {
            match self.control.until_told(&mut self.told).await {
                Order::Stop => break,
                Order::Drain => {
                    self.drain().await;
                    break;
                }
                Order::ReadAgain => self.read_again(),
                Order::HandOver(stream) => {
                    if let Some(stream) = self.hand_over(stream).await {
                        return self.carry_on(stream).await;
                    }
                }
            }
        }
        if let Some(predecessor) = &self.control.table.predecessor {
            predecessor.stop();
            // Its end is seen, or it is as slow as it was told to be quick.
            let end = Instant::now() + Duration::from_secs(2);
            while !predecessor.is_over() && Instant::now() < end {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        self.admin.abort();
        let _ = std::fs::remove_file(self.parts.shared.config.folder.join("admin.sock"));
        log::say("ends");
        0
    }

    /// Gives everything to a newer process. Some: it serves from here on. None: nothing has changed.
    async fn hand_over(&mut self, stream: std::os::unix::net::UnixStream) -> Option<UnixStream> {
        let sessions = self.parts.datagrams.rest().await;
        let given = match self.gift(sessions) {
            Ok(gift) => tokio::task::spawn_blocking(move || handover::give(&stream, &gift).map(|()| stream)).await,
            Err(error) => Ok(Err(error)),
        };
        // Until this word is out everything could still go on here; from then on nothing is read here any more.
        let said = given.map_err(std::io::Error::other).and_then(|given| given).and_then(|stream| {
            handover::say_yours(&stream)?;
            to_async(stream)
        });
        let stream = match said {
            Ok(stream) => stream,
            Err(error) => {
                log::say(&format!("not handed over: {error}"));
                self.parts.counters.failures.of(Failure::Handover).one();
                self.parts.datagrams.go_on();
                return None;
            }
        };
        self.parts.datagrams.forget().await;
        self.control.table.step_back();
        self.doors = [None, None];
        self.admin.abort();
        Some(stream)
    }

    fn gift(&self, sessions: Vec<Carried>) -> std::io::Result<Gift> {
        let mut items: Vec<(Item, Held)> = vec![(Item::Lock, self.lock.descriptor())];
        for (door, item) in self.doors.iter().zip([Item::Http, Item::Https]) {
            if let Some(door) = door {
                items.push((item, door.socket()));
            }
        }
        let (doors, datagrams) = self.control.table.sockets();
        for door in doors {
            let port = door.address().map_or(0, |address| address.port());
            items.push((Item::Stream { port }, door.socket()));
        }
        let mut ports = HashMap::new();
        for (number, socket) in datagrams {
            let port = socket.local_addr()?.port();
            ports.insert(number, port);
            items.push((Item::Datagram { port }, socket.clone()));
        }
        for Carried { number, client, local, backend, rank, socket } in sessions {
            if let Some(port) = ports.get(&number).copied() {
                items.push((Item::Session { port, client, local, backend, rank }, socket));
            }
        }
        Ok(Gift { items, set: self.control.set().clone() })
    }

    /// Goes on with the connections that there are, until they end; a newer process does everything else.
    async fn carry_on(self, stream: UnixStream) -> u8 {
        let Self { parts, mut control, lock, mut told, .. } = self;
        // The newer process has the lock through a descriptor of its own.
        drop(lock);
        let end = Instant::now() + parts.shared.timeouts().replaced;
        let (from, mut to) = stream.into_split();
        let mut frames = hear_frames(from);
        // New routes are not heard of here: whoever asks over a connection that stays is sent to the newer process.
        parts.shared.leaving.send_replace(true);
        log::say(&format!("was replaced; {} connections go on", parts.busy()));
        let mut look = tokio::time::interval(Duration::from_millis(100));
        loop {
            tokio::select! {
                Some(frame) = frames.recv() => match frame {
                    Frame::Remove(owner) => control.table.remove(&owner),
                    Frame::Stop => break,
                    _ => {}
                },
                Some(outcome) = control.outcome() => {
                    if let Outcome::Removed(owner) = outcome {
                        let _ = write_frame(&mut to, &Frame::Gone(owner)).await;
                    }
                }
                Some(order) = told.recv() => {
                    if matches!(order, Order::Stop | Order::Drain) {
                        break;
                    }
                }
                _ = look.tick() => {
                    let is_last = control.table.predecessor.as_ref().is_none_or(|before| before.is_over());
                    if (parts.busy() == 0 && is_last) || Instant::now() >= end {
                        break;
                    }
                }
            }
        }
        if let Some(predecessor) = &control.table.predecessor {
            predecessor.stop();
        }
        log::say("was replaced and ends");
        0
    }

    /// Takes nobody in any more, and waits until everybody has left, within the time for it.
    async fn drain(&mut self) {
        self.parts.status.lock().unwrap_or_else(PoisonError::into_inner).is_leaving = true;
        let end = Instant::now() + self.parts.shared.timeouts().drain;
        log::say(&format!("drains: {} go on", self.parts.busy()));
        self.doors = [None, None];
        self.control.table.step_back();
        self.parts.shared.leaving.send_replace(true);
        while self.parts.busy() > 0 && Instant::now() < end {
            match tokio::time::timeout(Duration::from_millis(50), self.told.recv()).await {
                Ok(Some(Order::Drain | Order::Stop)) => return,
                Ok(Some(Order::ReadAgain | Order::HandOver(_)) | None) | Err(_) => {}
            }
        }
    }

    fn read_again(&self) {
        match self.parts.read_again() {
            Ok(()) => log::say("certificates, limits and times were read again"),
            Err(problems) => {
                problems.iter().for_each(|problem| log::say(problem));
                log::say("the certificates, limits and times of before stay");
                self.parts.counters.failures.of(Failure::Certificates).one();
            }
        }
    }
}
