//! Port leases and quarantine against plain lists, in random sequences with restarts.

#![allow(clippy::unwrap_used)]

mod test_engine;
use std::collections::{BTreeMap, BTreeSet};

use test_engine::*;

use hosting_core::*;

const SEQUENCES: u64 = 200;
const STEPS: usize = 250;
const PORTS: PortRange = PortRange { first: 26_000, last: 26_007 };

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 20) % end
    }
}

#[derive(Clone)]
struct Owner {
    is_server: bool,
    is_over: bool,
    is_told: bool,
    ports: Vec<(bool, u16)>,
}

#[derive(Default)]
struct Naive {
    owners: BTreeMap<Id, Owner>,
    resting: BTreeMap<(bool, u16), Ms>,
}

impl Naive {
    fn is_free(&self, now: Ms, port: (bool, u16)) -> bool {
        self.owners.values().all(|owner| !owner.ports.contains(&port))
            && self.resting.get(&port).is_none_or(|until| *until <= now)
    }

    fn free(&self, now: Ms, is_datagram: bool) -> usize {
        (PORTS.first..=PORTS.last).filter(|number| self.is_free(now, (is_datagram, *number))).count()
    }

    fn has(&self, now: Ms, counts: [usize; 2]) -> bool {
        self.free(now, false) >= counts[0] && self.free(now, true) >= counts[1]
    }

    fn any(&self, dice: &mut Dice, is_it: impl Fn(&Owner) -> bool) -> Option<Id> {
        let ids: Vec<Id> = self.owners.iter().filter(|(_, owner)| is_it(owner)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[dice.below(ids.len() as u64) as usize])
    }

    fn take(&mut self, now: Ms, id: Id, is_server: bool, leased: &[LeasedPort]) {
        let mut ports = Vec::new();
        for port in leased {
            let PortExposure::Number(number) = port.exposure else { panic!("a number was wanted") };
            let port = (port.protocol.is_datagram(), number);
            assert!(self.is_free(now, port), "{port:?} is somebody's or rests");
            assert!(!ports.contains(&port), "twice in one lease");
            ports.push(port);
        }
        self.owners.insert(id, Owner { is_server, is_over: false, is_told: false, ports });
    }
}

fn wish(dice: &mut Dice) -> (Vec<PortRequest<'static>>, [usize; 2]) {
    let names = ["a", "b", "c"];
    let mut counts = [0; 2];
    let ports = names[..1 + dice.below(3) as usize].iter().map(|name| {
        let protocol = [Protocol::Udp, Protocol::Tcp, Protocol::Https][dice.below(3) as usize];
        counts[usize::from(protocol.is_datagram())] += 1;
        PortRequest { name, protocol, exposure: PortExposure::Number(0) }
    });
    (ports.collect(), counts)
}

#[derive(Default)]
struct Follower {
    version: Lsn,
    open: BTreeMap<Id, BTreeSet<(bool, u16)>>,
}

impl Follower {
    fn follow(&mut self, engine: &Engine, after: Lsn) {
        let told = engine.routes_since(after, Lsn::MAX);
        if told.is_complete {
            self.open.clear();
        }
        let mut fresh: BTreeMap<Id, BTreeSet<(bool, u16)>> = BTreeMap::new();
        for route in told.changed {
            let PortExposure::Number(number) = route.port.exposure else { continue };
            fresh.entry(route.owner).or_default().insert((route.port.protocol.is_datagram(), number));
        }
        self.open.extend(fresh);
        told.removed.iter().for_each(|owner| drop(self.open.remove(owner)));
        self.version = told.version;
    }
}

fn config() -> EngineConfig {
    let forever = u64::MAX / 2;
    EngineConfig { ports: PORTS, start_limit_ms: forever, ..EngineConfig::new(1, keys(&[1], 1)) }
}

#[derive(Default)]
struct Counts(BTreeMap<(&'static str, &'static str), u64>);

impl Counts {
    fn count<T>(&mut self, what: &'static str, result: &Result<T, Refusal>) {
        *self.0.entry((what, result.as_ref().map_or_else(Refusal::slug, |_| "done"))).or_default() += 1;
    }
}

