//! Who is in the game, and who waits for the hosting service's word. Pure: time is an argument.
//!
//! ```text
//!            hello              accepted            bye, silence
//!   (nobody) ─────► waiting ──────────────► seated ─────────────► (nobody; its slot is given back)
//!                      │ refused, undecided
//!                      ▼
//!            remembered for a while, as are those who left: the same hello is answered without another call
//! ```
//!
//! A seat is found by its pass, not by an address, so it follows its client elsewhere: whoever shows the pass from
//! another address is told a cookie there, and whoever shows that cookie hears there. Until then nothing more is sent
//! to the new address, so nobody can have the game's datagrams sent to a stranger.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::protocol::{Pass, Refusal};
use crate::system;

/// Hellos that wait for a decision at one time; more are not answered, and come again.
pub const WAITING_MAX: usize = 64;
/// Refusals that are remembered.
const REFUSALS_MAX: usize = 64;

/// All of them.
#[derive(Debug)]
pub struct Seats {
    seats: Vec<Option<Seat>>,
    waiting: Vec<Waiting>,
    refusals: VecDeque<(String, Refusal)>,
    silence: Duration,
}

/// One player who is in.
#[derive(Debug)]
pub struct Seat {
    /// What the service knows the player by.
    pub token: String,
    /// Where it hears.
    pub address: SocketAddr,
    /// The newest input.
    pub seq: u32,
    /// Whether it has shown its pass, so that its address is its own.
    pub is_proven: bool,
    secret: u64,
    heard: Instant,
}

#[derive(Debug)]
struct Waiting {
    token: String,
    address: SocketAddr,
}

/// What to do about a hello.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    /// Ask the service.
    Ask,
    /// The service is being asked, or too many are.
    Wait,
    /// It is in already and did not hear so.
    Welcome(Pass),
    /// It stays outside.
    Refuse(Refusal),
}

/// What to do about an input.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// It counts.
    Steer,
    /// A newer one came before.
    Stale,
    /// It comes from an address that has not shown that it hears us.
    Elsewhere,
    /// No such player.
    Unknown,
}

impl Seats {
    /// So many places. Whoever says nothing for so long is gone.
    pub fn new(places: usize, silence: Duration) -> Self {
        let seats = std::iter::repeat_with(|| None).take(places).collect();
        Self { seats, waiting: Vec::new(), refusals: VecDeque::new(), silence }
    }

    /// Whether nobody is in.
    pub fn is_empty(&self) -> bool {
        self.seats.iter().all(Option::is_none)
    }

