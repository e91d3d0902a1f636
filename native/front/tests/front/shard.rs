//! Shards with a journal. The journal and the clock of a stepped shard wait for the test.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hosting_core::{
    Admission, Attach, Attached, CommandOutcome, Context, Engine, EngineConfig, Id, Join, KeyRing, PlayerToken,
};
use hosting_journal::{Options, RealFiles, TimeAndRandom, open_stepped};
use hosting_shard::{ReplayedEngine, Shard};

pub const NAMESPACE: Id = Id([0x11; 16]);
pub const VERSION: Id = Id([0x22; 16]);
pub const KEY_ID: u16 = 1;
/// Life of an unused player token.
const PLAYER_TOKEN_TTL_MS: u64 = 60_000;

pub fn keys(secret: u8) -> KeyRing {
    KeyRing::new(vec![(KEY_ID, [secret; 32])], KEY_ID).unwrap()
}

fn engine() -> Engine {
    Engine::new(EngineConfig::new(1, keys(7)))
}

fn options(folder: &Path) -> Options {
    Options { segment_bytes: 256 * 1024, ..Options::new(folder.join("journal"), 1, Engine::EVENT_KINDS) }
}

/// Returns a shard that makes its events durable at once.
pub fn writing_shard(folder: &Path) -> Arc<Shard> {
    Shard::open(engine(), options(folder)).unwrap().0
}

/// Returns a stepped shard: [`commit`] makes its events durable, and its time passes with [`Clock::pass`].
pub fn stepped_shard(folder: &Path) -> (Arc<Shard>, Arc<Clock>) {
    let (mut engine, clock) = (engine(), Arc::new(Clock(AtomicU64::new(5_000))));
    let mut state = ReplayedEngine::new(&mut engine);
    let (journal, _) = open_stepped(options(folder), Arc::new(RealFiles), clock.clone(), &mut state).unwrap();
    engine.finish_recovery(journal.clock().service_ms());
    (Shard::new(engine, Some(journal)), clock)
}

/// Writes all events of a stepped shard.
pub fn commit(shard: &Shard) {
    while shard.journal().unwrap().step_commit() {}
}

pub struct Clock(AtomicU64);

impl Clock {
    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl TimeAndRandom for Clock {
    fn boot_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.boot_ms()
    }

    fn elapsed_ns(&self) -> u64 {
        self.boot_ms() * 1_000_000
    }

    fn random(&self) -> io::Result<u64> {
        Ok(4)
    }
}

pub fn lobby_id(number: u8) -> Id {
    let mut id = Id([number; 16]);
    (id.0[0], id.0[1], id.0[6], id.0[8]) = (0, 1, 0x40, 0x80);
    id
}

fn run<T>(shard: &Shard, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>) -> T {
    shard.execute(command).result.unwrap()
}

/// Starts a lobby, and returns its id and token.
pub fn new_lobby(shard: &Shard, number: u8) -> Attached {
    let attach = Attach {
        id: lobby_id(number),
        namespace: NAMESPACE,
        version: VERSION,
        mode: "duel",
        region: "local",
        tags: &[],
        max_players: 100,
        max_players_direct: 100,
        max_players_party: 100,
        player_token_ttl_ms: PLAYER_TOKEN_TTL_MS,
        heartbeat_timeout_ms: 0,
        heartbeat_grace_ms: 10_000,
        is_join_enabled: true,
        ports: &[],
        create_ts_ms: 0,
        lobby_count_max: u32::MAX,
        idempotency: None,
    };
    let attached = run(shard, |engine, context| engine.attach(context, &attach));
    run(shard, |engine, context| engine.ready(context, attached.lobby));
    attached
}

/// Returns the token of a slot use that no lobby has, signed with the key `id` of the secret.
pub fn player_token(id: u16, secret: u8, lobby: Id) -> String {
    let keys = KeyRing::new(vec![(id, [secret; 32])], id).unwrap();
    keys.sign_player(&PlayerToken { key_id: id, lobby, slot: 90, generation: 5 }).unwrap()
}

/// Reserves a slot, and returns the player's token.
pub fn new_player(shard: &Shard, lobby: Id) -> String {
    let join = Join {
        namespace: NAMESPACE,
        lobby,
        party_size: 1,
        rejoin_token: None,
        source: 0,
        source_limit: u32::MAX,
        idempotency: None,
        channels: &[],
    };
    match run(shard, |engine, context| engine.join(context, &join)) {
        Admission::Reserved(mut reservation) => reservation.tokens.remove(0),
        held @ Admission::Hold(_) => panic!("{held:?}"),
    }
}

/// Returns the number of reserved and of connected players.
pub fn players(shard: &Shard, lobby: Id) -> [u32; 2] {
    let [_, reserved, connected, _] = shard.engine().lobby(lobby).unwrap().players;
    [reserved, connected]
}