fn lease(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) {
    let owner = Id([dice.below(24) as u8; 16]);
    let (ports, needed) = wish(dice);
    let (now, random) = (w.now, dice.next());
    let said = w.run(|e, cx| {
        e.lease_ports(cx, &LeaseRequest { owner, namespace: NAMESPACE, region: "r", ports: &ports, random })
    });
    counts.count("lease", &said.result);
    match naive.owners.get(&owner).cloned() {
        Some(had) if had.is_over => assert_eq!(said.result, Err(Refusal::LeaseNotFound)),
        Some(had) => assert_eq!(said.result.unwrap().len(), had.ports.len()),
        None if naive.has(now, needed) => naive.take(now, owner, true, &said.result.unwrap()),
        None => assert_eq!(said.result, Err(Refusal::PortsExhausted)),
    }
}

fn start(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) {
    let (ports, needed) = wish(dice);
    let random = dice.next();
    let said = w.start_idle(|make| (make.ports, make.random) = (&ports, random));
    counts.count("start_idle", &said.result);
    if !naive.has(w.now, needed) {
        assert_eq!(said.result, Err(Refusal::PortsExhausted));
        return;
    }
    let lobby = said.result.unwrap();
    let own = w.engine.lobby(lobby).unwrap().own.unwrap();
    naive.take(w.now, lobby, false, &own.ports);
}

fn end(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) {
    let Some(id) = naive.any(dice, |_| true) else { return };
    let owner = naive.owners.get_mut(&id).unwrap();
    let said = if owner.is_server {
        w.run(|e, cx| e.end_lease(cx, id)).result
    } else {
        w.run(|e, cx| e.process_exited(cx, id, None)).result
    };
    counts.count("end", &said);
    assert_eq!(said, Ok(!owner.is_over));
    owner.is_over = true;
}

fn give_back(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) -> Option<Id> {
    let id = naive.any(dice, |_| true)?;
    let said = w.run(|e, cx| e.return_ports(cx, id)).result;
    counts.count("ports_returned", &said);
    let is_over = naive.owners[&id].is_over;
    assert_eq!(said, Ok(is_over));
    if is_over {
        for port in naive.owners.remove(&id).unwrap().ports {
            naive.resting.insert(port, w.now + 60_000);
        }
    }
    is_over.then_some(id)
}

fn replace(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) {
    let Some(id) = naive.any(dice, |_| true) else { return };
    let (mut owner, random) = (naive.owners[&id].clone(), dice.next());
    let at = dice.below(owner.ports.len() as u64) as usize;
    let (is_datagram, old) = owner.ports[at];
    let refused = if dice.below(4) == 0 { 1 } else { old };
    let name = ["a", "b", "c"][at];
    let said = w.run(|e, cx| e.replace_port(cx, id, name, refused, random)).result;
    counts.count("replace_port", &said);
    if owner.is_over {
        assert_eq!(said, Err(Refusal::LeaseNotFound));
    } else if refused != old || owner.is_told {
        assert_eq!(said, Ok(Some(old)));
    } else if naive.free(w.now, is_datagram) == 0 {
        assert_eq!(said, Err(Refusal::PortsExhausted));
    } else {
        let new = said.unwrap().unwrap();
        assert!(naive.is_free(w.now, (is_datagram, new)));
        owner.ports[at] = (is_datagram, new);
        naive.owners.insert(id, owner);
        naive.resting.insert((is_datagram, old), w.now + 600_000);
    }
}

fn listen(w: &mut TestEngine, naive: &mut Naive, dice: &mut Dice, counts: &mut Counts) {
    let Some(id) = naive.any(dice, |_| true) else { return };
    let owner = naive.owners.get_mut(&id).unwrap();
    let said = if owner.is_server {
        w.run(|e, cx| e.set_backends(cx, id, &[("a", "127.0.0.1", 12_000)])).result
    } else {
        w.ready(id)
    };
    counts.count("listen", &said);
    match (owner.is_over, owner.is_server) {
        (false, _) => {
            said.unwrap();
            owner.is_told = true;
        }
        (true, true) => assert_eq!(said, Err(Refusal::LeaseNotFound)),
        (true, false) => assert_eq!(said, Err(Refusal::LobbyStopped)),
    }
}

