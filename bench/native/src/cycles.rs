//! Cycles of reserve, connect and disconnect in the engine, with token signatures and without a journal.

use std::time::{Duration, Instant};

use hosting_core::Idempotency;

use crate::Failure;
use crate::engine_fixture::{EngineFixture, LobbyParameters};
use crate::flags::Flags;
use crate::host_measurements::cpu_ns;
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;

pub const ADDRESSES: usize = 100_000;
/// Cycles per millisecond of service time.
const CYCLES_PER_MS: u64 = 1_000;
/// Cycles between two expiry runs.
const CYCLES_PER_ADVANCE: u64 = 10_000;
const CHUNK: u64 = 1_000;

pub struct CycleOptions {
    pub lobbies: usize,
    pub slots_per_lobby: u32,
    /// Cycles before the measurement begins.
    pub warm_up: u64,
    pub cycles: u64,
    pub seed: u64,
}

impl CycleOptions {
    pub fn from_flags(flags: &Flags) -> Result<CycleOptions, Failure> {
        Ok(CycleOptions {
            lobbies: flags.get("lobbies", 1_000)?,
            slots_per_lobby: flags.get("slots", 100)?,
            warm_up: flags.get("warm-up", 100_000)?,
            cycles: flags.get("cycles", 1_000_000)?,
            seed: flags.get("seed", 1)?,
        })
    }

    /// Runs numbered cycles. Returns the rate per second, per CPU second, and in the median chunk, which ignores other
    /// load of the machine.
    pub fn measure(&self, mut cycle: impl FnMut(u64) -> Result<(), Failure>) -> Result<Measurement, Failure> {
        (0..self.warm_up).try_for_each(&mut cycle)?;
        let mut chunks: Vec<Duration> = Vec::with_capacity((self.cycles / CHUNK) as usize);
        let (cpu_before_ns, started) = (cpu_ns(), Instant::now());
        for chunk in 0..self.cycles / CHUNK {
            let chunk_started = Instant::now();
            let first = self.warm_up + chunk * CHUNK;
            (first..first + CHUNK).try_for_each(&mut cycle)?;
            chunks.push(chunk_started.elapsed());
        }
        let (wall_s, cpu_s) = (started.elapsed().as_secs_f64(), (cpu_ns() - cpu_before_ns) as f64 / 1e9);
        let cycles = chunks.len() as f64 * CHUNK as f64;
        chunks.sort_unstable();
        Ok(Measurement::new()
            .number("cycles_per_s", cycles / wall_s)
            .number("cycles_per_cpu_s", cycles / cpu_s)
            .number("median_cycles_per_s", CHUNK as f64 / chunks[chunks.len() / 2].as_secs_f64())
            .count("lobbies", self.lobbies as u64)
            .count("slots", u64::from(self.slots_per_lobby))
            .count("cycles", self.cycles))
    }
}

pub fn run(options: &CycleOptions, has_keys: bool) -> Result<Measurement, Failure> {
    let mut fixture = EngineFixture::new()?;
    let mut rng = SeededRandom::new(options.seed);
    for _ in 0..options.lobbies {
        fixture.add_lobby(&LobbyParameters::with_defaults("duel", options.slots_per_lobby))?;
    }
    for lobby in fixture.lobbies.clone() {
        for _ in 0..options.slots_per_lobby / 2 {
            let tokens = fixture.join(lobby, 1, rng.below(ADDRESSES) as u32, None)?;
            fixture.connect(lobby, &tokens[0], None)?;
        }
    }
    let measurement = options.measure(|number| cycle(&mut fixture, &mut rng, number, has_keys))?;
    fixture.check_slot_counts([0, 0, options.slots_per_lobby / 2, 0])?;
    Ok(measurement)
}

fn cycle(fixture: &mut EngineFixture, rng: &mut SeededRandom, number: u64, has_keys: bool) -> Result<(), Failure> {
    if number.is_multiple_of(CYCLES_PER_MS) {
        fixture.now += 1;
    }
    if number.is_multiple_of(CYCLES_PER_ADVANCE) {
        fixture.advance();
    }
    let lobby = fixture.lobbies[rng.below(fixture.lobbies.len())];
    let address = rng.below(ADDRESSES) as u32;
    let key =
        |fixture: &EngineFixture, caller: &[u8], step: u64, operation: &str, message: &[u8]| -> Option<Idempotency> {
            has_keys.then(|| fixture.hash.idempotency(caller, &key_of(3 * number + step), operation, message))
        };
    let joined = key(fixture, &address.to_be_bytes(), 0, "join", &lobby.0);
    let tokens = fixture.join(lobby, 1, address, joined)?;
    let connected = key(fixture, &lobby.0, 1, "connected", tokens[0].as_bytes());
    fixture.connect(lobby, &tokens[0], connected)?;
    let disconnected = key(fixture, &lobby.0, 2, "disconnected", tokens[0].as_bytes());
    fixture.disconnect(lobby, &tokens[0], disconnected)
}

fn key_of(number: u64) -> [u8; 36] {
    let mut key = [b'0'; 36];
    for (digit, character) in key[20..].iter_mut().enumerate() {
        *character = b"0123456789abcdef"[(number >> (60 - 4 * digit)) as usize & 15];
    }
    key
}
