//! Memory growth by many reservations, each from a separate request.

use hosting_core::Idempotency;

use crate::Failure;
use crate::chance::Chance;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::hall::{Hall, Kind};
use crate::host::resident_bytes;

const ADDRESSES: u32 = 250_000;

/// Runs `growth --lobbies N --places N [--keys]`, compared with an engine without lobbies.
pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let lobbies: usize = flags.get("lobbies", 10_000)?;
    let places: u32 = flags.get("places", 100)?;
    let has_keys = flags.has("keys");
    let mut order: Vec<u32> = (0..lobbies as u32).collect();
    let mut hall = Hall::new()?;
    hall.lobbies.reserve_exact(lobbies);
    let (before, _) = resident_bytes()?;
    for _ in 0..lobbies {
        hall.add_lobby(&Kind::of("crowd", places))?;
    }
    let (with_lobbies, _) = resident_bytes()?;
    let mut chance = Chance::new(flags.get("seed", 1)?);
    let mut calls = 0_u32;
    for _ in 0..places {
        chance.shuffle(&mut order);
        for index in &order {
            let lobby = hall.lobbies[*index as usize];
            let address = calls % ADDRESSES;
            let key: Option<Idempotency> =
                has_keys.then(|| hall.hash.idempotency(&address.to_be_bytes(), &calls.to_be_bytes(), "join", &lobby.0));
            hall.join(lobby, 1, address, key)?;
            calls += 1;
        }
    }
    let (after, peak) = resident_bytes()?;
    hall.check([0, places, 0, 0])?;
    Ok(Figures::new()
        .number("growth_mb", (after - before) as f64 / 1e6)
        .number("lobbies_mb", (with_lobbies - before) as f64 / 1e6)
        .number("peak_growth_mb", (peak - before) as f64 / 1e6)
        .number("bytes_per_reservation", (after - before) as f64 / f64::from(calls))
        .count("reservations", u64::from(calls))
        .count("addresses", u64::from(ADDRESSES.min(calls))))
}
