//! Quick measurements of the engine, for profiling: `cargo run --release --example cycles [name…]` with names out of
//! baseline, cycles, keyed, find, memory, memory-keyed, recovery; all of them when none is given. Seeded; every answer is checked.
//! Times are processor time, so that a busy machine does not blur them (much).

use hosting_core::*;

const NAMESPACE: Id = Id([0x11; 16]);
const VERSION: Id = Id([0x21; 16]);
const SOURCES: u64 = 250_000;

/// xorshift64*: the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % bound
    }
}

/// Processor time of this process.
struct Stopwatch(u64);

impl Stopwatch {
    fn read() -> u64 {
        let text = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).expect("nanoseconds on a processor")
    }

    fn start() -> Stopwatch {
        Stopwatch(Stopwatch::read())
    }

    fn seconds(&self) -> f64 {
        (Stopwatch::read() - self.0) as f64 / 1e9
    }
}

struct Bench {
    engine: Engine,
    events: EventBuffer,
    hash: HashKey,
    now: Ms,
    calls: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench { engine: new_engine(), events: EventBuffer::default(), hash: HashKey::new([9; 32]), now: 1, calls: 0 }
    }

    fn run<T>(&mut self, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> Answer<T>) -> T {
        self.events.bytes.clear();
        self.events.count = 0;
        let mut cx = Context { now: self.now, credit: Credit::UNLIMITED, events: &mut self.events };
        let answer = command(&mut self.engine, &mut cx);
        assert!(answer.wait > 0, "every one of these waits for the journal");
        answer.result.expect("accepted")
    }

    fn lobby(&mut self, number: u64, players: u32, tags: &[(&str, &str)], mode: &str) -> Id {
        let command = Attach {
            id: lobby_id(number),
            namespace: NAMESPACE,
            version: VERSION,
            mode,
            region: "local",
            tags,
            max_players: players,
            max_players_direct: players,
            max_players_party: players,
            player_token_ttl_ms: 120_000,
            heartbeat_timeout_ms: 0,
            heartbeat_grace_ms: 10_000,
            is_join_enabled: true,
            ports: &[],
            create_ts_ms: 0,
            lobby_count_max: u32::MAX,
            idempotency: None,
        };
        let attached = self.run(|e, cx| e.attach(cx, &command));
        self.run(|e, cx| e.ready(cx, attached.lobby));
        attached.lobby
    }

    fn source(&mut self, number: u64) -> Source {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + number as u32).octets();
        self.hash.source(NAMESPACE, &address)
    }

    fn idempotency(&mut self, is_keyed: bool, operation: &str, message: &[u8]) -> Option<Idempotency> {
        self.calls += 1;
        is_keyed.then(|| self.hash.idempotency(&NAMESPACE.0, &self.calls.to_le_bytes(), operation, message))
    }

    fn join(&mut self, lobby: Id, source: Source, is_keyed: bool) -> String {
        let idempotency = self.idempotency(is_keyed, "join", &lobby.0);
        let command = Join {
            namespace: NAMESPACE,
            lobby,
            party_size: 1,
            rejoin_token: None,
            source,
            source_limit: 1_000,
            idempotency,
        };
        match self.run(|e, cx| e.join(cx, &command)) {
            Placed::Reserved(mut reservation) => reservation.tokens.pop().expect("one token"),
            Placed::Held(_) => unreachable!("the lobby is ready"),
        }
    }

    fn connect(&mut self, lobby: Id, token: &str, is_keyed: bool) {
        let idempotency = self.idempotency(is_keyed, "connected", token.as_bytes());
        self.run(|e, cx| e.connected(cx, &Connect { lobby, player_token: token, idempotency }));
    }

    fn disconnect(&mut self, lobby: Id, token: &str, is_keyed: bool) {
        let idempotency = self.idempotency(is_keyed, "disconnected", token.as_bytes());
        let command = Disconnect { lobby, player_token: token, hold_ms: None, idempotency };
        self.run(|e, cx| e.disconnected(cx, &command));
    }
}

