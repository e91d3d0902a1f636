//! Naive engine as a baseline of [`crate::cycles`]: maps of strings behind a mutex, random tokens, and an ordered set
//! of deadlines. Signs and hashes nothing, stores no ended tokens, and writes no events.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

use crate::chance::Chance;
use crate::cycles::{ADDRESSES, Scene};
use crate::figures::Figures;
use crate::{Failure, wrong};

struct Lobby {
    limit: usize,
    players: HashSet<String>,
}

struct Seat {
    lobby: String,
    address: String,
    deadline_ms: u64,
    is_connected: bool,
}

#[derive(Default)]
struct Tables {
    lobbies: HashMap<String, Lobby>,
    seats: HashMap<String, Seat>,
    deadlines: BTreeSet<(u64, String)>,
    per_address: HashMap<String, usize>,
}

struct Matchmaker(Mutex<Tables>);

impl Matchmaker {
    fn with<R>(&self, work: impl FnOnce(&mut Tables) -> R) -> R {
        work(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn join(&self, now_ms: u64, lobby: &str, address: &str, token: String) -> Result<String, Failure> {
        self.with(|tables| {
            let room = tables.lobbies.get_mut(lobby).ok_or_else(|| wrong("no such lobby"))?;
            if room.players.len() >= room.limit {
                return Err(wrong("full"));
            }
            let deadline_ms = now_ms + 120_000;
            room.players.insert(token.clone());
            *tables.per_address.entry(address.to_owned()).or_default() += 1;
            tables.deadlines.insert((deadline_ms, token.clone()));
            let seat = Seat { lobby: lobby.to_owned(), address: address.to_owned(), deadline_ms, is_connected: false };
            tables.seats.insert(token.clone(), seat);
            Ok(token)
        })
    }

    fn connected(&self, lobby: &str, token: &str) -> Result<(), Failure> {
        self.with(|tables| {
            let seat = tables.seats.get_mut(token).ok_or_else(|| wrong("no such token"))?;
            if seat.lobby != lobby || seat.is_connected {
                return Err(wrong("another lobby's, or used"));
            }
            seat.is_connected = true;
            tables.deadlines.remove(&(seat.deadline_ms, token.to_owned()));
            Ok(())
        })
    }

    fn disconnected(&self, lobby: &str, token: &str) -> Result<(), Failure> {
        self.with(|tables| {
            let seat = tables.seats.remove(token).ok_or_else(|| wrong("no such token"))?;
            if let Some(room) = tables.lobbies.get_mut(lobby) {
                room.players.remove(token);
            }
            if let Some(count) = tables.per_address.get_mut(&seat.address) {
                *count -= 1;
                if *count == 0 {
                    tables.per_address.remove(&seat.address);
                }
            }
            Ok(())
        })
    }
}

fn fresh_token(chance: &mut Chance) -> String {
    format!("player_{:016x}{:016x}", chance.number(), chance.number())
}

pub fn run(scene: &Scene) -> Result<Figures, Failure> {
    let matchmaker = Matchmaker(Mutex::default());
    let mut chance = Chance::new(scene.seed);
    let names: Vec<String> = (0..scene.lobbies).map(|number| format!("lobby-{number:032}")).collect();
    for name in &names {
        let lobby = Lobby { limit: scene.places as usize, players: HashSet::new() };
        matchmaker.with(|tables| tables.lobbies.insert(name.clone(), lobby));
        for _ in 0..scene.places / 2 {
            let token = matchmaker.join(0, name, &address(&mut chance), fresh_token(&mut chance))?;
            matchmaker.connected(name, &token)?;
        }
    }
    let mut cycle = |number: u64| -> Result<(), Failure> {
        let lobby = &names[chance.below(names.len())];
        let token = matchmaker.join(number / 1_000, lobby, &address(&mut chance), fresh_token(&mut chance))?;
        matchmaker.connected(lobby, &token)?;
        matchmaker.disconnected(lobby, &token)
    };
    let figures = scene.measure(&mut cycle)?;
    let is_half_full = |lobby: &Lobby| lobby.players.len() == scene.places as usize / 2;
    if !matchmaker.with(|tables| tables.lobbies.values().all(is_half_full) && tables.deadlines.is_empty()) {
        return Err(wrong("the naive lobbies are not half full"));
    }
    Ok(figures)
}

fn address(chance: &mut Chance) -> String {
    let number = chance.below(ADDRESSES);
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}
