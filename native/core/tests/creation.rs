//! Lobbies that the service starts: who gets one, whose it is, what becomes of it (decisions 5.3, 5.5, 5.8).

#![allow(clippy::unwrap_used)]

mod world;
use world::*;

use hosting_core::*;

fn find_or_make(w: &mut World, change: impl FnOnce(&mut LobbyTemplate<'_>)) -> Answer<Admission> {
    let mut make = w.own_lobby();
    change(&mut make);
    w.find_with(|c| c.creation = CreationPolicy::Possible(&make))
}

fn create_with(
    w: &mut World,
    key: Option<Idempotency>,
    change: impl FnOnce(&mut LobbyTemplate<'_>),
) -> Answer<Admission> {
    let mut make = w.own_lobby();
    change(&mut make);
    create(w, CreationPolicy::Possible(&make), key, 256)
}

fn create(
    w: &mut World,
    creation: CreationPolicy<'_>,
    idempotency: Option<Idempotency>,
    source_limit: u32,
) -> Answer<Admission> {
    let command =
        Create { namespace: NAMESPACE, creation, party_size: 1, source: 5, source_limit, idempotency, channels: &[] };
    w.run(|e, cx| e.create(cx, &command))
}

fn create_for(w: &mut World, creation: CreationPolicy<'_>, party_size: u32) -> Answer<Admission> {
    let (source, source_limit) = (5, 256);
    let command =
        Create { namespace: NAMESPACE, creation, party_size, source, source_limit, idempotency: None, channels: &[] };
    w.run(|e, cx| e.create(cx, &command))
}

fn wanted(w: &World) -> Vec<(Id, bool)> {
    w.engine.desired_lobbies_since(0).lobbies.iter().map(|one| (one.lobby, one.is_stopping)).collect()
}

fn lobby_of(w: &World, placed: Admission) -> Id {
    w.engine.lobby_of_hold(hold(placed)).unwrap()
}

#[test]
fn who_finds_none_gets_one_made_and_waits_for_it() {
    let mut w = World::new();
    let config: &[u8] = br#"{"map": 3}"#;
    let first = find_or_make(&mut w, |make| make.lobby_config = Some(config));
    let waiting = hold(first.result.unwrap());
    let lobby = w.engine.lobby_of_hold(waiting).unwrap();
    let view = w.engine.lobby(lobby).unwrap();
    let own = view.own.unwrap();
    assert_eq!((own.lobby_config.as_deref(), own.ports.len()), (Some(config), 1));
    assert_eq!((view.is_ready, view.players), (false, [1, 0, 0, 0]));
    assert_eq!(wanted(&w), [(lobby, false)]);
    w.ready(lobby).unwrap();
    let resolved = w.resolved();
    assert_eq!((resolved.len(), resolved[0].hold), (1, waiting));
    assert_eq!(resolved[0].answer.result.as_ref().unwrap().lobby, lobby);
}

#[test]
fn those_who_want_the_same_make_no_more_lobbies_than_they_need() {
    let mut w = World::new();
    let mut lobbies: Vec<Id> = Vec::new();
    for _ in 0..9 {
        let placed = find_or_make(&mut w, |_| {}).result.unwrap();
        lobbies.push(lobby_of(&w, placed));
    }
    lobbies.dedup();
    assert_eq!(lobbies.len(), 3, "four go into one");
    assert_eq!(wanted(&w).len(), 3);
}

#[test]
fn none_is_made_for_who_does_not_want_it_or_where_nothing_can_be_started() {
    let mut w = World::new();
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies));
    let impossible = || CreationPolicy::Impossible { lobby_count_max: 1 };
    let refused = w.find_with(|c| c.creation = impossible());
    assert_eq!(refused.result, Err(Refusal::NoAvailableLobbies));
    assert_eq!(create(&mut w, impossible(), None, 9).result, Err(Refusal::CapacityExhausted));
    let only = find_or_make(&mut w, |make| make.lobby.max_players = 1).result.unwrap();
    lobby_of(&w, only);
    for result in [
        w.find_with(|c| c.creation = impossible()).result,
        create(&mut w, impossible(), None, 9).result,
        find_or_make(&mut w, |make| make.lobby.lobby_count_max = 1).result,
        create_with(&mut w, None, |make| make.lobby.lobby_count_max = 1).result,
    ] {
        assert_eq!(result, Err(Refusal::TooManyLobbies));
    }
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies), "prevented comes before too many");
}

