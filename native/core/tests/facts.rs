//! Stories of the facts that the control plane reads (design, section 2, "Order of things that span parts"), and of the
//! counts beside them.

#![allow(clippy::unwrap_used)]

mod world;
use world::*;

use hosting_core::*;

fn facts_of(engine: &Engine) -> Vec<Fact> {
    engine.read_facts(0, Lsn::MAX, usize::MAX).facts
}

fn ended(fact: &Fact) -> &Ended {
    match &fact.what {
        What::Ended(ended) => ended,
        other => panic!("not an end: {other:?}"),
    }
}

fn acknowledge(w: &mut World, up_to: Lsn) {
    w.run(|e, cx| e.acknowledge_facts(cx, up_to));
}

fn image_of(engine: &Engine) -> Vec<u8> {
    let mut image = Vec::new();
    engine.write_image(&mut |bytes| image.extend_from_slice(bytes));
    image
}

fn from_image(image: &[u8]) -> Engine {
    let mut engine = fresh_engine();
    engine.load_image(image).unwrap();
    engine
}

#[test]
fn the_life_of_a_lobby_is_told_in_order_with_its_times() {
    let mut w = World::new();
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
    w.run(|e, cx| e.exited(cx, lobby, Some(-9))).result.unwrap();
    let about = About {
        version: VERSION,
        mode: "arena".into(),
        region: "local".into(),
        is_public: true,
        max_players: [4, 4, 8],
        create_ts_ms: 1_700_000_000_000,
    };
    let end = Ended {
        about: about.clone(),
        reason: EndReason::Stopped,
        exit_code: Some(-9),
        attendance: Attendance::default(),
        players: [0; 3],
    };
    let told = [
        (0, What::Made(Box::new(about))),
        (start + 1_000, What::Ready),
        (start + 2_000, What::Closed(true)),
        (start + 2_000, What::Closed(false)),
        (start + 3_000, What::Stopping),
        (start + 4_000, What::Ended(Box::new(end))),
    ];
    let expected = (1..).zip(told).map(|(lsn, (at, what))| Fact { lsn, at, lobby, namespace: NAMESPACE, what });
    assert_eq!(facts_of(&w.engine), expected.collect::<Vec<_>>());
    assert_eq!(facts_of(&w.replica), facts_of(&w.engine));
}

#[test]
fn players_are_told_at_the_end_and_nothing_of_them_before() {
    let mut w = World::new();
    let lobby = w.lobby(|c| c.heartbeat_grace_ms = 1_000);
    let before = facts_of(&w.engine).len();
    let tokens: Vec<String> = (0..4).map(|_| w.join(lobby).unwrap()).collect();
    let [left, kept, missing, stays] = [0, 1, 2, 3].map(|at: usize| tokens[at].as_str());
    w.connect(lobby, left).unwrap();
    w.pass(100);
    w.connect(lobby, kept).unwrap();
    w.connect(lobby, missing).unwrap();
    w.pass(100);
    w.disconnect(lobby, left, None).unwrap();
    w.disconnect(lobby, kept, Some(60_000)).unwrap();
    w.connect(lobby, stays).unwrap();
    w.heartbeat(lobby, Some(&[stays])).unwrap();
    w.pass(1_000);
    w.heartbeat(lobby, Some(&[stays])).unwrap();
    let again = w.join(lobby).unwrap();
    w.pass(1_000);
    assert_eq!(facts_of(&w.engine).len(), before, "places are no facts");
    w.detach(lobby).unwrap();
    let facts = facts_of(&w.engine);
    let end = ended(facts.last().unwrap());
    let expected = Attendance { player_ms: 200 + 100 + 1_100 + 2_000, peak_players: 3, connections: 4 };
    assert_eq!(end.attendance, expected);
    assert_eq!((end.players, end.reason), ([1, 1, 1], EndReason::Removed), "{again} is reserved, {kept} kept");
}

