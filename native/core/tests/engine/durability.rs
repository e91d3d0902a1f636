//! Durability: waits, journal credit, images and replay.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

fn busy_world() -> (TestEngine, Id, Vec<String>) {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (16, 16, 16));
    let mut tokens = Vec::new();
    for source in 0..6 {
        tokens.push(one_token(w.join_with(lobby, |c| c.source = source).result.unwrap()));
    }
    w.connect_with(lobby, &tokens[0], key(1)).result.unwrap();
    w.connect(lobby, &tokens[1]).unwrap();
    w.connect(lobby, &tokens[2]).unwrap();
    w.disconnect_with(lobby, &tokens[2], Some(300_000), key(2)).result.unwrap();
    w.connect(lobby, &tokens[3]).unwrap();
    w.disconnect(lobby, &tokens[3], None).unwrap();
    w.disconnect(lobby, &tokens[4], None).unwrap();
    w.find_with(|c| (c.idempotency, c.party_size) = (key(3), 3)).result.unwrap();
    let ended = w.lobby(|c| c.idempotency = key(4));
    w.join_with(ended, |c| c.idempotency = key(5)).result.unwrap();
    w.detach(ended).unwrap();
    let starting = w.starting(|c| (c.tags, c.mode) = (&[("map", "red"), ("x", "")], "arena"));
    w.run(|e, cx| e.set_state(cx, starting, b"[1]")).result.unwrap();
    w.join_with(starting, |_| {}).result.unwrap();
    let closed = w.lobby(|_| {});
    w.close(closed, true).unwrap();
    w.run(|e, cx| e.stop(cx, closed, true)).result.unwrap();
    (w, lobby, tokens)
}

#[test]
fn every_answer_about_a_lobby_waits_for_that_lobbys_last_event() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    assert_eq!((w.engine.lobby_lsn(lobby), w.engine.lobby_lsn(other)), (2, 4));
    let joined = w.join_with(lobby, |_| {});
    assert_eq!(joined.wait, 5);
    let token = one_token(joined.result.unwrap());
    let connected = w.connect_with(lobby, &token, None);
    assert_eq!((connected.result, connected.wait), (Ok(()), 6));
    w.join(other).unwrap();
    let repeated = w.connect_with(lobby, &token, None);
    assert_eq!((repeated.result, repeated.wait), (Err(PlayerTokenConsumed), 6), "a refusal waits for durability too");
    let ready = w.run(|e, cx| e.ready(cx, lobby));
    assert_eq!((ready.result, ready.wait), (Ok(()), 6));
    let state = w.run(|e, cx| e.state(cx, &[NAMESPACE], lobby, None));
    assert_eq!((state.result, state.wait), (Ok(None), 6), "a read as well");
    assert_eq!(w.run(|e, cx| e.heartbeat(cx, lobby, None)).wait, 6);
    assert_eq!(w.connect_with(other, &token, None).wait, 7);
    let disconnected = w.disconnect_with(lobby, &token, None, None);
    assert_eq!(disconnected.wait, 8);
    assert_eq!(w.disconnect_with(lobby, &token, None, None).wait, 8, "a repeat without effect");
    let full = w.join_with(lobby, |c| c.party_size = 5);
    assert_eq!((full.result, full.wait), (Err(PartyTooLarge(4)), 8));
    let closed = w.run(|e, cx| e.set_closed(cx, lobby, true));
    assert_eq!(closed.wait, 9);
    assert_eq!(w.join_with(lobby, |_| {}).wait, 9);
    let detached = w.run(|e, cx| e.detach(cx, &[NAMESPACE], lobby));
    assert_eq!((detached.result, detached.wait), (Ok(true), 10));
    w.join(other).unwrap();
    let stopped = w.join_with(lobby, |_| {});
    assert_eq!((stopped.result, stopped.wait), (Err(LobbyStopped), 10));
    assert_eq!(w.run(|e, cx| e.detach(cx, &[NAMESPACE], lobby)).wait, 10);
    assert_eq!(w.connect_with(lobby, &token, None).wait, 10);
}

#[test]
fn expired_answer_waits_for_the_expiry_event() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.pass_unnoticed(TTL_MS);
    let answer = w.connect_with(lobby, &token, None);
    assert_eq!((answer.result, answer.wait, w.written), (Err(PlayerTokenExpired), w.engine.last_lsn(), 1));
}