#[test]
fn a_client_over_its_limit_makes_none() {
    let mut w = World::new();
    let make = w.own_lobby();
    create(&mut w, CreationPolicy::Possible(&make), None, 1).result.unwrap();
    let make = w.own_lobby();
    let over = create(&mut w, CreationPolicy::Possible(&make), None, 1).result;
    assert_eq!(over, Err(Refusal::TooManyPlayersFromSource));
    let over = w.find_with(|c| (c.source, c.source_limit, c.creation) = (5, 1, CreationPolicy::Possible(&make)));
    assert_eq!(over.result, Err(Refusal::TooManyPlayersFromSource));
    assert_eq!(wanted(&w).len(), 1);
}

#[test]
fn a_create_is_never_given_a_lobby_that_is_there() {
    let mut w = World::new();
    let there = w.lobby(|_| {});
    let placed = create_with(&mut w, None, |make| make.publicity = Publicity::Private).result.unwrap();
    let own = lobby_of(&w, placed);
    assert_ne!(own, there);
    let view = w.engine.lobby(own).unwrap();
    assert_eq!((view.publicity, view.players), (Publicity::Private, [1, 0, 0, 0]));
    assert_eq!(w.find(), Ok(there), "and a private one is not found");
}

#[test]
fn a_create_that_is_repeated_waits_for_the_same_lobby_and_gets_the_same_token() {
    let mut w = World::new();
    let first = hold(create_with(&mut w, key(1), |_| {}).result.unwrap());
    assert_eq!(create_with(&mut w, key(1), |_| {}).result, Ok(Admission::Held(first)));
    assert_eq!(wanted(&w).len(), 1);
    let lobby = w.engine.lobby_of_hold(first).unwrap();
    w.ready(lobby).unwrap();
    let resolved = w.resolved().remove(0).answer.result.unwrap();
    let again = create_with(&mut w, key(1), |_| {}).result.unwrap();
    assert_eq!(again, Admission::Reserved(resolved));
    let other = create_with(&mut w, same_key_other_message(1), |_| {}).result;
    assert_eq!(other, Err(Refusal::IdempotencyKeyReused));
    w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap();
    assert_eq!(create_with(&mut w, key(1), |_| {}).result, Err(Refusal::LobbyStopped));
}

#[test]
fn without_ports_or_room_on_the_disk_nothing_is_made() {
    let config = || EngineConfig { ports: PortRange { first: 1, last: 0 }, ..EngineConfig::new(1, keys(&[1], 1)) };
    let mut w = World::with(Engine::new(config()), Engine::new(config()));
    assert_eq!(find_or_make(&mut w, |_| {}).result, Err(Refusal::PortsExhausted));
    assert_eq!(create_with(&mut w, None, |_| {}).result, Err(Refusal::PortsExhausted));
    assert_eq!(w.start_idle(|_| {}).result, Err(Refusal::PortsExhausted));
    let mut w = World::new();
    w.credit = Credit { total: 2_000, reserve: 1_900, largest: 2_000 };
    assert_eq!(find_or_make(&mut w, |_| {}).result, Err(Refusal::StorageFull));
    assert_eq!((w.written, wanted(&w).len(), w.engine.port_counts()[0][1]), (0, 0, 0));
}

#[test]
fn all_who_wait_hear_at_once_that_its_process_exited_and_with_what() {
    let mut w = World::new();
    let lobby = {
        let placed = find_or_make(&mut w, |_| {}).result.unwrap();
        find_or_make(&mut w, |_| {}).result.unwrap();
        lobby_of(&w, placed)
    };
    w.run(|e, cx| e.process_exited(cx, lobby, Some(3))).result.unwrap();
    let refusals: Vec<_> = w.resolved().into_iter().map(|one| one.answer.result.unwrap_err()).collect();
    assert_eq!(refusals, vec![Refusal::LobbyStartFailed(EndReason::Exited, Some(3)); 2]);
    assert_eq!(wanted(&w), []);
    assert_eq!(w.engine.desired_lobbies_since(2).gone, [lobby]);
}

