//! The engine against a naive model written from the specification by another hand: 1,000 sequences of at least 200
//! commands, every answer, wait and count compared after every command, restarts at random points, and every command
//! and outcome reached. `HOSTING_MODEL_SEED` runs one sequence, `HOSTING_MODEL_SEQUENCES` another number of them.

#[path = "model/checks.rs"]
mod checks;
#[path = "model/clock.rs"]
mod clock;
#[path = "model/commands.rs"]
mod commands;
#[path = "model/coverage.rs"]
mod coverage;
#[path = "model/decide.rs"]
mod decide;
#[path = "model/effect.rs"]
mod effect;
#[path = "model/facts.rs"]
mod facts;
#[path = "model/making.rs"]
mod making;
#[path = "model/naive.rs"]
mod naive;
#[path = "model/places.rs"]
mod places;
#[path = "model/players.rs"]
mod players;
#[path = "model/profile.rs"]
mod profile;
#[path = "model/random.rs"]
mod random;
#[path = "model/servers.rs"]
mod servers;
#[path = "model/steps.rs"]
mod steps;
#[path = "model/story.rs"]
mod story;
#[path = "model/surface.rs"]
mod surface;
#[path = "model/trials.rs"]
mod trials;
#[path = "model/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::coverage::Coverage;
use crate::random::Random;
use crate::steps::Step;
use crate::story::{Story, shrink};
use crate::world::World;

const SEQUENCES: u64 = 1_000;
const FIRST_SEED: u64 = 20_240_229;
/// Steps of a sequence; some ask for nothing and some for many commands.
const STEPS: usize = 300;
/// What a sequence must have at least.
const COMMANDS: u64 = 200;

/// Runs a sequence in a world of its own. A panic of the engine is a difference like any other.
fn run(seed: u64, steps: &[Step], story: Story) -> (World, Result<(), String>) {
    let mut world = World::new(seed, story);
    let result = catch_unwind(AssertUnwindSafe(|| world.run(steps))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("with something else than text")))
    });
    (world, result)
}

/// The shortest sequence found that still fails, told.
fn tell(seed: u64, steps: &[Step]) -> String {
    let short = shrink(steps, 3_000, |fewer| run(seed, fewer, Story::default()).1.is_err());
    let (world, result) = run(seed, &short, Story::told());
    let why = result.err().unwrap_or_else(|| "it did not fail again".to_owned());
    let why = world.story.named(&why);
    format!("sequence {seed}, {} of {} steps:\n{}\n!! {why}\n", short.len(), steps.len(), world.story.lines.join("\n"))
}

fn number_from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[test]
fn engine_answers_as_the_naive_model_does_and_replays_to_the_same_hash() {
    let only = number_from_environment("HOSTING_MODEL_SEED");
    let sequences = only.map_or_else(|| number_from_environment("HOSTING_MODEL_SEQUENCES").unwrap_or(SEQUENCES), |_| 1);
    let first = only.unwrap_or(FIRST_SEED);
    println!("seeds {first}..{}", first + sequences);
    std::panic::set_hook(Box::new(|_| {}));
    let mut coverage = Coverage::default();
    let (mut commands, mut fewest) = (0, u64::MAX);
    for seed in first..first + sequences {
        let steps = steps::draw(&mut Random::new(seed ^ 0x5EED), STEPS);
        let (world, result) = run(seed, &steps, Story::default());
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
