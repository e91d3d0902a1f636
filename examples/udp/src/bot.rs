//! A player that needs nobody: it finds a lobby, flies to the nearest star, and notes what it saw of the network.

use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::find::{Found, find};
use crate::http::Address;
use crate::protocol::{DATAGRAM_BYTES_MAX, Ending, Pass, Refusal, Said, State, Told};
use crate::system::is_asked_to_stop;
use crate::world::direction_to;

/// Time between two inputs.
const INPUT: Duration = Duration::from_millis(50);
/// Time between two pings.
const PING: Duration = Duration::from_millis(200);
/// Time between two hellos: either way may lose one.
const HELLO: Duration = Duration::from_millis(250);
/// A server that has not let us in by then does not: it has 10 s for its decision itself.
const HELLOS: Duration = Duration::from_secs(15);
/// How often goodbye is said.
const GOODBYES: usize = 2;

/// What bots are told.
#[derive(Debug)]
pub struct Plan {
    /// Where the hosting service is.
    pub api: Address,
    /// Of the namespace.
    pub public_token: String,
    /// Which game mode.
    pub mode: String,
    /// Name of the port.
    pub port_name: String,
    /// How long to play once in; None: until asked to stop.
    pub time: Option<Duration>,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Course {
    /// There was no lobby: the code.
    NotFound(String),
    /// The server said no.
    Refused(Refusal),
    /// The server said nothing.
    NotAnswered,
    /// To the end.
    Played,
    /// The server ended it before.
    Ended(Ending),
    /// The system did not let us.
    Failed(io::ErrorKind),
}

/// What one bot saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notes {
    /// How it went.
    pub course: Course,
    /// Where.
    pub lobby_id: String,
    /// States that came, and that never came though later ones did.
    pub states: u64,
    /// See `states`.
    pub missed: u64,
    /// The longest time without a state.
    pub gap: Duration,
    /// One of each ping that came back.
    pub round_trips: Vec<Duration>,
    /// Pings that were sent.
    pub pings: u64,
    /// Stars that it had in the end.
    pub score: u16,
    /// The most players that were in its lobby.
    pub here: u16,
    /// How often it was asked to prove its address.
    pub moves: u64,
}

impl Notes {
    fn new(course: Course) -> Self {
        Self {
            course,
            lobby_id: String::new(),
            states: 0,
            missed: 0,
            gap: Duration::ZERO,
            round_trips: Vec::new(),
            pings: 0,
            score: 0,
            here: 0,
            moves: 0,
        }
    }
}

/// Plays one game from the beginning to the end.
pub fn play(plan: &Plan) -> Notes {
    match find(&plan.api, &plan.public_token, &plan.mode, &plan.port_name) {
        Ok(found) => play_at(&found, plan.time).unwrap_or_else(|error| Notes::new(Course::Failed(error.kind()))),
        Err(code) => Notes::new(Course::NotFound(code)),
    }
}

fn play_at(found: &Found, time: Option<Duration>) -> io::Result<Notes> {
    let any = if found.server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any)?;
    socket.connect(found.server)?;
    let mut wire = Wire { socket, out: Vec::new(), buffer: [0; DATAGRAM_BYTES_MAX + 1] };
    let mut notes = match enter(&mut wire, &found.token)? {
        Ok(pass) => fly(&mut wire, pass, time)?,
        Err(course) => Notes::new(course),
    };
    notes.lobby_id.clone_from(&found.lobby_id);
    Ok(notes)
}

/// Says hello until it is answered.
fn enter(wire: &mut Wire, token: &str) -> io::Result<Result<Pass, Course>> {
    let until = Instant::now() + HELLOS;
    while Instant::now() < until && !is_asked_to_stop() {
        wire.say(&Said::Hello { token });
        let again = Instant::now() + HELLO;
        while Instant::now() < again {
            match wire.hear(again)? {
                Some(Told::Welcome { pass, .. }) => return Ok(Ok(pass)),
                Some(Told::Refused(why)) => return Ok(Err(Course::Refused(why))),
                Some(Told::Ended(why)) => return Ok(Err(Course::Ended(why))),
                _ => {}
            }
        }
    }
    Ok(Err(Course::NotAnswered))
}

/// Plays until the time is over, somebody asks us to stop, or the server ends it; and says goodbye.
fn fly(wire: &mut Wire, pass: Pass, time: Option<Duration>) -> io::Result<Notes> {
    let began = Instant::now();
    let mut pilot = Pilot::new(pass, began);
    let until = time.map(|time| began + time);
    let (mut next_input, mut next_ping) = (began, began);
    while !is_asked_to_stop() {
        let now = Instant::now();
        if until.is_some_and(|until| now >= until) {
            break;
        }
        if now >= next_input {
            wire.say(&pilot.input());
            next_input = now + INPUT;
        }
        if now >= next_ping {
            wire.say(&Said::Ping { payload: &pilot.ping(now) });
            next_ping = now + PING;
        }
        let heard = wire.hear(next_input.min(next_ping))?;
        if let Some(Told::Ended(why)) = heard {
            pilot.notes.course = Course::Ended(why);
            return Ok(pilot.finish());
        }
        if let Some(told) = heard {
            pilot.take(told, Instant::now());
        }
    }
    for _ in 0..GOODBYES {
        wire.say(&Said::Bye { pass });
    }
    Ok(pilot.finish())
}