#[test]
fn a_lobby_that_time_ends_is_told_with_its_reason() {
    let mut w = World::new();
    w.starting(|_| {});
    w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.pass(3_000);
    w.pass(300_000);
    let facts = facts_of(&w.engine);
    let ends: Vec<_> = facts.iter().filter(|fact| matches!(fact.what, What::Ended(_))).map(ended).collect();
    let reasons: Vec<_> = ends.iter().map(|end| (end.reason, end.exit_code)).collect();
    assert_eq!(reasons, [(EndReason::Silent, None), (EndReason::StartTimeout, None)]);
}

#[test]
fn acknowledged_facts_go_and_acknowledging_again_writes_nothing() {
    let mut w = World::new();
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
    assert_eq!(w.engine.waiting_facts(), (1, 0));
}

/// A kill between any two events: what was acknowledged durably never comes back, everything else does, under its LSN.
#[test]
fn acknowledged_facts_never_come_back_after_a_kill() {
    let mut w = World::new();
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
            engine.recovered(w.now);
            let read = acknowledged.iter().rev().find(|(lsn, _)| *lsn <= engine.last_lsn()).map_or(0, |read| read.1);
            let expected: Vec<_> =
                all.iter().filter(|fact| fact.lsn > read && fact.lsn <= engine.last_lsn()).cloned().collect();
            assert_eq!(facts_of(engine), expected, "after {split} commands");
        }
        w.log[split..].iter().for_each(|(lsn, count, bytes)| second.apply(*lsn, *count, bytes).unwrap());
        assert_eq!(second.durable_hash(), w.engine.durable_hash());
    }
}

/// Closes and opens a lobby so often that facts are lost; gives the engine and everything that it wrote.
fn overflown(times: u64) -> (Engine, Vec<u8>) {
    let mut w = World::new();
    let lobby = w.lobby(|_| {});
    let mut events = EventBuffer { bytes: w.log.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect(), count: 2 };
    for round in 0..times {
        let mut cx = Context { now: w.now + round, credit: Credit::UNLIMITED, events: &mut events };
        w.engine.set_closed(&mut cx, lobby, round % 2 == 0).result.unwrap();
    }
    (w.engine, events.bytes)
}

#[test]
fn a_missing_reader_loses_the_oldest_facts_and_is_told_how_many() {
    let lost = 1_234;
    let times = FACTS_KEPT as u64 - 2 + lost;
    let (mut engine, log) = overflown(times);
    let told = |engine: &Engine, after| {
        let read = engine.read_facts(after, Lsn::MAX, 1);
        (read.facts[0].lsn, read.oldest, read.lost)
    };
    assert_eq!(told(&engine, 0), (lost + 1, lost + 1, lost));
    assert_eq!(engine.waiting_facts(), (FACTS_KEPT as u64, lost));
    assert_eq!(told(&engine, lost), (lost + 1, lost + 1, 0));
    let mut replica = fresh_engine();
    replica.apply(1, times as u32 + 2, &log).unwrap();
    assert_eq!(replica.durable_hash(), engine.durable_hash());
    let image = image_of(&engine);
    assert!(image.len() < FACTS_KEPT * 64);
    assert_eq!(told(&from_image(&image), 0), (lost + 1, lost + 1, lost), "the gap is in the image");
    let mut events = EventBuffer::default();
    let mut cx = Context { now: 0, credit: Credit::UNLIMITED, events: &mut events };
    engine.acknowledge_facts(&mut cx, lost + 5);
    assert_eq!(told(&engine, 0), (lost + 6, lost + 6, 0), "who has it knows of the gap");
    assert_eq!((events.count, events.bytes.len()), (1, 9), "a hundred thousand facts go with nine bytes");
}

/// Image and log as the first version wrote them: the image was taken two thirds through the log.
const OLD_IMAGE: &[u8] = include_bytes!("old/image");
const OLD_LOG: &[u8] = include_bytes!("old/log");

