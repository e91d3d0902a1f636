//! Random sequences of submissions, commits, compactions, faults, crashes and reboots.

use hosting_journal::OpenError;
use proptest::prelude::*;

use crate::disk::{Disk, Fault};
use crate::world::{Memory, World};

#[derive(Clone, Debug)]
enum Step {
    Submit(u32),
    Commit,
    Prepare,
    BackgroundWork,
    PassAndBeat(u64),
    Close,
    Kill,
    PowerLoss,
    FaultIn(u64, Fault),
    Fill,
    Free,
}

fn step() -> impl Strategy<Value = Step> {
    let fault = prop_oneof![Just(Fault::Crash), Just(Fault::Error(libc::EIO)), Just(Fault::Error(libc::ENOSPC)),];
    prop_oneof![
        8 => (0..500_u32).prop_map(Step::Submit),
        8 => (500..90_000_u32).prop_map(Step::Submit),
        12 => Just(Step::Commit),
        4 => Just(Step::Prepare),
        6 => Just(Step::BackgroundWork),
        2 => (0..3_000_u64).prop_map(Step::PassAndBeat),
        1 => Just(Step::Close),
        1 => Just(Step::Kill),
        1 => Just(Step::PowerLoss),
        2 => (1..40_u64, fault).prop_map(|(calls, fault)| Step::FaultIn(calls, fault)),
        1 => Just(Step::Fill),
        2 => Just(Step::Free),
    ]
}

fn take(world: &mut World, step: &Step) -> Result<(), OpenError> {
    match step {
        Step::Submit(length) => drop(world.submit(*length)),
        Step::Commit => {
            world.commit();
            assert_eq!(world.journal().durable(), world.journal().last());
        }
        Step::Prepare => drop(world.journal().step_prepare()),
        Step::BackgroundWork => world.run_background_work(),
        Step::PassAndBeat(ms) => {
            world.time_and_random.pass(*ms);
            world.journal().heartbeat();
        }
        Step::Close => {
            world.shut_down();
            world.open()?;
        }
        Step::Kill | Step::PowerLoss => {
            world.drop_journal();
            if matches!(step, Step::Kill) {
                world.disk.kill()
            } else {
                world.disk.lose_power()
            }
            world.open()?;
        }
        Step::FaultIn(calls, fault) => world.disk.plan(*calls, *fault),
        Step::Fill => world.disk.limit(Some(world.disk.used() + 100_000)),
        Step::Free => world.disk.limit(None),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn acknowledged_events_are_never_lost(
        seed in any::<u64>(),
        has_torn_blocks in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(if has_torn_blocks { Disk::with_torn_blocks(seed) } else { Disk::new(seed) });
        world.open().unwrap();
        for (index, step) in steps.iter().enumerate() {
            let survived = world.run_until_crash(|world| take(world, step));
            if !matches!(survived, Ok(true)) {
                world.drop_journal();
                if (seed >> (index % 64)) & 1 == 0 { world.disk.kill() } else { world.disk.lose_power() }
                world.open().unwrap();
            }
        }
        world.drop_journal();
        world.disk.lose_power();
        world.disk.limit(None);
        world.open().unwrap();
        world.write(8, 50_000);
    }

    #[test]
    fn changed_byte_is_refused_or_loses_only_the_last_batch(place in any::<prop::sample::Index>(), last in any::<bool>()) {
        let mut world = World::new(Disk::new(3));
        world.open().unwrap();
        world.write(9, 40_000);
        world.drop_journal();
        let path = world.path(if last { "seg-000000000002.log" } else { "seg-000000000001.log" });
        let offset = place.index(world.disk.read(&path).len());
        world.disk.damage(&path, offset, 1);
        let mut state = Memory::default();
        match world.try_open(&mut state) {
            Ok(recovered) => {
                prop_assert!(recovered.last_lsn >= 8, "{} of 9", recovered.last_lsn);
                prop_assert_eq!(&state.events[..], &world.acknowledged[..state.events.len()]);
            }
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.contains("seg-") || message.contains("segment "), "{}", message);
            }
        }
    }
}
