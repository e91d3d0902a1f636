//! Images: covered events, recycled segments and damaged images.

use hosting_journal::{CompactionFailure, LastCompaction, OpenError};

use crate::disk::Disk;
use crate::world::{Memory, World};

fn with_closed(closed: u64) -> World {
    let mut world = World::new(Disk::new(2));
    world.open().unwrap();
    fill_segments(&mut world, closed);
    world
}

fn fill_segments(world: &mut World, closed: u64) {
    while world.journal().stats().segments_closed < closed {
        world.submit(50_000);
        world.commit();
        world.journal().step_prepare().unwrap();
    }
}

fn images(world: &World) -> Vec<String> {
    world.disk.names().into_iter().filter(|name| name.starts_with("image-")).collect()
}

fn segments(world: &World) -> Vec<String> {
    world.disk.names().into_iter().filter(|name| name.starts_with("seg-")).collect()
}

#[test]
fn image_replaces_closed_segments_only() {
    let mut world = with_closed(4);
    assert!(world.journal().compaction_due());
    let in_use = world.path("seg-000000000005.log");
    let before = world.disk.read(&in_use);
    let done = world.compact().unwrap();
    assert_eq!(done.segments, 4);
    assert!(done.lsn < world.journal().last());
    assert_eq!(world.disk.read(&in_use), before);
    assert_eq!(world.journal().image_written().unwrap(), 4);
    let stats = world.journal().stats();
    assert_eq!((stats.segments_closed, stats.segments_free), (0, 4));
    let image_bytes = done.image_bytes;
    let succeeded = LastCompaction::Succeeded { lsn: done.lsn, image_bytes, segments: 4 };
    assert_eq!(stats.last_compaction, Some(succeeded));
    assert!(!world.journal().compaction_due());
    assert_eq!(segments(&world)[0], "seg-000000000005.log");
    world.drop_journal();
    world.disk.lose_power();
    let recovered = world.open().unwrap();
    assert_eq!(recovered.image_lsn, done.lsn);
    assert_eq!(recovered.events, recovered.last_lsn - done.lsn);
}

#[test]
fn recycled_segments_are_reused_before_new_files() {
    let mut world = with_closed(4);
    world.compact().unwrap();
    world.journal().image_written().unwrap();
    let used = world.disk.used();
    let created = world.disk.call_counts()["create"];
    fill_segments(&mut world, 4);
    assert_eq!(world.disk.used(), used);
    assert_eq!(world.disk.call_counts()["create"], created);
    world.compact().unwrap();
    world.journal().image_written().unwrap();
    assert_eq!(images(&world).len(), 1, "the older image is gone");
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap();
}

#[test]
fn no_image_is_written_without_closed_segments() {
    let mut world = with_closed(0);
    world.write(1, 100);
    let done = world.compact().unwrap();
    assert_eq!((done.segments, done.image), (0, None));
    assert!(images(&world).is_empty());
    assert!(matches!(world.journal().image_written(), Err(OpenError::Image { .. })));
}

#[test]
fn unconfirmed_image_is_used_at_the_next_start() {
    let mut world = with_closed(3);
    let done = world.compact().unwrap();
    world.drop_journal();
    let recovered = world.open().unwrap();
    assert_eq!(recovered.image_lsn, done.lsn);
    assert_eq!(world.journal().stats().segments_free, 3, "what it covers was freed");
}

fn damage_offsets(length: usize) -> [usize; 4] {
    [3, 40, length / 2, length - 3]
}

#[test]
fn damaged_image_is_ignored_while_its_segments_exist() {
    let mut world = with_closed(2);
    let done = world.compact().unwrap();
    world.drop_journal();
    let path = done.image.unwrap();
    for place in damage_offsets(done.image_bytes as usize) {
        let mut world = world.fork(1);
        world.disk.damage(&path, place, 1);
        assert_eq!(world.open().unwrap().image_lsn, 0, "byte {place}");
    }
    let mut world = world.fork(1);
    let bytes = world.disk.read(&path);
    world.disk.put(&path, &bytes[..bytes.len() - 1]);
    assert_eq!(world.open().unwrap().image_lsn, 0, "cut short");
}

