//! The thread of the game: reads datagrams, steps the world 20 times a second, and tells each player what it sees.
//!
//! It never waits for anything but its socket, its clock and a wake-up. While nobody is in it has no clock either.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::{Desk, Lost};
use crate::lobby::News;
use crate::protocol::{DATAGRAM_BYTES_MAX, Ending, Pass, Refusal, Said, State, Told};
use crate::seats::{Hello, Input, Seat, Seats};
use crate::system::{Dice, Waker, is_asked_to_stop, say};
use crate::world::{TICKS_PER_SECOND, World};

/// Time between two steps.
pub const TICK: Duration = Duration::from_millis(1000 / TICKS_PER_SECOND as u64);
/// Datagrams that are read before the clock is looked at again.
const READS_MAX: usize = 256;
/// A world that is later than this does not catch up.
const LATE: Duration = Duration::from_millis(250);
/// How often the end is told: one datagram may be lost.
const GOODBYES: usize = 3;

/// Why the game is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Over {
    /// Somebody sent SIGTERM or SIGINT.
    Asked,
    /// The hosting service ended the lobby.
    LobbyEnded,
    /// The hosting service does not take our token: the code.
    NotOurs(String),
    /// The thread of calls has failed.
    Failed,
}

/// All that the thread owns.
#[derive(Debug)]
pub struct Game {
    socket: UdpSocket,
    waker: Waker,
    desk: Desk,
    seats: Seats,
    world: World,
    paths: RandomState,
    next_step: Option<Instant>,
    out: Vec<u8>,
    seen: State,
}