fn lobby_id(number: u64) -> Id {
    let mut id = [0u8; 16];
    id[1] = 1;
    id[8..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    Id(id)
}

fn new_engine() -> Engine {
    let keys = KeyRing::new(vec![(1, [7; 32])], 1).expect("a ring");
    Engine::new(EngineConfig::new(1, keys))
}

/// What the four keyed hashes of one cycle (two MACs checked, one made, one address) cost by themselves.
fn baseline() {
    let hash = HashKey::new([9; 32]);
    let rounds = 4_000_000u32;
    let started = Stopwatch::start();
    let mut sum = 0u64;
    for round in 0..rounds {
        sum ^= hash.source(NAMESPACE, &round.to_le_bytes());
    }
    let seconds = started.seconds();
    assert_ne!(sum, 0);
    println!("baseline: four keyed hashes take {:.0} ns", 4.0 * seconds * 1e9 / f64::from(rounds));
}

const TOKEN_LEN: usize = 63;

fn token_bytes(token: &str) -> [u8; TOKEN_LEN] {
    token.as_bytes().try_into().expect("all player tokens are equally long")
}

/// 1,000 lobbies of 100, half full, visited at random: join, connected, disconnected of one who was there. In batches:
/// the median is the figure, the best one is what a quiet machine gives.
fn cycles(is_keyed: bool) {
    let mut bench = Bench::new();
    let mut random = Random(42);
    let lobbies: Vec<Id> = (0..1_000).map(|number| bench.lobby(number, 100, &[], "duel")).collect();
    let mut present: Vec<[u8; TOKEN_LEN]> = Vec::new();
    for lobby in &lobbies {
        for _ in 0..50 {
            let number = random.below(SOURCES);
            let source = bench.source(number);
            let token = bench.join(*lobby, source, false);
            bench.connect(*lobby, &token, false);
            present.push(token_bytes(&token));
        }
    }
    let (batches, rounds) = (20u64, 100_000u64);
    let mut times = Vec::new();
    for batch in 0..batches {
        let started = Stopwatch::start();
        for round in 0..rounds {
            bench.now = 1 + (batch * rounds + round) / 1_000;
            let at = random.below(1_000) as usize;
            let number = random.below(SOURCES);
            let source = bench.source(number);
            let lobby = lobbies[at];
            let token = bench.join(lobby, source, is_keyed);
            bench.connect(lobby, &token, is_keyed);
            let gone = &mut present[at * 50 + random.below(50) as usize];
            let gone = std::mem::replace(gone, token_bytes(&token));
            bench.disconnect(lobby, std::str::from_utf8(&gone).expect("ASCII"), is_keyed);
        }
        times.push(started.seconds() * 1e9 / rounds as f64);
    }
    assert_eq!(bench.engine.ledger_violations(), 0);
    let counts = &bench.engine.namespace_counts()[0].1;
    assert_eq!(counts.slots, [50_000, 0, 0, 50_000, 0]);
    times.sort_by(f64::total_cmp);
    let (best, median) = (times[0], times[times.len() / 2]);
    println!("cycles keyed={is_keyed}: {:.0}/s, {median:.0} ns each, best {best:.0} ns", 1e9 / median);
}

/// find and the disconnects that make its places free again, with few and with many open lobbies of 32.
fn find() {
    let mut times = Vec::new();
    for count in [100u64, 100_000] {
        let mut bench = Bench::new();
        for number in 0..count {
            let tag = [("map", if number % 100 == 7 { "rare" } else { "usual" })];
            bench.lobby(number, 32, &tag, if number % 2 == 0 { "duel" } else { "arena" });
        }
        let plain = time_finds(&mut bench, &["duel"], &[], 1);
        let wide = time_finds(&mut bench, &["duel", "arena"], &[("map", "rare")], 4);
        println!("find with {count} lobbies: {plain:.0} ns plain, {wide:.0} ns with tag, two modes, party of 4");
        times.push((plain, wide));
    }
    println!("ratio: {:.2} plain, {:.2} wide", times[1].0 / times[0].0, times[1].1 / times[0].1);
}

fn time_finds(bench: &mut Bench, modes: &[&str], tags: &[(&str, &str)], party_size: u32) -> f64 {
    let mut random = Random(7);
    let rounds = 200_000u32;
    let mut present: Vec<(Id, String)> = Vec::new();
    let work = bench.engine.find_work();
    let started = Stopwatch::start();
    for _ in 0..rounds {
        let number = random.below(SOURCES);
        let source = bench.source(number);
        let command = Find {
            namespace: NAMESPACE,
            version: VERSION,
            modes,
            regions: &["local"],
            tags,
            party_size,
            source,
            source_limit: 1_000_000,
            idempotency: None,
        };
        let placed = bench.run(|e, cx| e.find(cx, &command));
        let Placed::Reserved(reservation) = placed else { unreachable!("all are ready") };
        assert_eq!(reservation.tokens.len(), party_size as usize);
        present.extend(reservation.tokens.into_iter().map(|token| (reservation.lobby, token)));
        while present.len() > 20 {
            let gone = random.below(present.len() as u64) as usize;
            let (lobby, token) = present.swap_remove(gone);
            bench.disconnect(lobby, &token, false);
        }
    }
    let spent = started.seconds();
    let work = bench.engine.find_work() - work;
    assert!(work <= 4 * u64::from(rounds), "find looks at a few candidates, not at all: {work}");
    for (lobby, token) in present {
        bench.disconnect(lobby, &token, false);
    }
    spent * 1e9 / f64::from(rounds)
}

fn status_kib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with(name)).expect("known field");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("a number")
}