#[test]
fn damaged_image_is_refused_after_its_segments_are_gone() {
    let mut world = with_closed(2);
    let done = world.compact().unwrap();
    world.journal().image_written().unwrap();
    world.drop_journal();
    let path = done.image.unwrap();
    for place in damage_offsets(done.image_bytes as usize) {
        let mut world = world.fork(1);
        world.disk.damage(&path, place, 1);
        let error = world.open().unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()), "byte {place}: {error}");
    }
}

#[test]
fn older_image_replaces_a_damaged_newest_image() {
    let mut world = with_closed(2);
    let first = world.compact().unwrap();
    world.journal().image_written().unwrap();
    fill_segments(&mut world, 2);
    let second = world.compact().unwrap();
    assert!(second.lsn > first.lsn);
    world.drop_journal();
    let newest = second.image.unwrap();
    world.disk.damage(&newest, 20_000, 1);
    let mut both = world.fork(1);
    assert_eq!(world.open().unwrap().image_lsn, first.lsn);
    both.disk.damage(&first.image.unwrap(), 20_000, 1);
    let error = both.open().unwrap_err();
    assert!(error.to_string().contains(newest.to_str().unwrap()), "{error}");
}

#[test]
fn log_that_ends_before_a_damaged_image_is_refused() {
    let mut world = with_closed(2);
    let done = world.compact().unwrap();
    world.drop_journal();
    world.disk.damage(&done.image.unwrap(), 20_000, 1);
    for name in segments(&world).iter().skip(1) {
        world.disk.lose(&world.path(name));
    }
    let error = world.try_open(&mut Memory::default()).unwrap_err();
    assert!(matches!(error, OpenError::EndsEarly { .. }), "{error}");
}

#[test]
fn image_without_its_next_segment_is_refused() {
    let mut world = with_closed(2);
    world.compact().unwrap();
    world.journal().image_written().unwrap();
    world.drop_journal();
    for name in segments(&world) {
        world.disk.lose(&world.path(&name));
    }
    let error = world.try_open(&mut Memory::default()).unwrap_err();
    assert!(matches!(error, OpenError::MissingSegment { segment: 3, .. }), "{error}");
}

#[test]
fn compaction_refuses_a_damaged_closed_segment() {
    let world = with_closed(2);
    let path = world.path("seg-000000000001.log");
    for offset in [16_384 + 4_096 + 3 * 53_248 + 200, 16_384 + 4_096 + 200] {
        world.disk.damage(&path, offset, 1);
        let error = world.compact().unwrap_err();
        assert!(matches!(error, OpenError::Gap { segment: 1, .. }), "{error}");
        assert!(images(&world).is_empty());
        world.disk.damage(&path, offset, 1);
    }
    world.compact().unwrap();
}

#[test]
fn failed_compaction_reduces_credit_only_on_a_full_disk() {
    let world = with_closed(4);
    let before = world.journal().credit();
    assert!(before.total > before.reserve);
    world.journal().image_failed("a segment is damaged", false);
    assert_eq!(world.journal().credit(), before);
    assert_eq!(world.journal().stats().last_compaction, Some(LastCompaction::Failed));
    let failure = CompactionFailure { reason: "a segment is damaged".to_owned(), retry_s: 30 };
    assert_eq!(world.journal().stats().last_compaction_failure, Some(failure));
    world.disk.limit(Some(world.disk.used()));
    let error = world.compact().unwrap_err();
    assert!(error.is_no_space(), "{error}");
    world.journal().image_failed(&error.to_string(), error.is_no_space());
    assert_eq!(world.journal().credit().total, before.reserve);
    assert!(world.journal().stats().is_stalled);
    world.disk.limit(None);
    world.compact().unwrap();
    world.journal().image_written().unwrap();
    assert!(world.journal().credit().total >= before.total, "the free files count as well");
    assert!(!world.journal().stats().is_stalled);
}
