//! Memory growth by many reservations, each from a separate request.

use hosting_core::Idempotency;

use crate::Failure;
use crate::engine_fixture::{EngineFixture, LobbyParameters};
use crate::flags::Flags;
use crate::host_measurements::resident_and_peak_bytes;
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;

const ADDRESSES: u32 = 250_000;

/// Runs `growth --lobbies N --slots N [--keys]`, compared with an engine without lobbies.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let lobbies: usize = flags.get("lobbies", 10_000)?;
    let slots_per_lobby: u32 = flags.get("slots", 100)?;
    let has_keys = flags.has("keys");
    let mut order: Vec<u32> = (0..lobbies as u32).collect();
    let mut fixture = EngineFixture::new()?;
    fixture.lobbies.reserve_exact(lobbies);
    let (before, _) = resident_and_peak_bytes()?;
    for _ in 0..lobbies {
        fixture.add_lobby(&LobbyParameters::with_defaults("large", slots_per_lobby))?;
    }
    let (with_lobbies, _) = resident_and_peak_bytes()?;
    let mut rng = SeededRandom::new(flags.get("seed", 1)?);
    let mut calls = 0_u32;
    for _ in 0..slots_per_lobby {
        rng.shuffle(&mut order);
        for index in &order {
            let lobby = fixture.lobbies[*index as usize];
            let address = calls % ADDRESSES;
            let key: Option<Idempotency> = has_keys
                .then(|| fixture.hash.idempotency(&address.to_be_bytes(), &calls.to_be_bytes(), "join", &lobby.0));
            fixture.join(lobby, 1, address, key)?;
            calls += 1;
        }
    }
    let (after, peak) = resident_and_peak_bytes()?;
    fixture.check_slot_counts([0, slots_per_lobby, 0, 0])?;
    Ok(Measurement::new()
        .number("growth_mb", (after - before) as f64 / 1e6)
        .number("lobbies_mb", (with_lobbies - before) as f64 / 1e6)
        .number("peak_growth_mb", (peak - before) as f64 / 1e6)
        .number("bytes_per_reservation", (after - before) as f64 / f64::from(calls))
        .count("reservations", u64::from(calls))
        .count("addresses", u64::from(ADDRESSES.min(calls))))
}
