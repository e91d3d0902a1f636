//! Capacity and choice: limits, parties, sources, find and list.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

fn limits(find: u32, direct: u32, party: u32) -> impl Fn(&mut Attach<'_>) {
    move |c| (c.max_players, c.max_players_direct, c.max_players_party) = (find, direct, party)
}

#[test]
fn each_operation_has_its_own_limit() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(limits(2, 3, 5));
    assert_eq!(w.find(), Ok(lobby));
    assert_eq!(w.find(), Ok(lobby));
    assert_eq!(w.find(), Err(NoAvailableLobbies), "find goes up to max_players");
    assert!(w.join(lobby).is_ok());
    assert_eq!(w.join(lobby), Err(LobbyFull), "join of one up to max_players_direct");
    let party = w.join_with(lobby, |c| c.party_size = 2);
    assert_eq!(reservation(party.result.unwrap()).tokens.len(), 2, "a party up to max_players_party");
    assert_eq!(w.join_with(lobby, |c| c.party_size = 2).result, Err(LobbyFull));
    assert_eq!(w.players(lobby), [0, 5, 0, 0]);
}

#[test]
fn party_gets_all_slots_or_none() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join(lobby).unwrap();
    assert_eq!(w.join_with(lobby, |c| c.party_size = 4).result, Err(LobbyFull));
    assert_eq!(w.find_with(|c| c.party_size = 4).result, Err(NoAvailableLobbies));
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    let tokens = reservation(w.join_with(lobby, |c| c.party_size = 3).result.unwrap()).tokens;
    for token in &tokens {
        assert_eq!(w.connect(lobby, token), Ok(()));
    }
    assert_eq!(w.players(lobby), [0, 1, 3, 0]);
}

#[test]
fn oversized_party_is_refused_with_the_limit() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(limits(4, 8, 6));
    assert_eq!(w.join_with(lobby, |c| c.party_size = 7).result, Err(PartyTooLarge(6)));
}

#[test]
fn every_slot_is_reusable() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    for round in 0..50 {
        let tokens: Vec<String> = (0..4).map(|_| w.join(lobby).unwrap()).collect();
        assert_eq!(w.join(lobby), Err(LobbyFull), "round {round}");
        for (index, token) in tokens.iter().enumerate() {
            if index % 2 == 0 {
                w.connect(lobby, token).unwrap();
                w.disconnect(lobby, token, None).unwrap();
            }
        }
        w.pass(TTL_MS);
        assert_eq!(w.players(lobby), [0; 4]);
    }
    let counts = &w.engine.namespace_counts()[0].1;
    assert_eq!(counts.slots, [4, 0, 0, 0, 0]);
    assert_eq!(counts.ends, [100, 100, 0, 0]);
    assert_eq!(counts.tokens[..2], [200, 100]);
}

#[test]
fn find_takes_the_fullest_then_the_oldest() {
    let mut w = TestEngine::new();
    let oldest = w.lobby(|_| {});
    let middle = w.lobby(|_| {});
    let newest = w.lobby(limits(5, 5, 5));
    assert_eq!(w.find(), Ok(oldest), "equally full: the oldest");
    w.join(middle).unwrap();
    w.join(middle).unwrap();
    assert_eq!(w.find(), Ok(middle), "two free are fewer than three");
    assert_eq!(w.find(), Ok(middle));
    assert_eq!(w.find(), Ok(oldest));
    let four = w.find_with(|c| c.party_size = 4);
    assert_eq!(reservation(four.result.unwrap()).lobby, newest, "the only one with four free");
    w.pass(TTL_MS);
    assert_eq!(w.find(), Ok(oldest), "all are empty again; newest has more free slots");
}

