//! Requests for slots that wait for nothing. The reference model asks them in random sequences.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

fn find_now(w: &mut TestEngine, find: &Find<'_>) -> ImmediatePlacement {
    w.run(|engine, cx| engine.find_now(cx, find))
}

fn join_now(w: &mut TestEngine, join: &Join<'_>) -> ImmediatePlacement {
    w.run(|engine, cx| engine.join_now(cx, join))
}

fn recall_now(w: &mut TestEngine, key: Option<Idempotency>) -> Option<ImmediatePlacement> {
    w.run(|engine, cx| engine.recall_now(cx, &key.expect("a key")))
}

fn outcome(placement: ImmediatePlacement) -> CommandOutcome<Reservation> {
    match placement {
        ImmediatePlacement::Done(outcome) => outcome,
        other => panic!("{other:?}"),
    }
}

fn reserved(placement: ImmediatePlacement) -> (Reservation, Lsn) {
    let CommandOutcome { result, wait } = outcome(placement);
    (result.expect("free slots"), wait)
}

/// Checks that a request changes nothing.
fn unchanged<T>(w: &mut TestEngine, lobbies: &[Id], ask: impl FnOnce(&mut TestEngine) -> T) -> T {
    let state = |w: &TestEngine| {
        let players: Vec<_> = lobbies.iter().map(|lobby| w.players(*lobby)).collect();
        (w.engine.durable_hash(), players)
    };
    let before = state(w);
    let answer = ask(w);
    assert_eq!(state(w), before);
    assert_eq!(w.resolved(), Vec::new());
    answer
}

/// Checks that both requests are refused as the whole commands are.
fn assert_refused(w: &mut TestEngine, find: &Find<'_>, join: &Join<'_>, refusals: [Refusal; 2]) {
    let [of_find, of_join] = refusals;
    unchanged(w, &[join.lobby], |w| {
        let found = outcome(find_now(w, find));
        assert_eq!(found.result, Err(of_find.clone()));
        let whole = w.run(|engine, cx| engine.find(cx, find));
        assert_eq!((whole.result, whole.wait), (Err(of_find), found.wait));
        let joined = outcome(join_now(w, join));
        assert_eq!(joined.result, Err(of_join.clone()));
        let whole = w.run(|engine, cx| engine.join(cx, join));
        assert_eq!((whole.result, whole.wait), (Err(of_join), joined.wait));
    });
}

#[test]
fn ready_lobby_reserves_a_slot_for_each_player() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let (found, wait) = reserved(find_now(&mut w, &Find { party_size: 2, ..find() }));
    assert_eq!((found.lobby, found.tokens.len(), wait), (lobby, 2, w.engine.last_lsn()));
    let (joined, wait) = reserved(join_now(&mut w, &Join { party_size: 2, ..join(lobby) }));
    assert_eq!((joined.lobby, joined.tokens.len(), wait), (lobby, 2, w.engine.last_lsn()));
    for token in found.tokens.iter().chain(&joined.tokens) {
        w.connect(lobby, token).unwrap();
    }
    assert_refused(&mut w, &find(), &join(lobby), [NoAvailableLobbies, LobbyFull]);
}

#[test]
fn starting_lobby_holds_no_slot() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    unchanged(&mut w, &[lobby], |w| {
        assert_eq!(find_now(w, &find()), ImmediatePlacement::LobbyStarting);
        assert_eq!(join_now(w, &join(lobby)), ImmediatePlacement::LobbyStarting);
    });
    w.ready(lobby).unwrap();
    reserved(find_now(&mut w, &find()));
    reserved(join_now(&mut w, &join(lobby)));
}

#[test]
fn starting_lobby_of_an_earlier_region_is_not_passed_over() {
    let mut w = TestEngine::new();
    let starting = w.starting(|c| c.region = "eu");
    let ready = w.lobby(|_| {});
    let first = Find { regions: &["eu", "local"], ..find() };
    let placement = unchanged(&mut w, &[starting, ready], |w| find_now(w, &first));
    assert_eq!(placement, ImmediatePlacement::LobbyStarting);
    let (found, _) = reserved(find_now(&mut w, &Find { regions: &["local", "eu"], ..find() }));
    assert_eq!(found.lobby, ready);
}

#[test]
fn silent_lobby_is_passed_over() {
    let mut w = TestEngine::new();
    let ready = w.lobby(|c| c.max_players = 8);
    let silent = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    assert_eq!(reserved(find_now(&mut w, &find())).0.lobby, silent, "the fullest lobby");
    w.pass_unnoticed(1_001);
    assert_eq!(reserved(find_now(&mut w, &find())).0.lobby, ready);
}

