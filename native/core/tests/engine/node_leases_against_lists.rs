//! Port leases of several nodes against plain lists, in random sequences with moves, gone nodes and restarts.

use std::collections::{BTreeMap, BTreeSet};

use hosting_core::*;

use crate::random::Random;
use crate::test_engine::*;

const SEQUENCES: u64 = 200;
const STEPS: usize = 300;
const PORTS: PortRange = PortRange { first: 26_000, last: 26_004 };
const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A number in one family: TCP (false) or UDP (true).
type Number = (bool, u16);

fn numbers(protocol: Protocol, number: u16) -> impl Iterator<Item = Number> {
    let families: &[bool] = match protocol {
        Protocol::Udp => &[true],
        Protocol::TcpUdp => &[false, true],
        _ => &[false],
    };
    families.iter().map(move |is_datagram| (*is_datagram, number))
}

fn all_numbers(ports: &[(Protocol, u16)]) -> impl Iterator<Item = Number> {
    ports.iter().flat_map(|(protocol, number)| numbers(*protocol, *number))
}

#[derive(Clone)]
struct Owner {
    is_server: bool,
    is_published: bool,
    node: Option<&'static str>,
    ports: Vec<(Protocol, u16)>,
}

#[derive(Default)]
struct ListModel {
    live: BTreeMap<Id, Owner>,
    ended_lobbies: BTreeSet<Id>,
    /// Ports of leases that are over, by owner and node.
    over: BTreeMap<(Id, &'static str), Vec<(Protocol, u16)>>,
    quarantined: BTreeMap<(&'static str, Number), Ms>,
    gone: BTreeSet<&'static str>,
}

impl ListModel {
    fn taken_at(&self, node: &str) -> Vec<Number> {
        let live = self.live.values().filter(|owner| owner.node == Some(node)).map(|owner| &owner.ports);
        let over = self.over.iter().filter(|((_, at), _)| *at == node).map(|(_, ports)| ports);
        live.chain(over).flat_map(|ports| all_numbers(ports)).collect()
    }

    fn free_at(&self, node: &'static str, now: Ms) -> impl Fn(Number) -> bool {
        let taken = self.taken_at(node);
        move |number| {
            !taken.contains(&number) && self.quarantined.get(&(node, number)).is_none_or(|until| *until <= now)
        }
    }

    /// Returns whether the node has numbers for the protocols of a lease.
    fn has(&self, node: &'static str, now: Ms, ports: &[(Protocol, u16)]) -> bool {
        let is_free = self.free_at(node, now);
        let free =
            |protocol| (PORTS.first..=PORTS.last).filter(|number| numbers(protocol, *number).all(&is_free)).count();
        let needed = |protocols: &[Protocol]| ports.iter().filter(|(one, _)| protocols.contains(one)).count();
        free(Protocol::TcpUdp) >= needed(&[Protocol::TcpUdp])
            && free(Protocol::Udp) >= needed(&[Protocol::Udp, Protocol::TcpUdp])
            && free(Protocol::Tcp) >= needed(&[Protocol::Tcp, Protocol::TcpUdp])
    }

    fn assert_free(&self, node: &'static str, now: Ms, ports: &[(Protocol, u16)]) {
        let (is_free, mut seen) = (self.free_at(node, now), BTreeSet::new());
        for number in all_numbers(ports) {
            assert!(is_free(number), "{number:?} of {node} is leased or quarantined");
            assert!(seen.insert(number), "{number:?} twice in one lease");
        }
    }

    fn return_ports(&mut self, owner: Id, node: &'static str, now: Ms) -> bool {
        let Some(ports) = self.over.remove(&(owner, node)) else { return false };
        self.quarantined.extend(all_numbers(&ports).map(|number| ((node, number), now + 60_000)));
        true
    }

    fn return_ports_of_gone_nodes(&mut self, now: Ms) {
        let over: Vec<_> = self.over.keys().filter(|(_, node)| self.gone.contains(node)).copied().collect();
        over.into_iter().for_each(|(owner, node)| assert!(self.return_ports(owner, node, now)));
        let live: BTreeSet<_> = self.live.values().filter_map(|owner| owner.node).collect();
        self.gone.retain(|node| live.contains(node));
    }

    fn is_over(&self, owner: Id) -> bool {
        NODES.iter().any(|node| self.over.contains_key(&(owner, *node)))
    }
}

/// Sockets of the edge-guard of one node.
#[derive(Default)]
struct Follower {
    lsn: Lsn,
    open: BTreeMap<Id, BTreeSet<Number>>,
}

impl Follower {
    fn follow(&mut self, engine: &Engine, node: &str, after: Lsn) {
        let routes = engine.routes_since(node, after, Lsn::MAX);
        if routes.is_complete {
            self.open.clear();
        }
        let mut fresh: BTreeMap<Id, BTreeSet<Number>> = BTreeMap::new();
        for route in routes.changed {
            let PortExposure::Number(number) = route.port.exposure else { continue };
            fresh.entry(route.owner).or_default().extend(numbers(route.port.protocol, number));
        }
        self.open.extend(fresh);
        routes.removed.iter().for_each(|owner| drop(self.open.remove(owner)));
        self.lsn = routes.lsn;
    }
}

fn engine() -> Engine {
    let start_limit_ms = u64::MAX / 2;
    let usual = EngineConfig::new(1, keys(&[1], 1));
    Engine::new(EngineConfig { ports: PORTS, start_limit_ms, binds_ports_later: true, ..usual })
}

struct Trial {
    w: TestEngine,
    model: ListModel,
    followers: BTreeMap<&'static str, Follower>,
    rng: Random,
    seen: BTreeSet<(&'static str, &'static str)>,
}

impl Trial {
    fn new(seed: u64) -> Trial {
        Trial {
            w: TestEngine::with(engine(), engine()),
            model: ListModel::default(),
            followers: NODES.map(|node| (node, Follower::default())).into(),
            rng: Random::new(seed),
            seen: BTreeSet::new(),
        }
    }

    fn note<T>(&mut self, command: &'static str, result: &Result<T, Refusal>) {
        self.seen.insert((command, result.as_ref().map_or_else(Refusal::slug, |_| "done")));
    }

    fn node(&mut self) -> &'static str {
        NODES[self.rng.below(NODES.len() as u64) as usize]
    }

    /// Returns the id of a live owner, or now and then of any server.
    fn owner(&mut self) -> Id {
        let ids: Vec<Id> = self.model.live.keys().copied().collect();
        let any_server = Id([self.rng.below(12) as u8; 16]);
        if ids.is_empty() || self.rng.below(6) == 0 {
            return any_server;
        }
        ids[self.rng.below(ids.len() as u64) as usize]
    }

    fn port_requests(&mut self) -> Vec<PortRequest<'static>> {
        let names = &["a", "b"][..1 + self.rng.below(2) as usize];
        let protocols = [Protocol::Udp, Protocol::Tcp, Protocol::TcpUdp];
        let mut request = |name| PortRequest { name, protocol: protocols[self.rng.below(3) as usize], ..ONE_PORT[0] };
        names.iter().map(|name| request(*name)).collect()
    }