#[test]
fn find_tries_regions_in_order_and_ready_lobbies_first() {
    let mut w = TestEngine::new();
    let starting_near = w.starting(|c| c.region = "near");
    let far = w.lobby(|c| c.region = "far");
    let both = |c: &mut Find<'_>| c.regions = &["near", "far"];
    assert!(matches!(w.find_with(both).result, Ok(Admission::Hold(_))), "the nearer region wins though it is starting");
    let near = w.lobby(|c| c.region = "near");
    assert_eq!(reservation(w.find_with(both).result.unwrap()).lobby, near, "ready before starting");
    assert_eq!(w.players(starting_near), [1, 0, 0, 0]);
    let far_first = w.find_with(|c| c.regions = &["nowhere", "far", "near"]);
    assert_eq!(reservation(far_first.result.unwrap()).lobby, far);
    assert_eq!(w.find_with(|c| c.regions = &["nowhere"]).result, Err(NoAvailableLobbies));
}

#[test]
fn find_takes_the_fullest_over_all_modes() {
    let mut w = TestEngine::new();
    let duel = w.lobby(|c| c.mode = "duel");
    let arena = w.lobby(|c| c.mode = "arena");
    w.join(arena).unwrap();
    let any = |c: &mut Find<'_>| c.modes = &["duel", "arena", "unknown"];
    assert_eq!(reservation(w.find_with(any).result.unwrap()).lobby, arena);
    assert_eq!(w.find(), Ok(duel), "only the requested mode");
    assert_eq!(w.find_with(|c| c.modes = &["unknown"]).result, Err(NoAvailableLobbies));
}

#[test]
fn find_requires_all_tags() {
    let mut w = TestEngine::new();
    let plain = w.lobby(|_| {});
    let red = w.lobby(|c| c.tags = &[("map", "red")]);
    let red_ranked = w.lobby(|c| c.tags = &[("map", "red"), ("ranked", "yes")]);
    w.join(plain).unwrap();
    assert_eq!(w.find(), Ok(plain), "no required tag: any lobby");
    w.join(red).unwrap();
    let with_red = |c: &mut Find<'_>| c.tags = &[("map", "red")];
    assert_eq!(reservation(w.find_with(with_red).result.unwrap()).lobby, red);
    let with_both = |c: &mut Find<'_>| c.tags = &[("map", "red"), ("ranked", "yes")];
    assert_eq!(reservation(w.find_with(with_both).result.unwrap()).lobby, red_ranked);
    assert_eq!(w.find_with(|c| c.tags = &[("map", "blue")]).result, Err(NoAvailableLobbies));
    assert_eq!(w.find_with(|c| c.tags = &[("mapr", "ed")]).result, Err(NoAvailableLobbies));
    w.detach(red_ranked).unwrap();
    assert_eq!(w.find_with(with_both).result, Err(NoAvailableLobbies), "no single lobby has both");
}

#[test]
fn find_skips_closed_private_stopping_old_and_foreign_lobbies() {
    let mut w = TestEngine::new();
    let closed = w.lobby(|_| {});
    w.close(closed, true).unwrap();
    let stopping = w.lobby(|_| {});
    w.run(|e, cx| e.stop(cx, stopping, false)).result.unwrap();
    w.lobby(|c| c.version = NEXT_VERSION);
    w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    assert_eq!(w.find(), Err(NoAvailableLobbies));
    assert_eq!(listed(&w.engine, NAMESPACE, VERSION), []);
    w.close(closed, false).unwrap();
    assert_eq!(w.find(), Ok(closed));
    let ids: Vec<Id> = listed(&w.engine, NAMESPACE, VERSION).iter().map(|lobby| lobby.id).collect();
    assert_eq!(ids, [closed]);
}

#[test]
fn list_returns_ready_open_lobbies_oldest_first() {
    let mut w = TestEngine::new();
    let first = w.lobby(|_| {});
    let second = w.lobby(limits(1, 1, 1));
    w.starting(|_| {});
    w.join(second).unwrap();
    let ids: Vec<Id> = listed(&w.engine, NAMESPACE, VERSION).iter().map(|lobby| lobby.id).collect();
    assert_eq!(ids, [first, second], "a full one too");
}