#[test]
fn global_refusals_wait_for_the_last_event() {
    let mut w = TestEngine::new();
    assert_eq!(w.find_with(|_| {}).wait, 0, "nothing has happened yet");
    let lobby = w.lobby(|_| {});
    w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    assert_eq!(w.find_with(|c| c.modes = &["unknown"]).wait, w.engine.last_lsn());
    assert_eq!(w.attach_with(|c| c.lobby_count_max = 1).wait, w.engine.last_lsn());
    let unknown = w.join_with(lobby_id(77), |_| {});
    assert_eq!((unknown.result, unknown.wait), (Err(LobbyNotFound), 0));
    assert_eq!(w.join_with(lobby, |c| c.rejoin_token = Some("player_x")).wait, 0);
    w.detach(lobby).unwrap();
    w.pass(86_400_000 + 10_000);
    let forgotten = w.join_with(lobby, |_| {});
    assert_eq!((forgotten.result, forgotten.wait), (Err(LobbyNotFound), w.engine.last_lsn()), "it was forgotten there");
}

#[test]
fn without_credit_new_slots_are_refused() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let starting = w.starting(|c| c.mode = "slow");
    let repeated = w.find_with(|c| c.idempotency = key(1)).result.unwrap();
    w.find_with(|c| c.modes = &["slow"]).result.unwrap();
    let before = w.engine.durable_hash();
    for credit in [NO_CREDIT, Credit { total: 1 << 20, reserve: 1 << 20, largest: u64::MAX }] {
        w.credit = credit;
        assert_eq!(w.find(), Err(StorageFull));
        assert_eq!(w.join(lobby), Err(StorageFull));
        assert_eq!(w.attach_with(|_| {}).result, Err(StorageFull));
        assert_eq!(w.ready(starting), Err(StorageFull));
        assert_eq!(w.players(starting), [1, 0, 0, 0], "its hold waits on");
        assert_eq!(w.find_with(|c| c.idempotency = key(1)).result.as_ref(), Ok(&repeated), "a replay needs none");
        assert_eq!(w.ready(lobby), Ok(()), "neither does a repeat");
    }
    assert_eq!(w.engine.durable_hash(), before);
    w.credit = Credit::UNLIMITED;
    w.ready(starting).unwrap();
    assert!(w.resolved()[0].outcome.result.is_ok());
}

#[test]
fn reserve_serves_existing_slots() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let tokens: Vec<String> = (0..3).map(|_| w.join(lobby).unwrap()).collect();
    w.credit = Credit { total: 1 << 20, reserve: 1 << 20, largest: u64::MAX };
    assert_eq!(w.connect(lobby, &tokens[0]), Ok(()));
    assert_eq!(w.disconnect(lobby, &tokens[0], None), Ok(()));
    assert_eq!(w.close(lobby, true), Ok(()));
    w.pass(TTL_MS);
    assert_eq!(w.players(lobby), [0; 4], "expiry continues");
    assert_eq!(w.detach(lobby), Ok(true));
}

#[test]
fn refused_heartbeat_counts_as_no_list() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_grace_ms = 1_000);
    let tokens: Vec<String> = (0..2).map(|_| w.join(lobby).unwrap()).collect();
    w.connect(lobby, &tokens[0]).unwrap();
    w.heartbeat(lobby, Some(&[])).unwrap();
    w.pass(1_000);
    w.connect(lobby, &tokens[1]).unwrap();
    w.credit = NO_CREDIT;
    assert_eq!(w.heartbeat(lobby, Some(&[])), Err(StorageFull));
    w.credit = Credit::UNLIMITED;
    w.pass(1_000);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0, 0, 1, 0], "the second player connected after the last accepted list");
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0; 4]);
}

#[test]
fn without_credit_expiry_is_postponed() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (1, 1, 1));
    let token = w.join(lobby).unwrap();
    w.credit = NO_CREDIT;
    w.pass_unnoticed(TTL_MS);
    assert_eq!(w.run(|e, cx| e.expire_due(cx)), 0);
    assert!(w.engine.next_deadline().is_some_and(|at| at <= w.now), "it is still due");
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
    assert_eq!(w.disconnect(lobby, &token, None), Ok(()));
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    w.credit = Credit { total: 50, reserve: 0, largest: u64::MAX };
    assert_eq!(w.join(lobby), Err(StorageFull), "no journal credit for a slot use");
    assert_eq!(w.run(|e, cx| e.expire_due(cx)), 1, "but for the expiry");
    assert_eq!(w.players(lobby), [0; 4]);
    w.credit = Credit::UNLIMITED;
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
    assert!(w.join(lobby).is_ok());
}

#[test]
fn commands_stay_within_one_submission_after_an_outage() {
    const LARGEST: u64 = 8 * 1024;
    const SLOTS: u32 = 4_000;
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (SLOTS, SLOTS, SLOTS));
    for _ in 0..SLOTS {
        w.join(lobby).unwrap();
    }
    w.pass_unnoticed(TTL_MS);
    let credit = Credit { total: 1 << 40, reserve: 0, largest: LARGEST };
    w.credit = credit;
    assert_eq!(w.join(lobby), Err(LobbyFull), "one call does not expire them all");
    assert!(w.log.last().unwrap().2.len() as u64 <= LARGEST);
    for _ in 0..SLOTS {
        w.credit = credit;
        if w.run(|e, cx| e.expire_due(cx)) == 0 {
            break;
        }
    }
    assert_eq!(w.players(lobby), [0; 4]);
}

