//! Durable transitions in a closed loop: a number of players join, connect and disconnect. Each waits until its last
//! transition is durable.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use hosting_core::{Admission, Connect, Disconnect, Id, Join, Lsn};
use hosting_journal::Stats;

use crate::engine_fixture::{LobbyParameters, NAMESPACE, hash_key, lobby_id};
use crate::flags::Flags;
use crate::host_measurements::{cpu_ns, measure_disk};
use crate::latency::{Sample, latency_statistics};
use crate::measured_shard::MeasuredShard;
use crate::measurement::Measurement;
use crate::seeded_random::SeededRandom;
use crate::{Failure, failure};

/// Reading the clock takes a part of the time of a command, so each 16th player alone is timed.
const TIMED_PLAYERS: usize = 16;

pub struct Player {
    lobby: Id,
    token: Option<String>,
    is_connected: bool,
}

pub struct PlayerLoop {
    pub lobbies: Vec<Id>,
    players: Vec<Player>,
    idle: Vec<usize>,
    pending: VecDeque<(Lsn, usize, Instant)>,
    rng: SeededRandom,
    hash: hosting_core::HashKey,
    pub completed_transitions: u64,
    /// Durations of some `connected` commands, each with the engine's lock and the submission to the journal.
    connected_ns: Vec<u64>,
    pub samples: Option<(Instant, Vec<Sample>)>,
}

impl PlayerLoop {
    pub fn new(lobbies: Vec<Id>, outstanding: usize, seed: u64) -> PlayerLoop {
        let players = (0..outstanding).map(|_| Player { lobby: Id::default(), token: None, is_connected: false });
        PlayerLoop {
            lobbies,
            players: players.collect(),
            idle: (0..outstanding).collect(),
            pending: VecDeque::new(),
            rng: SeededRandom::new(seed),
            hash: hash_key(),
            completed_transitions: 0,
            connected_ns: Vec::new(),
            samples: None,
        }
    }

    /// Completes the durable transitions, starts the next ones and waits for the journal.
    pub fn run_step(&mut self, shard: &MeasuredShard) -> Result<(), Failure> {
        let durable = shard.journal().durable();
        while let Some((lsn, player, started)) = self.pending.front().copied() {
            if lsn > durable {
                break;
            }
            self.pending.pop_front();
            self.idle.push(player);
            self.completed_transitions += 1;
            if let Some((measurement_started, samples)) = &mut self.samples {
                let now = Instant::now();
                let since = |earlier: Instant| now.duration_since(earlier).as_nanos() as u64;
                samples.push(Sample { done_ns: since(*measurement_started), duration_ns: since(started) });
            }
        }
        if self.idle.is_empty() {
            shard.wait();
            return Ok(());
        }
        while let Some(player) = self.idle.pop() {
            let started = Instant::now();
            let lsn = self.step(shard, player)?;
            if self.pending.back().is_some_and(|(last, ..)| *last > lsn) {
                return Err(failure("a later answer waits for an earlier event"));
            }
            self.pending.push_back((lsn, player, started));
        }
        Ok(())
    }

    fn step(&mut self, shard: &MeasuredShard, number: usize) -> Result<Lsn, Failure> {
        let player = &mut self.players[number];
        let Some(token) = &player.token else {
            player.lobby = self.lobbies[self.rng.below(self.lobbies.len())];
            let address = (self.rng.below(250_000) as u32).to_be_bytes();
            let source = self.hash.source(NAMESPACE, &address);
            let (token, lsn) = reserve(shard, player.lobby, source)?;
            player.token = Some(token);
            player.is_connected = false;
            return Ok(lsn);
        };
        if !player.is_connected {
            let verified = shard.shard.keys().verify_player(token);
            let connect = Connect { lobby: player.lobby, player: verified, idempotency: None };
            let started = number.is_multiple_of(TIMED_PLAYERS).then(Instant::now);
            let ((), lsn) = shard.execute(|engine, context| engine.connected(context, &connect))?;
            self.connected_ns.extend(started.map(|started| started.elapsed().as_nanos() as u64));
            player.is_connected = true;
            return Ok(lsn);
        }
        let verified = shard.shard.keys().verify_player(token);
        let disconnect = Disconnect { lobby: player.lobby, player: verified, hold_ms: None, idempotency: None };
        let ((), lsn) = shard.execute(|engine, context| engine.disconnected(context, &disconnect))?;
        player.token = None;
        Ok(lsn)
    }
}

