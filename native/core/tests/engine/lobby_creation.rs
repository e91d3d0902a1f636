//! Lobbies that the service starts: creation by find, create and start_idle, and their end.

use hosting_core::*;

use crate::test_engine::*;

fn find_or_create(w: &mut TestEngine, change: impl FnOnce(&mut LobbyTemplate<'_>)) -> CommandOutcome<Admission> {
    let mut template = w.own_lobby();
    change(&mut template);
    w.find_with(|c| c.creation = CreationPolicy::Possible(&template))
}

fn create_with(
    w: &mut TestEngine,
    key: Option<Idempotency>,
    change: impl FnOnce(&mut LobbyTemplate<'_>),
) -> CommandOutcome<Admission> {
    let mut template = w.own_lobby();
    change(&mut template);
    create(w, CreationPolicy::Possible(&template), key, 256)
}

fn create(
    w: &mut TestEngine,
    creation: CreationPolicy<'_>,
    idempotency: Option<Idempotency>,
    source_limit: u32,
) -> CommandOutcome<Admission> {
    let command =
        Create { namespace: NAMESPACE, creation, party_size: 1, source: 5, source_limit, idempotency, channels: &[] };
    w.run(|e, cx| e.create(cx, &command))
}

fn create_for(w: &mut TestEngine, creation: CreationPolicy<'_>, party_size: u32) -> CommandOutcome<Admission> {
    let (source, source_limit) = (5, 256);
    let command =
        Create { namespace: NAMESPACE, creation, party_size, source, source_limit, idempotency: None, channels: &[] };
    w.run(|e, cx| e.create(cx, &command))
}

fn desired(w: &TestEngine) -> Vec<(Id, bool)> {
    w.engine.desired_lobbies_since(0).lobbies.iter().map(|one| (one.lobby, one.is_stopping)).collect()
}

fn lobby_of(w: &TestEngine, placed: Admission) -> Id {
    w.engine.lobby_of_hold(hold(placed)).unwrap()
}

#[test]
fn find_without_a_fit_creates_a_lobby_and_holds() {
    let mut w = TestEngine::new();
    let config: &[u8] = br#"{"map": 3}"#;
    let first = find_or_create(&mut w, |template| template.lobby_config = Some(config));
    let waiting = hold(first.result.unwrap());
    let lobby = w.engine.lobby_of_hold(waiting).unwrap();
    let view = w.engine.lobby(lobby).unwrap();
    let own = view.own.unwrap();
    assert_eq!((own.lobby_config.as_deref(), own.leased.ports.len()), (Some(config), 1));
    assert_eq!((view.is_ready, view.players), (false, [1, 0, 0, 0]));
    assert_eq!(desired(&w), [(lobby, false)]);
    w.ready(lobby).unwrap();
    let resolved = w.resolved();
    assert_eq!((resolved.len(), resolved[0].hold), (1, waiting));
    assert_eq!(resolved[0].outcome.result.as_ref().unwrap().lobby, lobby);
}

#[test]
fn concurrent_finds_share_created_lobbies() {
    let mut w = TestEngine::new();
    let mut lobbies: Vec<Id> = Vec::new();
    for _ in 0..9 {
        let placed = find_or_create(&mut w, |_| {}).result.unwrap();
        lobbies.push(lobby_of(&w, placed));
    }
    lobbies.dedup();
    assert_eq!(lobbies.len(), 3, "four go into one");
    assert_eq!(desired(&w).len(), 3);
}

#[test]
fn prevented_or_impossible_creation_is_refused() {
    let mut w = TestEngine::new();
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies));
    let impossible = || CreationPolicy::Impossible { lobby_count_max: 1 };
    let refused = w.find_with(|c| c.creation = impossible());
    assert_eq!(refused.result, Err(Refusal::NoAvailableLobbies));
    assert_eq!(create(&mut w, impossible(), None, 9).result, Err(Refusal::CapacityExhausted));
    let only = find_or_create(&mut w, |template| template.lobby.max_players = 1).result.unwrap();
    lobby_of(&w, only);
    for result in [
        w.find_with(|c| c.creation = impossible()).result,
        create(&mut w, impossible(), None, 9).result,
        find_or_create(&mut w, |template| template.lobby.lobby_count_max = 1).result,
        create_with(&mut w, None, |template| template.lobby.lobby_count_max = 1).result,
    ] {
        assert_eq!(result, Err(Refusal::TooManyLobbies));
    }
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies), "prevented comes before too many");
}

#[test]
fn source_limit_prevents_creation() {
    let mut w = TestEngine::new();
    let template = w.own_lobby();
    create(&mut w, CreationPolicy::Possible(&template), None, 1).result.unwrap();
    let template = w.own_lobby();
    let over = create(&mut w, CreationPolicy::Possible(&template), None, 1).result;
    assert_eq!(over, Err(Refusal::TooManyPlayersFromSource));
    let over = w.find_with(|c| (c.source, c.source_limit, c.creation) = (5, 1, CreationPolicy::Possible(&template)));
    assert_eq!(over.result, Err(Refusal::TooManyPlayersFromSource));
    assert_eq!(desired(&w).len(), 1);
}

