//! Logs with segments of format 1, which aligned batches to 512 bytes.

use crate::disk::{Disk, Fault};
use crate::faults::{After, at_every_call, open_and_go_on};
use crate::world::World;

const FIRST_BATCH: usize = 16_384;
const BATCH_HEADER: usize = 128;
const OLD_ALIGNMENT: usize = 512;

fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> usize {
    bytes[at..at + BYTES].iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte))
}

fn format_and_alignment(segment: &[u8]) -> (usize, usize) {
    (number::<4>(segment, 8), number::<2>(segment, 14))
}

fn to_format_1(segment: &[u8]) -> Vec<u8> {
    let (_, alignment) = format_and_alignment(segment);
    let mut converted = vec![0; segment.len()];
    converted[..FIRST_BATCH].copy_from_slice(&segment[..FIRST_BATCH]);
    converted[8..12].copy_from_slice(&1_u32.to_le_bytes());
    converted[14..16].fill(0);
    let crc = crc32fast::hash(&converted[..FIRST_BATCH - 4]);
    converted[FIRST_BATCH - 4..FIRST_BATCH].copy_from_slice(&crc.to_le_bytes());
    let (mut from, mut to) = (FIRST_BATCH, FIRST_BATCH);
    while segment[from..].starts_with(b"HJB1") {
        let length = BATCH_HEADER + number::<4>(segment, from + 60);
        converted[to..to + length].copy_from_slice(&segment[from..from + length]);
        from += length.next_multiple_of(alignment);
        to += length.next_multiple_of(OLD_ALIGNMENT);
    }
    converted
}

/// Returns a stopped world with five events in segments of format 1. The batches share pages.
fn world_of_format_1(seed: u64) -> World {
    let mut world = World::new(Disk::with_torn_blocks(seed));
    world.open().unwrap();
    world.write(5, 100);
    world.drop_journal();
    for name in world.disk.names() {
        let path = world.path(&name);
        world.disk.put(&path, &to_format_1(&world.disk.read(&path)));
    }
    world
}

#[test]
fn log_of_format_1_continues_in_format_2() {
    for (seed, alignment) in [(0, 4_096), (1, 4_096), (3, 16_384)] {
        let mut world = world_of_format_1(seed);
        let old = world.path("seg-000000000001.log");
        let before = world.disk.read(&old);
        assert_eq!(format_and_alignment(&before), (1, 0));
        let created = world.disk.call_counts()["create"];
        let recovered = world.open().unwrap();
        assert_eq!((recovered.last_lsn, recovered.torn_bytes), (5, 0));
        assert_eq!(
            world.disk.call_counts()["create"],
            created + 1,
            "the prepared files are used again, beside a new one"
        );
        world.write(3, 100);
        assert_eq!(world.journal().stats().segments_closed, 1);
        assert!(world.disk.read(&old) == before, "the old segment is not written again");
        assert_eq!(format_and_alignment(&world.disk.read(&world.path("seg-000000000002.log"))), (2, alignment));
        world.drop_journal();
        world.disk.lose_power();
        assert_eq!(world.open().unwrap().last_lsn, 8);
    }
}

#[test]
fn torn_block_at_the_format_change_loses_no_event() {
    for seed in 0..4 {
        let base = world_of_format_1(seed);
        for (fault, kind) in [
            (Fault::Crash, After::PowerLoss),
            (Fault::Error(libc::EIO), After::PowerLoss),
            (Fault::Error(libc::EIO), After::Kill),
        ] {
            at_every_call(&base, fault, kind, seed * 1_000, open_and_go_on);
        }
    }
}