#[test]
fn one_that_is_not_ready_in_time_is_over() {
    let mut w = World::new();
    find_or_make(&mut w, |_| {}).result.unwrap();
    w.pass(300_000);
    let [one] = &w.resolved()[..] else { panic!("one waits") };
    assert_eq!(one.answer.result, Err(Refusal::LobbyStartFailed(EndReason::StartTimeout, None)));
    assert_eq!(wanted(&w), []);
    assert_eq!(w.engine.port_counts()[0], [5_999, 1, 0], "its socket may be open");
}

#[test]
fn a_party_that_would_not_fit_has_no_lobby_made_for_it() {
    let mut w = World::new();
    for limit in [1, 2, 3] {
        let mut make = w.own_lobby();
        make.lobby.max_players = limit;
        let found = w.find_with(|c| (c.party_size, c.creation) = (4, CreationPolicy::Possible(&make)));
        assert_eq!((found.result, w.written), (Err(Refusal::PartyTooLarge(limit)), 0));
        make.lobby.max_players = 4;
        (make.lobby.max_players_direct, make.lobby.max_players_party) = (4, limit);
        let created = create_for(&mut w, CreationPolicy::Possible(&make), 4);
        assert_eq!((created.result, w.written), (Err(Refusal::PartyTooLarge(limit)), 0));
    }
    let mut make = w.own_lobby();
    make.lobby.max_players = 0;
    let found = w.find_with(|c| (c.party_size, c.creation) = (2, CreationPolicy::Possible(&make)));
    assert_eq!(found.result, Err(Refusal::PartyTooLarge(1)), "no lobby has less than one place");
    assert_eq!((wanted(&w), w.engine.port_counts()[0][1]), (vec![], 0));
}

#[test]
fn a_party_that_fits_exactly_has_one_made_and_stays_together() {
    let mut w = World::new();
    let mut make = w.own_lobby();
    (make.lobby.max_players, make.lobby.max_players_direct, make.lobby.max_players_party) = (3, 1, 2);
    let found = w.find_with(|c| (c.party_size, c.creation) = (3, CreationPolicy::Possible(&make))).result.unwrap();
    let found = lobby_of(&w, found);
    let mut make = w.own_lobby();
    (make.lobby.max_players, make.lobby.max_players_direct, make.lobby.max_players_party) = (1, 1, 3);
    let created = create_for(&mut w, CreationPolicy::Possible(&make), 3).result.unwrap();
    let created = lobby_of(&w, created);
    for lobby in [found, created] {
        w.ready(lobby).unwrap();
        let [one] = &w.resolved()[..] else { panic!("one waits") };
        assert_eq!(one.answer.result.as_ref().unwrap().tokens.len(), 3);
        assert_eq!(w.players(lobby), [0, 3, 0, 0]);
    }
}

#[test]
fn what_would_be_made_does_not_matter_to_a_party_that_fits_into_what_is_there() {
    let mut w = World::new();
    let there = w.lobby(|_| {});
    let mut make = w.own_lobby();
    make.lobby.max_players = 2;
    let found = w.find_with(|c| (c.party_size, c.creation) = (4, CreationPolicy::Possible(&make))).result.unwrap();
    assert_eq!(reservation(found).lobby, there);
}

#[test]
fn one_of_ours_may_be_silent_until_it_is_ready_and_then_no_longer_than_its_heartbeat_timeout() {
    let mut w = World::new();
    let lobby = {
        let placed = find_or_make(&mut w, |make| make.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
        lobby_of(&w, placed)
    };
    w.pass(299_999);
    assert_eq!((w.resolved(), wanted(&w)), (vec![], vec![(lobby, false)]), "its process has no build yet");
    let second = find_or_make(&mut w, |_| {}).result.unwrap();
    assert_eq!(lobby_of(&w, second), lobby, "it is found as long as it starts");
    w.ready(lobby).unwrap();
    assert_eq!(w.resolved().len(), 2);
    w.pass(1_000);
    assert_eq!(w.find(), Ok(lobby), "not silent for longer");
    w.pass(1);
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies));
    w.pass(1_998);
    assert_eq!(w.heartbeat(lobby, None), Ok(()));
    assert_eq!(w.find(), Ok(lobby), "back at once");
    w.pass(3_000);
    assert_eq!(w.heartbeat(lobby, None), Err(Refusal::LobbyStopped));
    let namespaces = w.engine.namespace_counts();
    assert_eq!(namespaces[0].1.lobby_ends, [0, 0, 1, 0, 0], "silent");
}