/// What is known of the game, and what becomes of it.
struct Pilot {
    pass: Pass,
    cookie: u32,
    seq: u32,
    direction: u8,
    began: Instant,
    newest: Option<(u32, Instant)>,
    notes: Notes,
}

impl Pilot {
    fn new(pass: Pass, began: Instant) -> Self {
        // Those who see no star spread out.
        let direction = 1 + (pass.id % 8) as u8;
        Self { pass, cookie: 0, seq: 0, direction, began, newest: None, notes: Notes::new(Course::Played) }
    }

    fn input(&mut self) -> Said<'static> {
        self.seq += 1;
        Said::Input { pass: self.pass, cookie: self.cookie, seq: self.seq, direction: self.direction }
    }

    fn ping(&mut self, now: Instant) -> [u8; 8] {
        self.notes.pings += 1;
        ((now - self.began).as_nanos() as u64).to_be_bytes()
    }

    fn take(&mut self, told: Told<'_>, now: Instant) {
        match told {
            Told::State(state) => self.look(&state, now),
            Told::Path { cookie } => {
                self.cookie = cookie;
                self.notes.moves += 1;
            }
            Told::Pong { payload } => {
                let sent = payload.try_into().map(|bytes| Duration::from_nanos(u64::from_be_bytes(bytes)));
                let round_trip = sent.ok().and_then(|sent| (now - self.began).checked_sub(sent));
                self.notes.round_trips.extend(round_trip);
            }
            // A welcome that came twice, or what is not for us.
            _ => {}
        }
    }

    fn look(&mut self, state: &State, now: Instant) {
        self.notes.states += 1;
        if let Some((tick, heard)) = self.newest {
            if state.tick <= tick {
                // It was overtaken: one less is missed.
                self.notes.missed = self.notes.missed.saturating_sub(1);
                return;
            }
            self.notes.missed += u64::from(state.tick - tick - 1);
            self.notes.gap = self.notes.gap.max(now - heard);
        }
        self.newest = Some((state.tick, now));
        self.notes.here = self.notes.here.max(state.here);
        let Some(own) = state.players.first() else { return };
        self.notes.score = own.score;
        if let Some(star) = state.stars.first() {
            self.direction = direction_to(own.place, *star);
        }
    }

    /// The time since the last state counts too.
    fn finish(mut self) -> Notes {
        let heard = self.newest.map_or(self.began, |(_, heard)| heard);
        if self.notes.course == Course::Played {
            self.notes.gap = self.notes.gap.max(heard.elapsed());
        }
        self.notes
    }
}

struct Wire {
    socket: UdpSocket,
    out: Vec<u8>,
    buffer: [u8; DATAGRAM_BYTES_MAX + 1],
}

impl Wire {
    /// What cannot be sent is lost, as any datagram may be.
    fn say(&mut self, said: &Said<'_>) {
        said.write(&mut self.out);
        let _ = self.socket.send(&self.out);
    }

    /// What comes before then, if it is a message.
    fn hear(&mut self, until: Instant) -> io::Result<Option<Told<'_>>> {
        // Zero would be no timeout at all.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(100));
        self.socket.set_read_timeout(Some(left))?;
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => Ok(Told::read(&self.buffer[..length])),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted => Ok(None),
                // Nobody is there now: somebody may be soon.
                io::ErrorKind::ConnectionRefused => Ok(None),
                _ => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Place, Player};

    fn state(tick: u32) -> State {
        let own = Player { id: 3, place: Place { x: 65_000, y: 0 }, score: 7 };
        State { tick, seq: 1, here: 2, players: vec![own], stars: vec![Place { x: 5_000, y: 0 }] }
    }

    fn pilot() -> (Pilot, Instant) {
        let began = Instant::now();
        (Pilot::new(Pass { id: 3, secret: 1 }, began), began)
    }

    #[test]
    fn states_that_never_came_are_missed_and_those_that_were_overtaken_are_not() {
        let (mut pilot, began) = pilot();
        for (tick, after_ms) in [(10, 0), (11, 50), (14, 250), (13, 260), (15, 300)] {
            pilot.take(Told::State(state(tick)), began + Duration::from_millis(after_ms));
        }
        let notes = &pilot.notes;
        assert_eq!((notes.states, notes.missed, notes.gap), (5, 1, Duration::from_millis(200)));
        assert_eq!((notes.score, notes.here), (7, 2));
    }

    #[test]
    fn a_bot_flies_to_the_nearest_star_over_the_seam() {
        let (mut pilot, began) = pilot();
        pilot.take(Told::State(state(1)), began);
        assert!(matches!(pilot.input(), Said::Input { seq: 1, direction: 3, .. }));
    }

    #[test]
    fn a_pong_is_a_round_trip_and_a_forged_one_is_none() {
        let (mut pilot, began) = pilot();
        let payload = pilot.ping(began + Duration::from_millis(5));
        let now = began + Duration::from_millis(7);
        pilot.take(Told::Pong { payload: &payload }, now);
        pilot.take(Told::Pong { payload: &[0xFF; 8] }, now);
        pilot.take(Told::Pong { payload: b"short" }, now);
        assert_eq!(pilot.notes.round_trips, [Duration::from_millis(2)]);
    }

    #[test]
    fn a_cookie_is_shown_from_then_on() {
        let (mut pilot, began) = pilot();
        pilot.take(Told::Path { cookie: 9 }, began);
        assert!(matches!(pilot.input(), Said::Input { cookie: 9, .. }));
    }
}
