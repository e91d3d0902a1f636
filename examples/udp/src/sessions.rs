//! Sessions of players, and hellos that wait for confirmation.
//!
//! A session moves to a new address only after a cookie has come back from there. Otherwise a player could direct
//! datagrams to any address.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::protocol::{FULL, Pass, Place, Player, SILENT, Said, TOKEN_USED, Told, UNDECIDED};
use crate::service::Order;
use crate::{say, world};

const CONFIRM: Duration = Duration::from_secs(10);
/// Further hellos get no answer. Clients repeat them.
const WAITING_MAX: usize = 64;

#[derive(Default)]
pub struct Seats {
    /// Queues of datagrams and orders, which the game loop empties.
    pub told: Vec<(SocketAddr, Told)>,
    pub orders: Vec<Order>,
    places: u16,
    silence: Duration,
    tick: u32,
    stars: Vec<Place>,
    seats: HashMap<u16, Seat>,
    waiting: HashMap<String, (SocketAddr, Instant)>,
    /// Key of the cookies. A cookie is a keyed hash of the address, so the server does not store the cookie.
    cookies: RandomState,
}

struct Seat {
    token: String,
    pass: Pass,
    address: SocketAddr,
    /// The client has shown the secret, so the client receives at this address. Before that, no states are sent.
    is_proven: bool,
    heard: Instant,
    seq: u32,
    direction: u8,
    player: Player,
}

impl Seats {
    /// `silence` is the time without datagrams after which a session ends.
    pub fn new(places: u16, silence: Duration) -> Self {
        Self { places, silence, stars: (0..world::STARS).map(|_| rand::random()).collect(), ..Self::default() }
    }

    pub fn is_idle(&self) -> bool {
        self.seats.is_empty() && self.waiting.is_empty()
    }

    pub fn take(&mut self, said: Said, from: SocketAddr, now: Instant) {
        match said {
            Said::Hello { token } => self.hello(token, from, now),
            Said::Ping(payload) => self.told.push((from, Told::Pong(payload))),
            Said::Bye(pass) => self.let_go("said goodbye", |seat| seat.pass == pass),
            Said::Input { pass, cookie, seq, direction } => {
                let expected = self.cookies.hash_one(from) as u32;
                let Some(seat) = self.seats.get_mut(&pass.id).filter(|seat| seat.pass == pass) else { return };
                if seat.address != from && cookie != expected {
                    return self.told.push((from, Told::Path(expected)));
                }
                (seat.address, seat.is_proven, seat.heard) = (from, true, now);
                if seq > seat.seq {
                    (seat.seq, seat.direction) = (seq, direction);
                }
            }
        }
    }

    fn hello(&mut self, token: String, from: SocketAddr, now: Instant) {
        let answer = match (self.seats.values().find(|seat| seat.token == token), self.waiting.get(&token)) {
            // The client repeats the hello because the welcome was lost.
            (Some(seat), _) if seat.address == from => self.welcome(seat.pass),
            (None, Some((address, _))) if *address == from => return,
            (None, None) if self.waiting.len() >= WAITING_MAX => return,
            (None, None) => {
                self.orders.push(Order::Ask(token.clone()));
                self.waiting.insert(token, (from, now));
                return;
            }
            _ => Told::Refused(TOKEN_USED),
        };
        self.told.push((from, answer));
    }

    /// Sends the decision of the service to the client, unless the hello has timed out.
    pub fn decided(&mut self, token: String, decision: Result<(), u8>, now: Instant) {
        let Some((address, _)) = self.waiting.remove(&token) else { return };
        let free = (0..self.places).find(|id| !self.seats.contains_key(id));
        let answer = match (decision, free) {
            (Ok(()), Some(id)) => {
                let pass = Pass { id, secret: rand::random() };
                let player = Player { id, place: rand::random(), score: 0 };
                let seat = Seat { token, pass, address, is_proven: false, heard: now, seq: 0, direction: 0, player };
                self.seats.insert(id, seat);
                say(&format!("player {id} connected; {} players", self.seats.len()));
                self.welcome(pass)
            }
            (Ok(()), None) => {
                self.orders.push(Order::Leave(token));
                Told::Refused(FULL)
            }
            (Err(why), _) => Told::Refused(why),
        };
        self.told.push((address, answer));
    }

    /// Advances the game by one step, sends states, and ends silent sessions.
    pub fn step(&mut self, now: Instant) {
        self.tick = self.tick.wrapping_add(1);
        for seat in self.seats.values_mut() {
            seat.player.place = world::moved(seat.player.place, seat.direction);
        }
        world::gather(&mut self.stars, self.seats.values_mut().map(|seat| &mut seat.player).collect());
        let (tick, here, silence) = (self.tick, self.seats.len() as u16, self.silence);
        for Seat { address, seq, player, .. } in self.seats.values().filter(|seat| seat.is_proven) {
            let everybody = self.seats.values().map(|seat| seat.player).collect();
            let (players, stars) = world::nearest(player, everybody, self.stars.clone());
            self.told.push((*address, Told::State { tick, seq: *seq, here, players, stars }));
        }
        let is_over = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let silent = self.seats.values().filter(|seat| is_over(seat.heard, silence));
        self.told.extend(silent.map(|seat| (seat.address, Told::Ended(SILENT))));
        self.let_go("was silent for too long", |seat| is_over(seat.heard, silence));
        for (token, (address, _)) in self.waiting.extract_if(|_, (_, since)| is_over(*since, CONFIRM)) {
            // The service may have marked the slot as connected.
            self.orders.push(Order::Leave(token));
            self.told.push((address, Told::Refused(UNDECIDED)));
        }
    }

