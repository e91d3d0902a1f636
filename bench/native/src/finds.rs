//! Find among many open lobbies: time per find, and number of visited candidates.

use std::time::{Duration, Instant};

use hosting_core::{Admission, CreationPolicy, Find, Id};

use crate::chance::Chance;
use crate::figures::Figures;
use crate::flags::Flags;
use crate::hall::{Hall, Kind, NAMESPACE, REGION, VERSION};
use crate::{Failure, wrong};

const PLACES: u32 = 32;
const MODES: [&str; 4] = ["solo", "duel", "squad", "crowd"];
/// Value of the tag `map` in every hundredth lobby.
const RARE: &str = "canyon";
const OFTEN: [&str; 9] = ["forest", "harbour", "desert", "city", "island", "mine", "bridge", "castle", "moon"];

struct Wish {
    modes: &'static [&'static str],
    tags: &'static [(&'static str, &'static str)],
    party_size: u32,
    /// Finds per round. Each round must fit into the smallest number of lobbies.
    at_once: usize,
}

const PLAIN: Wish = Wish { modes: &["duel"], tags: &[], party_size: 1, at_once: 64 };
const PICKY: Wish = Wish { modes: &["duel", "squad"], tags: &[("map", RARE)], party_size: 4, at_once: 2 };

/// Runs `find --wish plain|picky --lobbies N`.
pub fn run(flags: &Flags) -> Result<Figures, Failure> {
    let wish = if flags.get("wish", "plain".to_owned())? == "picky" { PICKY } else { PLAIN };
    let lobbies: usize = flags.get("lobbies", 100_000)?;
    let finds: usize = flags.get("finds", 200_000)?;
    let mut chance = Chance::new(flags.get("seed", 1)?);
    let mut hall = build(lobbies, &mut chance)?;
    for _ in 0..finds / wish.at_once / 10 {
        round(&mut hall, &wish, &mut chance)?;
    }
    let work_before = hall.engine.find_candidates_visited();
    let mut rounds: Vec<Duration> = Vec::with_capacity(finds / wish.at_once + 1);
    while rounds.len() * wish.at_once < finds {
        rounds.push(round(&mut hall, &wish, &mut chance)?);
    }
    let found = rounds.len() * wish.at_once;
    let mean_ns = rounds.iter().sum::<Duration>().as_nanos() as f64 / found as f64;
    rounds.sort_unstable();
    // The median ignores rounds with other load of the machine.
    let median_ns = rounds[rounds.len() / 2].as_nanos() as f64 / wish.at_once as f64;
    let work = hall.engine.find_candidates_visited() - work_before;
    if hall.engine.ledger_violations() > 0 {
        return Err(wrong("the ledger does not add up"));
    }
    Ok(Figures::new()
        .number("ns_per_find", median_ns)
        .number("mean_ns_per_find", mean_ns)
        .number("candidates_per_find", work as f64 / found as f64)
        .count("lobbies", lobbies as u64)
        .count("finds", found as u64))
}

/// Creates open lobbies with random numbers of reserved slots. The first lobby always fits the picky find.
fn build(lobbies: usize, chance: &mut Chance) -> Result<Hall, Failure> {
    let mut hall = Hall::new()?;
    for number in 0..lobbies {
        let is_rare = if number < 100 { number == 0 } else { chance.below(100) == 0 };
        let map = if is_rare { RARE } else { OFTEN[chance.below(OFTEN.len())] };
        let mode = if number == 0 { "duel" } else { MODES[chance.below(MODES.len())] };
        let kind = Kind { tags: &[("map", map)], ..Kind::of(mode, PLACES) };
        let lobby = hall.add_lobby(&kind)?;
        let taken = if number == 0 { PLACES / 2 } else { chance.below(PLACES as usize) as u32 };
        for _ in 0..taken {
            hall.join(lobby, 1, chance.below(250_000) as u32, None)?;
        }
    }
    Ok(hall)
}

fn round(hall: &mut Hall, wish: &Wish, chance: &mut Chance) -> Result<Duration, Failure> {
    let mut places: Vec<(Id, String)> = Vec::with_capacity(wish.at_once * wish.party_size as usize);
    let address = chance.below(250_000) as u32;
    let source = hall.hash.source(NAMESPACE, &address.to_be_bytes());
    let find = Find {
        namespace: NAMESPACE,
        version: VERSION,
        modes: wish.modes,
        regions: &[REGION],
        tags: wish.tags,
        party_size: wish.party_size,
        source,
        source_limit: u32::MAX,
        idempotency: None,
        channels: &[],
        creation: CreationPolicy::Prevented,
    };
    let mut took = Duration::ZERO;
    let mut answers = Vec::with_capacity(wish.at_once);
    let began = Instant::now();
    for _ in 0..wish.at_once {
        answers.push(hall.ask(|engine, context| engine.find(context, &find))?);
    }
    took += began.elapsed();
    for answer in answers {
        let Admission::Reserved(reserved) = answer else { return Err(wrong("a find has to wait")) };
        if reserved.tokens.len() != wish.party_size as usize {
            return Err(wrong("a party was split"));
        }
        check_wish(hall, reserved.lobby, wish)?;
        places.extend(reserved.tokens.into_iter().map(|token| (reserved.lobby, token)));
    }
    chance.shuffle(&mut places);
    for (lobby, token) in places {
        hall.disconnect(lobby, &token, None)?;
    }
    Ok(took)
}

fn check_wish(hall: &Hall, lobby: Id, wish: &Wish) -> Result<(), Failure> {
    let view = hall.engine.lobby(lobby).ok_or_else(|| wrong("the lobby that was found is not there"))?;
    let players: u32 = view.players.iter().sum();
    if !wish.modes.contains(&view.mode.as_str()) || players > PLACES {
        return Err(wrong(format!("found a lobby of {} with {players} players", view.mode)));
    }
    Ok(())
}
