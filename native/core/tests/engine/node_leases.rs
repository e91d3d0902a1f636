//! Port leases of nodes: binding, moves, confirmations of each node's edge-guard, and nodes that are gone.

use hosting_core::*;

use crate::test_engine::*;

const SERVER: Id = Id([7; 16]);
const OTHER_SERVER: Id = Id([8; 16]);
const IMAGE_VERSION: std::ops::Range<usize> = 8..10;

fn engine(ports: PortRange) -> Engine {
    Engine::new(EngineConfig { ports, binds_ports_later: true, ..EngineConfig::new(1, keys(&[1], 1)) })
}

fn cluster(ports: PortRange) -> TestEngine {
    TestEngine::with(engine(ports), engine(ports))
}

fn one_number() -> TestEngine {
    cluster(PortRange { first: 26_000, last: 26_000 })
}

fn request(w: &mut TestEngine, owner: Id) -> LeasedPorts {
    let lease = LeaseRequest { owner, namespace: NAMESPACE, region: "local", ports: &ONE_PORT, random: 1 };
    w.run(|e, cx| e.lease_ports(cx, &lease)).result.unwrap()
}

fn bind(w: &mut TestEngine, owner: Id, node: &str) -> Result<LeasedPorts, Refusal> {
    let host = format!("{node}.example.com");
    w.run(|e, cx| e.bind_ports(cx, &BindPorts { owner, node, host: &host, random: 5 })).result
}

fn number(leased: &LeasedPorts) -> u16 {
    match leased.ports[0].exposure {
        PortExposure::Number(number) => number,
        other => panic!("{other:?} is not a number"),
    }
}

fn bound(w: &mut TestEngine, owner: Id, node: &str) -> u16 {
    number(&bind(w, owner, node).unwrap())
}

fn returned(w: &mut TestEngine, owner: Id, node: &str) -> bool {
    w.run(|e, cx| e.return_ports(cx, owner, node)).result.unwrap()
}

fn end(w: &mut TestEngine, owner: Id) {
    assert!(w.run(|e, cx| e.end_lease(cx, owner)).result.unwrap());
}

fn node_is_gone(w: &mut TestEngine, node: &str) {
    w.run(|e, cx| e.return_ports_of_node(cx, node)).result.unwrap();
}

/// Returns the owners of the routes of a node, and the owners to remove there.
fn routes(w: &TestEngine, node: &str, after: Lsn) -> (Vec<Id>, Vec<Id>) {
    let routes = w.engine.routes_since(node, after, Lsn::MAX);
    (routes.changed.iter().map(|route| route.owner).collect(), routes.removed)
}

#[test]
fn lease_has_no_numbers_until_it_is_bound() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_999 });
    let requested = request(&mut w, SERVER);
    assert_eq!((number(&requested), &requested.node), (0, &LeaseNode::default()));
    assert_eq!(request(&mut w, SERVER), requested, "a repeated request");
    assert_eq!(w.written, 0);
    assert_eq!((routes(&w, LOCAL, 0), routes(&w, "n1", 0)), ((vec![], vec![]), (vec![], vec![])));
    assert!(w.engine.port_nodes().is_empty());
    let leased = bind(&mut w, SERVER, "n1").unwrap();
    assert!((26_000..27_000).contains(&number(&leased)));
    assert_eq!((&*leased.node.name, &*leased.node.host), ("n1", "n1.example.com"));
    assert_eq!(w.written, 1);
    assert_eq!(
        w.run(|e, cx| e.bind_ports(cx, &BindPorts { owner: SERVER, node: "n1", host: "x", random: 6 })).result,
        { Ok(leased.clone()) }
    );
    assert_eq!((w.written, request(&mut w, SERVER)), (0, leased));
    assert_eq!((w.engine.port_nodes(), w.engine.port_counts("n1")[0]), (vec!["n1"], [999, 1, 0]));
    assert_eq!(w.engine.port_counts("n2")[0], [1_000, 0, 0]);
}

#[test]
fn routes_are_those_of_the_node() {
    let mut w = one_number();
    [SERVER, OTHER_SERVER].iter().for_each(|owner| drop(request(&mut w, *owner)));
    assert_eq!((bound(&mut w, SERVER, "n1"), bound(&mut w, OTHER_SERVER, "n2")), (26_000, 26_000), "a number per node");
    assert_eq!(routes(&w, "n1", 0), (vec![SERVER], vec![]));
    assert_eq!(routes(&w, "n2", 0), (vec![OTHER_SERVER], vec![]));
    let [first, second] = ["n1", "n2"].map(|node| w.engine.routes_since(node, 0, Lsn::MAX));
    assert_eq!((&*second.changed[0].node.name, &*second.changed[0].node.host), ("n2", "n2.example.com"));
    w.run(|e, cx| e.set_backends(cx, SERVER, &[("game", "10.0.0.1", 7_777)])).result.unwrap();
    assert_eq!(routes(&w, "n1", first.lsn), (vec![SERVER], vec![]));
    assert_eq!(routes(&w, "n2", second.lsn), (vec![], vec![]), "nothing of another node");
    end(&mut w, SERVER);
    assert_eq!(routes(&w, "n1", first.lsn), (vec![], vec![SERVER]));
    assert_eq!(routes(&w, "n2", second.lsn), (vec![], vec![]));
}