/// (first LSN, count, bytes) of the old log.
fn old_batches() -> Vec<(Lsn, u32, &'static [u8])> {
    let mut rest = OLD_LOG;
    let mut batches = Vec::new();
    while let Some((head, bytes)) = rest.split_first_chunk::<16>() {
        let lsn = u64::from_le_bytes(head[..8].try_into().unwrap());
        let [count, len] = [8, 12].map(|at| u32::from_le_bytes(head[at..at + 4].try_into().unwrap()));
        let (events, more) = bytes.split_at(len as usize);
        batches.push((lsn, count, events));
        rest = more;
    }
    batches
}

#[test]
fn image_and_log_of_the_first_version_still_open() {
    let mut from_log = fresh_engine();
    let mut from_image = from_image(OLD_IMAGE);
    assert!(from_image.last_lsn() > 20 && facts_of(&from_image).is_empty());
    for (lsn, count, bytes) in old_batches() {
        from_log.apply(lsn, count, bytes).unwrap();
        from_image.apply(lsn, count, bytes).unwrap();
    }
    for engine in [&mut from_log, &mut from_image] {
        engine.recovered(2_000_000);
    }
    assert_eq!(from_log.last_lsn(), from_image.last_lsn());
    assert_eq!(from_log.list(NAMESPACE, VERSION), from_image.list(NAMESPACE, VERSION));
    assert_eq!(from_log.namespace_counts(), from_image.namespace_counts());
    let (all, after_image) = (facts_of(&from_log), facts_of(&from_image));
    let what = |facts: &[Fact]| facts.iter().map(|fact| (fact.lsn, core::mem::discriminant(&fact.what))).collect();
    let tail: Vec<_> = what(&all[all.len() - after_image.len()..]);
    assert_eq!(tail, what(&after_image), "the same events are the same facts");
    assert!(all.iter().all(|fact| matches!(fact.what, What::Ended(_)) || fact.at == 0), "no times were written");
    let end = ended(all.last().unwrap());
    assert_eq!((end.players, end.attendance.peak_players, end.attendance.connections), ([4, 1, 2], 3, 5));
    assert_eq!(end.attendance.player_ms, 1_000, "of the one who stayed to the end; nobody wrote when others left");
    assert_eq!(ended(after_image.last().unwrap()).attendance.connections, 1, "the image knew of none");
}

#[test]
fn presence_tells_what_changed_since_a_generation_and_nothing_else() {
    let mut w = World::new();
    let told = |w: &mut World, after| {
        let presence = w.engine.presence_since(after);
        (presence.generation, presence.namespaces)
    };
    assert_eq!(told(&mut w, 0), (1, vec![]));
    assert!(w.engine.presence_since(0).is_all && !w.engine.presence_since(1).is_all);
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    assert_eq!(told(&mut w, 0), (2, vec![(NAMESPACE, 0, 1), (OTHER_NAMESPACE, 0, 1)]));
    assert_eq!(told(&mut w, 2), (2, vec![]));
    let token = w.join(lobby).unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(told(&mut w, 2), (2, vec![]), "neither places that wait nor openness count");
    w.connect(lobby, &token).unwrap();
    assert_eq!(told(&mut w, 2), (3, vec![(NAMESPACE, 1, 1)]));
    assert_eq!(told(&mut w, 2), (3, vec![(NAMESPACE, 1, 1)]), "also to another reader");
    w.disconnect(lobby, &token, Some(1_000)).unwrap();
    let next = w.rejoin(lobby, &token).unwrap();
    w.connect(lobby, &next).unwrap();
    assert_eq!(told(&mut w, 3), (3, vec![]), "who left and came back changed nothing");
    w.disconnect(lobby, &next, None).unwrap();
    w.run(|e, cx| e.detach(cx, &[OTHER_NAMESPACE], other)).result.unwrap();
    assert_eq!(told(&mut w, 3), (4, vec![(NAMESPACE, 0, 1), (OTHER_NAMESPACE, 0, 0)]));
    w.close(lobby, false).unwrap();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    let mut recovered = from_image(&image_of(&w.engine));
    recovered.recovered(w.now);
    let presence = recovered.presence_since(4);
    assert!(presence.is_all, "what another engine told is not what this one did");
    assert_eq!(presence.namespaces, [(NAMESPACE, 1, 1)], "as many are there after a restart");
}
