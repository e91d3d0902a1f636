//! Errors of opening a damaged journal, with file and offset.

use hosting_journal::{OpenError, Options};

use crate::disk::{Disk, Fault};
use crate::world::{KINDS, Memory, SEGMENT, World};

const FIRST: usize = 16_384;
const BLOCK: usize = 4_096;
const BATCH: usize = 10 * BLOCK;
const EMPTY_BATCH: usize = BLOCK;

/// Returns the offset of batch `n` in the first segment, which begins with the empty batch of the run.
const fn batch(n: usize) -> usize {
    FIRST + EMPTY_BATCH + n * BATCH
}

/// Returns the offset of batch `n` in a later segment.
const fn later_batch(n: usize) -> usize {
    FIRST + n * BATCH
}

fn world_with_nine_events() -> World {
    let mut world = World::new(Disk::new(2));
    world.open().unwrap();
    world.write(9, 40_000);
    world.drop_journal();
    world
}

fn first(world: &World) -> std::path::PathBuf {
    world.path("seg-000000000001.log")
}

fn second(world: &World) -> std::path::PathBuf {
    world.path("seg-000000000002.log")
}

fn refusal(world: &mut World) -> OpenError {
    world.try_open(&mut Memory::default()).unwrap_err()
}

#[test]
fn damage_before_a_valid_batch_is_refused_with_its_offset() {
    for place in [0, 60, 128, 20_000] {
        let mut world = world_with_nine_events();
        world.disk.damage(&second(&world), later_batch(1) + place, 1);
        let error = refusal(&mut world);
        let OpenError::Damaged { segment, offset, next_segment, next_offset } = error else { panic!("{error}") };
        let at = later_batch(1) as u64;
        assert_eq!((segment, offset, next_segment, next_offset), (2, at, 2, at + BATCH as u64));
    }
}

#[test]
fn damaged_segment_end_is_refused_if_a_segment_follows() {
    let mut world = world_with_nine_events();
    world.disk.damage(&first(&world), batch(4) + 9_000, 1);
    let error = refusal(&mut world);
    let OpenError::Gap { segment, offset, expected, found, .. } = error else { panic!("{error}") };
    assert_eq!((segment, offset, expected, found), (1, batch(4) as u64, 5, 6));
}

#[test]
fn damaged_segment_start_is_refused_if_a_batch_follows() {
    let mut world = world_with_nine_events();
    world.disk.damage(&second(&world), FIRST, 1);
    let error = refusal(&mut world);
    let OpenError::Damaged { segment, offset, next_segment, next_offset } = error else { panic!("{error}") };
    assert_eq!((segment, offset), (1, batch(5) as u64), "the log cannot be read on from there");
    assert_eq!((next_segment, next_offset), (2, (FIRST + BATCH) as u64));
}

#[test]
fn damaged_last_batch_is_cut_for_good() {
    let mut world = world_with_nine_events();
    let at = later_batch(3);
    let bytes = world.disk.read(&second(&world));
    world.disk.damage(&second(&world), at + 9_000, 1);
    let recovered = world.try_open(&mut Memory::default()).unwrap();
    assert_eq!((recovered.last_lsn, recovered.torn_bytes), (8, BATCH as u64));
    world.drop_journal();
    // The cut destroyed the first block, so that the batch stays invalid even with all its other blocks.
    let mut revived = world.disk.read(&second(&world));
    revived[at + BLOCK..at + BATCH].copy_from_slice(&bytes[at + BLOCK..at + BATCH]);
    world.disk.put(&second(&world), &revived);
    assert_eq!(world.try_open(&mut Memory::default()).unwrap().last_lsn, 8);
}