pub fn reserve(shard: &MeasuredShard, lobby: Id, source: u64) -> Result<(String, Lsn), Failure> {
    let join = Join {
        namespace: NAMESPACE,
        lobby,
        party_size: 1,
        rejoin_token: None,
        source,
        source_limit: u32::MAX,
        idempotency: None,
        channels: &[],
    };
    let (admission, lsn) = shard.execute(|engine, context| engine.join(context, &join))?;
    match admission {
        Admission::Reserved(mut reservation) if reservation.tokens.len() == 1 => {
            Ok((reservation.tokens.remove(0), lsn))
        }
        other => Err(failure(format!("join gave {other:?}"))),
    }
}

pub fn add_lobbies(shard: &MeasuredShard, first: u64, count: u64, slots_per_lobby: u32) -> Result<Vec<Id>, Failure> {
    let parameters = LobbyParameters::with_defaults("duel", slots_per_lobby);
    let mut lobbies = Vec::with_capacity(count as usize);
    for number in first..first + count {
        let id = lobby_id(number);
        shard.execute(|engine, context| engine.attach(context, &parameters.attach(id)))?;
        let ((), lsn) = shard.execute(|engine, context| engine.ready(context, id))?;
        lobbies.push(id);
        if lsn > shard.journal().durable() + 4_096 {
            shard.flush();
        }
    }
    shard.flush();
    Ok(lobbies)
}

/// Runs `transitions --folder F [--outstanding 256] [--seconds 5] [--lobbies 1000] [--slots 100]`.
pub fn run(flags: &Flags) -> Result<Measurement, Failure> {
    let folder = Path::new(flags.text("folder")?);
    let outstanding = flags.get("outstanding", 256)?;
    let seconds: f64 = flags.get("seconds", 5.0)?;
    std::fs::create_dir_all(folder)?;
    let disk = measure_disk(folder)?;
    let (shard, ..) = MeasuredShard::open(folder)?;
    shard.shard.start_compaction()?;
    let lobbies = add_lobbies(&shard, 0, flags.get("lobbies", 1_000)?, flags.get("slots", 100)?)?;
    let mut player_loop = PlayerLoop::new(lobbies, outstanding, flags.get("seed", 1)?);
    shard.wait_for_segments();
    let warm_up_end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < warm_up_end {
        player_loop.run_step(&shard)?;
    }
    let (before, completed_before, cpu_before_ns) =
        (shard.journal().stats(), player_loop.completed_transitions, cpu_ns());
    let measurement_started = Instant::now();
    player_loop.samples = Some((measurement_started, Vec::with_capacity(1 << 20)));
    let until = measurement_started + Duration::from_secs_f64(seconds);
    while Instant::now() < until {
        player_loop.run_step(&shard)?;
    }
    let (wall_s, cpu_s) = (measurement_started.elapsed().as_secs_f64(), (cpu_ns() - cpu_before_ns) as f64 / 1e9);
    let transitions = player_loop.completed_transitions - completed_before;
    player_loop.connected_ns.sort_unstable();
    let connected_ns = player_loop.connected_ns[player_loop.connected_ns.len() / 2];
    let samples = player_loop.samples.take().map(|(_, samples)| samples).unwrap_or_default();
    let after = shard.journal().stats();
    shard.flush();
    shard.shard.close();
    if shard.shard.engine().ledger_violations() > 0 {
        return Err(failure("the ledger does not add up"));
    }
    Ok(disk
        .number("transitions_per_s", transitions as f64 / wall_s)
        .number("cpu_share", cpu_s / wall_s)
        .count("connected_ns", connected_ns)
        .count("transitions", transitions)
        .count("outstanding", outstanding as u64)
        .count("compactions", after.compactions)
        .and(journal_figures(&before, &after, transitions))
        .and(latency_statistics(samples.into_iter())))
}

fn journal_figures(before: &Stats, after: &Stats, transitions: u64) -> Measurement {
    let (syncs, events) = (after.syncs - before.syncs, after.events - before.events);
    let busy_ns = after.sync_ns.sum - before.sync_ns.sum;
    Measurement::new()
        .count("syncs", syncs)
        .number("transitions_per_sync", transitions as f64 / syncs as f64)
        .number("bytes_per_event", (after.bytes - before.bytes) as f64 / events as f64)
        .number("write_and_sync_us", busy_ns as f64 / syncs as f64 / 1e3)
}
