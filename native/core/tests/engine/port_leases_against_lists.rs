//! Port leases and quarantine against plain lists, in random sequences with restarts.

use std::collections::{BTreeMap, BTreeSet};

use hosting_core::*;

use crate::random::Random;
use crate::test_engine::*;

const SEQUENCES: u64 = 200;
const STEPS: usize = 250;
const PORTS: PortRange = PortRange { first: 26_000, last: 26_007 };

#[derive(Clone)]
struct Owner {
    is_server: bool,
    is_over: bool,
    is_published: bool,
    ports: Vec<(Protocol, u16)>,
}

impl Owner {
    fn numbers(&self) -> impl Iterator<Item = (bool, u16)> {
        self.ports.iter().flat_map(|(protocol, number)| numbers(*protocol, *number))
    }
}

/// Returns the number of a port in each of its families. True stands for UDP.
fn numbers(protocol: Protocol, number: u16) -> impl Iterator<Item = (bool, u16)> {
    let families: &[bool] = match protocol {
        Protocol::Udp => &[true],
        Protocol::TcpUdp => &[false, true],
        _ => &[false],
    };
    families.iter().map(move |is_datagram| (*is_datagram, number))
}

/// Numbers of requested ports: only TCP, only UDP, and both.
type Needed = [usize; 3];

#[derive(Default)]
struct ListModel {
    owners: BTreeMap<Id, Owner>,
    quarantined: BTreeMap<(bool, u16), Ms>,
}

impl ListModel {
    fn is_free(&self, now: Ms, port: (bool, u16)) -> bool {
        self.owners.values().all(|owner| owner.numbers().all(|taken| taken != port))
            && self.quarantined.get(&port).is_none_or(|until| *until <= now)
    }

    fn free(&self, now: Ms, protocol: Protocol) -> usize {
        let is_free = |number: &u16| numbers(protocol, *number).all(|port| self.is_free(now, port));
        (PORTS.first..=PORTS.last).filter(is_free).count()
    }

    fn has(&self, now: Ms, [streams, datagrams, both]: Needed) -> bool {
        self.free(now, Protocol::Tcp) >= streams + both
            && self.free(now, Protocol::Udp) >= datagrams + both
            && self.free(now, Protocol::TcpUdp) >= both
    }

    fn any(&self, rng: &mut Random, is_it: impl Fn(&Owner) -> bool) -> Option<Id> {
        let ids: Vec<Id> = self.owners.iter().filter(|(_, owner)| is_it(owner)).map(|(id, _)| *id).collect();
        (!ids.is_empty()).then(|| ids[rng.below(ids.len() as u64) as usize])
    }

    fn take(&mut self, now: Ms, id: Id, is_server: bool, leased: &[LeasedPort]) {
        let (mut ports, mut taken) = (Vec::new(), BTreeSet::new());
        for port in leased {
            let PortExposure::Number(number) = port.exposure else { panic!("the request was for a number") };
            for each in numbers(port.protocol, number) {
                assert!(self.is_free(now, each), "{each:?} is leased or quarantined");
                assert!(taken.insert(each), "twice in one lease");
            }
            ports.push((port.protocol, number));
        }
        self.owners.insert(id, Owner { is_server, is_over: false, is_published: false, ports });
    }
}

fn port_requests(rng: &mut Random) -> (Vec<PortRequest<'static>>, Needed) {
    let names = ["a", "b", "c"];
    let mut needed = [0; 3];
    let ports = names[..1 + rng.below(3) as usize].iter().map(|name| {
        let (protocol, kind) = [(Protocol::Udp, 1), (Protocol::Tcp, 0), (Protocol::Https, 0), (Protocol::TcpUdp, 2)]
            [rng.below(4) as usize];
        needed[kind] += 1;
        PortRequest {
            name,
            protocol,
            exposure: PortExposure::Number(0),
            sends_proxy_header: false,
            counting: SessionCounting::Uncounted,
        }
    });
    (ports.collect(), needed)
}

