//! Lobby facts for the control plane, and presence counts.

use hosting_core::*;

use crate::test_engine::*;

fn facts_of(engine: &Engine) -> Vec<Fact> {
    engine.read_facts(0, Lsn::MAX, usize::MAX).facts
}

fn ended(fact: &Fact) -> &LobbyEnd {
    match &fact.kind {
        LobbyFactKind::Ended(ended) => ended,
        other => panic!("not an end: {other:?}"),
    }
}

fn acknowledge(w: &mut TestEngine, up_to: Lsn) {
    w.run(|e, cx| e.acknowledge_facts(cx, up_to));
}

#[test]
fn facts_follow_the_lobby_lifecycle_in_order() {
    let mut w = TestEngine::new();
    let start = w.now;
    let lobby = w.starting(|c| (c.mode, c.max_players_party, c.namespace) = ("arena", 8, NAMESPACE));
    w.pass(1_000);
    w.ready(lobby).unwrap();
    w.ready(lobby).unwrap();
    w.pass(1_000);
    w.close(lobby, true).unwrap();
    w.close(lobby, true).unwrap();
    w.close(lobby, false).unwrap();
    w.pass(1_000);
    w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap();
    w.pass(1_000);
    w.run(|e, cx| e.process_exited(cx, lobby, Some(-9))).result.unwrap();
    let details = LobbyDetails {
        version: VERSION,
        mode: "arena".into(),
        region: "local".into(),
        is_public: true,
        is_trial: false,
        max_players: [4, 4, 8],
        create_ts_ms: 1_700_000_000_000,
    };
    let end = LobbyEnd {
        details: details.clone(),
        reason: EndReason::Stopped,
        exit_code: Some(-9),
        attendance: LobbyAttendance::default(),
        players: [0; 3],
    };
    let outbox = [
        (0, LobbyFactKind::Created(Box::new(details))),
        (start + 1_000, LobbyFactKind::Ready),
        (start + 2_000, LobbyFactKind::Closed(true)),
        (start + 2_000, LobbyFactKind::Closed(false)),
        (start + 3_000, LobbyFactKind::Stopping),
        (start + 4_000, LobbyFactKind::Ended(Box::new(end))),
    ];
    let expected = (1..).zip(outbox).map(|(lsn, (at, kind))| Fact { lsn, at, lobby, namespace: NAMESPACE, kind });
    assert_eq!(facts_of(&w.engine), expected.collect::<Vec<_>>());
    assert_eq!(facts_of(&w.replica), facts_of(&w.engine));
}

#[test]
fn end_fact_carries_player_totals() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_grace_ms = 1_000);
    let before = facts_of(&w.engine).len();
    let tokens: Vec<String> = (0..4).map(|_| w.join(lobby).unwrap()).collect();
    let [left_token, kept_token, missing_token, staying_token] = [0, 1, 2, 3].map(|at: usize| tokens[at].as_str());
    w.connect(lobby, left_token).unwrap();
    w.pass(100);
    w.connect(lobby, kept_token).unwrap();
    w.connect(lobby, missing_token).unwrap();
    w.pass(100);
    w.disconnect(lobby, left_token, None).unwrap();
    w.disconnect(lobby, kept_token, Some(60_000)).unwrap();
    w.connect(lobby, staying_token).unwrap();
    w.heartbeat(lobby, Some(&[staying_token])).unwrap();
    w.pass(1_000);
    w.heartbeat(lobby, Some(&[staying_token])).unwrap();
    let again = w.join(lobby).unwrap();
    w.pass(1_000);
    assert_eq!(facts_of(&w.engine).len(), before, "slots are no facts");
    w.detach(lobby).unwrap();
    let facts = facts_of(&w.engine);
    let end = ended(facts.last().unwrap());
    let expected = LobbyAttendance { player_ms: 200 + 100 + 1_100 + 2_000, peak_players: 3, connections: 4 };
    assert_eq!(end.attendance, expected);
    assert_eq!((end.players, end.reason), ([1, 1, 1], EndReason::Removed), "{again} is reserved, {kept_token} kept");
}

#[test]
fn timeout_end_fact_names_its_reason() {
    let mut w = TestEngine::new();
    w.starting(|_| {});
    w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.pass(3_000);
    w.pass(300_000);
    let facts = facts_of(&w.engine);
    let ends: Vec<_> = facts.iter().filter(|fact| matches!(fact.kind, LobbyFactKind::Ended(_))).map(ended).collect();
    let reasons: Vec<_> = ends.iter().map(|end| (end.reason, end.exit_code)).collect();
    assert_eq!(reasons, [(EndReason::Silent, None), (EndReason::StartTimeout, None)]);
}

#[test]
fn acknowledgement_drops_facts_once() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    acknowledge(&mut w, 1);
    assert_eq!((w.written, facts_of(&w.engine)[0].lsn), (1, 2));
    acknowledge(&mut w, 1);
    assert_eq!(w.written, 0);
    acknowledge(&mut w, Lsn::MAX);
    assert_eq!((w.written, facts_of(&w.engine)), (1, Vec::new()));
    w.close(lobby, true).unwrap();
    assert_eq!(facts_of(&w.engine).len(), 1, "what comes later is not acknowledged");
    w.credit = Credit { total: 0, reserve: 0, largest: u64::MAX };
    acknowledge(&mut w, Lsn::MAX);
    assert_eq!((w.written, facts_of(&w.engine).len()), (0, 1), "without credit they stay");
    assert_eq!(w.engine.stored_fact_counts(), (1, 0));
}

