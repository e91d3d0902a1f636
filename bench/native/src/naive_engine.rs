//! Naive engine as a baseline of [`crate::cycles`]: maps of strings behind a mutex, random tokens, and an ordered set
//! of deadlines. Signs and hashes nothing, stores no ended tokens, and writes no events.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Mutex;

use crate::cycles::{ADDRESSES, CycleOptions};
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;
use crate::{Failure, failure};

struct Lobby {
    limit: usize,
    players: HashSet<String>,
}

struct SlotUse {
    lobby: String,
    address: String,
    deadline_ms: u64,
    is_connected: bool,
}

#[derive(Default)]
struct State {
    lobbies: HashMap<String, Lobby>,
    slot_uses: HashMap<String, SlotUse>,
    deadlines: BTreeSet<(u64, String)>,
    per_address: HashMap<String, usize>,
}

struct NaiveEngine(Mutex<State>);

impl NaiveEngine {
    fn with_state<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn join(&self, now_ms: u64, lobby: &str, address: &str, token: String) -> Result<String, Failure> {
        self.with_state(|state| {
            let entry = state.lobbies.get_mut(lobby).ok_or_else(|| failure("no such lobby"))?;
            if entry.players.len() >= entry.limit {
                return Err(failure("full"));
            }
            let deadline_ms = now_ms + 120_000;
            entry.players.insert(token.clone());
            *state.per_address.entry(address.to_owned()).or_default() += 1;
            state.deadlines.insert((deadline_ms, token.clone()));
            let slot_use =
                SlotUse { lobby: lobby.to_owned(), address: address.to_owned(), deadline_ms, is_connected: false };
            state.slot_uses.insert(token.clone(), slot_use);
            Ok(token)
        })
    }

    fn connected(&self, lobby: &str, token: &str) -> Result<(), Failure> {
        self.with_state(|state| {
            let slot_use = state.slot_uses.get_mut(token).ok_or_else(|| failure("no such token"))?;
            if slot_use.lobby != lobby || slot_use.is_connected {
                return Err(failure("another lobby's, or used"));
            }
            slot_use.is_connected = true;
            state.deadlines.remove(&(slot_use.deadline_ms, token.to_owned()));
            Ok(())
        })
    }

    fn disconnected(&self, lobby: &str, token: &str) -> Result<(), Failure> {
        self.with_state(|state| {
            let slot_use = state.slot_uses.remove(token).ok_or_else(|| failure("no such token"))?;
            if let Some(entry) = state.lobbies.get_mut(lobby) {
                entry.players.remove(token);
            }
            if let Some(count) = state.per_address.get_mut(&slot_use.address) {
                *count -= 1;
                if *count == 0 {
                    state.per_address.remove(&slot_use.address);
                }
            }
            Ok(())
        })
    }
}

fn random_token(rng: &mut SeededRandom) -> String {
    format!("player_{:016x}{:016x}", rng.number(), rng.number())
}

pub fn run(options: &CycleOptions) -> Result<Measurement, Failure> {
    let engine = NaiveEngine(Mutex::default());
    let mut rng = SeededRandom::new(options.seed);
    let names: Vec<String> = (0..options.lobbies).map(|number| format!("lobby-{number:032}")).collect();
    for name in &names {
        let lobby = Lobby { limit: options.slots_per_lobby as usize, players: HashSet::new() };
        engine.with_state(|state| state.lobbies.insert(name.clone(), lobby));
        for _ in 0..options.slots_per_lobby / 2 {
            let token = engine.join(0, name, &address(&mut rng), random_token(&mut rng))?;
            engine.connected(name, &token)?;
        }
    }
    let mut cycle = |number: u64| -> Result<(), Failure> {
        let lobby = &names[rng.below(names.len())];
        let token = engine.join(number / 1_000, lobby, &address(&mut rng), random_token(&mut rng))?;
        engine.connected(lobby, &token)?;
        engine.disconnected(lobby, &token)
    };
    let measurement = options.measure(&mut cycle)?;
    let is_half_full = |lobby: &Lobby| lobby.players.len() == options.slots_per_lobby as usize / 2;
    if !engine.with_state(|state| state.lobbies.values().all(is_half_full) && state.deadlines.is_empty()) {
        return Err(failure("the naive lobbies are not half full"));
    }
    Ok(measurement)
}

fn address(rng: &mut SeededRandom) -> String {
    let number = rng.below(ADDRESSES);
    format!("10.{}.{}.{}", number >> 16, number >> 8 & 255, number & 255)
}
