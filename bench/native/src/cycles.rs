//! Cycles of reserve, connect and disconnect in the engine, with token signatures and without a journal.

use std::time::{Duration, Instant};

use hosting_core::Idempotency;

use crate::Failure;
use crate::chance::Chance;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::hall::{Hall, Kind};
use crate::host::cpu_ns;

pub const ADDRESSES: usize = 100_000;
/// Cycles per millisecond of service time.
const CYCLES_PER_MS: u64 = 1_000;
/// Cycles between two expiry runs.
const CYCLES_PER_ADVANCE: u64 = 10_000;
const CHUNK: u64 = 1_000;

pub struct Scene {
    pub lobbies: usize,
    pub places: u32,
    /// Cycles before the measurement begins.
    pub warm_up: u64,
    pub cycles: u64,
    pub seed: u64,
}

impl Scene {
    pub fn of(flags: &Flags) -> Result<Scene, Failure> {
        Ok(Scene {
            lobbies: flags.get("lobbies", 1_000)?,
            places: flags.get("places", 100)?,
            warm_up: flags.get("warm-up", 100_000)?,
            cycles: flags.get("cycles", 1_000_000)?,
            seed: flags.get("seed", 1)?,
        })
    }

    /// Runs numbered cycles. Returns the rate per second, per CPU second, and in the median chunk, which ignores other
    /// load of the machine.
    pub fn measure(&self, mut cycle: impl FnMut(u64) -> Result<(), Failure>) -> Result<Figures, Failure> {
        (0..self.warm_up).try_for_each(&mut cycle)?;
        let mut chunks: Vec<Duration> = Vec::with_capacity((self.cycles / CHUNK) as usize);
        let (cpu_before_ns, began) = (cpu_ns(), Instant::now());
        for chunk in 0..self.cycles / CHUNK {
            let chunk_began = Instant::now();
            let first = self.warm_up + chunk * CHUNK;
            (first..first + CHUNK).try_for_each(&mut cycle)?;
            chunks.push(chunk_began.elapsed());
        }
        let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), (cpu_ns() - cpu_before_ns) as f64 / 1e9);
        let cycles = chunks.len() as f64 * CHUNK as f64;
        chunks.sort_unstable();
        Ok(Figures::new()
            .number("cycles_per_s", cycles / wall_s)
            .number("cycles_per_cpu_s", cycles / cpu_s)
            .number("median_cycles_per_s", CHUNK as f64 / chunks[chunks.len() / 2].as_secs_f64())
            .count("lobbies", self.lobbies as u64)
            .count("places", u64::from(self.places))
            .count("cycles", self.cycles))
    }
}

pub fn run(scene: &Scene, has_keys: bool) -> Result<Figures, Failure> {
    let mut hall = Hall::new()?;
    let mut chance = Chance::new(scene.seed);
    for _ in 0..scene.lobbies {
        hall.add_lobby(&Kind::of("duel", scene.places))?;
    }
    for lobby in hall.lobbies.clone() {
        for _ in 0..scene.places / 2 {
            let tokens = hall.join(lobby, 1, chance.below(ADDRESSES) as u32, None)?;
            hall.connect(lobby, &tokens[0], None)?;
        }
    }
    let figures = scene.measure(|number| cycle(&mut hall, &mut chance, number, has_keys))?;
    hall.check([0, 0, scene.places / 2, 0])?;
    Ok(figures)
}

fn cycle(hall: &mut Hall, chance: &mut Chance, number: u64, has_keys: bool) -> Result<(), Failure> {
    if number.is_multiple_of(CYCLES_PER_MS) {
        hall.now += 1;
    }
    if number.is_multiple_of(CYCLES_PER_ADVANCE) {
        hall.advance();
    }
    let lobby = hall.lobbies[chance.below(hall.lobbies.len())];
    let address = chance.below(ADDRESSES) as u32;
    let key = |hall: &Hall, caller: &[u8], step: u64, operation: &str, message: &[u8]| -> Option<Idempotency> {
        has_keys.then(|| hall.hash.idempotency(caller, &key_of(3 * number + step), operation, message))
    };
    let joined = key(hall, &address.to_be_bytes(), 0, "join", &lobby.0);
    let tokens = hall.join(lobby, 1, address, joined)?;
    let connected = key(hall, &lobby.0, 1, "connected", tokens[0].as_bytes());
    hall.connect(lobby, &tokens[0], connected)?;
    let disconnected = key(hall, &lobby.0, 2, "disconnected", tokens[0].as_bytes());
    hall.disconnect(lobby, &tokens[0], disconnected)
}

fn key_of(number: u64) -> [u8; 36] {
    let mut key = [b'0'; 36];
    for (digit, place) in key[20..].iter_mut().enumerate() {
        *place = b"0123456789abcdef"[(number >> (60 - 4 * digit)) as usize & 15];
    }
    key
}
