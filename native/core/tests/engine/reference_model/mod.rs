//! Engine against a reference model: random command sequences with restarts, compared after every command.
//!
//! `HOSTING_MODEL_SEED` runs one sequence; `HOSTING_MODEL_SEQUENCES` sets their number.

mod admission;
mod answer_checks;
mod commands;
mod coverage;
mod decisions;
mod effects;
mod engine_driver;
mod fact_reader;
mod lobby_creation;
mod lobby_servers;
mod model_state;
mod model_time;
mod player_tokens;
mod restart_trials;
mod sequence_runner;
mod step_generator;
mod transcript;
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};

use coverage::Coverage;
use sequence_runner::SequenceRunner;
use step_generator::Step;
use transcript::{Transcript, shrink};

use crate::random::Random;

const SEQUENCES: u64 = 1_000;
const FIRST_SEED: u64 = 20_240_229;
const STEPS: usize = 300;
const COMMANDS: u64 = 200;

fn run(seed: u64, steps: &[Step], transcript: Transcript) -> (SequenceRunner, Result<(), String>) {
    let mut world = SequenceRunner::new(seed, transcript);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(steps))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("with something else than text")))
    });
    (world, result)
}

fn shortest_failure(seed: u64, steps: &[Step]) -> String {
    let short = shrink(steps, 3_000, |fewer| run(seed, fewer, Transcript::default()).1.is_err());
    let (world, result) = run(seed, &short, Transcript::recording());
    let reason = result.err().unwrap_or_else(|| "it did not fail again".to_owned());
    let reason = world.transcript.named(&reason);
    format!(
        "sequence {seed}, {} of {} steps:\n{}\n!! {reason}\n",
        short.len(),
        steps.len(),
        world.transcript.lines.join("\n")
    )
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Panics of the engine become part of the transcript.
fn silence_panics_of_this_thread() {
    let (thread, report) = (std::thread::current().id(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() != thread {
            report(panic);
        }
    }));
}

#[test]
fn engine_matches_reference_model_and_replays_to_the_same_hash() {
    let only = number_from_environment("HOSTING_MODEL_SEED");
    let sequences = only.map_or_else(|| number_from_environment("HOSTING_MODEL_SEQUENCES").unwrap_or(SEQUENCES), |_| 1);
    let first = only.unwrap_or(FIRST_SEED);
    println!("seeds {first}..{}", first + sequences);
    silence_panics_of_this_thread();
    let mut coverage = Coverage::default();
    let (mut commands, mut fewest) = (0, u64::MAX);
    for seed in first..first + sequences {
        let steps = step_generator::draw(&mut Random::new(seed ^ 0x5EED), STEPS);
        let (world, result) = run(seed, &steps, Transcript::default());
        if result.is_err() {
            // The message of a panic of this thread is silenced.
            println!("engine and model differ\n{}", shortest_failure(seed, &steps));
            panic!("engine and model differ");
        }
        commands += world.commands;
        fewest = fewest.min(world.commands);
        coverage.add(world.coverage);
    }
    println!("{sequences} sequences, {commands} commands, at least {fewest} in each\n{}", coverage.table());
    if sequences >= SEQUENCES {
        assert!(fewest >= COMMANDS, "a sequence had {fewest} commands only");
        assert_eq!(coverage.missing(), Vec::<String>::new(), "never exposure");
    }
}