#[test]
fn reader_of_all_nodes_learns_which_ones_changed() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_999 });
    for (owner, node) in [(SERVER, "n1"), (OTHER_SERVER, "n2")] {
        request(&mut w, owner);
        bound(&mut w, owner, node);
    }
    let (lsn, nodes) = w.engine.nodes_changed_since(0, Lsn::MAX);
    assert_eq!((lsn, nodes), (w.engine.last_lsn(), vec!["n1", "n2"]));
    assert_eq!(w.engine.nodes_changed_since(lsn, Lsn::MAX), (lsn, vec![]));
    bound(&mut w, SERVER, "n3");
    assert_eq!(w.engine.nodes_changed_since(lsn, lsn), (lsn, vec![]), "the change is not durable");
    assert_eq!(w.engine.nodes_changed_since(lsn, Lsn::MAX), (lsn + 1, vec!["n1", "n3"]), "both nodes of a move");
}

#[test]
fn confirmation_of_another_node_returns_nothing() {
    let mut w = one_number();
    request(&mut w, SERVER);
    bound(&mut w, SERVER, "n1");
    assert!(!returned(&mut w, SERVER, "n1"), "the lease is live");
    end(&mut w, SERVER);
    assert!(!returned(&mut w, SERVER, "n2") && !returned(&mut w, SERVER, LOCAL));
    request(&mut w, OTHER_SERVER);
    assert_eq!(bind(&mut w, OTHER_SERVER, "n1"), Err(Refusal::PortsExhausted));
    assert!(returned(&mut w, SERVER, "n1"));
    w.pass(59_999);
    assert_eq!(bind(&mut w, OTHER_SERVER, "n1"), Err(Refusal::PortsExhausted), "it is in quarantine");
    w.restart_as(engine(PortRange { first: 26_000, last: 26_000 }));
    assert_eq!(bind(&mut w, OTHER_SERVER, "n1"), Err(Refusal::PortsExhausted), "after a restart too");
    w.pass(1);
    assert_eq!(bound(&mut w, OTHER_SERVER, "n1"), 26_000);
}

#[test]
fn moved_lease_blocks_its_numbers_until_the_earlier_node_confirms() {
    let mut w = one_number();
    request(&mut w, SERVER);
    bound(&mut w, SERVER, "n1");
    let before = w.engine.routes_since("n1", 0, Lsn::MAX).lsn;
    assert_eq!(bound(&mut w, SERVER, "n2"), 26_000);
    assert_eq!(routes(&w, "n1", before), (vec![], vec![SERVER]));
    assert_eq!(routes(&w, "n2", 0), (vec![SERVER], vec![]));
    request(&mut w, OTHER_SERVER);
    w.pass(3_600_000);
    assert_eq!(bind(&mut w, OTHER_SERVER, "n1"), Err(Refusal::PortsExhausted));
    end(&mut w, SERVER);
    assert_eq!((routes(&w, "n1", 0).1, routes(&w, "n2", 0).1), (vec![SERVER], vec![SERVER]), "two leases are over");
    assert!(returned(&mut w, SERVER, "n2"));
    assert_eq!((routes(&w, "n1", 0).1, routes(&w, "n2", 0).1), (vec![SERVER], vec![]));
    assert!(returned(&mut w, SERVER, "n1"));
    w.pass(60_000);
    assert_eq!(bound(&mut w, OTHER_SERVER, "n1"), 26_000);
}

#[test]
fn lease_that_comes_back_unconfirmed_gets_its_numbers_again() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_999 });
    request(&mut w, SERVER);
    let first = bound(&mut w, SERVER, "n1");
    bound(&mut w, SERVER, "n2");
    assert_eq!(bound(&mut w, SERVER, "n1"), first);
    assert_eq!((routes(&w, "n1", 0), routes(&w, "n2", 0)), ((vec![SERVER], vec![]), (vec![], vec![SERVER])));
    assert!(!returned(&mut w, SERVER, "n1"), "a late confirmation of the first removal");
    assert_eq!(w.engine.port_counts("n1")[0], [999, 1, 0]);
}

