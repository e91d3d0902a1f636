//! Engine against a reference model: random command sequences with restarts, compared after every command.
//!
//! `HOSTING_MODEL_SEED` runs one sequence; `HOSTING_MODEL_SEQUENCES` sets their number.

#[path = "reference_model/admission.rs"]
mod admission;
#[path = "reference_model/answer_checks.rs"]
mod answer_checks;
#[path = "reference_model/commands.rs"]
mod commands;
#[path = "reference_model/coverage.rs"]
mod coverage;
#[path = "reference_model/decisions.rs"]
mod decisions;
#[path = "reference_model/effects.rs"]
mod effects;
#[path = "reference_model/engine_driver.rs"]
mod engine_driver;
#[path = "reference_model/fact_reader.rs"]
mod fact_reader;
#[path = "reference_model/lobby_creation.rs"]
mod lobby_creation;
#[path = "reference_model/lobby_servers.rs"]
mod lobby_servers;
#[path = "reference_model/model_state.rs"]
mod model_state;
#[path = "reference_model/model_time.rs"]
mod model_time;
#[path = "reference_model/player_tokens.rs"]
mod player_tokens;
#[path = "reference_model/random.rs"]
mod random;
#[path = "reference_model/restart_trials.rs"]
mod restart_trials;
#[path = "reference_model/sequence_runner.rs"]
mod sequence_runner;
#[path = "reference_model/step_generator.rs"]
mod step_generator;
#[path = "reference_model/transcript.rs"]
mod transcript;
#[path = "reference_model/workload.rs"]
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::coverage::Coverage;
use crate::random::Random;
use crate::sequence_runner::SequenceRunner;
use crate::step_generator::Step;
use crate::transcript::{Transcript, shrink};

const SEQUENCES: u64 = 1_000;
const FIRST_SEED: u64 = 20_240_229;
const STEPS: usize = 300;
const COMMANDS: u64 = 200;

fn run(seed: u64, steps: &[Step], story: Transcript) -> (SequenceRunner, Result<(), String>) {
    let mut world = SequenceRunner::new(seed, story);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(steps))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("with something else than text")))
    });
    (world, result)
}

fn tell(seed: u64, steps: &[Step]) -> String {
    let short = shrink(steps, 3_000, |fewer| run(seed, fewer, Transcript::default()).1.is_err());
    let (world, result) = run(seed, &short, Transcript::recording());
    let why = result.err().unwrap_or_else(|| "it did not fail again".to_owned());
    let why = world.story.named(&why);
    format!("sequence {seed}, {} of {} steps:\n{}\n!! {why}\n", short.len(), steps.len(), world.story.lines.join("\n"))
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn engine_matches_reference_model_and_replays_to_the_same_hash() {
    let only = number_from_environment("HOSTING_MODEL_SEED");
    let sequences = only.map_or_else(|| number_from_environment("HOSTING_MODEL_SEQUENCES").unwrap_or(SEQUENCES), |_| 1);
    let first = only.unwrap_or(FIRST_SEED);
    println!("seeds {first}..{}", first + sequences);
    std::panic::set_hook(Box::new(|_| {}));
    let mut coverage = Coverage::default();
    let (mut commands, mut fewest) = (0, u64::MAX);
    for seed in first..first + sequences {
        let steps = step_generator::draw(&mut Random::new(seed ^ 0x5EED), STEPS);
        let (world, result) = run(seed, &steps, Transcript::default());
        if result.is_err() {
            let story = tell(seed, &steps);
            let _ = std::panic::take_hook();
            panic!("engine and model differ\n{story}");
        }
        commands += world.commands;
        fewest = fewest.min(world.commands);
        coverage.add(world.coverage);
    }
    let _ = std::panic::take_hook();
    println!("{sequences} sequences, {commands} commands, at least {fewest} in each\n{}", coverage.table());
    if sequences >= SEQUENCES {
        assert!(fewest >= COMMANDS, "a sequence had {fewest} commands only");
        assert_eq!(coverage.missing(), Vec::<String>::new(), "never exposure");
    }
}