#[test]
fn missing_segment_is_refused_by_name() {
    for (number, name) in [(1, "seg-000000000001.log"), (2, "seg-000000000002.log")] {
        let mut world = world_with_nine_events();
        world.disk.lose(&world.path(name));
        let error = refusal(&mut world);
        assert!(matches!(error, OpenError::MissingSegment { segment, .. } if segment == number), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn damaged_segment_header_is_refused_by_name() {
    let mut world = world_with_nine_events();
    world.disk.damage(&second(&world), 70, 1);
    let error = refusal(&mut world);
    assert!(matches!(error, OpenError::Header { .. }), "{error}");
    assert!(error.to_string().contains("seg-000000000002.log"), "{error}");
    let mut world = world_with_nine_events();
    let bytes = world.disk.read(&second(&world));
    world.disk.put(&second(&world), &bytes[..bytes.len() - 4_096]);
    assert!(matches!(refusal(&mut world), OpenError::Header { .. }));
}

#[test]
fn segment_under_another_name_is_refused() {
    let mut world = world_with_nine_events();
    let bytes = world.disk.read(&first(&world));
    world.disk.put(&second(&world), &bytes);
    let error = refusal(&mut world);
    assert!(error.to_string().contains("it is segment 1"), "{error}");
}

#[test]
fn another_format_version_is_refused_by_number() {
    let mut world = world_with_nine_events();
    world.disk.damage(&first(&world), 8, 1);
    let error = refusal(&mut world);
    assert!(matches!(error, OpenError::Version { known: 2, .. }), "{error}");
}

#[test]
fn another_shard_is_refused() {
    let mut world = world_with_nine_events();
    world.options.shard = 2;
    let error = refusal(&mut world);
    assert!(matches!(error, OpenError::Shard { found: 1, expected: 2, .. }), "{error}");
}

#[test]
fn unknown_event_kind_is_refused_by_its_recorded_name() {
    let mut world = World::new(Disk::new(2));
    world.options.kinds = &[(1, "Small"), (2, "Large"), (9, "FromTheFuture")];
    world.open().unwrap();
    world.write(1, 100);
    world.journal().submit(2, 1, &[9, 0, 0]);
    assert!(world.journal().step_commit());
    world.drop_journal();
    world.options.kinds = KINDS;
    let error = refusal(&mut world);
    let message = error.to_string();
    let OpenError::UnknownKind { kind, name, segment, offset } = error else { panic!("{message}") };
    assert_eq!(
        (kind, name.as_deref(), segment, offset),
        (9, Some("FromTheFuture"), 1, (FIRST + EMPTY_BATCH + BLOCK) as u64)
    );
    assert!(message.contains("FromTheFuture"), "{message}");
}

#[test]
fn renamed_event_kind_is_refused() {
    let mut world = world_with_nine_events();
    world.options.kinds = &[(1, "Tiny"), (2, "Large")];
    let error = refusal(&mut world);
    assert!(matches!(error, OpenError::KindRenamed { kind: 1, expected: "Tiny", .. }), "{error}");
}

#[test]
fn new_event_kinds_start_a_new_segment() {
    let mut world = world_with_nine_events();
    world.options.kinds = &[(1, "Small"), (2, "Large"), (3, "Newer")];
    world.open().unwrap();
    let credit = world.journal().credit();
    assert!(credit.total > credit.reserve);
    world.write(1, 100);
    let header = String::from_utf8_lossy(&world.disk.read(&world.path("seg-000000000003.log"))[..200]).into_owned();
    assert!(header.contains("Newer"), "{header}");
    assert_eq!(world.journal().stats().segments_closed, 2, "the rest of the old one is left alone");
    world.drop_journal();
    world.disk.lose_power();
    assert_eq!(world.open().unwrap().last_lsn, 10);
    world.drop_journal();
    // The older build can still read the log, because the log has no event of the new kind.
    world.options.kinds = KINDS;
    assert_eq!(world.open().unwrap().last_lsn, 10);
}

#[test]
fn segment_length_can_change_between_runs() {
    let mut world = world_with_nine_events();
    for segment_bytes in [2 * SEGMENT, SEGMENT, SEGMENT + 4_096] {
        world.options.segment_bytes = segment_bytes;
        world.open().unwrap();
        world.write(12, 60_000);
        world.drop_journal();
        world.disk.lose_power();
    }
    assert_eq!(world.open().unwrap().last_lsn, 45);
}

#[test]
fn leftover_batch_of_another_salt_is_ignored() {
    let mut world = world_with_nine_events();
    // A valid segment with the same number and batches, but another salt.
    let mut other = World::new(Disk::new(2));
    other.time_and_random.pass(1);
    hosting_journal::TimeAndRandom::random(other.time_and_random.as_ref()).unwrap();
    other.open().unwrap();
    other.write(9, 40_000);
    other.submit(40_000);
    other.commit();
    other.drop_journal();
    let at = later_batch(4);
    let mut bytes = world.disk.read(&second(&world));
    bytes[at..at + BATCH].copy_from_slice(&other.disk.read(&second(&other))[at..at + BATCH]);
    world.disk.put(&second(&world), &bytes);
    assert_eq!(world.open().unwrap().last_lsn, 9);
}

/// Commits until the planned crash, and ends the process. The page cache keeps the written bytes.
fn crash_in_commit(world: &mut World) {
    let survived = world.run_until_crash(|world| {
        world.commit();
        Ok(())
    });
    assert!(!survived.unwrap());
    world.drop_journal();
    world.disk.kill();
}

#[test]
fn torn_batch_at_a_segment_switch_is_cut() {
    for call in 1..=2 {
        let mut world = World::new(Disk::new(2));
        world.open().unwrap();
        world.write(5, 40_000);
        world.disk.plan(call, Fault::Crash);
        assert!(world.submit(60_000));
        crash_in_commit(&mut world);
        // Only the header of the second segment's first batch reached the disk.
        let mut bytes = world.disk.read(&second(&world));
        bytes[FIRST + 512..FIRST + 4_096].fill(0xAB);
        world.disk.put(&second(&world), &bytes);
        world.open().unwrap();
        world.write(3, 10_000);
        world.drop_journal();
        world.disk.lose_power();
        assert_eq!(world.open().unwrap().last_lsn, 8);
    }
}

#[test]
fn torn_first_batch_does_not_block_new_event_kinds() {
    for seed in 0..20 {
        let mut world = World::new(Disk::new(seed));
        world.open().unwrap();
        world.write(4, 45_000);
        world.disk.plan(1, Fault::Crash);
        assert!(world.submit(70_000));
        crash_in_commit(&mut world);
        world.options.kinds = &[(1, "Small"), (2, "Large"), (3, "Newer")];
        // Pages of the torn batch are in the page cache only.
        world.open().unwrap();
        world.write(1, 100);
        world.drop_journal();
        world.disk.lose_power();
        world.open().unwrap();
    }
}

#[test]
fn invalid_options_are_refused_with_the_reason() {
    for segment_bytes in [0, SEGMENT - 4_096, SEGMENT + 1, 4 << 30] {
        let mut world = World::new(Disk::new(0));
        world.options.segment_bytes = segment_bytes;
        let error = world.open().unwrap_err();
        assert!(error.to_string().contains("segment_bytes"), "{error}");
    }
    let mut world = World::new(Disk::new(0));
    world.options.kinds = &[(1, "")];
    assert!(matches!(world.open().unwrap_err(), OpenError::Options { .. }));
    let options = Options::new("/journal", 1, KINDS);
    assert_eq!(options.segment_bytes, 64 * 1024 * 1024);
}

#[test]
fn log_from_before_a_restore_is_refused() {
    let mut world = world_with_nine_events();
    world.options.first_epoch = 1_000;
    let error = refusal(&mut world);
    let OpenError::BeforeRestore { epoch, first_epoch, .. } = error else { panic!("{error}") };
    assert_eq!((epoch, first_epoch), (1, 1_000));
}

#[test]
fn restored_service_begins_above_the_epochs_of_the_lost_log() {
    let mut world = World::new(Disk::new(2));
    world.options.first_epoch = 1_000;
    for epoch in [1_000, 1_001] {
        assert_eq!(world.open().unwrap().epoch, epoch);
        world.drop_journal();
    }
}
