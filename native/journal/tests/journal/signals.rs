//! Signals of durable batches.

use std::os::fd::AsRawFd;

use hosting_journal::DurableSignal;

use crate::disk::Disk;
use crate::world::{SEGMENT, World};

/// Returns the number of signals since the last call.
fn take_count(signal: &DurableSignal) -> u64 {
    let mut counter = [0_u8; 8];
    // SAFETY: pointer and length belong to one live array.
    let read = unsafe { libc::read(signal.as_raw_fd(), counter.as_mut_ptr().cast(), counter.len()) };
    if read < 0 { 0 } else { u64::from_ne_bytes(counter) }
}

#[test]
fn only_consumers_with_a_request_are_signalled() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    let [waiting, later, idle] = [(); 3].map(|()| world.journal().subscribe().unwrap());
    let counts = || [&waiting, &later, &idle].map(take_count);
    (0..20).for_each(|_| assert!(world.submit(10)));
    assert!([3, 7, 20].iter().all(|lsn| waiting.request(*lsn)));
    world.commit();
    assert_eq!(counts(), [1, 0, 0], "one signal for all events of a batch");
    assert!(!waiting.request(20), "the event is durable");
    assert!(world.submit(10));
    assert!(later.request(21));
    world.commit();
    assert_eq!(counts(), [0, 1, 0]);
    assert!(world.submit(10));
    world.commit();
    assert_eq!(counts(), [0, 0, 0]);
}

#[test]
fn requests_in_two_batches_get_two_signals() {
    let mut world = World::new(Disk::new(0));
    world.open().unwrap();
    let signal = world.journal().subscribe().unwrap();
    world.journal().step_prepare().unwrap();
    // The second event lies in the next segment, so in another batch.
    (0..2).for_each(|_| assert!(world.submit(SEGMENT as u32 / 3 * 2)));
    assert!(signal.request(1) && signal.request(2));
    for durable in [1, 2] {
        assert!(world.journal().step_commit());
        assert_eq!((take_count(&signal), world.journal().durable()), (1, durable));
    }
}
