//! Sessions of players, and hellos that wait for confirmation.
//!
//! A session moves to a new address only after a cookie has come back from there. Otherwise a player could direct
//! datagrams to any address.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::protocol::{
    ClientMessage, END_SILENT, Player, Position, REFUSAL_FULL, REFUSAL_TOKEN_INVALID, REFUSAL_TOKEN_USED,
    REFUSAL_UNDECIDED, ServerMessage, SessionPass,
};
use crate::service::ServiceRequest;
use crate::{log_line, world};

const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(10);
/// Further hellos get no answer. Clients repeat them.
const PENDING_HELLOS_MAX: usize = 64;
/// Time in which further hellos from an address are refused without a call, after the service has refused one.
const REFUSAL_TIME: Duration = Duration::from_secs(3);
const REFUSED_ADDRESSES_MAX: usize = 4_096;
const TOKEN_PREFIX: &str = "player_";

#[derive(Default)]
pub struct SessionTable {
    /// Queues of datagrams and orders, which the game loop empties.
    pub outgoing: Vec<(SocketAddr, ServerMessage)>,
    pub service_requests: Vec<ServiceRequest>,
    session_limit: u16,
    silence_timeout: Duration,
    tick: u32,
    stars: Vec<Position>,
    sessions: HashMap<u16, Session>,
    pending_hellos: HashMap<String, (SocketAddr, Instant)>,
    refused_addresses: HashMap<SocketAddr, (u8, Instant)>,
    /// Key of the cookies. A cookie is a keyed hash of the address, so the server does not store the cookie.
    cookies: RandomState,
}

struct Session {
    token: String,
    pass: SessionPass,
    address: SocketAddr,
    /// The client has shown the secret, so the client receives at this address. Before that, no states are sent.
    has_shown_secret: bool,
    last_received_at: Instant,
    seq: u32,
    direction: u8,
    player: Player,
}