    fn request(&mut self) {
        let (owner, ports) = (Id([self.rng.below(12) as u8; 16]), self.port_requests());
        let lease = LeaseRequest { owner, namespace: NAMESPACE, region: "r", ports: &ports, random: 0 };
        let answer = self.w.run(|e, cx| e.lease_ports(cx, &lease)).result;
        self.note("lease", &answer);
        match self.model.live.get(&owner) {
            Some(had) => assert_eq!(numbered(&answer.unwrap()), had.ports),
            None if self.model.is_over(owner) => assert_eq!(answer, Err(Refusal::LeaseNotFound)),
            None => self.add(owner, true, &answer.unwrap()),
        }
    }

    fn start(&mut self) {
        let ports = self.port_requests();
        let lobby = self.w.start_idle(|template| template.ports = &ports).result.unwrap();
        let leased = self.w.engine.lobby(lobby).unwrap().own.unwrap().leased;
        self.add(lobby, false, &leased);
    }

    fn add(&mut self, owner: Id, is_server: bool, leased: &LeasedPorts) {
        let ports = numbered(leased);
        assert!(ports.iter().all(|(_, number)| *number == 0), "no node has them yet");
        self.model.live.insert(owner, Owner { is_server, is_published: false, node: None, ports });
    }

    fn bind(&mut self) {
        let (id, node, random, now) = (self.owner(), self.node(), self.rng.next(), self.w.now);
        let host = format!("{node}.example.com");
        let answer = self.w.run(|e, cx| e.bind_ports(cx, &BindPorts { owner: id, node, host: &host, random })).result;
        self.note("bind", &answer);
        let Some(owner) = self.model.live.get(&id).cloned() else {
            let is_lobby = self.model.ended_lobbies.contains(&id);
            let refusal = if is_lobby { Refusal::LobbyStopped } else { Refusal::LeaseNotFound };
            assert_eq!(answer, Err(refusal));
            return;
        };
        if owner.node == Some(node) {
            let leased = answer.unwrap();
            assert_eq!((numbered(&leased), &*leased.node.host), (owner.ports, &*host), "repeated");
            return;
        }
        if owner.node.is_some() && owner.is_published {
            assert_eq!(answer, Err(Refusal::LeaseInUse));
            return;
        }
        let earlier = self.model.over.get(&(id, node)).cloned();
        if earlier.is_none() && !self.model.has(node, now, &owner.ports) {
            assert_eq!(answer, Err(Refusal::PortsExhausted));
            return;
        }
        self.seen.insert(("bind", if owner.node.is_some() { "moved" } else { "first" }));
        let ports = numbered(&answer.unwrap());
        match earlier {
            Some(earlier) => {
                self.seen.insert(("bind", "came back"));
                assert_eq!(ports, earlier);
                self.model.over.remove(&(id, node));
            }
            None => self.model.assert_free(node, now, &ports),
        }
        if let Some(before) = owner.node {
            self.model.over.insert((id, before), owner.ports.clone());
        }
        self.model.gone.remove(node);
        self.model.live.insert(id, Owner { node: Some(node), ports, ..owner });
    }

