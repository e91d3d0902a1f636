//! Faults at every single file call. After each fault, all acknowledged events must exist in order, and the service
//! must continue.

use hosting_journal::OpenError;

use crate::disk::{Disk, Fault};
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    Kill,
    PowerLoss,
}

fn full_run(world: &mut World) -> Result<(), OpenError> {
    world.open()?;
    for round in 0..26_u32 {
        for part in 0..=round % 3 {
            world.submit(if part == 2 { 40 } else { 50_000 + 700 * round });
        }
        world.commit();
        world.run_background_work();
        if round % 7 == 0 {
            world.time_and_random.pass(1_500);
            world.journal().heartbeat();
            world.commit();
        }
    }
    world.shut_down();
    world.time_and_random.pass(10);
    world.open()?;
    short_run(world)
}

fn short_run(world: &mut World) -> Result<(), OpenError> {
    for length in [100, 30_000, 300] {
        world.submit(length);
        world.commit();
        world.run_background_work();
    }
    world.submit(77);
    world.drop_journal();
    Ok(())
}

fn after(world: &World, after: After) {
    match after {
        After::Kill => world.disk.kill(),
        After::PowerLoss => world.disk.lose_power(),
    }
}

fn check_and_continue(world: &mut World, kind: After, context: &str) {
    world.drop_journal();
    after(world, kind);
    world.open().unwrap_or_else(|error| panic!("{context}: {error}"));
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap_or_else(|error| panic!("{context}, then power loss: {error}"));
    world.write(7, 60_000);
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap_or_else(|error| panic!("{context}, went on, then power loss: {error}"));
    world.drop_journal();
}

pub fn at_every_call(
    base: &World,
    fault: Fault,
    kind: After,
    seed: u64,
    life: fn(&mut World) -> Result<(), OpenError>,
) -> u64 {
    for call in 1.. {
        let mut world = base.fork(seed.wrapping_add(call));
        world.disk.plan(call, fault);
        let survived = world.run_until_crash(life);
        if !world.disk.was_hit() {
            assert!(matches!(survived, Ok(true)), "without a fault: {survived:?}");
            return call - 1;
        }
        let context = format!("{fault:?} at call {call} ({}), {kind:?}", world.disk.last_call());
        if let Err(error) = &survived {
            let message = error.to_string();
            assert!(message.contains('/') || message.contains("segment "), "{context}: {message} names no file");
            assert!(!matches!(error, OpenError::Damaged { .. } | OpenError::Gap { .. }), "{context}: {message}");
        }
        check_and_continue(&mut world, kind, &context);
    }
    unreachable!("the loop ends when a life meets no fault")
}

#[test]
fn full_run_makes_every_kind_of_call() {
    let mut world = World::new(Disk::new(2));
    assert!(world.run_until_crash(full_run).unwrap());
    let counts = world.disk.call_counts();
    for call in ["create", "open", "read", "write", "sync", "allocate", "rename", "unlink", "sync_folder", "list"] {
        assert!(counts.get(call).is_some_and(|&count| count > 0), "{call}: {counts:?}");
    }
    let names = world.disk.names();
    assert!(names.iter().any(|name| name.starts_with("image-")), "{names:?}");
    assert!(!names.contains(&"seg-000000000001.log".to_owned()), "the first segment was recycled: {names:?}");
}

#[test]
fn process_crash_at_any_call_loses_no_event() {
    let calls = at_every_call(&World::new(Disk::new(0)), Fault::Crash, After::Kill, 100, full_run);
    assert!(calls > 200, "{calls} calls");
}

