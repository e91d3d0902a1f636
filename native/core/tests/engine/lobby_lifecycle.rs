//! Lobby lifecycle: attach, ready, close, state, heartbeat, stop and end.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

#[test]
fn attached_lobby_is_starting_until_ready() {
    let mut w = TestEngine::new();
    let port = |name: &str| Port { name: name.into(), address: "127.0.0.1".into(), port: 7777, is_tls: false };
    let ports = [port("voice"), port("game")];
    let attached = w.attach_with(|c| c.ports = &ports).result.unwrap();
    assert_eq!(w.engine.keys().verify_lobby(&attached.lobby_token), Some(attached.lobby));
    let view = w.engine.lobby(attached.lobby).unwrap();
    assert!(!view.is_ready && !view.is_open && !view.is_closed);
    assert_eq!(view.ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>(), ["game", "voice"]);
    assert_eq!((view.mode.as_str(), view.region.as_str(), view.max_players), ("duel", "local", [4, 4, 4]));
    assert_eq!(w.ready(attached.lobby), Ok(()));
    assert!(w.engine.lobby(attached.lobby).unwrap().is_open);
    assert_eq!((w.ready(attached.lobby), w.written), (Ok(()), 0), "repeats write nothing");
}

#[test]
fn namespace_lobby_limit_holds() {
    let mut w = TestEngine::new();
    let first = w.starting(|c| c.lobby_count_max = 2);
    w.lobby(|c| c.lobby_count_max = 2);
    let third = w.attach_with(|c| c.lobby_count_max = 2);
    assert_eq!(third.result, Err(TooManyLobbies));
    assert_eq!(third.wait, w.engine.last_lsn());
    assert!(w.attach_with(|c| (c.lobby_count_max, c.namespace) = (2, OTHER_NAMESPACE)).result.is_ok());
    w.detach(first).unwrap();
    assert!(w.attach_with(|c| c.lobby_count_max = 2).result.is_ok(), "an ended lobby does not count");
}

#[test]
fn ready_turns_holds_into_reservations_in_order() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    let first = hold(w.find_with(|c| c.party_size = 2).result.unwrap());
    let second = hold(w.join_with(lobby, |_| {}).result.unwrap());
    assert_eq!(w.written, 0, "a hold is in memory only");
    assert_eq!(w.players(lobby), [3, 0, 0, 0]);
    assert_eq!(w.find_with(|c| c.party_size = 2).result, Err(NoAvailableLobbies), "held slots count");
    assert_eq!(w.join_with(lobby, |c| c.party_size = 2).result, Err(LobbyFull));
    w.pass(60_000);
    assert_eq!(w.resolved(), []);
    w.ready(lobby).unwrap();
    let resolved = w.resolved();
    assert_eq!(resolved.iter().map(|r| r.hold).collect::<Vec<_>>(), [first, second]);
    let lsn = w.engine.lobby_lsn(lobby);
    assert!(resolved.iter().all(|r| r.outcome.wait == lsn && lsn == w.engine.last_lsn()));
    let tokens: Vec<String> = resolved.into_iter().flat_map(|r| r.outcome.result.unwrap().tokens).collect();
    assert_eq!((tokens.len(), w.players(lobby)), (3, [0, 3, 0, 0]));
    w.pass(TTL_MS - 1);
    for token in &tokens {
        assert_eq!(w.connect(lobby, token), Ok(()));
    }
    assert_eq!(w.resolved(), [], "each is reported once");
}

#[test]
fn last_release_frees_a_hold() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (1, 1, 1));
    let first = hold(w.find_with(|c| c.idempotency = key(1)).result.unwrap());
    let again = hold(w.find_with(|c| c.idempotency = key(1)).result.unwrap());
    assert_eq!(first, again, "the same key shares the hold");
    assert_eq!(w.find(), Err(NoAvailableLobbies));
    w.run(|e, cx| e.release_hold(cx, first));
    assert_eq!(w.players(lobby), [1, 0, 0, 0], "one request still waits");
    w.run(|e, cx| e.release_hold(cx, first));
    assert_eq!(w.players(lobby), [0; 4]);
    w.run(|e, cx| e.release_hold(cx, first));
    let next = hold(w.find_with(|_| {}).result.unwrap());
    w.ready(lobby).unwrap();
    let resolved = w.resolved();
    assert_eq!(resolved.len(), 1);
    assert_eq!(resolved[0].hold, next, "the dropped one gets nothing");
    w.run(|e, cx| e.release_hold(cx, next));
    assert_eq!(w.players(lobby), [0, 1, 0, 0], "a lost client changes nothing about a reservation");
}

