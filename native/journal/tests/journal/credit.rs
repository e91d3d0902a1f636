//! Credit with free space and on a full disk.

use crate::disk::{Disk, Fault};
use crate::world::{Event, SEGMENT, World};

fn submit_from_reserve(world: &mut World, length: u32) -> bool {
    let lsn = world.journal().last() + 1;
    let event = Event { run: 1, lsn, length };
    let mut bytes = Vec::new();
    event.encode(&mut bytes);
    if world.journal().credit().total < bytes.len() as u64 {
        return false;
    }
    world.journal().submit(lsn, 1, &bytes);
    world.submitted.push(event);
    true
}

#[test]
fn new_journal_reserves_two_files_beside_each_prepared_segment() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    let credit = world.journal().credit();
    assert_eq!(credit.reserve, credit.largest);
    assert!(credit.reserve > SEGMENT - 20_000);
    for ready in 0..=2 {
        let credit = world.journal().credit();
        assert_eq!(world.journal().stats().segments_ready, ready);
        assert!(credit.total > (3 + ready) * credit.reserve - 12_288, "{credit:?}");
        assert_eq!(world.disk.used() as u64, (3 + ready) * SEGMENT);
        assert_eq!(world.journal().step_prepare().unwrap(), ready < 2);
    }
}

/// A slow disk fills files with zeros slowly. Events wait for their segment meanwhile, and are not refused.
#[test]
fn events_wait_for_a_segment_that_is_not_prepared() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.journal().step_prepare().unwrap();
    let mut submitted = 0;
    while world.submit(30_000) {
        world.journal().step_commit();
        submitted += 30_000;
    }
    assert!(submitted > SEGMENT * 3 / 2, "{submitted} bytes");
    let credit = world.journal().credit();
    assert!(credit.total + 30_000 + 3 * 4_096 > credit.reserve, "the reserve is left: {credit:?}");
    assert!(submit_from_reserve(&mut world, 30_000));
    assert!(world.journal().durable() < world.journal().last());
    world.commit();
    assert_eq!(world.journal().durable(), world.journal().last());
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap();
}

#[test]
fn orderly_stop_writes_events_that_wait_for_a_segment() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.journal().step_prepare().unwrap();
    while world.submit(30_000) {}
    world.shut_down();
    assert!(!world.disk.names().iter().any(|name| name.ends_with(".tmp")), "{:?}", world.disk.names());
    world.open().unwrap();
}

/// The space is reserved, but the disk fails. Then the credit counts the prepared segments only.
#[test]
fn failed_preparation_of_a_reserved_file_reduces_credit() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.journal().step_prepare().unwrap();
    // The calls of the preparation after the reservation of another file: open, zeros, header, sync, rename.
    for at in 3..=7 {
        while world.journal().stats().segments_ready > 1 {
            assert!(world.submit(50_000));
            world.commit();
        }
        let before = world.journal().credit();
        world.disk.plan(at, Fault::Error(libc::EIO));
        world.journal().step_prepare().unwrap_err();
        assert!(world.journal().stats().is_stalled);
        assert!(world.journal().credit().total <= before.reserve);
        world.disk.forget_fault();
        while world.journal().step_prepare().unwrap() {}
        assert!(!world.journal().stats().is_stalled);
    }
}

/// After a restart, clients send all at once what they have kept back, and the next segment takes time.
#[test]
fn opened_journal_has_room_for_half_a_segment_of_new_events() {
    let mut world = World::new(Disk::new(0));
    let mut least = u64::MAX;
    for _ in 0..20 {
        world.open().unwrap();
        let credit = world.journal().credit();
        least = least.min(credit.total - credit.reserve);
        // No segment is prepared beside it.
        assert!(world.submit(30_000));
        world.commit();
        world.shut_down();
    }
    assert!(least > SEGMENT / 2 - 20_000, "{least} bytes");
}

#[test]
fn full_disk_uses_the_reserve_last_and_recovers() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.disk.limit(Some(world.disk.used()));
    let mut new_events = 0;
    while world.submit(5_000) {
        world.commit();
        world.run_background_work();
        new_events += 1;
        assert!(new_events < 1_000);
    }
    let stats = world.journal().stats();
    assert!(stats.is_stalled && stats.stall_reason.unwrap().contains("/journal"));
    let mut reserved_count = 0;
    while submit_from_reserve(&mut world, 5_000) {
        world.commit();
        world.run_background_work();
        reserved_count += 1;
        assert!(!world.submit(1), "new events stay refused");
    }
    assert!(reserved_count * 8_192 > SEGMENT - 40_000, "a segment was kept: {reserved_count} events");
    world.time_and_random.pass(2_000);
    let batches = world.journal().stats().batches;
    world.journal().heartbeat();
    world.commit();
    assert_eq!(world.journal().stats().batches, batches, "heartbeats leave the last of it to events");
    // The journal also opens on the full disk.
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap();
    assert!(!world.submit(1));
    world.disk.limit(None);
    assert!(world.journal().step_prepare().unwrap());
    assert!(world.journal().step_prepare().unwrap());
    assert!(!world.journal().stats().is_stalled);
    world.write(20, 30_000);
    world.drop_journal();
    world.disk.lose_power();
    world.open().unwrap();
}

#[test]
fn open_succeeds_on_a_full_disk() {
    let mut world = World::new(Disk::new(0));
    world.disk.limit(Some(0));
    world.open().unwrap();
    assert_eq!(world.journal().credit().total, 0);
    assert!(world.journal().stats().is_stalled);
    world.journal().step_prepare().unwrap_err();
    world.disk.limit(None);
    world.write(3, 1_000);
    world.drop_journal();
    world.disk.lose_power();
    let recovered = world.open().unwrap();
    assert_eq!((recovered.last_lsn, recovered.epoch), (3, 2));
}

#[test]
fn submissions_without_credit_wait_in_order() {
    let mut world = World::new(Disk::new(0));
    world.disk.limit(Some(0));
    world.open().unwrap();
    for lsn in 1..=30_u64 {
        let event = Event { run: 1, lsn, length: 20_000 };
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        world.journal().submit(lsn, 1, &bytes);
        world.submitted.push(event);
    }
    world.commit();
    assert_eq!((world.journal().durable(), world.journal().last()), (0, 30));
    world.disk.limit(None);
    while world.journal().durable() < 30 {
        assert!(world.journal().step_prepare().unwrap());
        world.commit();
    }
    world.drop_journal();
    world.disk.lose_power();
    assert_eq!(world.open().unwrap().last_lsn, 30);
}

#[test]
fn submission_is_limited_to_one_segment() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    world.journal().step_prepare().unwrap();
    let largest = world.journal().credit().largest;
    let head = 21;
    assert!(world.submit((largest - head) as u32));
    world.commit();
    assert_eq!(world.journal().durable(), 1);
    let bytes = vec![1; largest as usize + 1];
    let survived = world.run_until_crash(|world| {
        world.journal().submit(2, 1, &bytes);
        Ok(())
    });
    assert!(!survived.unwrap(), "it would be written nowhere");
    world.drop_journal();
    world.disk.lose_power();
    assert_eq!(world.open().unwrap().last_lsn, 1);
}

#[test]
fn submission_out_of_order_is_fatal() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    for (first_lsn, count) in [(2, 1), (0, 1), (1, 0)] {
        let survived = world.run_until_crash(|world| {
            world.journal().submit(first_lsn, count, b"x");
            Ok(())
        });
        assert!(!survived.unwrap(), "{count} from {first_lsn}");
    }
}