#[test]
fn power_loss_at_any_call_loses_no_event() {
    for (disk, seed) in [(0, 200), (1, 300)] {
        at_every_call(&World::new(Disk::new(disk)), Fault::Crash, After::PowerLoss, seed, full_run);
    }
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn failed_call_then_process_crash_loses_no_event() {
    at_every_call(&World::new(Disk::new(0)), Fault::Error(libc::EIO), After::Kill, 500, full_run);
}

#[test]
fn failed_call_then_power_loss_loses_no_event() {
    at_every_call(&World::new(Disk::new(1)), Fault::Error(libc::EIO), After::PowerLoss, 600, full_run);
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn full_disk_at_any_call_loses_no_event() {
    at_every_call(&World::new(Disk::new(1)), Fault::Error(libc::ENOSPC), After::PowerLoss, 900, full_run);
}

fn crash_during_batch(seed: u64, before: usize) -> World {
    let mut world = World::new(Disk::new(seed));
    world.open().unwrap();
    world.write(before, 40_000);
    assert!(world.submit(60_000));
    world.disk.plan(1 + seed % 2, Fault::Crash);
    let survived = world.run_until_crash(|world| {
        world.commit();
        Ok(())
    });
    assert!(!survived.unwrap(), "a batch that cannot be written ends the process");
    world.drop_journal();
    world
}

pub fn open_and_go_on(world: &mut World) -> Result<(), OpenError> {
    world.open()?;
    short_run(world)
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn fault_at_any_call_of_recovery_loses_no_event() {
    for seed in 0..6 {
        for before in [2, 5] {
            let base = crash_during_batch(seed, before);
            if seed % 3 == 0 {
                base.disk.lose_power();
            } else {
                base.disk.kill();
            }
            for (fault, kind) in [
                (Fault::Crash, After::Kill),
                (Fault::Crash, After::PowerLoss),
                (Fault::Error(libc::EIO), After::Kill),
                (Fault::Error(libc::EIO), After::PowerLoss),
                (Fault::Error(libc::ENOSPC), After::PowerLoss),
            ] {
                at_every_call(&base, fault, kind, seed * 1_000, open_and_go_on);
            }
        }
    }
}

#[test]
fn start_never_rewrites_an_acknowledged_batch() {
    let mut world = World::new(Disk::with_torn_blocks(1));
    world.open().unwrap();
    world.write(1, 100);
    world.drop_journal();
    let writes = world.disk.call_counts()["write"];
    world.open().unwrap();
    assert_eq!(world.disk.call_counts()["write"], writes + 1, "the first batch of the run");
}

fn write_small_batches(world: &mut World) -> Result<(), OpenError> {
    world.open()?;
    for length in [40, 300, 40, 5_000, 40, 17_000, 40, 40] {
        world.submit(length);
        world.commit();
    }
    world.drop_journal();
    Ok(())
}

fn write_small_batches_twice(world: &mut World) -> Result<(), OpenError> {
    write_small_batches(world)?;
    write_small_batches(world)
}

#[test]
#[ignore = "slow: make test-full runs it"]
fn torn_block_loses_no_acknowledged_batch() {
    for seed in 0..8 {
        let mut base = World::new(Disk::with_torn_blocks(seed));
        write_small_batches(&mut base).unwrap();
        for (fault, kind) in [
            (Fault::Crash, After::PowerLoss),
            (Fault::Error(libc::EIO), After::PowerLoss),
            (Fault::Error(libc::EIO), After::Kill),
        ] {
            at_every_call(&base, fault, kind, seed * 1_000, write_small_batches_twice);
        }
    }
}

fn compaction_fails(call: u64, fault: Fault) -> bool {
    let mut world = World::new(Disk::new(call));
    world.open().unwrap();
    while world.journal().stats().segments_closed < 4 {
        world.submit(50_000);
        world.commit();
        world.journal().step_prepare().unwrap();
    }
    world.disk.plan(call, fault);
    let result = world.compact();
    let was_hit = world.disk.was_hit();
    world.disk.forget_fault();
    assert_eq!(result.is_err(), was_hit, "{fault:?} at call {call}: {result:?}");
    if result.is_err() {
        world.journal().image_failed("it ended", false);
        assert!(world.submit(40_000));
        world.commit();
        world.compact().unwrap();
    }
    assert!(world.journal().image_written().unwrap() >= 4);
    assert!(!world.disk.names().contains(&"image.tmp".to_owned()), "{:?}", world.disk.names());
    check_and_continue(&mut world, After::PowerLoss, &format!("compaction: {fault:?} at call {call}"));
    was_hit
}

#[test]
fn compaction_can_fail_at_any_call() {
    for fault in [Fault::Crash, Fault::Error(libc::EIO), Fault::Error(libc::ENOSPC)] {
        let calls = (1..).take_while(|&call| compaction_fails(call, fault)).count();
        assert!(calls > 20, "{calls} calls");
    }
}

#[test]
fn short_writes_are_continued() {
    let mut world = World::new(Disk::new(4));
    world.disk.write_short(true);
    assert!(world.run_until_crash(full_run).unwrap());
    check_and_continue(&mut world, After::PowerLoss, "short writes");
}

#[test]
fn nothing_is_published_after_a_failed_sync() {
    for call in 1..=2 {
        let mut world = World::new(Disk::new(0));
        world.open().unwrap();
        world.write(1, 100);
        world.submit(100);
        world.disk.plan(call, Fault::Error(libc::EIO));
        let survived = world.run_until_crash(|world| {
            world.commit();
            Ok(())
        });
        assert!(!survived.unwrap());
        let journal = world.journal();
        assert_eq!((journal.durable(), journal.last()), (1, 2));
        // on_fatal would have ended the process. The journal must not write or publish anything afterwards.
        journal.submit(3, 1, b"x");
        assert!(!journal.step_commit());
        assert_eq!((journal.durable(), journal.last()), (1, 2));
    }
}
