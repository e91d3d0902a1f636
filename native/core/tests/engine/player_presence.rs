//! Players of servers that confirm no tokens: edge-guard or a query counts them.

use hosting_core::*;

use crate::test_engine::*;

fn seat(test: &mut TestEngine, lobby: Id, source: Source) {
    test.join_with(lobby, |c| c.source = source).result.unwrap();
}

fn matched(test: &mut TestEngine, lobby: Id, players: &[(Source, u32)], may_free: bool) -> Vec<bool> {
    let presence = Presence { lobby, players, is_total: false, may_free };
    test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap())
}

#[test]
fn sessions_connect_the_reservations_of_their_address() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    for source in [7, 7, 8] {
        seat(&mut test, lobby, source);
    }
    assert_eq!(matched(&mut test, lobby, &[(7, 1), (9, 1)], true), [true, false], "9 has no reservation");
    assert_eq!(test.players(lobby), [0, 2, 1, 0]);
    assert_eq!(matched(&mut test, lobby, &[(7, 2), (8, 1)], true), [true, true], "two players behind one address");
    assert_eq!(test.players(lobby), [0, 0, 3, 0]);
    assert_eq!(matched(&mut test, lobby, &[(7, 5), (8, 1)], true), [true, true], "further sessions share the slots");
    assert_eq!(test.players(lobby), [0, 0, 3, 0]);
    matched(&mut test, lobby, &[(7, 1)], false);
    assert_eq!(test.players(lobby), [0, 0, 3, 0], "the set may be incomplete");
    matched(&mut test, lobby, &[(7, 1)], true);
    assert_eq!(test.players(lobby), [0, 0, 1, 0]);
}

#[test]
fn repeated_set_changes_nothing() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    seat(&mut test, lobby, 7);
    matched(&mut test, lobby, &[(7, 1)], true);
    matched(&mut test, lobby, &[(7, 1)], true);
    assert_eq!(test.written, 0);
}

#[test]
fn reservation_without_an_address_is_for_any_player() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    seat(&mut test, lobby, 0);
    seat(&mut test, lobby, 7);
    assert_eq!(matched(&mut test, lobby, &[(7, 1), (8, 1), (9, 1)], true), [true, true, false]);
    assert_eq!(test.players(lobby), [0, 0, 2, 0]);
    matched(&mut test, lobby, &[(7, 1)], true);
    assert_eq!(test.players(lobby), [0, 0, 1, 0]);
}

#[test]
fn count_of_a_query_matches_all_slots() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    for source in [0, 7, 8] {
        seat(&mut test, lobby, source);
    }
    for (players, may_free, connected) in [(2, false, 2), (0, false, 2), (u32::MAX, false, 3), (1, true, 1)] {
        let presence = Presence { lobby, players: &[(0, players)], is_total: true, may_free };
        test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap());
        assert_eq!(test.players(lobby)[2], connected, "{players} players");
    }
}

#[test]
fn overdue_reservation_does_not_connect() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    seat(&mut test, lobby, 7);
    test.pass_unnoticed(TTL_MS);
    assert_eq!(matched(&mut test, lobby, &[(7, 1)], true), [false]);
    assert_eq!(test.players(lobby)[2], 0);
}

#[test]
fn full_journal_frees_and_connects_nothing() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    seat(&mut test, lobby, 7);
    test.credit = NO_CREDIT;
    let presence = Presence { lobby, players: &[(7, 1)], is_total: false, may_free: true };
    let refusal = test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap_err());
    assert_eq!(refusal, Refusal::StorageFull);
    assert_eq!(test.players(lobby), [0, 1, 0, 0]);
}