#[test]
fn acknowledged_facts_stay_dropped_after_a_crash() {
    let mut w = TestEngine::new();
    let (mut all, mut acknowledged) = (Vec::new(), vec![(0, 0)]);
    for round in 0..12_u64 {
        let lobby = w.lobby(|_| {});
        let token = w.join(lobby).unwrap();
        w.connect(lobby, &token).unwrap();
        w.pass(10 + round);
        w.close(lobby, true).unwrap();
        w.detach(lobby).unwrap();
        all.extend(facts_of(&w.engine).into_iter().filter(|fact| fact.lsn > acknowledged.last().unwrap().1));
        let up_to = w.engine.last_lsn() - round % 4;
        acknowledge(&mut w, up_to);
        acknowledged.push((w.engine.last_lsn(), up_to));
        all.retain(|fact| fact.lsn <= up_to);
    }
    all.extend(facts_of(&w.engine));
    for split in 0..=w.log.len() {
        let mut first = fresh_engine();
        w.log[..split].iter().for_each(|(lsn, count, bytes)| first.apply(*lsn, *count, bytes).unwrap());
        let mut second = from_image(&image_of(&first));
        for engine in [&mut first, &mut second] {
            engine.finish_recovery(w.now);
            let read = acknowledged.iter().rev().find(|(lsn, _)| *lsn <= engine.last_lsn()).map_or(0, |read| read.1);
            let expected: Vec<_> =
                all.iter().filter(|fact| fact.lsn > read && fact.lsn <= engine.last_lsn()).cloned().collect();
            assert_eq!(facts_of(engine), expected, "after {split} commands");
        }
        w.log[split..].iter().for_each(|(lsn, count, bytes)| second.apply(*lsn, *count, bytes).unwrap());
        assert_eq!(second.durable_hash(), w.engine.durable_hash());
    }
}

fn overflown(times: u64) -> (Engine, Vec<u8>) {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let mut events = EventBuffer { bytes: w.log.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect(), count: 2 };
    for round in 0..times {
        let mut cx = Context { now: w.now + round, credit: Credit::UNLIMITED, events: &mut events };
        w.engine.set_closed(&mut cx, lobby, round % 2 == 0).result.unwrap();
    }
    (w.engine, events.bytes)
}

#[test]
fn full_outbox_drops_and_counts_oldest_facts() {
    let lost = 1_234;
    let times = MAX_STORED_FACTS as u64 - 2 + lost;
    let (mut engine, log) = overflown(times);
    let outbox = |engine: &Engine, after| {
        let read = engine.read_facts(after, Lsn::MAX, 1);
        (read.facts[0].lsn, read.oldest, read.lost)
    };
    assert_eq!(outbox(&engine, 0), (lost + 1, lost + 1, lost));
    assert_eq!(engine.stored_fact_counts(), (MAX_STORED_FACTS as u64, lost));
    assert_eq!(outbox(&engine, lost), (lost + 1, lost + 1, 0));
    let mut replica = fresh_engine();
    replica.apply(1, times as u32 + 2, &log).unwrap();
    assert_eq!(replica.durable_hash(), engine.durable_hash());
    let image = image_of(&engine);
    assert!(image.len() < MAX_STORED_FACTS * 64);
    assert_eq!(outbox(&from_image(&image), 0), (lost + 1, lost + 1, lost), "the gap is in the image");
    let mut events = EventBuffer::default();
    let mut cx = Context { now: 0, credit: Credit::UNLIMITED, events: &mut events };
    engine.acknowledge_facts(&mut cx, lost + 5);
    assert_eq!(outbox(&engine, 0), (lost + 6, lost + 6, 0), "a reader after the gap");
    assert_eq!((events.count, events.bytes.len()), (1, 9), "a hundred thousand facts go with nine bytes");
}

#[test]
fn presence_returns_changes_since_a_generation() {
    let mut w = TestEngine::new();
    let changes = |w: &mut TestEngine, after| {
        let presence = w.engine.presence_since(after);
        (presence.generation, presence.namespaces)
    };
    assert_eq!(changes(&mut w, 0), (1, vec![]));
    assert!(w.engine.presence_since(0).is_all && !w.engine.presence_since(1).is_all);
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    assert_eq!(changes(&mut w, 0), (3, vec![(NAMESPACE, 0, 1), (OTHER_NAMESPACE, 0, 1)]));
    assert_eq!(changes(&mut w, 3), (3, vec![]));
    let token = w.join(lobby).unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(changes(&mut w, 3), (3, vec![]), "reserved slots and openness do not count");
    w.connect(lobby, &token).unwrap();
    assert_eq!(changes(&mut w, 3), (4, vec![(NAMESPACE, 1, 1)]));
    assert_eq!(changes(&mut w, 3), (4, vec![(NAMESPACE, 1, 1)]), "for every reader");
    w.disconnect(lobby, &token, Some(1_000)).unwrap();
    let next = w.rejoin(lobby, &token).unwrap();
    w.connect(lobby, &next).unwrap();
    assert_eq!(changes(&mut w, 4), (4, vec![]), "the counts are the same again");
    w.disconnect(lobby, &next, None).unwrap();
    w.run(|e, cx| e.detach(cx, &[OTHER_NAMESPACE], other)).result.unwrap();
    assert_eq!(changes(&mut w, 4), (6, vec![(NAMESPACE, 0, 1), (OTHER_NAMESPACE, 0, 0)]));
    w.close(lobby, false).unwrap();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    let mut recovered = from_image(&image_of(&w.engine));
    recovered.finish_recovery(w.now);
    let presence = recovered.presence_since(6);
    assert!(presence.is_all, "a generation of another engine");
    assert_eq!(presence.namespaces, [(NAMESPACE, 1, 1)], "the counts survive a restart");
}