#[test]
fn list_examines_and_copies_a_bounded_part_at_a_time() {
    let mut w = TestEngine::new();
    let all: Vec<Id> = (0..600).map(|_| w.lobby(|c| c.lobby_count_max = 600)).collect();
    let list = |w: &TestEngine, after, with_state| {
        w.engine.list(&ListLobbies { namespace: NAMESPACE, version: VERSION, after, with_state })
    };
    let first = list(&w, 0, false);
    assert_eq!(first.lobbies.iter().map(|lobby| lobby.id).collect::<Vec<_>>(), all[..512]);
    let rest = list(&w, first.next.unwrap(), false);
    assert_eq!((rest.lobbies.len(), rest.next), (88, None));
    for lobby in &all[..8] {
        w.run(|e, cx| e.set_state(cx, *lobby, &[b'7'; 60_000])).result.unwrap();
    }
    let first = list(&w, 0, true);
    assert_eq!(first.lobbies.len(), 5, "300,000 bytes of states");
    assert_eq!(first.lobbies[0].state.as_deref(), Some(&[b'7'; 60_000][..]));
    assert_eq!(list(&w, first.lobbies[4].position, true).lobbies.len(), 512);
    w.detach(all[4]).unwrap();
    assert_eq!(list(&w, first.next.unwrap(), true).lobbies[0].id, all[5], "continues after a lobby that has ended");
    let other = ListLobbies { namespace: NAMESPACE, version: NEXT_VERSION, after: 0, with_state: false };
    let none = w.engine.list(&other);
    assert_eq!((none.lobbies.len(), none.next.is_some()), (0, true), "a part without lobbies has a next one");
    assert_eq!(listed(&w.engine, NAMESPACE, NEXT_VERSION), []);
}

#[test]
fn join_refuses_in_the_documented_order() {
    let mut w = TestEngine::new();
    let join_all_wrong = |c: &mut Join<'_>| (c.party_size, c.source, c.source_limit) = (5, 9, 0);
    let foreign = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    assert_eq!(w.join_with(foreign, join_all_wrong).result, Err(LobbyNotFound));
    assert_eq!(w.join_with(lobby_id(999), join_all_wrong).result, Err(LobbyNotFound));
    let lobby = w.lobby(|c| c.is_join_enabled = false);
    w.close(lobby, true).unwrap();
    w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap();
    assert_eq!(w.join_with(lobby, join_all_wrong).result, Err(JoinDisabled));
    let lobby = w.lobby(|_| {});
    w.close(lobby, true).unwrap();
    assert_eq!(w.join_with(lobby, join_all_wrong).result, Err(LobbyClosed));
    w.run(|e, cx| e.stop(cx, lobby, false)).result.unwrap();
    assert_eq!(w.join_with(lobby, join_all_wrong).result, Err(LobbyDraining));
    w.detach(lobby).unwrap();
    assert_eq!(w.join_with(lobby, join_all_wrong).result, Err(LobbyStopped));
    let lobby = w.lobby(|_| {});
    assert_eq!(w.join_with(lobby, join_all_wrong).result, Err(PartyTooLarge(4)));
    w.join_with(lobby, |c| c.party_size = 4).result.unwrap();
    assert_eq!(w.join_with(lobby, |c| (c.source, c.source_limit) = (9, 0)).result, Err(TooManyPlayersFromSource));
    assert_eq!(w.join(lobby), Err(LobbyFull));
}

