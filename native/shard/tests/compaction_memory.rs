//! Memory of a compaction: at most a second engine, the image before, and a constant.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use hosting_core::{Attach, CommandOutcome, Context, Engine, EngineConfig, Id, KeyRing, Refusal};
use hosting_journal::{LastCompaction, Options, Stats};
use hosting_shard::Shard;

struct CountedAllocator;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls go to the allocator of the system.
unsafe impl GlobalAlloc for CountedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`, and all memory is from `System`.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountedAllocator = CountedAllocator;

const MIB: usize = 1 << 20;
const LOBBIES: u8 = 250;
const STATE_BYTES: usize = 60_000;
/// Buffers of a compaction and of the journal: chunks of files, pending batches, zeros.
const BUFFER_BYTES: usize = 6 * MIB;

fn used() -> usize {
    USED.load(Ordering::Relaxed)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        yield_now();
    }
}

fn stats(shard: &Shard) -> Stats {
    shard.journal().unwrap().stats()
}

fn open(options: &Options) -> Arc<Shard> {
    let keys = KeyRing::new(vec![(1, [7; 32])], 1).unwrap();
    Shard::open(Engine::new(EngineConfig::new(1, keys)), options.clone()).unwrap().0
}

fn lobby(number: u8) -> Id {
    Id([0, 1, 0, 0, 0, 0, 0x40, 0, 0x80, 0, 0, 0, 0, 0, 0, number])
}

fn attach(number: u8) -> Attach<'static> {
    Attach {
        id: lobby(number),
        namespace: Id([0x11; 16]),
        version: Id([0x22; 16]),
        mode: "duel",
        region: "local",
        tags: &[],
        max_players: 10,
        max_players_direct: 10,
        max_players_party: 10,
        player_token_ttl_ms: 60_000,
        heartbeat_timeout_ms: 0,
        heartbeat_grace_ms: 10_000,
        is_join_enabled: true,
        ports: &[],
        create_ts_ms: 0,
        lobby_count_max: u32::MAX,
        idempotency: None,
    }
}

/// Runs a command and waits until its events are durable.
fn run<T>(shard: &Shard, command: impl Fn(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>) {
    loop {
        match shard.run(&command).result {
            Err(Refusal::StorageFull) => yield_now(),
            result => break drop(result.unwrap()),
        }
    }
    let journal = shard.journal().unwrap();
    until("a durable event", || journal.durable() == journal.last());
}

fn until_compacted(shard: &Shard, count: u64) {
    until("a compaction", || stats(shard).compactions >= count && stats(shard).segments_closed < 4);
}

fn set_states(shard: &Shard, letter: u8) {
    let state = [letter; STATE_BYTES];
    (0..LOBBIES).for_each(|number| run(shard, |engine, context| engine.set_state(context, lobby(number), &state)));
}

#[test]
fn compaction_has_the_memory_of_a_second_engine_and_an_image() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { segment_bytes: MIB as u64, ..Options::new(folder.path().join("journal"), 1, Engine::EVENT_KINDS) };
    let empty_bytes = used();
    let shard = open(&options);
    (0..LOBBIES).for_each(|number| run(&shard, |engine, context| engine.attach(context, &attach(number))));
    set_states(&shard, b'1');
    let engine_bytes = used() - empty_bytes;
    assert!(engine_bytes > usize::from(LOBBIES) * STATE_BYTES, "{engine_bytes} bytes");
    shard.start_compaction().unwrap();
    until_compacted(&shard, 1);
    let image_bytes = match stats(&shard).last_compaction {
        Some(LastCompaction::Succeeded { image_bytes, .. }) => image_bytes as usize,
        other => panic!("{other:?}"),
    };
    assert!(image_bytes > usize::from(LOBBIES) * STATE_BYTES / 2);
    until("the end of the first compaction", || used() < empty_bytes + engine_bytes + BUFFER_BYTES);
    let before = used();
    PEAK.store(before, Ordering::Relaxed);
    set_states(&shard, b'2');
    until_compacted(&shard, 2);
    let added = PEAK.load(Ordering::Relaxed) - before;
    assert!(added > engine_bytes / 2, "{added} bytes: no compaction was measured");
    assert!(
        added < engine_bytes + image_bytes + BUFFER_BYTES,
        "{added} bytes for an engine of {engine_bytes} and an image of {image_bytes}"
    );
    until("the end of the second engine", || used() < before + BUFFER_BYTES);
    shard.close();
}