    fn end(&mut self) {
        let id = self.owner();
        let Some(owner) = self.model.live.remove(&id) else { return };
        let answer = if owner.is_server {
            self.w.run(|e, cx| e.end_lease(cx, id)).result
        } else {
            self.model.ended_lobbies.insert(id);
            self.w.run(|e, cx| e.process_exited(cx, id, None)).result
        };
        assert_eq!(answer, Ok(true));
        if let Some(node) = owner.node {
            self.model.over.insert((id, node), owner.ports);
        }
    }

    /// Edge-guard confirms only after it closed the sockets.
    fn confirm(&mut self) {
        let any = self.model.over.len() as u64;
        let at = self.model.over.keys().nth(self.rng.below(any.max(1)) as usize).copied();
        let stray = (self.owner(), self.node());
        let (owner, node) = at.filter(|_| self.rng.below(3) > 0).unwrap_or(stray);
        let answer = self.w.run(|e, cx| e.return_ports(cx, owner, node)).result;
        let is_over = self.model.return_ports(owner, node, self.w.now);
        assert_eq!(answer, Ok(is_over));
        self.seen.insert(("return", if is_over { "done" } else { "ignored" }));
        if is_over {
            self.followers.entry(node).or_default().open.remove(&owner);
        }
    }

    fn replace(&mut self) {
        let (id, random, now) = (self.owner(), self.rng.next(), self.w.now);
        let old = self.model.live.get(&id).map_or(1, |owner| owner.ports[0].1);
        let answer = self.w.run(|e, cx| e.replace_port(cx, id, "a", old, random)).result;
        self.note("replace", &answer);
        let Some(owner) = self.model.live.get(&id).cloned() else {
            return assert_eq!(answer, Err(Refusal::LeaseNotFound));
        };
        let Some(node) = owner.node else { return assert_eq!(answer, Ok(None)) };
        let protocol = owner.ports[0].0;
        if owner.is_published {
            return assert_eq!(answer, Ok(Some(old)));
        }
        if !self.model.has(node, now, &owner.ports[..1]) {
            return assert_eq!(answer, Err(Refusal::PortsExhausted));
        }
        let new = (protocol, answer.unwrap().unwrap());
        self.model.assert_free(node, now, &[new]);
        self.model.live.get_mut(&id).unwrap().ports[0] = new;
        self.model.quarantined.extend(numbers(protocol, old).map(|number| ((node, number), now + 600_000)));
    }