#[test]
fn create_never_reuses_a_lobby() {
    let mut w = TestEngine::new();
    let there = w.lobby(|_| {});
    let placed = create_with(&mut w, None, |template| template.publicity = Publicity::Private).result.unwrap();
    let own = lobby_of(&w, placed);
    assert_ne!(own, there);
    let view = w.engine.lobby(own).unwrap();
    assert_eq!((view.publicity, view.players), (Publicity::Private, [1, 0, 0, 0]));
    assert_eq!(w.find(), Ok(there), "and a private one is not found");
}

#[test]
fn repeated_create_shares_lobby_and_token() {
    let mut w = TestEngine::new();
    let first = hold(create_with(&mut w, key(1), |_| {}).result.unwrap());
    assert_eq!(create_with(&mut w, key(1), |_| {}).result, Ok(Admission::Hold(first)));
    assert_eq!(desired(&w).len(), 1);
    let lobby = w.engine.lobby_of_hold(first).unwrap();
    w.ready(lobby).unwrap();
    let resolved = w.resolved().remove(0).outcome.result.unwrap();
    let again = create_with(&mut w, key(1), |_| {}).result.unwrap();
    assert_eq!(again, Admission::Reserved(resolved));
    let other = create_with(&mut w, same_key_other_message(1), |_| {}).result;
    assert_eq!(other, Err(Refusal::IdempotencyKeyReused));
    w.run(|e, cx| e.process_exited(cx, lobby, Some(0))).result.unwrap();
    assert_eq!(create_with(&mut w, key(1), |_| {}).result, Err(Refusal::LobbyStopped));
}

#[test]
fn creation_needs_ports_and_credit() {
    let config = || EngineConfig { ports: PortRange { first: 1, last: 0 }, ..EngineConfig::new(1, keys(&[1], 1)) };
    let mut w = TestEngine::with(Engine::new(config()), Engine::new(config()));
    assert_eq!(find_or_create(&mut w, |_| {}).result, Err(Refusal::PortsExhausted));
    assert_eq!(create_with(&mut w, None, |_| {}).result, Err(Refusal::PortsExhausted));
    assert_eq!(w.start_idle(|_| {}).result, Err(Refusal::PortsExhausted));
    let mut w = TestEngine::new();
    w.credit = Credit { total: 2_000, reserve: 1_900, largest: 2_000 };
    assert_eq!(find_or_create(&mut w, |_| {}).result, Err(Refusal::StorageFull));
    assert_eq!((w.written, desired(&w).len(), w.engine.port_counts(LOCAL)[0][1]), (0, 0, 0));
}

#[test]
fn process_exit_fails_all_holds_with_its_code() {
    let mut w = TestEngine::new();
    let lobby = {
        let placed = find_or_create(&mut w, |_| {}).result.unwrap();
        find_or_create(&mut w, |_| {}).result.unwrap();
        lobby_of(&w, placed)
    };
    w.run(|e, cx| e.process_exited(cx, lobby, Some(3))).result.unwrap();
    let refusals: Vec<_> = w.resolved().into_iter().map(|one| one.outcome.result.unwrap_err()).collect();
    assert_eq!(refusals, vec![Refusal::LobbyStartFailed(EndReason::Exited, Some(3)); 2]);
    assert_eq!(desired(&w), []);
    assert_eq!(w.engine.desired_lobbies_since(2).removed, [lobby]);
}

#[test]
fn start_limit_ends_a_managed_lobby() {
    let mut w = TestEngine::new();
    find_or_create(&mut w, |_| {}).result.unwrap();
    w.pass(300_000);
    let [one] = &w.resolved()[..] else { panic!("one waits") };
    assert_eq!(one.outcome.result, Err(Refusal::LobbyStartFailed(EndReason::StartTimeout, None)));
    assert_eq!(desired(&w), []);
    assert_eq!(w.engine.port_counts(LOCAL)[0], [5_999, 1, 0], "its socket may be open");
}

#[test]
fn oversized_party_creates_no_lobby() {
    let mut w = TestEngine::new();
    for limit in [1, 2, 3] {
        let mut template = w.own_lobby();
        template.lobby.max_players = limit;
        let found = w.find_with(|c| (c.party_size, c.creation) = (4, CreationPolicy::Possible(&template)));
        assert_eq!((found.result, w.written), (Err(Refusal::PartyTooLarge(limit)), 0));
        template.lobby.max_players = 4;
        (template.lobby.max_players_direct, template.lobby.max_players_party) = (4, limit);
        let created = create_for(&mut w, CreationPolicy::Possible(&template), 4);
        assert_eq!((created.result, w.written), (Err(Refusal::PartyTooLarge(limit)), 0));
    }
    let mut template = w.own_lobby();
    template.lobby.max_players = 0;
    let found = w.find_with(|c| (c.party_size, c.creation) = (2, CreationPolicy::Possible(&template)));
    assert_eq!(found.result, Err(Refusal::PartyTooLarge(1)), "no lobby has less than one slot");
    assert_eq!((desired(&w), w.engine.port_counts(LOCAL)[0][1]), (vec![], 0));
}