/// Reservations, each from a call of its own, lobbies filled side by side.
fn reserve_all(bench: &mut Bench, lobbies: u64, is_keyed: bool) {
    let mut random = Random(3);
    let ids: Vec<Id> = (0..lobbies).map(|number| bench.lobby(number, 100, &[], "duel")).collect();
    for _ in 0..100 {
        for lobby in &ids {
            let number = random.below(SOURCES);
            let source = bench.source(number);
            bench.join(*lobby, source, is_keyed);
        }
    }
}

fn memory(is_keyed: bool) {
    let mut bench = Bench::new();
    let before = status_kib("VmRSS");
    reserve_all(&mut bench, 10_000, is_keyed);
    let (after, peak) = (status_kib("VmRSS"), status_kib("VmHWM"));
    println!("1,000,000 reservations keyed={is_keyed}: grew {} MB, peak {} MB", (after - before) / 1_000, peak / 1_000);
}

/// An image of 500,000 reservations and as many slots that were in use before, and 256 MiB of mixed events after it.
fn recovery() {
    let mut bench = Bench::new();
    reserve_all(&mut bench, 10_000, false);
    bench.now += 120_000;
    let mut cx = Context { now: bench.now, credit: Credit::UNLIMITED, events: &mut bench.events };
    while bench.engine.advance(&mut cx) > 0 {}
    let mut random = Random(5);
    let lobbies: Vec<Id> = (0..10_000).map(lobby_id).collect();
    for _ in 0..50 {
        for lobby in &lobbies {
            let number = random.below(SOURCES);
            let source = bench.source(number);
            bench.join(*lobby, source, false);
        }
    }
    let mut image = Vec::new();
    bench.engine.write_image(&mut |bytes| image.extend_from_slice(bytes));
    let first_lsn = bench.engine.last_lsn() + 1;
    let log = mixed_events(&mut bench, &lobbies, &mut random);
    let count = (bench.engine.last_lsn() + 1 - first_lsn) as u32;

    let mut engine = new_engine();
    let started = Stopwatch::start();
    engine.load_image(&image).expect("our image");
    let loaded = started.seconds();
    engine.apply(first_lsn, count, &log).expect("our events");
    let applied = started.seconds() - loaded;
    engine.recovered(bench.now);
    let all = started.seconds();
    assert_eq!(engine.durable_hash(), bench.engine.durable_hash());
    let (image_mb, log_mib) = (image.len() / 1_000_000, log.len() >> 20);
    println!("recovery: image of {image_mb} MB in {loaded:.3} s, {count} events ({log_mib} MiB) in {applied:.3} s");
    let (rate, derived) = (f64::from(count) / applied / 1e6, all - loaded - applied);
    println!("recovery: {rate:.1} M events/s, derived in {derived:.3} s, all in {all:.3} s");
}

/// 256 MiB of events of join, connected and disconnected, visited at random.
fn mixed_events(bench: &mut Bench, lobbies: &[Id], random: &mut Random) -> Vec<u8> {
    let mut log = Vec::new();
    while log.len() < 256 << 20 {
        let lobby = lobbies[random.below(lobbies.len() as u64) as usize];
        let number = random.below(SOURCES);
        let source = bench.source(number);
        let token = bench.join(lobby, source, false);
        log.extend_from_slice(&bench.events.bytes);
        bench.connect(lobby, &token, false);
        log.extend_from_slice(&bench.events.bytes);
        bench.disconnect(lobby, &token, false);
        log.extend_from_slice(&bench.events.bytes);
    }
    log
}

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
    if is_wanted("memory") {
        memory(false);
    }
    if is_wanted("memory-keyed") {
        memory(true);
    }
    if is_wanted("baseline") {
        baseline();
    }
    if is_wanted("cycles") {
        cycles(false);
    }
    if is_wanted("keyed") {
        cycles(true);
    }
    if is_wanted("find") {
        find();
    }
    if is_wanted("recovery") {
        recovery();
    }
}