    fn listen(&mut self) {
        let id = self.owner();
        let Some(owner) = self.model.live.get_mut(&id) else { return };
        let answer = if owner.is_server {
            self.w.run(|e, cx| e.set_backends(cx, id, &[("a", "10.0.0.1", 12_000)])).result
        } else {
            self.w.ready(id)
        };
        if owner.is_server || owner.node.is_some() {
            owner.is_published = true;
            assert_eq!(answer, Ok(()));
        } else {
            assert_eq!(answer, Err(Refusal::PortsNotBound));
        }
        self.note("listen", &answer);
    }

    fn lose_node(&mut self) {
        let node = self.node();
        self.w.run(|e, cx| e.return_ports_of_node(cx, node)).result.unwrap();
        self.model.gone.insert(node);
        self.seen.insert(("lose_node", "done"));
    }

    fn restart(&mut self) {
        self.w.restart_as(engine());
        self.model.gone.clear();
        // A reader begins again at each epoch of the data plane.
        self.followers.values_mut().for_each(|follower| follower.lsn = 0);
    }

    fn step(&mut self) {
        match self.rng.below(40) {
            0..=5 => self.request(),
            6..=10 => self.start(),
            11..=20 => self.bind(),
            21..=24 => self.end(),
            25..=29 => self.confirm(),
            30..=31 => self.replace(),
            32..=33 => self.listen(),
            34 => self.lose_node(),
            35 => self.restart(),
            _ => self.w.pass_unnoticed(1 + self.rng.below(40_000)),
        }
        // The expiry thread returns the ports of gone nodes at once.
        self.w.pass(0);
        self.model.return_ports_of_gone_nodes(self.w.now);
    }

    fn check(&mut self) {
        let used = self.w.engine.port_nodes();
        for node in NODES {
            let taken = self.model.taken_at(node);
            let distinct: BTreeSet<Number> = taken.iter().copied().collect();
            assert_eq!(distinct.len(), taken.len(), "a number of {node} has two owners");
            assert!(taken.is_empty() || used.contains(&node), "{used:?} lacks {node}");
            for (is_datagram, [free, leased, quarantined]) in
                [false, true].into_iter().zip(self.w.engine.port_counts(node))
            {
                assert_eq!(free + leased + quarantined, PORTS.len());
                assert_eq!(leased, taken.iter().filter(|number| number.0 == is_datagram).count());
            }
        }
        if self.rng.below(3) > 0 {
            return;
        }
        let node = self.node();
        let follower = self.followers.entry(node).or_default();
        follower.follow(&self.w.engine, node, follower.lsn);
        let mut complete = Follower::default();
        complete.follow(&self.w.engine, node, 0);
        assert_eq!((&follower.open, follower.lsn), (&complete.open, complete.lsn));
        let live = self.model.live.iter().filter(|(_, owner)| owner.node == Some(node));
        let expected: BTreeMap<Id, BTreeSet<_>> =
            live.map(|(id, owner)| (*id, all_numbers(&owner.ports).collect())).collect();
        assert_eq!(complete.open, expected);
    }
}

/// Returns protocol and number of each port.
fn numbered(leased: &LeasedPorts) -> Vec<(Protocol, u16)> {
    let number = |port: &LeasedPort| match port.exposure {
        PortExposure::Number(number) => (port.protocol, number),
        other => panic!("{other:?} is not a number"),
    };
    leased.ports.iter().map(number).collect()
}

#[test]
fn no_port_of_a_node_ever_has_two_owners() {
    let mut seen = BTreeSet::new();
    for seed in 1..=SEQUENCES {
        let mut trial = Trial::new(seed);
        for _ in 0..STEPS {
            trial.step();
            trial.check();
        }
        seen.extend(trial.seen);
    }
    for exposure in [
        ("lease", "done"),
        ("lease", "SERVER_NOT_FOUND"),
        ("bind", "first"),
        ("bind", "moved"),
        ("bind", "came back"),
        ("bind", "IN_USE"),
        ("bind", "PORTS_EXHAUSTED"),
        ("bind", "SERVER_NOT_FOUND"),
        ("return", "done"),
        ("return", "ignored"),
        ("replace", "done"),
        ("replace", "PORTS_EXHAUSTED"),
        ("replace", "SERVER_NOT_FOUND"),
        ("listen", "done"),
        ("listen", "OVERLOADED"),
        ("lose_node", "done"),
    ] {
        assert!(seen.contains(&exposure), "{exposure:?} was never covered: {seen:?}");
    }
}