#[test]
fn find_expires_due_slots_before_it_refuses() {
    let mut w = TestEngine::new();
    let full = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (300, 300, 300));
    for _ in 0..300 {
        w.join(full).unwrap();
    }
    w.pass_unnoticed(TTL_MS);
    for _ in 0..300 {
        w.join(full).unwrap();
    }
    assert_eq!(w.join(full), Err(LobbyFull));
}

#[test]
fn without_credit_no_slot_or_lobby_changes() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    let token = w.join(lobby).unwrap();
    w.credit = NO_CREDIT;
    assert_eq!(w.connect(lobby, &token), Err(StorageFull));
    assert_eq!(w.disconnect(lobby, &token, None), Err(StorageFull));
    assert_eq!(w.close(lobby, true), Err(StorageFull));
    assert_eq!(w.run(|e, cx| e.set_state(cx, lobby, b"1")).result, Err(StorageFull));
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, false)).result, Err(StorageFull));
    assert_eq!(w.detach(lobby), Err(StorageFull));
    assert_eq!(w.heartbeat(lobby, None), Ok(()), "it writes nothing");
    w.pass_unnoticed(3_000);
    w.run(|e, cx| e.expire_due(cx));
    assert!(w.engine.lobby(lobby).is_some(), "its end is put off");
    w.credit = Credit::UNLIMITED;
    w.pass(0);
    assert!(w.engine.lobby(lobby).is_none());
}

#[test]
fn image_restores_the_same_state() {
    let (mut w, lobby, tokens) = busy_world();
    let image = image_of(&w.engine);
    let mut loaded = from_image(&image);
    assert_eq!(loaded.durable_hash(), w.engine.durable_hash());
    assert_eq!(image_of(&loaded), image);
    assert_eq!(loaded.last_lsn(), w.engine.last_lsn());
    loaded.finish_recovery(w.now);
    assert_eq!(loaded.durable_hash(), w.engine.durable_hash());
    let mut expected = w.engine.lobby(lobby).unwrap();
    expected.players[0] = 0;
    assert_eq!(loaded.lobby(lobby), Some(expected));
    assert_eq!(listed(&loaded, NAMESPACE, VERSION), listed(&w.engine, NAMESPACE, VERSION));
    assert_eq!(loaded.player_counts(NAMESPACE), w.engine.player_counts(NAMESPACE));
    w.engine = loaded;
    assert_eq!(w.connect(lobby, &tokens[0]), Err(PlayerTokenConsumed));
    assert_eq!(w.connect_with(lobby, &tokens[0], key(1)).result, Ok(()), "its key is known");
    assert_eq!(w.connect(lobby, &tokens[4]), Err(PlayerRemoved), "how it ended is known");
    assert_eq!(w.connect(lobby, &tokens[5]), Ok(()));
    w.rejoin(lobby, &tokens[2]).unwrap();
    w.pass(86_400_000 * 2);
    assert_eq!(w.players(lobby), [0, 0, 3, 0]);
}

#[test]
fn engine_continues_from_an_image() {
    let (mut w, lobby, _) = busy_world();
    w.replica = from_image(&image_of(&w.engine));
    for round in 0..30u8 {
        let token = one_token(w.join_with(lobby, |c| c.idempotency = key(100 + round)).result.unwrap());
        if round % 3 == 0 {
            w.connect_with(lobby, &token, key(200 + round)).result.unwrap();
            w.disconnect_with(lobby, &token, None, key(40 + round)).result.unwrap();
        }
        w.pass(71_000);
        if round % 7 == 0 {
            w.replica = from_image(&image_of(&w.engine));
        }
    }
    w.pass(86_400_000);
    w.pass(86_400_000);
}

#[test]
fn image_plus_later_events_equals_all_events() {
    let (w, ..) = busy_world();
    for split in 0..w.log.len() {
        let mut first = fresh_engine();
        for (lsn, count, bytes) in &w.log[..split] {
            first.apply(*lsn, *count, bytes).unwrap();
        }
        let mut second = from_image(&image_of(&first));
        for (lsn, count, bytes) in &w.log {
            second.apply(*lsn, *count, bytes).unwrap();
        }
        assert_eq!(second.durable_hash(), w.engine.durable_hash(), "events of the image are skipped");
        second.finish_recovery(w.now);
        assert_eq!(second.durable_hash(), w.engine.durable_hash());
        assert_eq!(second.ledger_violations(), 0);
    }
}