#[test]
fn holds_survive_closing_the_lobby() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    hold(w.join_with(lobby, |_| {}).result.unwrap());
    w.close(lobby, true).unwrap();
    assert_eq!(w.join(lobby), Err(LobbyClosed));
    w.ready(lobby).unwrap();
    assert!(w.resolved()[0].outcome.result.is_ok());
}

#[test]
fn lobby_end_fails_holds_with_its_reason() {
    type Ending = fn(&mut TestEngine, Id);
    let endings: [(EndReason, Ending); 5] = [
        (EndReason::Removed, |w, lobby| assert!(w.detach(lobby).unwrap())),
        (EndReason::Removed, |w, lobby| assert!(w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap())),
        (EndReason::Exited, |w, lobby| assert!(w.run(|e, cx| e.end(cx, lobby, EndReason::Exited)).result.unwrap())),
        (EndReason::Silent, |w, _| w.pass(60_000)),
        (EndReason::StartTimeout, |w, lobby| {
            for _ in 0..30 {
                w.pass(10_000);
                let _ = w.heartbeat(lobby, None);
            }
        }),
    ];
    for (reason, ending) in endings {
        let mut w = TestEngine::new();
        let lobby = w.starting(|c| c.heartbeat_timeout_ms = 20_000);
        let first = hold(w.find_with(|_| {}).result.unwrap());
        let second = hold(w.join_with(lobby, |c| c.source = 5).result.unwrap());
        ending(&mut w, lobby);
        let resolved = w.resolved();
        assert_eq!(resolved.iter().map(|r| r.hold).collect::<Vec<_>>(), [first, second], "{reason:?}");
        for one in resolved {
            assert_eq!(one.outcome.result, Err(LobbyStartFailed(reason, None)));
            assert_eq!(one.outcome.wait, w.engine.lobby_lsn(lobby));
        }
        assert_eq!(w.engine.namespace_counts()[0].1.slots[1], 0);
    }
}

#[test]
fn start_limit_ends_a_lobby() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    w.pass(299_999);
    assert!(w.engine.lobby(lobby).is_some());
    w.pass(1);
    assert!(w.engine.lobby(lobby).is_none());
    assert_eq!(w.ready(lobby), Err(LobbyStopped));
    assert_eq!(w.join(lobby), Err(LobbyStopped));
    let ready = w.lobby(|_| {});
    w.pass(3_600_000);
    assert!(w.engine.lobby(ready).is_some(), "no heartbeat timeout, and the start limit is over");
}

#[test]
fn late_ready_is_refused_without_a_timer() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    w.pass_unnoticed(300_000);
    assert_eq!(w.ready(lobby), Err(LobbyStopped));
}

#[test]
fn silent_lobby_is_hidden_then_ended() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.pass(1_000);
    assert_eq!(w.find(), Ok(lobby), "not longer than its timeout");
    w.pass_unnoticed(1);
    assert_eq!(w.find(), Err(NoAvailableLobbies), "hidden");
    w.pass(0);
    assert_eq!(listed(&w.engine, NAMESPACE, VERSION), []);
    assert_eq!(w.engine.namespace_counts()[0].1.lobbies, [0, 0, 0, 1]);
    assert!(w.join(lobby).is_ok(), "joined by id all the same");
    assert_eq!((w.heartbeat(lobby, None), w.written), (Ok(()), 0));
    assert_eq!(w.find(), Ok(lobby), "back at once");
    w.pass(2_999);
    assert!(w.engine.lobby(lobby).is_some());
    w.pass_unnoticed(1);
    assert_eq!(w.heartbeat(lobby, None), Err(LobbyStopped), "it learns of its end");
}

