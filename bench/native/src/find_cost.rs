//! Find among many open lobbies: time per find, and number of visited candidates.

use std::time::{Duration, Instant};

use hosting_core::{Admission, CreationPolicy, Find, Id};

use crate::engine_fixture::{EngineFixture, LobbyParameters, NAMESPACE, REGION, VERSION};
use crate::flags::Flags;
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;
use crate::{Failure, failure};

const SLOTS_PER_LOBBY: u32 = 32;
const MODES: [&str; 4] = ["solo", "duel", "squad", "large"];
/// Value of the tag `map` in every hundredth lobby.
const RARE_MAP: &str = "canyon";
const COMMON_MAPS: [&str; 9] = ["forest", "harbour", "desert", "city", "island", "mine", "bridge", "castle", "moon"];

struct FindRequest {
    modes: &'static [&'static str],
    tags: &'static [(&'static str, &'static str)],
    party_size: u32,
    /// Finds per round. Each round must fit into the smallest number of lobbies.
    finds_per_round: usize,
}

const PLAIN_FIND: FindRequest = FindRequest { modes: &["duel"], tags: &[], party_size: 1, finds_per_round: 64 };
const SELECTIVE_FIND: FindRequest =
    FindRequest { modes: &["duel", "squad"], tags: &[("map", RARE_MAP)], party_size: 4, finds_per_round: 2 };

/// Runs `find --wish plain|picky --lobbies N`.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let find_request = if flags.get("wish", "plain".to_owned())? == "picky" { SELECTIVE_FIND } else { PLAIN_FIND };
    let lobbies: usize = flags.get("lobbies", 100_000)?;
    let finds: usize = flags.get("finds", 200_000)?;
    let mut rng = SeededRandom::new(flags.get("seed", 1)?);
    let mut fixture = build_fixture(lobbies, &mut rng)?;
    for _ in 0..finds / find_request.finds_per_round / 10 {
        run_round(&mut fixture, &find_request, &mut rng)?;
    }
    let candidates_before = fixture.engine.find_candidates_visited();
    let mut rounds: Vec<Duration> = Vec::with_capacity(finds / find_request.finds_per_round + 1);
    while rounds.len() * find_request.finds_per_round < finds {
        rounds.push(run_round(&mut fixture, &find_request, &mut rng)?);
    }
    let find_count = rounds.len() * find_request.finds_per_round;
    let mean_ns = rounds.iter().sum::<Duration>().as_nanos() as f64 / find_count as f64;
    rounds.sort_unstable();
    // The median ignores rounds with other load of the machine.
    let median_ns = rounds[rounds.len() / 2].as_nanos() as f64 / find_request.finds_per_round as f64;
    let candidates = fixture.engine.find_candidates_visited() - candidates_before;
    if fixture.engine.ledger_violations() > 0 {
        return Err(failure("the ledger does not add up"));
    }
    Ok(Measurement::new()
        .number("ns_per_find", median_ns)
        .number("mean_ns_per_find", mean_ns)
        .number("candidates_per_find", candidates as f64 / find_count as f64)
        .count("lobbies", lobbies as u64)
        .count("finds", find_count as u64))
}

/// Creates open lobbies with random numbers of reserved slots. The first lobby always fits the selective find.
fn build_fixture(lobbies: usize, rng: &mut SeededRandom) -> Result<EngineFixture, Failure> {
    let mut fixture = EngineFixture::new()?;
    for number in 0..lobbies {
        let has_rare_map = if number < 100 { number == 0 } else { rng.below(100) == 0 };
        let map = if has_rare_map { RARE_MAP } else { COMMON_MAPS[rng.below(COMMON_MAPS.len())] };
        let mode = if number == 0 { "duel" } else { MODES[rng.below(MODES.len())] };
        let parameters =
            LobbyParameters { tags: &[("map", map)], ..LobbyParameters::with_defaults(mode, SLOTS_PER_LOBBY) };
        let lobby = fixture.add_lobby(&parameters)?;
        let reserved_slots = if number == 0 { SLOTS_PER_LOBBY / 2 } else { rng.below(SLOTS_PER_LOBBY as usize) as u32 };
        for _ in 0..reserved_slots {
            fixture.join(lobby, 1, rng.below(250_000) as u32, None)?;
        }
    }
    Ok(fixture)
}

fn run_round(
    fixture: &mut EngineFixture,
    find_request: &FindRequest,
    rng: &mut SeededRandom,
) -> Result<Duration, Failure> {
    let mut reservations: Vec<(Id, String)> =
        Vec::with_capacity(find_request.finds_per_round * find_request.party_size as usize);
    let address = rng.below(250_000) as u32;
    let source = fixture.hash.source(NAMESPACE, &address.to_be_bytes());
    let find = Find {
        namespace: NAMESPACE,
        version: VERSION,
        modes: find_request.modes,
        regions: &[REGION],
        tags: find_request.tags,
        party_size: find_request.party_size,
        source,
        source_limit: u32::MAX,
        idempotency: None,
        channels: &[],
        creation: CreationPolicy::Prevented,
    };
    let mut duration = Duration::ZERO;
    let mut admissions = Vec::with_capacity(find_request.finds_per_round);
    let started = Instant::now();
    for _ in 0..find_request.finds_per_round {
        admissions.push(fixture.execute(|engine, context| engine.find(context, &find))?);
    }
    duration += started.elapsed();
    for admission in admissions {
        let Admission::Reserved(reserved) = admission else { return Err(failure("a find has to wait")) };
        if reserved.tokens.len() != find_request.party_size as usize {
            return Err(failure("a party was split"));
        }
        check_lobby_matches(fixture, reserved.lobby, find_request)?;
        reservations.extend(reserved.tokens.into_iter().map(|token| (reserved.lobby, token)));
    }
    rng.shuffle(&mut reservations);
    for (lobby, token) in reservations {
        fixture.disconnect(lobby, &token, None)?;
    }
    Ok(duration)
}

fn check_lobby_matches(fixture: &EngineFixture, lobby: Id, find_request: &FindRequest) -> Result<(), Failure> {
    let view = fixture.engine.lobby(lobby).ok_or_else(|| failure("the lobby that was found is not there"))?;
    let players: u32 = view.players.iter().sum();
    if !find_request.modes.contains(&view.mode.as_str()) || players > SLOTS_PER_LOBBY {
        return Err(failure(format!("found a lobby of {} with {players} players", view.mode)));
    }
    Ok(())
}
