//! Port leases: allocation, replacement, quarantine, and the route changes for edge-guard.

use hosting_core::*;

use crate::test_engine::*;

const SERVER: Id = Id([7; 16]);
const OTHER_SERVER: Id = Id([8; 16]);

fn small(ports: PortRange) -> TestEngine {
    let engine = || Engine::new(EngineConfig { ports, ..EngineConfig::new(1, keys(&[1], 1)) });
    TestEngine::with(engine(), engine())
}

fn two_ports() -> TestEngine {
    small(PortRange { first: 26_000, last: 26_001 })
}

fn numbered(name: &'static str, protocol: Protocol) -> PortRequest<'static> {
    PortRequest {
        name,
        protocol,
        exposure: PortExposure::Number(0),
        sends_proxy_header: false,
        counting: SessionCounting::Uncounted,
    }
}

fn lease(w: &mut TestEngine, owner: Id, ports: &[PortRequest<'_>]) -> Result<Vec<LeasedPort>, Refusal> {
    let random = w.now ^ u64::from_le_bytes(owner.0[..8].try_into().unwrap());
    let request = LeaseRequest { owner, namespace: NAMESPACE, region: "local", ports, random };
    w.run(|e, cx| e.lease_ports(cx, &request)).result.map(|leased| leased.ports)
}

fn end(w: &mut TestEngine, owner: Id) -> bool {
    w.run(|e, cx| e.end_lease(cx, owner)).result.unwrap()
}

fn returned(w: &mut TestEngine, owner: Id) -> bool {
    w.run(|e, cx| e.return_ports(cx, owner, LOCAL)).result.unwrap()
}

fn number(port: &LeasedPort) -> u16 {
    match port.exposure {
        PortExposure::Number(number) => number,
        other => panic!("{other:?} is not a number"),
    }
}

#[test]
fn repeated_lease_returns_the_same_ports() {
    let mut w = TestEngine::new();
    let ports = [
        numbered("game", Protocol::Udp),
        numbered("chat", Protocol::Tcp),
        PortRequest {
            name: "web",
            protocol: Protocol::Https,
            exposure: PortExposure::Host,
            sends_proxy_header: false,
            counting: SessionCounting::Uncounted,
        },
        PortRequest {
            name: "raw",
            protocol: Protocol::Udp,
            exposure: PortExposure::Range(20_000, 20_009),
            sends_proxy_header: false,
            counting: SessionCounting::Uncounted,
        },
    ];
    let first = lease(&mut w, SERVER, &ports).unwrap();
    assert_eq!(w.written, 1);
    assert!((26_000..32_000).contains(&number(&first[0])) && (26_000..32_000).contains(&number(&first[1])));
    assert_eq!((first[2].exposure, first[3].exposure), (PortExposure::Host, PortExposure::Range(20_000, 20_009)));
    assert_eq!(lease(&mut w, SERVER, &ports[..1]).unwrap(), first);
    assert_eq!(w.written, 0);
    assert_eq!(w.engine.port_counts(LOCAL), [[5_999, 1, 0], [5_999, 1, 0]]);
    assert_eq!(w.engine.leased_servers(), [SERVER]);
}

#[test]
fn tcp_and_udp_pools_are_independent() {
    let mut w = small(PortRange { first: 26_000, last: 26_000 });
    let ports = [numbered("a", Protocol::Udp), numbered("b", Protocol::Http)];
    let leased = lease(&mut w, SERVER, &ports).unwrap();
    assert_eq!((number(&leased[0]), number(&leased[1])), (26_000, 26_000));
}

#[test]
fn port_of_tcp_and_udp_needs_one_number_of_both() {
    let mut w = two_ports();
    lease(&mut w, SERVER, &[numbered("a", Protocol::Tcp)]).unwrap();
    let both = [numbered("a", Protocol::Udp), numbered("b", Protocol::TcpUdp)];
    let leased = lease(&mut w, OTHER_SERVER, &both).unwrap();
    assert_eq!(leased.iter().map(|port| &*port.name).collect::<Vec<_>>(), ["a", "b"], "in the order of the request");
    assert_ne!(leased[0].exposure, leased[1].exposure);
    assert_eq!(w.engine.port_counts(LOCAL), [[0, 2, 0], [0, 2, 0]]);
    assert!(end(&mut w, OTHER_SERVER) && returned(&mut w, OTHER_SERVER));
    assert_eq!(w.engine.port_counts(LOCAL), [[0, 1, 1], [0, 0, 2]]);
}

#[test]
fn port_of_tcp_and_udp_is_refused_without_a_common_number() {
    let mut w = two_ports();
    let leased = lease(&mut w, SERVER, &[numbered("a", Protocol::TcpUdp)]).unwrap();
    let pair = [numbered("a", Protocol::TcpUdp), numbered("b", Protocol::TcpUdp)];
    assert_eq!(lease(&mut w, OTHER_SERVER, &pair), Err(Refusal::PortsExhausted));
    let rest = [numbered("a", Protocol::Tcp), numbered("b", Protocol::Udp)];
    let others = lease(&mut w, OTHER_SERVER, &rest).unwrap();
    assert!(others.iter().all(|port| port.exposure != leased[0].exposure));
}

#[test]
fn exhausted_pool_leases_nothing() {
    let mut w = two_ports();
    let three = [numbered("a", Protocol::Tcp), numbered("b", Protocol::TcpTls), numbered("c", Protocol::Http)];
    assert_eq!(lease(&mut w, SERVER, &three), Err(Refusal::PortsExhausted));
    assert_eq!((w.written, w.engine.port_counts(LOCAL)[0]), (0, [2, 0, 0]));
    let two = lease(&mut w, SERVER, &three[..2]).unwrap();
    assert_ne!(two[0].exposure, two[1].exposure);
}

#[test]
fn ended_lease_blocks_ports_until_returned_and_quarantined() {
    let mut w = small(PortRange { first: 26_000, last: 26_000 });
    let ports = [numbered("game", Protocol::Udp)];
    lease(&mut w, SERVER, &ports).unwrap();
    assert!(end(&mut w, SERVER));
    assert!(!end(&mut w, SERVER), "once");
    w.pass(3_600_000);
    assert_eq!(lease(&mut w, OTHER_SERVER, &ports), Err(Refusal::PortsExhausted), "edge-guard has not closed it");
    assert_eq!(lease(&mut w, SERVER, &ports), Err(Refusal::LeaseNotFound), "it is over");
    assert!(returned(&mut w, SERVER));
    assert!(!returned(&mut w, SERVER));
    w.pass(59_999);
    assert_eq!(lease(&mut w, OTHER_SERVER, &ports), Err(Refusal::PortsExhausted), "it rests");
    let ports_of_engine = PortRange { first: 26_000, last: 26_000 };
    w.restart_as(Engine::new(EngineConfig { ports: ports_of_engine, ..EngineConfig::new(1, keys(&[1], 1)) }));
    assert_eq!(w.engine.port_counts(LOCAL)[1], [0, 0, 1], "quarantined after a restart too");
    w.pass(1);
    lease(&mut w, OTHER_SERVER, &ports).unwrap();
}

#[test]
fn live_lease_cannot_be_returned() {
    let mut w = two_ports();
    lease(&mut w, SERVER, &[numbered("game", Protocol::Udp)]).unwrap();
    assert!(!returned(&mut w, SERVER));
    assert!(!returned(&mut w, OTHER_SERVER));
    assert!(!end(&mut w, OTHER_SERVER), "a server without a lease");
    assert_eq!(w.engine.port_counts(LOCAL)[1], [1, 1, 0]);
}

#[test]
fn refused_port_is_replaced_before_publication() {
    let mut w = two_ports();
    let old = number(&lease(&mut w, SERVER, &[numbered("game", Protocol::Tcp)]).unwrap()[0]);
    let replace = |w: &mut TestEngine, refused| w.run(|e, cx| e.replace_port(cx, SERVER, "game", refused, 3)).result;
    let new = replace(&mut w, old).unwrap().unwrap();
    assert_ne!(new, old);
    assert_eq!(replace(&mut w, old), Ok(Some(new)), "a repeated request changes nothing");
    assert_eq!(replace(&mut w, new), Err(Refusal::PortsExhausted), "the first one rests for ten minutes");
    w.pass(599_999);
    assert_eq!(replace(&mut w, new), Err(Refusal::PortsExhausted));
    w.run(|e, cx| e.set_backends(cx, SERVER, &[("game", "127.0.0.1", 12_000)])).result.unwrap();
    w.pass(1);
    assert_eq!(replace(&mut w, new), Ok(Some(new)), "players may know it by now");
    assert_eq!(w.run(|e, cx| e.replace_port(cx, SERVER, "other", 1, 3)).result, Ok(None));
}

#[test]
fn routes_since_returns_durable_changes_only() {
    let mut w = TestEngine::new();
    let nothing = w.engine.routes_since(LOCAL, 0, Lsn::MAX);
    assert!(nothing.is_complete && nothing.changed.is_empty() && nothing.removed.is_empty());
    lease(&mut w, SERVER, &[numbered("game", Protocol::Udp), numbered("chat", Protocol::Tcp)]).unwrap();
    let known = w.engine.last_lsn();
    let behind = w.engine.routes_since(LOCAL, known, known - 1);
    assert_eq!((behind.changed.len(), behind.lsn), (0, known), "a reader ahead of the durable LSN gets nothing");
    let first = w.engine.routes_since(LOCAL, 0, Lsn::MAX);
    assert_eq!((first.is_complete, first.changed.len(), first.lsn), (true, 2, w.engine.last_lsn()));
    let place = |w: &mut TestEngine| {
        let backends = [("game", "127.0.0.1", 12_000), ("chat", "127.0.0.1", 12_001)];
        w.run(|e, cx| e.set_backends(cx, SERVER, &backends)).result.unwrap();
    };
    place(&mut w);
    place(&mut w);
    assert_eq!(w.written, 0, "an unchanged value adds no event");
    lease(&mut w, OTHER_SERVER, &[numbered("game", Protocol::Udp)]).unwrap();
    let next = w.engine.routes_since(LOCAL, first.lsn, Lsn::MAX);
    assert!(!next.is_complete);
    let backends: Vec<_> = next.changed.iter().map(|route| route.port.backend.as_ref().map(|one| one.port)).collect();
    assert_eq!(backends, [Some(12_000), Some(12_001), None]);
    end(&mut w, SERVER);
    let last = w.engine.routes_since(LOCAL, next.lsn, Lsn::MAX);
    assert_eq!((last.changed.len(), last.removed), (0, vec![SERVER]));
    let all = w.engine.routes_since(LOCAL, 0, Lsn::MAX);
    assert_eq!((all.changed.len(), all.removed), (1, vec![SERVER]), "until its sockets are closed");
    returned(&mut w, SERVER);
    assert!(w.engine.routes_since(LOCAL, 0, Lsn::MAX).removed.is_empty());
    assert!(w.engine.routes_since(LOCAL, last.lsn + 100, Lsn::MAX).is_complete, "an LSN of another engine");
}

#[test]
fn complete_set_contains_owners_with_a_change_in_flight() {
    let mut w = TestEngine::new();
    lease(&mut w, SERVER, &[numbered("game", Protocol::Udp)]).unwrap();
    let durable = w.engine.last_lsn();
    w.run(|e, cx| e.set_backends(cx, SERVER, &[("game", "127.0.0.1", 12_000)])).result.unwrap();
    let all = w.engine.routes_since(LOCAL, 0, durable);
    assert_eq!(all.changed.iter().map(|route| route.owner).collect::<Vec<_>>(), [SERVER]);
    assert_eq!((all.is_complete, all.lsn), (true, durable + 1), "the reader waits until the change is durable");
    assert!(w.engine.routes_since(LOCAL, all.lsn, durable).changed.is_empty());
    end(&mut w, SERVER);
    let all = w.engine.routes_since(LOCAL, 0, durable);
    assert_eq!((all.removed, all.lsn), (vec![SERVER], durable + 2));
}

#[test]
fn full_disk_refuses_leases_but_ends_them() {
    let mut w = TestEngine::new();
    lease(&mut w, SERVER, &[numbered("game", Protocol::Udp)]).unwrap();
    w.credit = Credit { total: 1_000, reserve: 1_000, largest: 1_000 };
    assert_eq!(lease(&mut w, OTHER_SERVER, &[numbered("game", Protocol::Udp)]), Err(Refusal::StorageFull));
    assert!(end(&mut w, SERVER));
    assert!(returned(&mut w, SERVER));
    w.credit = Credit { total: 0, reserve: 0, largest: 0 };
    w.credit.total = 0;
    assert_eq!(w.run(|e, cx| e.set_backends(cx, SERVER, &[])).result, Err(Refusal::LeaseNotFound));
}

#[test]
fn lease_outside_a_changed_range_is_valid_until_it_ends() {
    let low = PortRange { first: 26_000, last: 26_003 };
    let high = PortRange { first: 40_000, last: 40_001 };
    let engine = |ports| Engine::new(EngineConfig { ports, ..EngineConfig::new(1, keys(&[1], 1)) });
    let mut w = small(low);
    let pair = [numbered("a", Protocol::Udp), numbered("b", Protocol::TcpUdp)];
    let leased = lease(&mut w, SERVER, &pair).unwrap();
    w.restart_as(engine(high));
    w.replica = engine(high);
    w.replica.load_image(&image_of(&w.engine)).unwrap();
    assert_eq!(lease(&mut w, SERVER, &pair).unwrap(), leased, "a lease outside the range is valid until it ends");
    assert_eq!(w.engine.port_counts(LOCAL), [[2, 0, 0], [2, 0, 0]]);
    let later = lease(&mut w, OTHER_SERVER, &pair[..1]).unwrap();
    assert!(high.contains(number(&later[0])));
    let refused = w.run(|e, cx| e.replace_port(cx, SERVER, "a", number(&leased[0]), 1)).result;
    assert!(refused.is_ok(), "edge-guard could not open the number: {refused:?}");
    assert!(end(&mut w, SERVER) && returned(&mut w, SERVER));
    assert_eq!(w.engine.port_counts(LOCAL), [[2, 0, 0], [0, 1, 1]], "only the replacement was of the range");
}