#[test]
fn successful_lobby_calls_count_as_heartbeat() {
    type Call = fn(&mut TestEngine, Id, &str);
    let calls: [Call; 8] = [
        |w, lobby, _| w.ready(lobby).unwrap(),
        |w, lobby, _| w.close(lobby, false).unwrap(),
        |w, lobby, _| w.run(|e, cx| e.set_state(cx, lobby, b"1")).result.unwrap(),
        |w, lobby, _| assert_eq!(w.run(|e, cx| e.state(cx, &[NAMESPACE], lobby, Some(lobby))).result, Ok(None)),
        |w, lobby, _| w.heartbeat(lobby, None).unwrap(),
        |w, lobby, _| w.heartbeat(lobby, Some(&[])).unwrap(),
        |w, lobby, token| w.connect(lobby, token).unwrap(),
        |w, lobby, token| w.disconnect(lobby, token, None).unwrap(),
    ];
    for call in calls {
        let mut w = TestEngine::new();
        let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
        let token = w.join(lobby).unwrap();
        w.pass(2_000);
        call(&mut w, lobby, &token);
        w.pass(2_999);
        assert!(w.engine.lobby(lobby).is_some());
    }
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.pass(2_000);
    w.connect(lobby, "player_forged").unwrap_err();
    w.heartbeat(lobby, Some(&["player_forged"])).unwrap_err();
    w.run(|e, cx| e.state(cx, &[OTHER_NAMESPACE], lobby, Some(lobby))).result.unwrap_err();
    w.run(|e, cx| e.state(cx, &[NAMESPACE], lobby, None)).result.unwrap();
    w.pass(1_000);
    assert!(w.engine.lobby(lobby).is_none());
}

#[test]
fn heartbeat_list_frees_missing_players_only() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let tokens: Vec<String> = (0..4).map(|_| w.join(lobby).unwrap()).collect();
    let [first, second, late, reserved] = [&tokens[0], &tokens[1], &tokens[2], &tokens[3]].map(String::as_str);
    w.connect(lobby, first).unwrap();
    w.connect(lobby, second).unwrap();
    w.pass(20_000);
    assert_eq!(w.heartbeat(lobby, Some(&[])), Ok(()));
    assert_eq!(w.players(lobby), [0, 2, 2, 0], "there was no earlier list");
    w.connect(lobby, late).unwrap();
    w.pass(20_000);
    assert_eq!((w.heartbeat(lobby, Some(&[first])), w.written), (Ok(()), 1));
    assert_eq!(w.players(lobby), [0, 1, 2, 0], "second is gone; late came after the first list");
    assert_eq!(w.connect(lobby, second), Err(PlayerTokenConsumed));
    assert_eq!(w.connect(lobby, reserved), Ok(()), "a reserved slot is not the list's business");
    assert_eq!(w.heartbeat(lobby, Some(&[first, reserved])), Ok(()));
    assert_eq!(w.players(lobby), [0, 0, 2, 0], "now late is gone: it was there at the previous list");
}

#[test]
fn grace_time_protects_new_connections() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.heartbeat(lobby, Some(&[])).unwrap();
    w.pass(9_999);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0, 0, 1, 0]);
    w.pass(1);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0; 4]);
}

#[test]
fn foreign_tokens_in_a_list_are_reported_by_index() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    let missing = w.join(lobby).unwrap();
    let foreign = w.join(other).unwrap();
    w.connect(lobby, &token).unwrap();
    w.connect(lobby, &missing).unwrap();
    w.heartbeat(lobby, Some(&[])).unwrap();
    w.pass(20_000);
    let invalid = |indexes: &[u32]| Err(TokenInListInvalid(indexes.into()));
    assert_eq!(w.heartbeat(lobby, Some(&[&token, "player_x"])), invalid(&[1]));
    assert_eq!(w.heartbeat(lobby, Some(&["", &token, &token, &foreign])), invalid(&[0, 3]));
    let first_256: Vec<u32> = (1..257).collect();
    assert_eq!(w.heartbeat(lobby, Some(&[&[&*token][..], &["player_x"; 300]].concat())), invalid(&first_256));
    assert_eq!(w.players(lobby), [0, 0, 2, 0]);
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(w.heartbeat(lobby, Some(&[&token])), Ok(()), "ended tokens are ignored");
    assert_eq!(w.players(lobby), [0; 4]);
}

#[test]
fn kept_slots_survive_a_heartbeat_list() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.heartbeat(lobby, Some(&[])).unwrap();
    w.disconnect(lobby, &token, Some(60_000)).unwrap();
    w.pass(20_000);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0, 0, 0, 1]);
}