#[derive(Default)]
struct Follower {
    lsn: Lsn,
    open: BTreeMap<Id, BTreeSet<(bool, u16)>>,
}

impl Follower {
    fn follow(&mut self, engine: &Engine, after: Lsn) {
        let routes = engine.routes_since(LOCAL, after, Lsn::MAX);
        if routes.is_complete {
            self.open.clear();
        }
        let mut fresh: BTreeMap<Id, BTreeSet<(bool, u16)>> = BTreeMap::new();
        for route in routes.changed {
            let PortExposure::Number(number) = route.port.exposure else { continue };
            fresh.entry(route.owner).or_default().extend(numbers(route.port.protocol, number));
        }
        self.open.extend(fresh);
        routes.removed.iter().for_each(|owner| drop(self.open.remove(owner)));
        self.lsn = routes.lsn;
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

fn lease(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) {
    let owner = Id([rng.below(24) as u8; 16]);
    let (ports, needed) = port_requests(rng);
    let (now, random) = (w.now, rng.next());
    let answer = w.run(|e, cx| {
        e.lease_ports(cx, &LeaseRequest { owner, namespace: NAMESPACE, region: "r", ports: &ports, random })
    });
    counts.count("lease", &answer.result);
    match model.owners.get(&owner).cloned() {
        Some(had) if had.is_over => assert_eq!(answer.result, Err(Refusal::LeaseNotFound)),
        Some(had) => assert_eq!(answer.result.unwrap().ports.len(), had.ports.len()),
        None if model.has(now, needed) => model.take(now, owner, true, &answer.result.unwrap().ports),
        None => assert_eq!(answer.result, Err(Refusal::PortsExhausted)),
    }
}

fn start(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) {
    let (ports, needed) = port_requests(rng);
    let random = rng.next();
    let answer = w.start_idle(|template| (template.ports, template.random) = (&ports, random));
    counts.count("start_idle", &answer.result);
    if !model.has(w.now, needed) {
        assert_eq!(answer.result, Err(Refusal::PortsExhausted));
        return;
    }
    let lobby = answer.result.unwrap();
    let own = w.engine.lobby(lobby).unwrap().own.unwrap();
    model.take(w.now, lobby, false, &own.leased.ports);
}

fn end(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) {
    let Some(id) = model.any(rng, |_| true) else { return };
    let owner = model.owners.get_mut(&id).unwrap();
    let answer = if owner.is_server {
        w.run(|e, cx| e.end_lease(cx, id)).result
    } else {
        w.run(|e, cx| e.process_exited(cx, id, None)).result
    };
    counts.count("end", &answer);
    assert_eq!(answer, Ok(!owner.is_over));
    owner.is_over = true;
}

fn give_back(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) -> Option<Id> {
    let id = model.any(rng, |_| true)?;
    let answer = w.run(|e, cx| e.return_ports(cx, id, LOCAL)).result;
    counts.count("ports_returned", &answer);
    let is_over = model.owners[&id].is_over;
    assert_eq!(answer, Ok(is_over));
    if is_over {
        let until = w.now + 60_000;
        let owner = model.owners.remove(&id).unwrap();
        model.quarantined.extend(owner.numbers().map(|port| (port, until)));
    }
    is_over.then_some(id)
}

fn replace(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) {
    let Some(id) = model.any(rng, |_| true) else { return };
    let (mut owner, random) = (model.owners[&id].clone(), rng.next());
    let at = rng.below(owner.ports.len() as u64) as usize;
    let (protocol, old) = owner.ports[at];
    let refused = if rng.below(4) == 0 { 1 } else { old };
    let name = ["a", "b", "c"][at];
    let answer = w.run(|e, cx| e.replace_port(cx, id, name, refused, random)).result;
    counts.count("replace_port", &answer);
    if owner.is_over {
        assert_eq!(answer, Err(Refusal::LeaseNotFound));
    } else if refused != old || owner.is_published {
        assert_eq!(answer, Ok(Some(old)));
    } else if model.free(w.now, protocol) == 0 {
        assert_eq!(answer, Err(Refusal::PortsExhausted));
    } else {
        let new = answer.unwrap().unwrap();
        assert!(numbers(protocol, new).all(|port| model.is_free(w.now, port)));
        owner.ports[at] = (protocol, new);
        model.owners.insert(id, owner);
        model.quarantined.extend(numbers(protocol, old).map(|port| (port, w.now + 600_000)));
    }
}

fn listen(w: &mut TestEngine, model: &mut ListModel, rng: &mut Random, counts: &mut Counts) {
    let Some(id) = model.any(rng, |_| true) else { return };
    let owner = model.owners.get_mut(&id).unwrap();
    let answer = if owner.is_server {
        w.run(|e, cx| e.set_backends(cx, id, &[("a", "127.0.0.1", 12_000)])).result
    } else {
        w.ready(id)
    };
    counts.count("listen", &answer);
    match (owner.is_over, owner.is_server) {
        (false, _) => {
            answer.unwrap();
            owner.is_published = true;
        }
        (true, true) => assert_eq!(answer, Err(Refusal::LeaseNotFound)),
        (true, false) => assert_eq!(answer, Err(Refusal::LobbyStopped)),
    }
}

fn restart(w: &mut TestEngine, counts: &mut Counts) {
    w.restart_as(Engine::new(config()));
    counts.count("restart", &Ok(()));
}

fn check(w: &TestEngine, model: &ListModel, follower: &mut Follower, rng: &mut Random) {
    let mut taken = BTreeSet::new();
    for owner in model.owners.values() {
        owner.numbers().for_each(|port| assert!(taken.insert(port), "{port:?} has two owners"));
    }
    for (is_datagram, [free, leased, quarantined]) in [false, true].into_iter().zip(w.engine.port_counts(LOCAL)) {
        assert_eq!(free + leased + quarantined, PORTS.len());
        assert_eq!(leased, taken.iter().filter(|port| port.0 == is_datagram).count());
    }
    if rng.below(3) == 0 {
        follower.follow(&w.engine, follower.lsn);
        let mut complete = Follower::default();
        complete.follow(&w.engine, 0);
        assert_eq!((&follower.open, follower.lsn), (&complete.open, complete.lsn));
        let live = model.owners.iter().filter(|(_, owner)| !owner.is_over);
        let expected: BTreeMap<Id, BTreeSet<_>> = live.map(|(id, owner)| (*id, owner.numbers().collect())).collect();
        assert_eq!(complete.open, expected);
    }
}

#[test]
fn no_port_ever_has_two_owners() {
    let mut counts = Counts::default();
    for seed in 1..=SEQUENCES {
        let mut w = TestEngine::with(Engine::new(config()), Engine::new(config()));
        let (mut model, mut follower) = (ListModel::default(), Follower::default());
        let mut rng = Random::new(seed);
        for _ in 0..STEPS {
            match rng.below(14) {
                0..=2 => lease(&mut w, &mut model, &mut rng, &mut counts),
                3..=4 => start(&mut w, &mut model, &mut rng, &mut counts),
                5..=6 => end(&mut w, &mut model, &mut rng, &mut counts),
                7..=8 => {
                    // Edge-guard confirms only after it closed the sockets.
                    let closed = give_back(&mut w, &mut model, &mut rng, &mut counts);
                    closed.map(|owner| follower.open.remove(&owner));
                }
                9 => replace(&mut w, &mut model, &mut rng, &mut counts),
                10 => listen(&mut w, &mut model, &mut rng, &mut counts),
                11 => restart(&mut w, &mut counts),
                _ => w.pass_unnoticed(1 + rng.below(40_000)),
            }
            check(&w, &model, &mut follower, &mut rng);
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
        assert!(counts.0.contains_key(&exposure), "{exposure:?} was never covered");
    }
}