    pub fn end(&mut self, why: u8) {
        self.told.extend(self.seats.values().map(|seat| (seat.address, Told::Ended(why))));
    }

    fn let_go(&mut self, why: &str, is_meant: impl Fn(&Seat) -> bool) {
        let gone: Vec<_> = self.seats.extract_if(|_, seat| is_meant(seat)).collect();
        for (id, Seat { token, player, .. }) in gone {
            say(&format!("player {id} {why}, with {} stars; {} players", player.score, self.seats.len()));
            self.orders.push(Order::Leave(token));
        }
    }

    fn welcome(&self, pass: Pass) -> Told {
        Told::Welcome { pass, tick: self.tick, tick_ms: (1000 / world::TICKS_PER_SECOND) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn hello(token: &str) -> Said {
        Said::Hello { token: token.to_owned() }
    }

    fn seated() -> (Seats, Pass, Instant) {
        let (mut seats, now) = (Seats::new(1, SILENCE), Instant::now());
        seats.take(hello("one"), address(1), now);
        seats.take(hello("one"), address(1), now);
        assert_eq!(std::mem::take(&mut seats.orders), [Order::Ask("one".to_owned())]);
        seats.decided("one".to_owned(), Ok(()), now);
        let [(to, Told::Welcome { pass, .. })] = seats.told[..] else { panic!("{:?}", seats.told) };
        assert_eq!(to, address(1));
        seats.told.clear();
        (seats, pass, now)
    }

    fn input(pass: Pass, cookie: u32, seq: u32) -> Said {
        Said::Input { pass, cookie, seq, direction: 3 }
    }

    #[test]
    fn a_token_has_one_session_and_who_did_not_hear_the_welcome_hears_it_again() {
        let (mut seats, pass, now) = seated();
        seats.take(hello("one"), address(2), now);
        seats.take(hello("one"), address(1), now);
        assert_eq!(seats.told[0], (address(2), Told::Refused(TOKEN_USED)));
        assert_eq!(seats.told[1], (address(1), seats.welcome(pass)));
        assert!(seats.orders.is_empty());
    }

    #[test]
    fn states_begin_when_the_secret_was_shown_and_inputs_count_in_their_order() {
        let (mut seats, pass, now) = seated();
        seats.step(now);
        seats.take(input(Pass { secret: pass.secret ^ 1, ..pass }, 0, 5), address(1), now);
        seats.step(now);
        assert_eq!(seats.told, []);
        seats.take(input(pass, 0, 5), address(1), now);
        seats.take(input(pass, 0, 4), address(1), now);
        seats.step(now);
        assert!(matches!(seats.told[..], [(to, Told::State { seq: 5, here: 1, .. })] if to == address(1)));
    }

    #[test]
    fn a_seat_follows_its_client_once_the_new_address_has_shown_that_it_hears() {
        let (mut seats, pass, now) = seated();
        seats.take(input(pass, 0, 1), address(2), now);
        seats.step(now);
        let [(to, Told::Path(cookie))] = seats.told[..] else { panic!("{:?}", seats.told) };
        assert_eq!(to, address(2));
        seats.take(input(pass, cookie, 2), address(3), now);
        seats.take(input(pass, cookie, 2), address(2), now);
        seats.step(now);
        assert!(matches!(seats.told[2..], [(to, Told::State { seq: 2, .. })] if to == address(2)), "{:?}", seats.told);
    }

    #[test]
    fn silence_and_a_bye_free_the_seat() {
        let (mut seats, pass, now) = seated();
        seats.take(Said::Bye(Pass { secret: pass.secret ^ 1, ..pass }), address(1), now);
        assert!(!seats.is_idle());
        seats.take(Said::Bye(pass), address(1), now);
        assert!(seats.is_idle() && seats.orders == [Order::Leave("one".to_owned())]);
        let (mut seats, _, now) = seated();
        seats.step(now + SILENCE);
        assert!(seats.is_idle() && seats.orders == [Order::Leave("one".to_owned())]);
        assert_eq!(seats.told, [(address(1), Told::Ended(SILENT))]);
    }

    #[test]
    fn who_waits_for_too_long_is_refused_and_released_and_a_late_word_lets_nobody_in() {
        let (mut seats, now) = (Seats::new(1, SILENCE), Instant::now());
        (0..=WAITING_MAX).for_each(|number| seats.take(hello(&number.to_string()), address(1), now));
        assert_eq!(std::mem::take(&mut seats.orders).len(), WAITING_MAX);
        seats.decided("0".to_owned(), Err(4), now);
        seats.step(now + CONFIRM);
        assert!(seats.told[0].1 == Told::Refused(4) && seats.told[1].1 == Told::Refused(UNDECIDED));
        assert_eq!(seats.orders.len(), WAITING_MAX - 1);
        seats.decided("1".to_owned(), Ok(()), now);
        assert!(seats.is_idle());
    }

    #[test]
    fn a_full_game_refuses_and_releases() {
        let (mut seats, _, now) = seated();
        seats.take(hello("two"), address(2), now);
        seats.decided("two".to_owned(), Ok(()), now);
        assert_eq!(seats.told, [(address(2), Told::Refused(FULL))]);
        assert_eq!(seats.orders[1], Order::Leave("two".to_owned()));
    }
}