#[test]
fn state_is_returned_byte_for_byte() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    let state = |w: &mut TestEngine, namespaces: &[Id]| w.run(|e, cx| e.state(cx, namespaces, lobby, None)).result;
    assert_eq!(state(&mut w, &[NAMESPACE]), Ok(None));
    w.run(|e, cx| e.set_state(cx, lobby, b"{\"a\": 1}")).result.unwrap();
    assert_eq!(state(&mut w, &[OTHER_NAMESPACE, NAMESPACE]), Ok(Some(b"{\"a\": 1}".to_vec())));
    assert_eq!(state(&mut w, &[OTHER_NAMESPACE]), Err(LobbyNotFound));
    assert_eq!(state(&mut w, &[]), Err(LobbyNotFound));
    w.run(|e, cx| e.set_state(cx, lobby, b"{\"a\": 1}")).result.unwrap();
    assert_eq!(w.written, 0, "the same again");
    w.run(|e, cx| e.set_state(cx, lobby, b"")).result.unwrap();
    assert_eq!(state(&mut w, &[NAMESPACE]), Ok(None));
    w.detach(lobby).unwrap();
    assert_eq!(state(&mut w, &[NAMESPACE]), Err(LobbyStopped));
    assert_eq!(w.run(|e, cx| e.set_state(cx, lobby, b"1")).result, Err(LobbyStopped));
}

#[test]
fn ended_lobby_cannot_read_state() {
    let mut w = TestEngine::new();
    let (ended, other) = (w.lobby(|_| {}), w.lobby(|_| {}));
    let read = |w: &mut TestEngine, of: Id| w.run(|e, cx| e.state(cx, &[NAMESPACE], of, Some(ended))).result;
    assert_eq!(read(&mut w, other), Ok(None), "of another lobby of its namespace");
    w.detach(ended).unwrap();
    assert_eq!(read(&mut w, ended), Err(LobbyStopped));
    assert_eq!(read(&mut w, other), Err(LobbyStopped));
    w.pass(86_400_000);
    assert_eq!(read(&mut w, other), Err(LobbyTokenExpired));
}

#[test]
fn lobby_ends_are_counted_by_reason() {
    let mut w = TestEngine::new();
    let exited = w.lobby(|_| {});
    w.run(|e, cx| e.end(cx, exited, EndReason::Exited)).result.unwrap();
    w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.lobby(|c| c.heartbeat_timeout_ms = 1_000);
    w.starting(|_| {});
    for _ in 0..3 {
        let removed = w.lobby(|_| {});
        assert_eq!((w.detach(removed), w.detach(removed)), (Ok(true), Ok(false)));
    }
    w.pass(300_000);
    let counts = w.engine.namespace_counts().remove(0).1;
    assert_eq!((counts.lobbies, counts.lobby_ends), ([0; 4], [1, 1, 2, 3, 0]));
    w.replica.finish_recovery(w.now);
    assert!(w.replica.namespace_counts().iter().all(|(_, counts)| counts.lobby_ends == [0; 5]), "since the start");
}

#[test]
fn stopping_and_reserving_exclude_each_other() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let stop = |w: &mut TestEngine, only_if_idle| w.run(|e, cx| e.stop(cx, lobby, only_if_idle)).result;
    let token = w.join(lobby).unwrap();
    assert_eq!(stop(&mut w, true), Ok(false), "a player has a reservation");
    w.pass_unnoticed(TTL_MS);
    assert_eq!(stop(&mut w, true), Ok(true), "it is over");
    assert_eq!(stop(&mut w, true), Ok(true), "repeats");
    assert_eq!(w.join(lobby), Err(LobbyDraining));
    assert_eq!(w.rejoin(lobby, &token), Err(LobbyDraining));
    assert_eq!(w.find(), Err(NoAvailableLobbies));
    assert_eq!(w.run(|e, cx| e.end(cx, lobby, EndReason::Exited)).result, Ok(true));
    assert_eq!(w.run(|e, cx| e.end(cx, lobby, EndReason::Exited)).result, Ok(false));
    assert_eq!(stop(&mut w, true), Err(LobbyStopped));
    let held = w.starting(|_| {});
    w.join_with(held, |_| {}).result.unwrap();
    assert_eq!(w.run(|e, cx| e.stop(cx, held, true)).result, Ok(false), "a hold is a player");
}