impl SessionTable {
    /// `silence_timeout` is the time without datagrams after which a session ends.
    pub fn new(session_limit: u16, silence_timeout: Duration) -> Self {
        Self {
            session_limit,
            silence_timeout,
            stars: (0..world::STARS).map(|_| rand::random()).collect(),
            ..Self::default()
        }
    }

    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty() && self.pending_hellos.is_empty() && self.refused_addresses.is_empty()
    }

    pub fn handle_message(&mut self, client_message: ClientMessage, from: SocketAddr, now: Instant) {
        match client_message {
            ClientMessage::Hello { token } => self.hello(token, from, now),
            ClientMessage::Ping(payload) => self.outgoing.push((from, ServerMessage::Pong(payload))),
            ClientMessage::Bye(pass) => self.end_sessions("said goodbye", |session| session.pass == pass),
            ClientMessage::Input { pass, cookie, seq, direction } => {
                let expected = self.cookies.hash_one(from) as u32;
                let Some(session) = self.sessions.get_mut(&pass.id).filter(|session| session.pass == pass) else {
                    return;
                };
                if session.address != from && cookie != expected {
                    return self.outgoing.push((from, ServerMessage::Path(expected)));
                }
                (session.address, session.has_shown_secret, session.last_received_at) = (from, true, now);
                if seq > session.seq {
                    (session.seq, session.direction) = (seq, direction);
                }
            }
        }
    }

    fn hello(&mut self, token: String, from: SocketAddr, now: Instant) {
        let session = self.sessions.values().find(|session| session.token == token);
        let response = match (session, self.pending_hellos.get(&token), self.recent_refusal(from, now)) {
            // The client repeats the hello because the welcome was lost.
            (Some(session), ..) if session.address == from => self.welcome(session.pass),
            (None, Some((address, _)), _) if *address == from => return,
            (None, None, _) if !token.starts_with(TOKEN_PREFIX) => ServerMessage::Refused(REFUSAL_TOKEN_INVALID),
            (None, None, Some(reason)) => ServerMessage::Refused(reason),
            // One address cannot occupy all callers.
            (None, None, None) if self.pending_hellos.values().any(|(address, _)| *address == from) => return,
            (None, None, None) if self.pending_hellos.len() >= PENDING_HELLOS_MAX => return,
            (None, None, None) => {
                self.service_requests.push(ServiceRequest::Connect(token.clone()));
                self.pending_hellos.insert(token, (from, now));
                return;
            }
            _ => ServerMessage::Refused(REFUSAL_TOKEN_USED),
        };
        self.outgoing.push((from, response));
    }

    fn recent_refusal(&self, address: SocketAddr, now: Instant) -> Option<u8> {
        let (reason, since) = self.refused_addresses.get(&address)?;
        (now.saturating_duration_since(*since) < REFUSAL_TIME).then_some(*reason)
    }

    /// Sends the decision of the service to the client, unless the hello has timed out.
    pub fn apply_decision(&mut self, token: String, decision: Result<(), u8>, now: Instant) {
        let Some((address, _)) = self.pending_hellos.remove(&token) else { return };
        let free = (0..self.session_limit).find(|id| !self.sessions.contains_key(id));
        let response = match (decision, free) {
            (Ok(()), Some(id)) => {
                let pass = SessionPass { id, secret: rand::random() };
                let player = Player { id, position: rand::random(), score: 0 };
                let session = Session {
                    token,
                    pass,
                    address,
                    has_shown_secret: false,
                    last_received_at: now,
                    seq: 0,
                    direction: 0,
                    player,
                };
                self.sessions.insert(id, session);
                log_line(&format!("player {id} connected; {} players", self.sessions.len()));
                self.welcome(pass)
            }
            (Ok(()), None) => {
                self.service_requests.push(ServiceRequest::Disconnect(token));
                ServerMessage::Refused(REFUSAL_FULL)
            }
            (Err(reason), _) => {
                if self.refused_addresses.len() < REFUSED_ADDRESSES_MAX {
                    self.refused_addresses.insert(address, (reason, now));
                }
                ServerMessage::Refused(reason)
            }
        };
        self.outgoing.push((address, response));
    }

    /// Advances the game by one step, sends states, and ends silent sessions.
    pub fn step(&mut self, now: Instant) {
        self.tick = self.tick.wrapping_add(1);
        for session in self.sessions.values_mut() {
            session.player.position = world::step(session.player.position, session.direction);
        }
        world::gather(&mut self.stars, self.sessions.values_mut().map(|session| &mut session.player).collect());
        let (tick, player_total, silence_timeout) = (self.tick, self.sessions.len() as u16, self.silence_timeout);
        for Session { address, seq, player, .. } in self.sessions.values().filter(|session| session.has_shown_secret) {
            let all_players = self.sessions.values().map(|session| session.player).collect();
            let (players, stars) = world::nearest(player, all_players, self.stars.clone());
            self.outgoing.push((*address, ServerMessage::State { tick, seq: *seq, player_total, players, stars }));
        }
        self.refused_addresses.retain(|_, (_, since)| now.saturating_duration_since(*since) < REFUSAL_TIME);
        let is_over = |since: Instant, time| now.saturating_duration_since(since) >= time;
        let silent = self.sessions.values().filter(|session| is_over(session.last_received_at, silence_timeout));
        self.outgoing.extend(silent.map(|session| (session.address, ServerMessage::Ended(END_SILENT))));
        self.end_sessions("was silent for too long", |session| is_over(session.last_received_at, silence_timeout));
        for (token, (address, _)) in
            self.pending_hellos.extract_if(|_, (_, since)| is_over(*since, CONFIRMATION_TIMEOUT))
        {
            // The service may have marked the slot as connected.
            self.service_requests.push(ServiceRequest::Disconnect(token));
            self.outgoing.push((address, ServerMessage::Refused(REFUSAL_UNDECIDED)));
        }
    }

    pub fn end(&mut self, reason: u8) {
        self.outgoing.extend(self.sessions.values().map(|session| (session.address, ServerMessage::Ended(reason))));
    }

    fn end_sessions(&mut self, reason: &str, is_selected: impl Fn(&Session) -> bool) {
        let ended: Vec<_> = self.sessions.extract_if(|_, session| is_selected(session)).collect();
        for (id, Session { token, player, .. }) in ended {
            log_line(&format!("player {id} {reason}, with {} stars; {} players", player.score, self.sessions.len()));
            self.service_requests.push(ServiceRequest::Disconnect(token));
        }
    }

    fn welcome(&self, pass: SessionPass) -> ServerMessage {
        ServerMessage::Welcome { pass, tick: self.tick, tick_ms: (1000 / world::TICKS_PER_SECOND) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SILENCE: Duration = Duration::from_secs(10);

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    fn hello(token: &str) -> ClientMessage {
        ClientMessage::Hello { token: format!("player_{token}") }
    }

    fn table_with_one_session() -> (SessionTable, SessionPass, Instant) {
        let (mut sessions, now) = (SessionTable::new(1, SILENCE), Instant::now());
        sessions.handle_message(hello("one"), address(1), now);
        sessions.handle_message(hello("one"), address(1), now);
        assert_eq!(std::mem::take(&mut sessions.service_requests), [ServiceRequest::Connect("player_one".to_owned())]);
        sessions.apply_decision("player_one".to_owned(), Ok(()), now);
        let [(to, ServerMessage::Welcome { pass, .. })] = sessions.outgoing[..] else {
            panic!("{:?}", sessions.outgoing)
        };
        assert_eq!(to, address(1));
        sessions.outgoing.clear();
        (sessions, pass, now)
    }

    fn input(pass: SessionPass, cookie: u32, seq: u32) -> ClientMessage {
        ClientMessage::Input { pass, cookie, seq, direction: 3 }
    }

    #[test]
    fn token_has_one_session_and_welcome_is_repeatable() {
        let (mut sessions, pass, now) = table_with_one_session();
        sessions.handle_message(hello("one"), address(2), now);
        sessions.handle_message(hello("one"), address(1), now);
        assert_eq!(sessions.outgoing[0], (address(2), ServerMessage::Refused(REFUSAL_TOKEN_USED)));
        assert_eq!(sessions.outgoing[1], (address(1), sessions.welcome(pass)));
        assert!(sessions.service_requests.is_empty());
    }

    #[test]
    fn states_start_after_the_first_valid_input() {
        let (mut sessions, pass, now) = table_with_one_session();
        sessions.step(now);
        sessions.handle_message(input(SessionPass { secret: pass.secret ^ 1, ..pass }, 0, 5), address(1), now);
        sessions.step(now);
        assert_eq!(sessions.outgoing, []);
        sessions.handle_message(input(pass, 0, 5), address(1), now);
        sessions.handle_message(input(pass, 0, 4), address(1), now);
        sessions.step(now);
        assert!(
            matches!(sessions.outgoing[..], [(to, ServerMessage::State { seq: 5, player_total: 1, .. })] if to == address(1))
        );
    }

    #[test]
    fn session_moves_to_a_confirmed_new_address() {
        let (mut sessions, pass, now) = table_with_one_session();
        sessions.handle_message(input(pass, 0, 1), address(2), now);
        sessions.step(now);
        let [(to, ServerMessage::Path(cookie))] = sessions.outgoing[..] else { panic!("{:?}", sessions.outgoing) };
        assert_eq!(to, address(2));
        sessions.handle_message(input(pass, cookie, 2), address(3), now);
        sessions.handle_message(input(pass, cookie, 2), address(2), now);
        sessions.step(now);
        assert!(
            matches!(sessions.outgoing[2..], [(to, ServerMessage::State { seq: 2, .. })] if to == address(2)),
            "{:?}",
            sessions.outgoing
        );
    }

    #[test]
    fn silence_or_bye_releases_the_slot() {
        let (mut sessions, pass, now) = table_with_one_session();
        sessions.handle_message(ClientMessage::Bye(SessionPass { secret: pass.secret ^ 1, ..pass }), address(1), now);
        assert!(!sessions.is_idle());
        sessions.handle_message(ClientMessage::Bye(pass), address(1), now);
        assert!(
            sessions.is_idle() && sessions.service_requests == [ServiceRequest::Disconnect("player_one".to_owned())]
        );
        let (mut sessions, _, now) = table_with_one_session();
        sessions.step(now + SILENCE);
        assert!(
            sessions.is_idle() && sessions.service_requests == [ServiceRequest::Disconnect("player_one".to_owned())]
        );
        assert_eq!(sessions.outgoing, [(address(1), ServerMessage::Ended(END_SILENT))]);
    }

    #[test]
    fn pending_hello_is_refused_after_its_timeout() {
        let (mut sessions, now) = (SessionTable::new(1, SILENCE), Instant::now());
        (0..=PENDING_HELLOS_MAX)
            .for_each(|number| sessions.handle_message(hello(&number.to_string()), address(number as u16), now));
        assert_eq!(std::mem::take(&mut sessions.service_requests).len(), PENDING_HELLOS_MAX);
        sessions.apply_decision("player_0".to_owned(), Err(4), now);
        sessions.step(now + CONFIRMATION_TIMEOUT);
        assert!(
            sessions.outgoing[0].1 == ServerMessage::Refused(4)
                && sessions.outgoing[1].1 == ServerMessage::Refused(REFUSAL_UNDECIDED)
        );
        assert_eq!(sessions.service_requests.len(), PENDING_HELLOS_MAX - 1);
        sessions.apply_decision("player_1".to_owned(), Ok(()), now);
        assert!(sessions.is_idle());
    }

    #[test]
    fn flood_of_tokens_from_one_address_makes_one_call_in_three_seconds() {
        let (mut sessions, now) = (SessionTable::new(1, SILENCE), Instant::now());
        let flood = |sessions: &mut SessionTable, at| {
            (0..100).for_each(|number| sessions.handle_message(hello(&number.to_string()), address(1), at));
        };
        flood(&mut sessions, now);
        sessions.handle_message(hello("real"), address(2), now);
        sessions.handle_message(ClientMessage::Hello { token: "fake".to_owned() }, address(3), now);
        let calls = ["player_0", "player_real"].map(|token| ServiceRequest::Connect(token.to_owned()));
        assert_eq!(std::mem::take(&mut sessions.service_requests), calls);
        assert_eq!(sessions.outgoing, [(address(3), ServerMessage::Refused(REFUSAL_TOKEN_INVALID))]);
        sessions.apply_decision("player_0".to_owned(), Err(4), now);
        sessions.outgoing.clear();
        flood(&mut sessions, now + REFUSAL_TIME / 2);
        assert!(sessions.service_requests.is_empty());
        let refusal = (address(1), ServerMessage::Refused(4));
        assert!(sessions.outgoing.len() == 100 && sessions.outgoing.iter().all(|one| *one == refusal));
        sessions.step(now + REFUSAL_TIME);
        sessions.handle_message(hello("later"), address(1), now + REFUSAL_TIME);
        assert_eq!(sessions.service_requests, [ServiceRequest::Connect("player_later".to_owned())]);
    }

    #[test]
    fn full_game_refuses_and_disconnects_the_player() {
        let (mut sessions, _, now) = table_with_one_session();
        sessions.handle_message(hello("two"), address(2), now);
        sessions.apply_decision("player_two".to_owned(), Ok(()), now);
        assert_eq!(sessions.outgoing, [(address(2), ServerMessage::Refused(REFUSAL_FULL))]);
        assert_eq!(sessions.service_requests[1], ServiceRequest::Disconnect("player_two".to_owned()));
    }
}