#[test]
fn find_that_may_create_a_lobby_needs_one() {
    let mut w = TestEngine::new();
    let full = w.lobby(|c| c.max_players = 1);
    w.find().unwrap();
    let creation = || CreationPolicy::Impossible { lobby_count_max: 1 };
    let placement = unchanged(&mut w, &[full], |w| find_now(w, &Find { creation: creation(), ..find() }));
    assert_eq!(placement, ImmediatePlacement::LobbyNeeded);
    let refused = outcome(find_now(&mut w, &find()));
    assert_eq!(refused.result, Err(NoAvailableLobbies), "prevented");
}

#[test]
fn limits_refuse_as_those_of_the_whole_command() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    for party_size in [0, 65] {
        let asked = (Find { party_size, ..find() }, Join { party_size, ..join(lobby) });
        assert_refused(&mut w, &asked.0, &asked.1, [PartyTooLarge(64), PartyTooLarge(64)]);
    }
    let large = (Find { party_size: 5, ..find() }, Join { party_size: 5, ..join(lobby) });
    assert_refused(&mut w, &large.0, &large.1, [NoAvailableLobbies, PartyTooLarge(4)]);
    let over = (
        Find { source: 9, source_limit: 2, party_size: 3, ..find() },
        Join { source: 9, source_limit: 2, party_size: 3, ..join(lobby) },
    );
    assert_refused(&mut w, &over.0, &over.1, [TooManyPlayersFromSource, TooManyPlayersFromSource]);
    w.credit = NO_CREDIT;
    assert_refused(&mut w, &find(), &join(lobby), [StorageFull, StorageFull]);
}

#[test]
fn unusable_lobbies_refuse() {
    let mut w = TestEngine::new();
    let (closed, gone) = (w.lobby(|_| {}), w.lobby(|_| {}));
    w.close(closed, true).unwrap();
    w.detach(gone).unwrap();
    assert_eq!(outcome(join_now(&mut w, &join(closed))).result, Err(LobbyClosed));
    assert_eq!(outcome(join_now(&mut w, &join(gone))).result, Err(LobbyStopped));
    assert_eq!(outcome(join_now(&mut w, &join(lobby_id(9)))).result, Err(LobbyNotFound));
}

#[test]
fn rejoin_reserves_the_slot_again() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    let rejoin = Join { rejoin_token: Some(&token), ..join(lobby) };
    let (again, _) = reserved(join_now(&mut w, &rejoin));
    assert_ne!(again.tokens, vec![token.clone()]);
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    let forged = Join { rejoin_token: Some("player_x"), ..join(lobby) };
    assert_eq!(outcome(join_now(&mut w, &forged)).result, Err(PlayerTokenInvalid));
}

#[test]
fn repeated_requests_get_their_first_response() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    assert_eq!((recall_now(&mut w, key(1)), recall_now(&mut w, key(2))), (None, None));
    let find_again = Find { idempotency: key(1), ..find() };
    let found = find_now(&mut w, &find_again);
    unchanged(&mut w, &[lobby], |w| {
        assert_eq!(find_now(w, &find_again), found);
        assert_eq!(recall_now(w, key(1)), Some(found.clone()));
        let other = same_key_other_message(1);
        let reused = outcome(find_now(w, &Find { idempotency: other, ..find() }));
        assert_eq!(reused.result, Err(IdempotencyKeyReused));
        assert_eq!(recall_now(w, other), Some(ImmediatePlacement::Done(reused)));
    });
    let join_again = Join { idempotency: key(2), ..join(lobby) };
    let joined = join_now(&mut w, &join_again);
    assert_ne!(reserved(joined.clone()).0.tokens, reserved(found).0.tokens);
    unchanged(&mut w, &[lobby], |w| {
        assert_eq!(join_now(w, &join_again), joined);
        assert_eq!(recall_now(w, key(2)), Some(joined.clone()));
    });
}

/// A request that waits in a hold is not shared: its repetition has to wait as well.
#[test]
fn repetition_of_a_waiting_request_waits() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    hold(w.find_with(|c| c.idempotency = key(1)).result.unwrap());
    unchanged(&mut w, &[lobby], |w| {
        let repeated = Find { idempotency: key(1), ..find() };
        assert_eq!(find_now(w, &repeated), ImmediatePlacement::LobbyStarting);
        assert_eq!(recall_now(w, key(1)), Some(ImmediatePlacement::LobbyStarting));
        let reused = Find { idempotency: same_key_other_message(1), ..find() };
        assert_eq!(outcome(find_now(w, &reused)).result, Err(IdempotencyKeyReused));
    });
}