#[test]
fn players_of_a_stopping_lobby_can_connect() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap();
    assert_eq!(w.connect(lobby, &token), Ok(()));
}

#[test]
fn detach_returns_true_then_false_then_not_found() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let by_other = w.run(|e, cx| e.detach(cx, &[OTHER_NAMESPACE], lobby));
    assert_eq!(by_other.result, Err(LobbyNotFound));
    assert_eq!(w.detach(lobby), Ok(true));
    assert_eq!(w.detach(lobby), Ok(false));
    w.pass(86_400_000 - 1);
    assert_eq!(w.detach(lobby), Ok(false));
    w.pass_unnoticed(1);
    assert_eq!(w.detach(lobby), Err(LobbyNotFound), "the time counts, not when it is forgotten");
    assert_eq!(w.join(lobby), Err(LobbyNotFound));
    w.pass(10_000);
    assert_eq!(w.detach(lobby), Err(LobbyNotFound));
    assert_eq!(w.ready(lobby), Err(LobbyTokenExpired));
    assert_eq!(w.close(lobby, true), Err(LobbyTokenExpired));
    assert_eq!(w.heartbeat(lobby, None), Err(LobbyTokenExpired));
    let again = w.lobby(|_| {});
    assert_eq!(w.find(), Ok(again), "its number is used again without harm");
}

#[test]
fn counts_follow_lobbies_and_slots() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.starting(|c| c.mode = "arena");
    let closed = w.lobby(|c| c.region = "far");
    w.close(closed, true).unwrap();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.join(lobby).unwrap();
    w.find_with(|c| c.modes = &["arena"]).result.unwrap();
    let (namespace, counts) = w.engine.namespace_counts().remove(0);
    assert_eq!((namespace, counts.lobbies, counts.slots), (NAMESPACE, [1, 1, 1, 0], [9, 1, 1, 1, 0]));
    let players: Vec<(String, String, u64)> =
        w.engine.player_counts(NAMESPACE).into_iter().map(|c| (c.mode, c.region, c.player_count)).collect();
    let expected = [("arena", "local", 0), ("duel", "far", 0), ("duel", "local", 1)];
    assert_eq!(players, expected.map(|(mode, region, count)| (mode.to_owned(), region.to_owned(), count)));
    w.detach(lobby).unwrap();
    let counts = w.engine.namespace_counts().remove(0).1;
    assert_eq!((counts.lobbies, counts.slots, counts.ends), ([1, 0, 1, 0], [7, 1, 0, 0, 0], [0, 0, 0, 2]));
    assert_eq!(w.engine.player_counts(NAMESPACE).len(), 2);
}

#[test]
fn lobby_without_a_listener_gets_no_players() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    let set = |w: &mut TestEngine, ids: &[Id]| {
        w.run(|e, cx| e.set_unreachable(cx, ids.iter().map(|id| (*id, "Nothing listens.".to_owned())).collect()))
    };
    set(&mut w, &[lobby, Id([9; 16])]).result.unwrap();
    let held = hold(w.find_with(|_| {}).result.unwrap());
    w.ready(lobby).unwrap();
    let resolved = w.resolved().remove(0);
    let token = resolved.outcome.result.unwrap().tokens.remove(0);
    assert_eq!(resolved.hold, held, "a server that starts has time to listen");
    assert_eq!((w.find(), w.join(lobby)), (Err(NoAvailableLobbies), Err(LobbyUnreachable)));
    assert_eq!(w.engine.unreachable_problem(lobby), Some("Nothing listens."));
    assert_eq!(listed(&w.engine, NAMESPACE, VERSION), []);
    assert_eq!(w.connect(lobby, &token), Ok(()), "its players stay");
    set(&mut w, &[lobby]).result.unwrap();
    assert_eq!(w.find(), Err(NoAvailableLobbies), "a repetition changes nothing");
    set(&mut w, &[]).result.unwrap();
    assert_eq!(w.find(), Ok(lobby));
    set(&mut w, &[lobby]).result.unwrap();
    w.restart();
    assert_eq!(w.find(), Ok(lobby), "it is not durable");
}
