//! Players of servers that confirm no tokens: edge-guard or a query counts them.

use hosting_core::*;

use crate::test_engine::*;

const COMPARED: [PortRequest<'_>; 1] = [PortRequest { counting: SessionCounting::Compared, ..ONE_PORT[0] }];

fn seat(test: &mut TestEngine, lobby: Id, source: Source) {
    test.join_with(lobby, |c| c.source = source).result.unwrap();
}

fn matched(test: &mut TestEngine, lobby: Id, sessions: &[(Source, u32)], may_free: bool) -> Vec<bool> {
    let presence = Presence { lobby, sessions, count: None, may_free };
    test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap())
}

fn counted(test: &mut TestEngine, lobby: Id, players: u32, sessions: &[(Source, u32)], may_free: bool) {
    let presence = Presence { lobby, sessions, count: Some(players), may_free };
    test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap());
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
        counted(&mut test, lobby, players, &[], may_free);
        assert_eq!(test.players(lobby)[2], connected, "{players} players");
    }
}

#[test]
fn count_that_is_too_low_frees_no_slot_of_a_player_with_a_session() {
    let mut test = TestEngine::new();
    let lobby = test.lobby(|_| {});
    for source in [0, 7, 7, 8] {
        seat(&mut test, lobby, source);
    }
    counted(&mut test, lobby, 4, &[], false);
    let frees = |test: &mut TestEngine, sessions: &[_], connected| {
        counted(test, lobby, 0, sessions, true);
        assert_eq!(test.players(lobby)[2], connected, "{sessions:?}");
    };
    frees(&mut test, &[(7, 2), (8, 1), (9, 1)], 4);
    frees(&mut test, &[(7, 3), (8, 1)], 3);
    frees(&mut test, &[(7, 1), (9, 2)], 3);
    frees(&mut test, &[(7, 1), (8, 1)], 2);
    frees(&mut test, &[(8, 1)], 1);
    frees(&mut test, &[], 0);
}

#[test]
fn sessions_at_a_compared_port_connect_and_free_nothing() {
    let mut test = TestEngine::new();
    let lobby = test.start_idle(|template| template.ports = &COMPARED).result.unwrap();
    test.ready(lobby).unwrap();
    seat(&mut test, lobby, 7);
    assert_eq!(matched(&mut test, lobby, &[(7, 1), (9, 1)], true), [true, true]);
    assert_eq!(test.players(lobby), [0, 1, 0, 0]);
    counted(&mut test, lobby, 1, &[(7, 1)], true);
    assert_eq!(matched(&mut test, lobby, &[], true), [] as [bool; 0]);
    assert_eq!(test.players(lobby), [0, 0, 1, 0]);
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
    let presence = Presence { lobby, sessions: &[(7, 1)], count: None, may_free: true };
    let refusal = test.run(|engine, context| engine.match_presence(context, &presence).result.unwrap_err());
    assert_eq!(refusal, Refusal::StorageFull);
    assert_eq!(test.players(lobby), [0, 1, 0, 0]);
}
