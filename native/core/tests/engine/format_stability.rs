//! Bytes of journal and image, pinned by hash: another encoding could not open existing data.

use hosting_core::*;

use crate::test_engine::*;

const SERVER: Id = Id([0x71; 16]);
const OTHER_SERVER: Id = Id([0x72; 16]);

fn run_every_command(w: &mut TestEngine) {
    w.run(|e, _| e.set_wall_clock(1_700_000_000_000));
    let ports = [Port { name: "game".into(), address: "192.0.2.1".into(), port: 7_777, is_tls: true }];
    let attached = w.attach_with(|c| {
        (c.tags, c.idempotency, c.ports) = (&[("map", "lake")], key(1), &ports);
        c.max_players_party = 8;
    });
    let lobby = attached.result.unwrap().lobby;
    let held = w.find_with(|c| (c.party_size, c.idempotency, c.channels) = (2, key(2), &[[1; 16]]));
    assert!(matches!(held.result, Ok(Admission::Hold(_))));
    w.ready(lobby).unwrap();
    let held = w.resolved().remove(0).outcome.result.unwrap();
    w.connect_with(lobby, &held.tokens[0], key(3)).result.unwrap();
    w.connect(lobby, &held.tokens[1]).unwrap();
    w.run(|e, cx| e.set_state(cx, lobby, b"{\"round\":1}")).result.unwrap();
    w.close(lobby, true).unwrap();
    w.close(lobby, false).unwrap();
    w.disconnect_with(lobby, &held.tokens[0], Some(60_000), key(4)).result.unwrap();
    w.disconnect_with(lobby, &held.tokens[0], Some(60_000), key(5)).result.unwrap();
    w.pass(10);
    w.disconnect(lobby, &held.tokens[1], None).unwrap();
    w.join_with(lobby, |c| (c.source, c.idempotency) = (9, key(6))).result.unwrap();
    let released = w.join(lobby).unwrap();
    w.disconnect(lobby, &released, None).unwrap();
    let idle = w.start_idle(|m| m.lobby_config = Some(b"{}")).result.unwrap();
    w.run(|e, cx| e.set_backends(cx, idle, &[("game", "127.0.0.1", 30_000)])).result.unwrap();
    let exited = w.start_idle(|_| {}).result.unwrap();
    w.run(|e, cx| e.process_exited(cx, exited, Some(-9))).result.unwrap();
    let stopped = w.start_idle(|_| {}).result.unwrap();
    w.run(|e, cx| e.stop(cx, stopped, false)).result.unwrap();
    let detached = w.lobby(|_| {});
    w.join(detached).unwrap();
    w.detach(detached).unwrap();
    for (owner, random) in [(SERVER, 1), (OTHER_SERVER, 2)] {
        let lease = LeaseRequest { owner, namespace: NAMESPACE, region: "local", ports: &ONE_PORT, random };
        let leased = w.run(|e, cx| e.lease_ports(cx, &lease)).result.unwrap();
        let PortExposure::Number(number) = leased.ports[0].exposure else { panic!("{leased:?}") };
        w.run(|e, cx| e.replace_port(cx, owner, "game", number, random + 2)).result.unwrap();
    }
    w.run(|e, cx| e.end_lease(cx, SERVER)).result.unwrap();
    w.run(|e, cx| e.return_ports(cx, SERVER, LOCAL)).result.unwrap();
    w.run(|e, cx| e.record_captcha_pass(cx, 9)).result.unwrap();
    w.run(|e, cx| e.count_captcha_request(cx, 9));
    let mock = w.run(|e, cx| e.mock_player_token(cx, NAMESPACE, Id([0x31; 16]), &[5; 16]));
    w.run(|e, cx| e.consume_mock_token(cx, NAMESPACE, NAMESPACE, Id([0x31; 16]), &mock)).result.unwrap();
    w.run(|e, cx| e.acknowledge_facts(cx, 2));
    w.pass(120_000);
    w.pass(600_000);
    w.join_with(lobby, |c| (c.party_size, c.idempotency, c.channels) = (3, key(7), &[[2; 16]])).result.unwrap();
}

#[test]
fn log_and_image_of_every_command_keep_their_bytes() {
    let mut w = TestEngine::new();
    run_every_command(&mut w);
    let log: Vec<u8> = w.log.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
    let image = image_of(&w.engine);
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
    assert_eq!(
        (w.engine.last_lsn(), hash(&log).as_str(), hash(&image).as_str()),
        (46, "5715fc337df339bb", "871565a2d895c534")
    );
}

#[test]
fn log_and_image_of_a_trial_keep_their_bytes() {
    let mut w = TestEngine::new();
    let trial = w.start_idle(|template| template.trial_ms = Some(60_000)).result.unwrap();
    w.ready(trial).unwrap();
    let ended = w.start_idle(|template| template.trial_ms = Some(10)).result.unwrap();
    w.pass(10);
    assert!(w.engine.lobby(ended).is_none());
    let log: Vec<u8> = w.log.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
    assert_eq!((hash(&log).as_str(), hash(&image_of(&w.engine)).as_str()), ("93c6a842fa332606", "09248ca2b19f5d4b"));
}

#[test]
fn log_and_image_of_a_cluster_keep_their_bytes() {
    let engine = || Engine::new(EngineConfig { binds_ports_later: true, ..EngineConfig::new(1, keys(&[1], 1)) });
    let mut w = TestEngine::with(engine(), engine());
    let lobby = w.start_idle(|_| {}).result.unwrap();
    for owner in [SERVER, OTHER_SERVER] {
        let lease = LeaseRequest { owner, namespace: NAMESPACE, region: "local", ports: &ONE_PORT, random: 0 };
        w.run(|e, cx| e.lease_ports(cx, &lease)).result.unwrap();
    }
    for (owner, node) in [(lobby, "n1"), (lobby, "n2"), (SERVER, "n1")] {
        let binding = BindPorts { owner, node, host: "192.0.2.1", random: 1 };
        w.run(|e, cx| e.bind_ports(cx, &binding)).result.unwrap();
    }
    w.run(|e, cx| e.return_ports(cx, lobby, "n1")).result.unwrap();
    w.run(|e, cx| e.end_lease(cx, SERVER)).result.unwrap();
    w.run(|e, cx| e.set_backends(cx, lobby, &[("game", "10.0.0.1", 30_000)])).result.unwrap();
    let log: Vec<u8> = w.log.iter().flat_map(|(_, _, bytes)| bytes.iter().copied()).collect();
    let hash = |bytes: &[u8]| blake3::hash(bytes).to_hex()[..16].to_owned();
    assert_eq!((hash(&log).as_str(), hash(&image_of(&w.engine)).as_str()), ("712836f767f369a3", "8d73ee231e5d12de"));
}
