//! Longest time that one command holds the engine after an outage, when every reservation is due.

use std::time::Instant;

use crate::engine_fixture::{EngineFixture, LobbyParameters};
use crate::flags::Flags;
use crate::measurement::Measurement;
use crate::{Failure, failure};

const TOKEN_TTL_MS: u64 = 120_000;

/// Runs `outage --lobbies N --slots N`. Each call of the timer is followed by a join, until no reservation is due.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let lobbies: u32 = flags.get("lobbies", 10_000)?;
    let slots: u32 = flags.get("slots", 100)?;
    let mut fixture = EngineFixture::new()?;
    let parameters =
        LobbyParameters { player_token_ttl_ms: TOKEN_TTL_MS, ..LobbyParameters::with_defaults("large", slots) };
    for _ in 0..lobbies {
        fixture.add_lobby(&parameters)?;
    }
    let open = fixture.add_lobby(&LobbyParameters::with_defaults("open", 65_535))?;
    for number in 0..lobbies * slots {
        let lobby = fixture.lobbies[(number % lobbies) as usize];
        fixture.join(lobby, 1, number, None)?;
    }
    fixture.now += TOKEN_TTL_MS;

    let (mut longest_timer_us, mut longest_join_us, mut total_us) = (0.0_f64, 0.0_f64, 0.0_f64);
    let mut calls = 0_u32;
    // The joins reserve slots that are not due.
    while reserved_slots(&fixture) > u64::from(calls) {
        let started = Instant::now();
        fixture.join(open, 1, calls, None)?;
        let join_us = started.elapsed().as_secs_f64() * 1e6;
        let started = Instant::now();
        fixture.advance();
        let timer_us = started.elapsed().as_secs_f64() * 1e6;
        longest_join_us = longest_join_us.max(join_us);
        longest_timer_us = longest_timer_us.max(timer_us);
        total_us += join_us + timer_us;
        calls += 1;
        if calls > 60_000 {
            return Err(failure("reservations stay due"));
        }
    }
    Ok(Measurement::new()
        .number("longest_hold_ms", longest_join_us.max(longest_timer_us) / 1e3)
        .number("longest_join_ms", longest_join_us / 1e3)
        .number("total_ms", total_us / 1e3)
        .count("due", u64::from(lobbies * slots))
        .count("calls", u64::from(calls)))
}

fn reserved_slots(fixture: &EngineFixture) -> u64 {
    let counts = fixture.engine.namespace_counts();
    counts.iter().map(|(_, counts)| counts.slots[2]).sum()
}