impl Game {
    /// On a bound socket. Whoever says nothing for `silence` is gone.
    ///
    /// # Errors
    /// The socket cannot be used.
    pub fn new(socket: UdpSocket, waker: Waker, desk: Desk, places: usize, silence: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket,
            waker,
            desk,
            seats: Seats::new(places, silence),
            world: World::new(Dice::new()),
            paths: RandomState::new(),
            next_step: None,
            out: Vec::with_capacity(DATAGRAM_BYTES_MAX),
            seen: State::default(),
        })
    }

    /// Until it is over.
    ///
    /// # Errors
    /// The system cannot wait.
    pub fn play(&mut self) -> io::Result<Over> {
        loop {
            let left = self.next_step.map(|due| due.saturating_duration_since(Instant::now()));
            self.waker.wait(&self.socket, left)?;
            if is_asked_to_stop() {
                return Ok(Over::Asked);
            }
            let now = Instant::now();
            self.read(now);
            if let Some(over) = self.hear(now) {
                return Ok(over);
            }
            self.keep_time(now);
        }
    }

    /// Tells everybody, lets the service know, and returns when both are done.
    pub fn end(mut self, why: Ending) {
        let players: Vec<_> = self.seats.iter().map(|(_, seat)| seat.address).collect();
        let calls: JoinHandle<()> = self.desk.close();
        if !players.is_empty() {
            for _ in 0..GOODBYES {
                for player in &players {
                    send(&self.socket, &mut self.out, *player, &Told::Ended(why));
                }
                std::thread::sleep(TICK);
            }
        }
        // If it panicked it has said so.
        let _ = calls.join();
    }

    fn read(&mut self, now: Instant) {
        // One byte more than there may be, so that a longer datagram is seen as one.
        let mut datagram = [0; DATAGRAM_BYTES_MAX + 1];
        for _ in 0..READS_MAX {
            match self.socket.recv_from(&mut datagram) {
                Ok((length, from)) => {
                    if let Some(said) = Said::read(&datagram[..length]) {
                        self.take(said, from, now);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // An earlier datagram of ours found nobody: not this one's fault.
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, said: Said<'_>, from: SocketAddr, now: Instant) {
        match said {
            Said::Hello { token } => match self.seats.hello(token, from) {
                Hello::Ask if !self.desk.ask(token) => self.seats.forget(token),
                Hello::Ask | Hello::Wait => {}
                Hello::Welcome(pass) => self.welcome(from, pass),
                Hello::Refuse(why) => self.tell(from, &Told::Refused(why)),
            },
            Said::Input { pass, cookie, seq, direction } => {
                let expected = self.paths.hash_one(from) as u32;
                match self.seats.input(pass, from, cookie == expected, seq, now) {
                    Input::Steer => self.world.steer(pass.id, direction),
                    Input::Elsewhere => self.tell(from, &Told::Path { cookie: expected }),
                    Input::Stale | Input::Unknown => {}
                }
            }
            Said::Bye { pass } => {
                if let Some(seat) = self.seats.bye(pass) {
                    self.let_go(pass.id, seat, "said goodbye");
                }
            }
            Said::Ping { payload } => self.tell(from, &Told::Pong { payload }),
        }
    }

    /// What the hosting service has said.
    fn hear(&mut self, now: Instant) -> Option<Over> {
        loop {
            match self.desk.news() {
                Ok(None) => return None,
                Ok(Some(News::IsReady)) => say("the hosting service knows that the lobby is ready"),
                Ok(Some(News::Decided { token, decision })) => self.decided(&token, decision, now),
                Ok(Some(News::LobbyEnded)) => return Some(Over::LobbyEnded),
                Ok(Some(News::NotOurs(code))) => return Some(Over::NotOurs(code)),
                Err(Lost) => return Some(Over::Failed),
            }
        }
    }

    fn decided(&mut self, token: &str, decision: Result<(), Refusal>, now: Instant) {
        let is_accepted = decision.is_ok();
        let Some((address, result)) = self.seats.decided(token, decision, now) else { return };
        match result {
            Ok(pass) => {
                self.world.enter(pass.id);
                self.next_step.get_or_insert(now + TICK);
                say(&format!("player {} is in; {} here", pass.id, self.seats.iter().count()));
                self.welcome(address, pass);
            }
            Err(why) => {
                if is_accepted {
                    self.desk.leave(token.to_owned());
                }
                say(&format!("a player is refused: {why:?}"));
                self.tell(address, &Told::Refused(why));
            }
        }
    }

    fn keep_time(&mut self, now: Instant) {
        let Some(due) = self.next_step.filter(|due| now >= *due) else { return };
        self.world.step();
        for (id, seat) in self.seats.iter().filter(|(_, seat)| seat.is_proven) {
            self.world.look(id, &mut self.seen);
            self.seen.seq = seat.seq;
            self.seen.write_datagram(&mut self.out);
            send_bytes(&self.socket, &self.out, seat.address);
        }
        while let Some((id, seat)) = self.seats.silent(now) {
            self.tell(seat.address, &Told::Ended(Ending::Silent));
            self.let_go(id, seat, "was silent for too long");
        }
        let base = if now.saturating_duration_since(due) > LATE { now } else { due };
        self.next_step = (!self.seats.is_empty()).then_some(base + TICK);
    }

    fn let_go(&mut self, id: u16, seat: Seat, why: &str) {
        let score = self.world.leave(id);
        say(&format!("player {id} {why}, with {score} stars; {} here", self.seats.iter().count()));
        // If the queue is full the next heartbeats free the slot: they do not list this player.
        self.desk.leave(seat.token);
    }

    fn welcome(&mut self, to: SocketAddr, pass: Pass) {
        self.tell(to, &Told::Welcome { pass, tick: self.world.tick(), tick_ms: TICK.as_millis() as u8 });
    }

    fn tell(&mut self, to: SocketAddr, told: &Told<'_>) {
        send(&self.socket, &mut self.out, to, told);
    }
}

fn send(socket: &UdpSocket, out: &mut Vec<u8>, to: SocketAddr, told: &Told<'_>) {
    told.write(out);
    send_bytes(socket, out, to);
}

/// What cannot be sent now is lost, as any datagram may be.
fn send_bytes(socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
    let _ = socket.send_to(datagram, to);
}