    /// Those who are in.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Seat)> {
        self.seats.iter().enumerate().filter_map(|(id, seat)| Some((id as u16, seat.as_ref()?)))
    }

    /// Somebody wants to come in.
    pub fn hello(&mut self, token: &str, address: SocketAddr) -> Hello {
        if let Some((id, seat)) = self.iter().find(|(_, seat)| seat.token == token) {
            let is_same = seat.address == address;
            let pass = Pass { id, secret: seat.secret };
            return if is_same { Hello::Welcome(pass) } else { Hello::Refuse(Refusal::TokenUsed) };
        }
        if let Some(waiting) = self.waiting.iter().find(|one| one.token == token) {
            return if waiting.address == address { Hello::Wait } else { Hello::Refuse(Refusal::TokenUsed) };
        }
        if let Some((_, why)) = self.refusals.iter().find(|(refused, _)| refused == token) {
            return Hello::Refuse(*why);
        }
        if self.waiting.len() >= WAITING_MAX {
            return Hello::Wait;
        }
        self.waiting.push(Waiting { token: token.to_owned(), address });
        Hello::Ask
    }

    /// The service could not be asked: as if the hello had not come.
    pub fn forget(&mut self, token: &str) {
        self.waiting.retain(|one| one.token != token);
    }

    /// The service has decided. Where the answer goes, and the pass of a player who is in now.
    pub fn decided(
        &mut self,
        token: &str,
        decision: Result<(), Refusal>,
        now: Instant,
    ) -> Option<(SocketAddr, Result<Pass, Refusal>)> {
        let waiting = self.waiting.iter().position(|one| one.token == token)?;
        let Waiting { token, address } = self.waiting.swap_remove(waiting);
        let free = self.seats.iter().position(Option::is_none).ok_or(Refusal::Full);
        let id = match decision.and(free) {
            Ok(id) => id,
            Err(why) => {
                self.remember(token, why);
                return Some((address, Err(why)));
            }
        };
        let secret = u64::from_ne_bytes(system::secret());
        self.seats[id] = Some(Seat { token, address, seq: 0, is_proven: false, secret, heard: now });
        Some((address, Ok(Pass { id: id as u16, secret })))
    }

    /// Somebody shows a pass, from an address that has shown the cookie for it or not.
    pub fn input(&mut self, pass: Pass, address: SocketAddr, has_cookie: bool, seq: u32, now: Instant) -> Input {
        let Some(seat) = self.find(pass) else { return Input::Unknown };
        if seat.address != address {
            if !has_cookie {
                return Input::Elsewhere;
            }
            seat.address = address;
        }
        seat.heard = now;
        seat.is_proven = true;
        if seq <= seat.seq {
            return Input::Stale;
        }
        seat.seq = seq;
        Input::Steer
    }

    /// A player leaves.
    pub fn bye(&mut self, pass: Pass) -> Option<Seat> {
        self.find(pass)?;
        self.stand_up(pass.id.into())
    }

    /// A player who has been silent for too long: it is out now. Ask until there is none.
    pub fn silent(&mut self, now: Instant) -> Option<(u16, Seat)> {
        let silence = self.silence;
        let is_silent = |seat: &Seat| now.saturating_duration_since(seat.heard) >= silence;
        let id = self.seats.iter().position(|seat| seat.as_ref().is_some_and(is_silent))?;
        Some((id as u16, self.stand_up(id)?))
    }

    /// The token was good once.
    fn stand_up(&mut self, id: usize) -> Option<Seat> {
        let seat = self.seats[id].take()?;
        self.remember(seat.token.clone(), Refusal::TokenUsed);
        Some(seat)
    }

    fn remember(&mut self, token: String, why: Refusal) {
        self.refusals.truncate(REFUSALS_MAX - 1);
        self.refusals.push_front((token, why));
    }

    fn find(&mut self, pass: Pass) -> Option<&mut Seat> {
        let seat = self.seats.get_mut(usize::from(pass.id))?.as_mut()?;
        (seat.secret == pass.secret).then_some(seat)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn seats(places: usize) -> (Seats, Instant) {
        (Seats::new(places, SILENCE), Instant::now())
    }

    fn come_in(seats: &mut Seats, token: &str, now: Instant) -> Pass {
        assert_eq!(seats.hello(token, address(1)), Hello::Ask);
        seats.decided(token, Ok(()), now).unwrap().1.unwrap()
    }

    #[test]
    fn whoever_did_not_hear_the_welcome_hears_it_again_and_the_service_is_asked_once() {
        let (mut seats, now) = seats(2);
        assert_eq!(seats.hello("one", address(1)), Hello::Ask);
        assert_eq!(seats.hello("one", address(1)), Hello::Wait);
        let (to, pass) = seats.decided("one", Ok(()), now).unwrap();
        assert_eq!(to, address(1));
        assert_eq!(seats.hello("one", address(1)), Hello::Welcome(pass.unwrap()));
        assert_eq!(seats.decided("one", Ok(()), now), None);
    }

    #[test]
    fn a_token_has_one_session_while_it_waits_and_while_it_plays() {
        let (mut seats, now) = seats(2);
        seats.hello("one", address(1));
        assert_eq!(seats.hello("one", address(2)), Hello::Refuse(Refusal::TokenUsed));
        seats.decided("one", Ok(()), now);
        assert_eq!(seats.hello("one", address(2)), Hello::Refuse(Refusal::TokenUsed));
    }

    #[test]
    fn a_refusal_is_told_again_without_asking() {
        let (mut seats, now) = seats(2);
        seats.hello("one", address(1));
        let refused = seats.decided("one", Err(Refusal::TokenExpired), now);
        assert_eq!(refused, Some((address(1), Err(Refusal::TokenExpired))));
        assert_eq!(seats.hello("one", address(3)), Hello::Refuse(Refusal::TokenExpired));
        assert!(seats.is_empty());
    }

    #[test]
    fn inputs_count_in_their_order_and_only_with_the_secret() {
        let (mut seats, now) = seats(2);
        let pass = come_in(&mut seats, "one", now);
        assert_eq!(seats.input(pass, address(1), false, 5, now), Input::Steer);
        assert_eq!(seats.input(pass, address(1), false, 5, now), Input::Stale);
        assert_eq!(seats.input(pass, address(1), false, 4, now), Input::Stale);
        let forged = Pass { secret: pass.secret ^ 1, ..pass };
        assert_eq!(seats.input(forged, address(1), false, 6, now), Input::Unknown);
        assert_eq!(seats.input(Pass { id: 900, ..pass }, address(1), false, 6, now), Input::Unknown);
        assert!(seats.bye(forged).is_none());
        assert_eq!(seats.bye(pass).unwrap().token, "one");
        assert_eq!(seats.hello("one", address(1)), Hello::Refuse(Refusal::TokenUsed));
        assert_eq!(seats.input(pass, address(1), false, 6, now), Input::Unknown);
    }

    #[test]
    fn a_seat_follows_its_client_once_the_new_address_has_shown_that_it_hears() {
        let (mut seats, now) = seats(2);
        let pass = come_in(&mut seats, "one", now);
        assert_eq!(seats.input(pass, address(2), false, 1, now), Input::Elsewhere);
        assert_eq!(seats.iter().next().unwrap().1.address, address(1));
        assert_eq!(seats.input(pass, address(2), true, 1, now), Input::Steer);
        assert_eq!(seats.iter().next().unwrap().1.address, address(2));
    }

    #[test]
    fn silence_ends_a_seat_and_stale_inputs_are_signs_of_life() {
        let (mut seats, now) = seats(2);
        let (one, two) = (come_in(&mut seats, "one", now), come_in(&mut seats, "two", now));
        let later = now + SILENCE / 2;
        seats.input(one, address(1), false, 0, later);
        assert!(seats.silent(later).is_none());
        let (gone, seat) = seats.silent(now + SILENCE).unwrap();
        assert_eq!((gone, seat.token.as_str()), (two.id, "two"));
        assert!(seats.silent(now + SILENCE).is_none());
        assert!(seats.silent(later + SILENCE).is_some());
    }

    #[test]
    fn a_full_game_refuses_and_a_crowd_that_waits_is_bounded() {
        let (mut seats, now) = seats(1);
        come_in(&mut seats, "one", now);
        seats.hello("two", address(2));
        assert_eq!(seats.decided("two", Ok(()), now).unwrap().1, Err(Refusal::Full));
        for number in 0..WAITING_MAX {
            assert_eq!(seats.hello(&format!("t{number}"), address(2)), Hello::Ask);
        }
        assert_eq!(seats.hello("late", address(2)), Hello::Wait);
        seats.forget("t0");
        assert_eq!(seats.hello("late", address(2)), Hello::Ask);
    }
}