#[test]
fn published_ports_stay_at_their_node() {
    let mut w = one_number();
    request(&mut w, SERVER);
    bound(&mut w, SERVER, "n1");
    w.run(|e, cx| e.set_backends(cx, SERVER, &[("game", "10.0.0.1", 7_777)])).result.unwrap();
    assert_eq!(bind(&mut w, SERVER, "n2"), Err(Refusal::LeaseInUse));
    let lobby = w.start_idle(|_| {}).result.unwrap();
    bound(&mut w, lobby, "n2");
    w.run(|e, cx| e.set_backends(cx, lobby, &[("game", "10.0.0.2", 7_777)])).result.unwrap();
    assert_eq!(bound(&mut w, lobby, "n3"), 26_000, "no player knows the ports before the lobby is ready");
    let leased = w.engine.leased_ports(lobby).unwrap();
    assert_eq!(leased.ports[0].backend, None, "the process of the earlier node is another one");
    w.ready(lobby).unwrap();
    assert_eq!(bind(&mut w, lobby, "n4"), Err(Refusal::LeaseInUse));
    assert!(bind(&mut w, lobby, "n3").is_ok());
}

#[test]
fn owner_that_has_ended_is_not_bound() {
    let mut w = one_number();
    assert_eq!(bind(&mut w, SERVER, "n1"), Err(Refusal::LeaseNotFound));
    request(&mut w, SERVER);
    bound(&mut w, SERVER, "n1");
    end(&mut w, SERVER);
    assert_eq!(bind(&mut w, SERVER, "n1"), Err(Refusal::LeaseNotFound));
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.run(|e, cx| e.process_exited(cx, lobby, None)).result.unwrap();
    assert_eq!(bind(&mut w, lobby, "n1"), Err(Refusal::LobbyStopped));
}

#[test]
fn lobby_without_node_is_not_ready() {
    let mut w = one_number();
    let held = w.start_idle(|_| {}).result.unwrap();
    assert_eq!(w.ready(held), Err(Refusal::PortsNotBound));
    assert!(!w.engine.lobby(held).unwrap().is_ready);
    bound(&mut w, held, "n1");
    w.ready(held).unwrap();
    let leased = w.engine.lobby(held).unwrap().own.unwrap().leased;
    assert_eq!((number(&leased), &*leased.node.host), (26_000, "n1.example.com"));
    let no_ports = w.start_idle(|template| template.ports = &[]).result.unwrap();
    w.ready(no_ports).unwrap();
}

#[test]
fn refused_port_is_replaced_at_its_node() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_001 });
    request(&mut w, SERVER);
    assert_eq!(w.run(|e, cx| e.replace_port(cx, SERVER, "game", 0, 3)).result, Ok(None), "it has no number yet");
    let old = bound(&mut w, SERVER, "n1");
    let new = w.run(|e, cx| e.replace_port(cx, SERVER, "game", old, 3)).result.unwrap().unwrap();
    assert_ne!(new, old);
    assert_eq!((w.engine.port_counts("n1")[0], w.engine.port_counts(LOCAL)[0]), ([0, 1, 1], [2, 0, 0]));
}

#[test]
fn ports_of_a_gone_node_return_without_its_edge_guard() {
    let mut w = one_number();
    for owner in [SERVER, OTHER_SERVER] {
        request(&mut w, owner);
    }
    bound(&mut w, SERVER, "n1");
    bound(&mut w, SERVER, "n2");
    node_is_gone(&mut w, "n1");
    assert_eq!((w.written, routes(&w, "n1", 0).1, w.engine.port_counts("n1")[0]), (1, vec![], [0, 0, 1]));
    assert_eq!(w.engine.next_deadline(), None);
    node_is_gone(&mut w, "n2");
    assert_eq!(w.written, 0, "the lease is live");
    end(&mut w, SERVER);
    assert!(w.engine.next_deadline().is_some_and(|at| at <= w.now), "its ports return now");
    w.pass(0);
    assert_eq!(w.engine.port_counts("n2")[0], [0, 0, 1]);
    assert_eq!(w.engine.next_deadline(), None);
    w.pass(60_000);
    w.run(|e, cx| e.expire_due(cx));
    assert!(w.engine.port_nodes().is_empty());
    assert_eq!(bound(&mut w, OTHER_SERVER, "n2"), 26_000, "a new machine with the same name");
    end(&mut w, OTHER_SERVER);
    assert_eq!(w.engine.next_deadline(), None, "its edge-guard confirms");
}