#[test]
fn recovery_restarts_memory_only_timers() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    let starting = w.starting(|_| {});
    hold(w.join_with(starting, |_| {}).result.unwrap());
    let token = w.join(lobby).unwrap();
    w.now += TTL_MS;
    w.engine = from_image(&image_of(&w.replica));
    let now = w.now;
    w.engine.finish_recovery(now);
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired), "its time ran on");
    assert_eq!(w.players(starting), [0; 4], "holds do not survive");
    w.pass(1_000);
    assert_eq!(w.find(), Ok(lobby), "silence begins anew");
    w.pass(2_000);
    assert!(w.engine.lobby(lobby).is_none());
    assert!(w.engine.lobby(starting).is_some());
    w.pass(300_000 - 3_000);
    assert!(w.engine.lobby(starting).is_none(), "the start limit as well");
}

#[test]
fn damaged_events_are_refused_without_a_panic() {
    let mut engine = fresh_engine();
    assert_eq!(engine.apply(1, 1, &[99, 0, 0]), Err(ApplyError::UnknownKind(99)));
    assert!(Engine::EVENT_KINDS.iter().all(|(kind, name)| *kind > 0 && !name.is_empty()));
    let (w, ..) = busy_world();
    let (lsn, count, bytes) = &w.log[0];
    assert_eq!((*lsn, *count), (1, 1));
    for len in 0..bytes.len() {
        let result = fresh_engine().apply(1, 1, &bytes[..len]);
        assert!(matches!(result, Err(ApplyError::Malformed(_))), "{len}");
    }
    let gap = fresh_engine().apply(2, 1, bytes);
    assert_eq!(gap, Err(ApplyError::Malformed("events are missing")));
    let image = image_of(&w.engine);
    for len in 0..image.len() {
        assert!(fresh_engine().load_image(&image[..len]).is_err(), "{len}");
    }
    for at in 0..image.len() {
        let mut damaged = image.clone();
        damaged[at] ^= 0x81;
        let _ = fresh_engine().load_image(&damaged);
    }
    let all: Vec<u8> = w.log.iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
    let count = w.log.iter().map(|(_, count, _)| count).sum();
    for at in 0..all.len() {
        let mut damaged = all.clone();
        damaged[at] ^= 0x81;
        let _ = fresh_engine().apply(1, count, &damaged);
    }
}

#[test]
fn service_time_never_runs_back() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.pass(TTL_MS);
    w.now -= TTL_MS;
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
    let next = w.join(lobby).unwrap();
    w.now += TTL_MS + 1;
    w.pass(0);
    assert_eq!(w.connect(lobby, &next), Ok(()), "its time began when the latest reading was");
}

#[test]
fn keys_stay_in_use_while_needed() {
    let first = || Engine::new(EngineConfig::new(1, keys(&[1], 1)));
    let mut w = TestEngine::with(first(), first());
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.find_with(|c| c.idempotency = key(1)).result.unwrap();
    let image = image_of(&w.engine);
    let rotated = || {
        let mut engine = Engine::new(EngineConfig::new(1, keys(&[1, 2], 2)));
        engine.load_image(&image).unwrap();
        engine
    };
    let mut w = TestEngine { now: w.now, next_lobby: w.next_lobby, ..TestEngine::with(rotated(), rotated()) };
    let now = w.now;
    w.engine.finish_recovery(now);
    assert_eq!(unused_keys(&mut w.engine), []);
    assert_eq!(w.connect(lobby, &token), Ok(()), "old tokens verify");
    let again = one_token(w.find_with(|c| c.idempotency = key(1)).result.unwrap());
    assert_eq!(w.connect(lobby, &again), Ok(()), "stored tokens keep their key");
    let newer = w.lobby(|_| {});
    w.join(newer).unwrap();
    w.detach(lobby).unwrap();
    assert_eq!(unused_keys(&mut w.engine), [], "a tombstone names it");
    w.pass(86_400_000 + 10_000);
    assert_eq!(unused_keys(&mut w.engine), [1]);
}

#[test]
fn find_skips_silent_lobbies_without_credit() {
    let mut w = TestEngine::new();
    let silent = w.lobby(|c| c.heartbeat_timeout_ms = 30_000);
    w.pass_unnoticed(20_000);
    let other = w.lobby(|c| c.heartbeat_timeout_ms = 30_000);
    w.pass_unnoticed(10_001);
    // Credit for exactly one reservation.
    let found = (0..).find_map(|total| {
        w.credit = Credit { total, reserve: 0, largest: u64::MAX };
        Some(w.find()).filter(|found| *found != Err(StorageFull))
    });
    assert_eq!(found, Some(Ok(other)));
    w.credit = Credit::UNLIMITED;
    assert_eq!(w.players(silent), [0; 4]);
    w.heartbeat(silent, None).unwrap();
    assert!(w.join(other).is_ok());
    w.pass_unnoticed(20_000);
    assert_eq!(w.find(), Ok(silent), "it spoke, the other is silent");
}
