//! Requests for slots that only a ready lobby may fulfil. The reference model asks them in random sequences.

use hosting_core::*;

use crate::test_engine::*;

fn find<'a>() -> Find<'a> {
    Find {
        namespace: NAMESPACE,
        version: VERSION,
        modes: &["duel"],
        regions: &["local"],
        tags: &[],
        party_size: 1,
        source: 0,
        source_limit: 2,
        idempotency: None,
        channels: &[],
        creation: CreationPolicy::Prevented,
    }
}

fn join<'a>(lobby: Id) -> Join<'a> {
    Join {
        namespace: NAMESPACE,
        lobby,
        party_size: 1,
        rejoin_token: None,
        source: 0,
        source_limit: 2,
        idempotency: None,
        channels: &[],
    }
}

fn find_ready(w: &mut TestEngine, find: &Find<'_>) -> Option<(Reservation, Lsn)> {
    w.run(|engine, cx| engine.find_ready(cx, find))
}

fn join_ready(w: &mut TestEngine, join: &Join<'_>) -> Option<(Reservation, Lsn)> {
    w.run(|engine, cx| engine.join_ready(cx, join))
}

/// Asks in both ways, and checks that they reserve nothing.
fn assert_refused(w: &mut TestEngine, find: &Find<'_>, join: &Join<'_>) {
    let (before, players) = (w.engine.durable_hash(), w.players(join.lobby));
    assert_eq!(find_ready(w, find), None);
    assert_eq!(join_ready(w, join), None);
    assert_eq!((w.engine.durable_hash(), w.players(join.lobby)), (before, players));
    assert_eq!(w.resolved(), Vec::new());
}

#[test]
fn ready_lobby_reserves_a_slot_for_each_player() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let (found, wait) = find_ready(&mut w, &Find { party_size: 2, ..find() }).expect("four free slots");
    assert_eq!((found.lobby, found.tokens.len(), wait), (lobby, 2, w.engine.last_lsn()));
    let (joined, wait) = join_ready(&mut w, &Join { party_size: 2, ..join(lobby) }).expect("two free slots");
    assert_eq!((joined.lobby, joined.tokens.len(), wait), (lobby, 2, w.engine.last_lsn()));
    for token in found.tokens.iter().chain(&joined.tokens) {
        w.connect(lobby, token).unwrap();
    }
    assert_refused(&mut w, &find(), &join(lobby));
}

#[test]
fn starting_lobby_holds_no_slot() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    assert_refused(&mut w, &find(), &join(lobby));
    w.ready(lobby).unwrap();
    assert!(find_ready(&mut w, &find()).is_some() && join_ready(&mut w, &join(lobby)).is_some());
}

#[test]
fn starting_lobby_of_an_earlier_region_is_not_passed_over() {
    let mut w = TestEngine::new();
    let starting = w.starting(|c| c.region = "eu");
    let ready = w.lobby(|_| {});
    assert_eq!(find_ready(&mut w, &Find { regions: &["eu", "local"], ..find() }), None);
    assert_eq!([w.players(starting), w.players(ready)], [[0; 4]; 2]);
    let found = find_ready(&mut w, &Find { regions: &["local", "eu"], ..find() });
    assert_eq!(found.map(|(found, _)| found.lobby), Some(ready));
}

#[test]
fn silent_lobby_is_passed_over() {
    let mut w = TestEngine::new();
    let ready = w.lobby(|c| c.max_players = 8);
    let silent = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    assert_eq!(find_ready(&mut w, &find()).map(|(found, _)| found.lobby), Some(silent), "the fullest lobby");
    w.pass_unnoticed(1_001);
    assert_eq!(find_ready(&mut w, &find()).map(|(found, _)| found.lobby), Some(ready));
}

#[test]
fn limits_refuse() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    assert_refused(&mut w, &Find { party_size: 65, ..find() }, &Join { party_size: 65, ..join(lobby) });
    assert_refused(&mut w, &Find { party_size: 0, ..find() }, &Join { party_size: 0, ..join(lobby) });
    assert_refused(&mut w, &Find { party_size: 5, ..find() }, &Join { party_size: 5, ..join(lobby) });
    let over = (Find { source: 9, party_size: 3, ..find() }, Join { source: 9, party_size: 3, ..join(lobby) });
    assert_refused(&mut w, &over.0, &over.1);
    w.credit = NO_CREDIT;
    assert_refused(&mut w, &find(), &join(lobby));
}

#[test]
fn repeated_requests_and_rejoins_need_the_whole_command() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    assert_eq!(join_ready(&mut w, &Join { rejoin_token: Some(&token), ..join(lobby) }), None);
    let keyed = (Find { idempotency: key(1), ..find() }, Join { idempotency: key(2), ..join(lobby) });
    assert!(find_ready(&mut w, &keyed.0).is_some() && join_ready(&mut w, &keyed.1).is_some());
    assert_refused(&mut w, &keyed.0, &keyed.1);
    assert_eq!(w.players(lobby), [0, 3, 0, 0]);
}