#[test]
fn ports_of_a_gone_node_wait_for_space_in_the_journal() {
    let mut w = one_number();
    request(&mut w, SERVER);
    bound(&mut w, SERVER, "n1");
    end(&mut w, SERVER);
    w.credit = NO_CREDIT;
    node_is_gone(&mut w, "n1");
    assert_eq!((w.written, w.engine.port_counts("n1")[0]), (0, [0, 1, 0]));
    w.credit = Credit::UNLIMITED;
    w.pass(0);
    assert_eq!(w.engine.port_counts("n1")[0], [0, 0, 1]);
}

#[test]
fn reader_that_missed_an_unconfirmed_return_gets_all_routes() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_999 });
    for owner in [SERVER, OTHER_SERVER] {
        request(&mut w, owner);
        bound(&mut w, owner, "n1");
    }
    let seen = w.engine.routes_since("n1", 0, Lsn::MAX).lsn;
    end(&mut w, SERVER);
    node_is_gone(&mut w, "n1");
    let all = w.engine.routes_since("n1", seen, Lsn::MAX);
    assert!(all.is_complete);
    assert_eq!((all.changed.len(), all.changed[0].owner), (1, OTHER_SERVER));
    // The node is dropped after its quarantine, and then there is one of the same name.
    end(&mut w, OTHER_SERVER);
    w.pass(0);
    w.pass(60_000);
    for (owner, node) in [(SERVER, "n2"), (OTHER_SERVER, "n1")] {
        request(&mut w, owner);
        bound(&mut w, owner, node);
    }
    assert!(w.engine.routes_since("n1", all.lsn, Lsn::MAX).is_complete);
}

#[test]
fn node_without_leases_is_forgotten_after_its_quarantine() {
    let mut w = cluster(PortRange { first: 26_000, last: 26_999 });
    let empty = image_of(&w.engine).len();
    for owner in [SERVER, OTHER_SERVER] {
        request(&mut w, owner);
    }
    bound(&mut w, SERVER, "n1");
    end(&mut w, SERVER);
    returned(&mut w, SERVER, "n1");
    assert!(image_of(&w.engine).len() > empty);
    w.pass(60_000);
    bound(&mut w, OTHER_SERVER, "n2");
    w.run(|e, cx| e.end_lease(cx, OTHER_SERVER)).result.unwrap();
    let with_one = image_of(&w.engine);
    assert!(!with_one.windows(2).any(|name| name == b"n1"), "a later binding forgets the quarantine");
    assert!(with_one.windows(2).any(|name| name == b"n2"));
}

#[test]
fn image_has_nodes_only_if_there_are_any() {
    let version = |w: &TestEngine| image_of(&w.engine)[IMAGE_VERSION].to_vec();
    let mut w = one_number();
    assert_eq!(version(&w), [3, 0]);
    request(&mut w, SERVER);
    assert_eq!(version(&w), [6, 0], "a lease without node");
    bound(&mut w, SERVER, "n1");
    assert_eq!(version(&w), [6, 0]);
    end(&mut w, SERVER);
    returned(&mut w, SERVER, "n1");
    assert_eq!(version(&w), [6, 0], "quarantine");
    let mut local = TestEngine::new();
    request(&mut local, SERVER);
    assert_eq!(version(&local), [3, 0]);
}

#[test]
fn full_disk_refuses_to_bind_ports() {
    let mut w = one_number();
    request(&mut w, SERVER);
    w.credit = Credit { total: 1_000, reserve: 1_000, largest: 1_000 };
    assert_eq!(bind(&mut w, SERVER, "n1"), Err(Refusal::StorageFull));
    assert!(w.engine.port_nodes().is_empty());
}

#[test]
fn namespace_has_a_fair_share_at_each_node() {
    let ports = PortRange { first: 26_000, last: 26_099 };
    let mut w = cluster(ports);
    let owner = |number: u8| Id([number; 16]);
    for number in 1..=80 {
        request(&mut w, owner(number));
        bound(&mut w, owner(number), "n1");
        end(&mut w, owner(number));
        returned(&mut w, owner(number), "n1");
        if w.engine.port_counts("n1")[0][2] == 64 {
            break;
        }
    }
    request(&mut w, SERVER);
    assert_eq!(bind(&mut w, SERVER, "n1"), Err(Refusal::PortsExhausted), "64 of 100 rest, and 36 are free");
    assert!(bind(&mut w, SERVER, "n2").is_ok());
}

#[test]
fn single_machine_ignores_nodes_of_a_cluster() {
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|_| {}).result.unwrap();
    let all = w.engine.routes_since(LOCAL, 0, Lsn::MAX);
    assert_eq!((all.changed.len(), &all.changed[0].node), (1, &LeaseNode::default()));
    assert!(routes(&w, "n1", 0).0.is_empty());
    w.run(|e, cx| e.process_exited(cx, lobby, None)).result.unwrap();
    assert!(!returned(&mut w, lobby, "n1"));
    assert!(returned(&mut w, lobby, LOCAL));
}