#[test]
fn exactly_fitting_party_gets_one_lobby() {
    let mut w = TestEngine::new();
    let mut template = w.own_lobby();
    (template.lobby.max_players, template.lobby.max_players_direct, template.lobby.max_players_party) = (3, 1, 2);
    let found = w.find_with(|c| (c.party_size, c.creation) = (3, CreationPolicy::Possible(&template))).result.unwrap();
    let found = lobby_of(&w, found);
    let mut template = w.own_lobby();
    (template.lobby.max_players, template.lobby.max_players_direct, template.lobby.max_players_party) = (1, 1, 3);
    let created = create_for(&mut w, CreationPolicy::Possible(&template), 3).result.unwrap();
    let created = lobby_of(&w, created);
    for lobby in [found, created] {
        w.ready(lobby).unwrap();
        let [one] = &w.resolved()[..] else { panic!("one waits") };
        assert_eq!(one.outcome.result.as_ref().unwrap().tokens.len(), 3);
        assert_eq!(w.players(lobby), [0, 3, 0, 0]);
    }
}

#[test]
fn template_limits_do_not_affect_existing_lobbies() {
    let mut w = TestEngine::new();
    let there = w.lobby(|_| {});
    let mut template = w.own_lobby();
    template.lobby.max_players = 2;
    let found = w.find_with(|c| (c.party_size, c.creation) = (4, CreationPolicy::Possible(&template))).result.unwrap();
    assert_eq!(reservation(found).lobby, there);
}

#[test]
fn managed_lobby_is_heartbeat_exempt_until_ready() {
    let mut w = TestEngine::new();
    let lobby = {
        let placed = find_or_create(&mut w, |template| template.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
        lobby_of(&w, placed)
    };
    w.pass(299_999);
    assert_eq!((w.resolved(), desired(&w)), (vec![], vec![(lobby, false)]), "its process has no build yet");
    let second = find_or_create(&mut w, |_| {}).result.unwrap();
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
fn heartbeats_before_ready_start_no_timeout() {
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|template| template.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.close(lobby, true).unwrap();
    w.pass_unnoticed(60_000);
    w.close(lobby, false).unwrap();
    w.pass(60_000);
    assert_eq!(w.heartbeat(lobby, None), Ok(()));
    w.pass(179_999);
    assert_eq!(w.ready(lobby), Ok(()), "five minutes from its beginning");
}

#[test]
fn recovery_keeps_heartbeat_exemption_of_starting_lobbies() {
    let mut w = TestEngine::new();
    let starting = w.start_idle(|template| template.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    let ready = w.start_idle(|template| template.lobby.heartbeat_timeout_ms = 1_000).result.unwrap();
    w.pass(500);
    w.ready(ready).unwrap();
    let image = image_of(&w.engine);
    for mut engine in [w.replica, from_image(&image)] {
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
    let mut w = TestEngine::new();
    let lobby = w.start_idle(|_| {}).result.unwrap();
    w.ready(lobby).unwrap();
    let token = w.join(lobby).unwrap();
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, true)).result, Ok(false), "a player has a slot");
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, true)).result, Ok(true));
    assert_eq!(w.join(lobby), Err(Refusal::LobbyDraining));
    assert_eq!(w.find(), Err(Refusal::NoAvailableLobbies));
    assert_eq!(desired(&w), [(lobby, true)]);
    w.run(|e, cx| e.process_exited(cx, lobby, Some(143))).result.unwrap();
    assert_eq!(w.join(lobby), Err(Refusal::LobbyStopped));
    let facts = w.engine.read_facts(0, Lsn::MAX, 100).facts;
    let Some(LobbyFactKind::Ended(ended)) = facts.last().map(|fact| fact.kind.clone()) else {
        panic!("its end is a fact")
    };
    assert_eq!((ended.reason, ended.exit_code), (EndReason::Stopped, Some(143)));
}

#[test]
fn recovery_reports_all_desired_lobbies() {
    let mut w = TestEngine::new();
    let starting = starting_lobby(&mut w);
    let stopping = w.start_idle(|template| template.lobby.mode = "party").result.unwrap();
    w.ready(stopping).unwrap();
    w.run(|e, cx| e.stop(cx, stopping, false)).result.unwrap();
    let ended_lobby = w.start_idle(|template| template.lobby.mode = "party").result.unwrap();
    w.detach(ended_lobby).unwrap();
    w.lobby(|_| {});
    w.replica.finish_recovery(w.now);
    let mut all: Vec<_> =
        w.replica.desired_lobbies_since(0).lobbies.iter().map(|one| (one.lobby, one.is_stopping)).collect();
    all.sort_unstable();
    let mut expected = [(starting, false), (stopping, true)];
    expected.sort_unstable();
    assert_eq!(all, expected, "attached lobbies run elsewhere");
    assert_eq!(w.replica.routes_since(LOCAL, 0, Lsn::MAX).removed, [ended_lobby]);
}

fn starting_lobby(w: &mut TestEngine) -> Id {
    let placed = find_or_create(w, |_| {}).result.unwrap();
    lobby_of(w, placed)
}