#[test]
fn what_is_said_before_ready_does_not_begin_the_silence_of_one_of_ours() {
    let mut w = World::new();
    let lobby = w.start_idle(|make| make.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.close(lobby, true).unwrap();
    w.pass_unnoticed(60_000);
    w.close(lobby, false).unwrap();
    w.pass(60_000);
    assert_eq!(w.heartbeat(lobby, None), Ok(()));
    w.pass(179_999);
    assert_eq!(w.ready(lobby), Ok(()), "five minutes from its beginning");
}

#[test]
fn after_a_crash_one_that_starts_may_be_silent_and_one_that_is_ready_may_not() {
    let mut w = World::new();
    let starting = w.start_idle(|make| make.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    let ready = w.start_idle(|make| make.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.pass(500);
    w.ready(ready).unwrap();
    let mut image = Vec::new();
    w.engine.write_image(&mut |bytes| image.extend_from_slice(bytes));
    let mut from_image = fresh_engine();
    from_image.load_image(&image).unwrap();
    for mut engine in [w.replica, from_image] {
        engine.finish_recovery(w.now);
        let mut events = EventBuffer::default();
        let mut cx = Context { now: w.now + 3_000, credit: Credit::UNLIMITED, events: &mut events };
        engine.expire_due(&mut cx);
        let live = [starting, ready].map(|lobby| engine.lobby(lobby).is_some());
        assert_eq!(live, [true, false]);
        let mut cx = Context { now: w.now + 300_000, credit: Credit::UNLIMITED, events: &mut events };
        engine.expire_due(&mut cx);
        assert_eq!(engine.lobby(starting), None);
    }
}

#[test]
fn stopping_and_reserving_exclude_each_other() {
    let mut w = World::new();
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.ready(lobby).unwrap();
    let token = w.join(lobby).unwrap();
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, true)).result, Ok(false), "somebody has a place");
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, true)).result, Ok(true));
    assert_eq!(w.join(lobby), Err(Refusal::LobbyDraining));
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies));
    assert_eq!(wanted(&w), [(lobby, true)]);
    w.run(|e, cx| e.process_exited(cx, lobby, Some(143))).result.unwrap();
    assert_eq!(w.join(lobby), Err(Refusal::LobbyStopped));
    let facts = w.engine.read_facts(0, Lsn::MAX, 100).facts;
    let Some(LobbyFactKind::Ended(ended)) = facts.last().map(|fact| fact.what.clone()) else {
        panic!("its end is a fact")
    };
    assert_eq!((ended.reason, ended.exit_code), (EndReason::Stopped, Some(143)));
}

#[test]
fn after_a_crash_the_runtime_is_told_of_all_that_ought_to_run() {
    let mut w = World::new();
    let starting = lobby_of_new(&mut w);
    let stopping = w.start_idle(|make| make.lobby.mode = "party").result.unwrap();
    w.ready(stopping).unwrap();
    w.run(|e, cx| e.stop(cx, stopping, false)).result.unwrap();
    let gone = w.start_idle(|make| make.lobby.mode = "party").result.unwrap();
    w.detach(gone).unwrap();
    w.lobby(|_| {});
    w.replica.finish_recovery(w.now);
    let mut all: Vec<_> =
        w.replica.desired_lobbies_since(0).lobbies.iter().map(|one| (one.lobby, one.is_stopping)).collect();
    all.sort_unstable();
    let mut expected = [(starting, false), (stopping, true)];
    expected.sort_unstable();
    assert_eq!(all, expected, "ours alone: what was attached runs elsewhere");
    assert_eq!(w.replica.routes_since(0, Lsn::MAX).removed, [gone]);
}

fn lobby_of_new(w: &mut World) -> Id {
    let placed = find_or_make(w, |_| {}).result.unwrap();
    lobby_of(w, placed)
}