#[test]
fn source_limit_covers_all_lobbies_of_a_namespace() {
    let mut w = TestEngine::new();
    let first = w.lobby(|_| {});
    let second = w.lobby(|_| {});
    let starting = w.starting(|c| c.mode = "slow");
    let foreign = w.lobby(|c| c.namespace = OTHER_NAMESPACE);
    let from_seven = |c: &mut Join<'_>| (c.source, c.source_limit) = (7, 4);
    let reserved = one_token(w.join_with(first, from_seven).result.unwrap());
    let connected = one_token(w.join_with(second, from_seven).result.unwrap());
    w.connect(second, &connected).unwrap();
    let kept_slot = one_token(w.join_with(second, from_seven).result.unwrap());
    w.connect(second, &kept_slot).unwrap();
    w.disconnect(second, &kept_slot, Some(1_000)).unwrap();
    let held = hold(w.join_with(starting, from_seven).result.unwrap());
    assert_eq!(w.join_with(first, from_seven).result, Err(TooManyPlayersFromSource), "held, reserved, connected, kept");
    let refused = w.find_with(|c| (c.source, c.source_limit) = (7, 4));
    assert_eq!(refused.result, Err(TooManyPlayersFromSource));
    assert_eq!(refused.wait, w.engine.last_lsn(), "the answer depends on counts of many lobbies");
    let nowhere = w.find_with(|c| (c.modes, c.source, c.source_limit) = (&["unknown"], 7, 4));
    assert_eq!(nowhere.result, Err(TooManyPlayersFromSource), "before lobbies are looked at");
    assert!(w.join_with(first, |c| (c.source, c.source_limit) = (8, 4)).result.is_ok(), "another source");
    let in_foreign = |c: &mut Join<'_>| (c.namespace, c.source, c.source_limit) = (OTHER_NAMESPACE, 7, 1);
    assert!(w.join_with(foreign, in_foreign).result.is_ok(), "another namespace");
    w.run(|e, cx| e.release_hold(cx, held));
    assert!(w.join_with(first, from_seven).result.is_ok(), "the hold is gone");
    w.pass(1_000);
    assert!(w.join_with(first, from_seven).result.is_ok(), "the kept slot is free again");
    w.disconnect(first, &reserved, None).unwrap();
    assert!(w.join_with(second, from_seven).result.is_ok());
    w.detach(second).unwrap();
    let third = w.lobby(|_| {});
    let two = w.join_with(third, |c| (c.party_size, c.source, c.source_limit) = (2, 7, 4));
    assert_eq!(two.result.map(|placed| reservation(placed).tokens.len()), Ok(2), "an ended lobby has no players");
}

#[test]
fn slots_without_a_source_are_not_limited() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    for _ in 0..4 {
        w.join_with(lobby, |c| (c.source, c.source_limit) = (0, 1)).result.unwrap();
    }
}

#[test]
fn find_cost_does_not_grow_with_lobbies() {
    let mut visited = Vec::new();
    for count in [10, 1_000] {
        let (mut engine, mut events) = (fresh_engine(), EventBuffer::default());
        let mut cx = Context { now: 1, credit: Credit::UNLIMITED, events: &mut events };
        for number in 0..count {
            let rare: &[(&str, &str)] = if number % 10 == 3 { &[("map", "rare"), ("x", "y")] } else { &[("x", "y")] };
            let command = Attach {
                id: lobby_id(number),
                namespace: NAMESPACE,
                version: VERSION,
                mode: "duel",
                region: "local",
                tags: rare,
                max_players: 4,
                max_players_direct: 4,
                max_players_party: 4,
                player_token_ttl_ms: TTL_MS,
                heartbeat_timeout_ms: 0,
                heartbeat_grace_ms: 0,
                is_join_enabled: true,
                ports: &[],
                create_ts_ms: 0,
                lobby_count_max: u32::MAX,
                idempotency: None,
            };
            engine.attach(&mut cx, &command).result.unwrap();
            engine.ready(&mut cx, lobby_id(number)).result.unwrap();
        }
        for _ in 0..4 {
            let command = Find { tags: &[("map", "rare"), ("x", "y")], ..find() };
            engine.find(&mut cx, &command).result.unwrap();
        }
        visited.push(engine.find_candidates_visited());
    }
    assert_eq!(visited, [4, 4], "the rarest tag's order is walked, and its first lobby fits");
}
