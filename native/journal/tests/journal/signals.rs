//! Signals of durable batches.

use std::os::fd::AsRawFd;

use hosting_journal::DurableSignal;

use crate::disk::Disk;
use crate::world::World;

/// Returns the number of signals since the last call.
fn take_count(signal: &DurableSignal) -> u64 {
    let mut counter = [0_u8; 8];
    // SAFETY: pointer and length belong to one live array.
    let read = unsafe { libc::read(signal.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len()) };
    if read < 0 { 0 } else { u64::from_ne_bytes(counter) }
}

#[test]
fn each_consumer_gets_one_signal_for_a_batch() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    let consumers = [world.journal().subscribe().unwrap(), world.journal().subscribe().unwrap()];
    for events in [1, 20] {
        (0..events).for_each(|_| assert!(world.submit(10)));
        world.commit();
        assert_eq!(consumers.each_ref().map(take_count), [1, 1]);
    }
    world.commit();
    assert_eq!(consumers.each_ref().map(take_count), [0, 0]);
}