fn restart(w: &mut TestEngine, counts: &mut Counts) {
    let mut image = Vec::new();
    w.engine.write_image(&mut |bytes| image.extend_from_slice(bytes));
    let mut again = Engine::new(config());
    again.load_image(&image).unwrap();
    again.finish_recovery(w.now);
    assert_eq!(again.durable_hash(), w.engine.durable_hash());
    w.engine = again;
    counts.count("restart", &Ok(()));
}

fn check(w: &TestEngine, naive: &Naive, follower: &mut Follower, dice: &mut Dice) {
    let mut taken = BTreeSet::new();
    for owner in naive.owners.values() {
        owner.ports.iter().for_each(|port| assert!(taken.insert(*port), "{port:?} has two owners"));
    }
    for (is_datagram, [free, leased, resting]) in [false, true].into_iter().zip(w.engine.port_counts()) {
        assert_eq!(free + leased + resting, PORTS.len());
        assert_eq!(leased, taken.iter().filter(|port| port.0 == is_datagram).count());
    }
    if dice.below(3) == 0 {
        follower.follow(&w.engine, follower.version);
        let mut complete = Follower::default();
        complete.follow(&w.engine, 0);
        assert_eq!((&follower.open, follower.version), (&complete.open, complete.version));
        let live = naive.owners.iter().filter(|(_, owner)| !owner.is_over);
        let expected: BTreeMap<Id, BTreeSet<_>> =
            live.map(|(id, owner)| (*id, owner.ports.iter().copied().collect())).collect();
        assert_eq!(complete.open, expected);
    }
}

#[test]
fn no_port_ever_has_two_owners() {
    let mut counts = Counts::default();
    for seed in 1..=SEQUENCES {
        let mut w = TestEngine::with(Engine::new(config()), Engine::new(config()));
        let (mut naive, mut follower) = (Naive::default(), Follower::default());
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for _ in 0..STEPS {
            match dice.below(14) {
                0..=2 => lease(&mut w, &mut naive, &mut dice, &mut counts),
                3..=4 => start(&mut w, &mut naive, &mut dice, &mut counts),
                5..=6 => end(&mut w, &mut naive, &mut dice, &mut counts),
                7..=8 => {
                    // Edge-guard confirms only after it closed the sockets.
                    let closed = give_back(&mut w, &mut naive, &mut dice, &mut counts);
                    closed.map(|owner| follower.open.remove(&owner));
                }
                9 => replace(&mut w, &mut naive, &mut dice, &mut counts),
                10 => listen(&mut w, &mut naive, &mut dice, &mut counts),
                11 => restart(&mut w, &mut counts),
                _ => w.pass_unnoticed(1 + dice.below(40_000)),
            }
            check(&w, &naive, &mut follower, &mut dice);
        }
    }
    for ((what, outcome), count) in &counts.0 {
        println!("{what:<16} {outcome:<28} {count:>8}");
    }
    for exposure in [
        ("lease", "done"),
        ("lease", "PORTS_EXHAUSTED"),
        ("lease", "SERVER_NOT_FOUND"),
        ("start_idle", "done"),
        ("start_idle", "PORTS_EXHAUSTED"),
        ("end", "done"),
        ("ports_returned", "done"),
        ("replace_port", "done"),
        ("replace_port", "PORTS_EXHAUSTED"),
        ("replace_port", "SERVER_NOT_FOUND"),
        ("listen", "done"),
        ("listen", "SERVER_NOT_FOUND"),
        ("listen", "MATCHMAKER_LOBBY_STOPPED"),
        ("restart", "done"),
    ] {
        assert!(counts.0.contains_key(&exposure), "{exposure:?} was never exposure");
    }
}
