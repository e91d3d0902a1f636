//! Bounds of one command: due slots, expired records, the number of tombstones, and the steps of a key search.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

const MAX_STEPS: u32 = 1_024;

const CHANNEL: ChannelId = [0xc1; 16];

type Call = Box<dyn FnMut(&mut TestEngine)>;

/// Returns an engine in which `count` reservations of one lobby are due.
fn engine_with_due_slots(count: u32) -> (TestEngine, Id) {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (count, count, count));
    for _ in 0..count {
        w.join(lobby).unwrap();
    }
    w.pass_unnoticed(TTL_MS);
    (w, lobby)
}

#[test]
fn one_command_ends_at_most_1024_due_slots() {
    const DUE: u32 = 6_000;
    let (mut w, full) = engine_with_due_slots(DUE);
    let mut calls: Vec<Call> = vec![
        Box::new(move |w| drop(w.join(full))),
        Box::new(|w| drop(w.find())),
        Box::new(|w| drop(w.find_with(|c| c.source_limit = 0))),
        Box::new(move |w| drop(w.run(|e, cx| e.stop(cx, full, true)))),
        Box::new(|w| drop(w.attach_with(|c| c.lobby_count_max = 1))),
        Box::new(|w| assert!(w.run(|e, cx| e.expire_due(cx)) > 0)),
    ];
    for (number, call) in calls.iter_mut().enumerate() {
        call(&mut w);
        assert!(w.written <= MAX_STEPS, "call {number} wrote {} events", w.written);
    }
    let mut timer_calls = 0;
    while w.run(|e, cx| e.expire_due(cx)) > 0 {
        assert!(w.written <= MAX_STEPS);
        timer_calls += 1;
    }
    assert!((1..=DUE).contains(&timer_calls));
    assert_eq!(w.players(full), [0; 4]);
}

#[test]
fn end_of_silent_lobbies_counts_their_slots() {
    const PLAYERS: u32 = 400;
    let mut w = TestEngine::new();
    for _ in 0..8 {
        let lobby = w.lobby(|c| {
            (c.max_players, c.max_players_direct, c.max_players_party) = (PLAYERS, PLAYERS, PLAYERS);
            c.heartbeat_timeout_ms = 1_000;
        });
        for _ in 0..PLAYERS {
            w.join(lobby).unwrap();
        }
    }
    w.pass_unnoticed(3_000);
    let mut most_ended = 0;
    while w.run(|e, cx| e.expire_due(cx)) > 0 {
        most_ended = most_ended.max(w.written);
    }
    assert_eq!(w.engine.live_versions(NAMESPACE), []);
    assert_eq!(most_ended, MAX_STEPS / PLAYERS, "the next lobby did not fit in the rest of the steps");
}

/// Returns an engine with lobbies of `players` reserved slots each, and a due end by silence.
fn engine_with_silent_lobbies(players: &[u32]) -> (TestEngine, Vec<Id>) {
    let mut w = TestEngine::new();
    let lobbies = players.iter().map(|players| {
        let lobby = w.lobby(|c| {
            (c.max_players, c.max_players_direct, c.max_players_party) = (*players, *players, *players);
            c.heartbeat_timeout_ms = 1_000;
        });
        w.join_with(lobby, |c| (c.party_size, c.channels) = (2, &[CHANNEL])).result.unwrap();
        for _ in 2..*players {
            w.join(lobby).unwrap();
        }
        lobby
    });
    let lobbies = lobbies.collect();
    w.pass_unnoticed(3_000);
    (w, lobbies)
}

#[test]
fn lobby_with_more_slots_than_steps_ends_alone() {
    let (mut w, _) = engine_with_silent_lobbies(&[10, 1_500, 10]);
    let mut ended = Vec::new();
    while w.run(|e, cx| e.expire_due(cx)) > 0 {
        ended.extend((w.written > 0).then_some(w.written));
    }
    assert_eq!(ended, [1, 1, 1]);
    assert_eq!(w.engine.live_versions(NAMESPACE), []);
}

#[test]
fn expiry_reports_no_work_while_the_journal_is_full() {
    let (mut w, _) = engine_with_silent_lobbies(&[1_500]);
    w.credit = NO_CREDIT;
    // The first calls spend their steps on the timers.
    let is_idle = (0..10).any(|_| w.run(|e, cx| e.expire_due(cx)) == 0);
    assert!(is_idle);
}

#[test]
fn join_refuses_a_lobby_with_a_due_end_beyond_its_steps() {
    let (mut w, lobbies) = engine_with_silent_lobbies(&[400; 4]);
    assert_eq!(w.join(lobbies[3]), Err(LobbyStopped));
    assert_eq!(w.written, 2, "the ends of two other lobbies used up the steps");
    assert!(w.run(|e, cx| e.expire_due(cx)) > 0);
    assert_eq!(w.join(lobbies[3]), Err(LobbyStopped));
}

#[test]
fn state_of_a_lobby_with_a_due_end_beyond_its_steps_is_refused() {
    let (mut w, lobbies) = engine_with_silent_lobbies(&[1_100]);
    let caller = w.lobby(|c| c.heartbeat_timeout_ms = 2_000);
    w.pass_unnoticed(2_001);
    let state = w.run(|e, cx| e.state(cx, &[NAMESPACE], lobbies[0], Some(caller)));
    assert_eq!((state.result, w.written), (Err(LobbyStopped), 0), "the caller was hidden in one step");
    let state = w.run(|e, cx| e.state(cx, &[NAMESPACE], lobbies[0], Some(caller)));
    assert_eq!((state.result, w.written), (Err(LobbyStopped), 1));
}

#[test]
fn channel_read_ends_at_most_1024_slots() {
    let (mut w, lobbies) = engine_with_silent_lobbies(&[400; 5]);
    let read = w.run(|e, cx| e.channel_events(cx, &CHANNEL));
    assert_eq!(read.result, Ok(Vec::new()));
    assert_eq!(w.written, 2, "the other lobbies end later");
    assert_eq!(w.heartbeat(lobbies[4], None), Err(LobbyStopped));
    assert_eq!(w.written, 1);
}

/// Expired records of one kind that a test stores before it measures one event.
const EXPIRED: usize = 300;
const HOUR_MS: u64 = 3_600_000;

/// Runs a command that adds one record, and returns by how many bytes the image shrinks.
fn shrink_of<T>(w: &mut TestEngine, command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<T>) -> usize {
    let before = image_of(&w.engine).len();
    assert!(w.run(command).result.is_ok());
    assert!((1..=2).contains(&w.written));
    before - image_of(&w.engine).len()
}

#[test]
fn one_event_drops_at_most_two_expired_channel_tokens_for_each_that_it_adds() {
    const TOKEN_BYTES: usize = 53;
    const SLOTS: u32 = 320;
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (SLOTS, SLOTS, SLOTS));
    let channels: Vec<ChannelId> = (0..63).map(|number| [number; 16]).collect();
    for _ in 0..SLOTS / 64 {
        w.join_with(lobby, |c| (c.party_size, c.channels) = (64, &channels)).result.unwrap();
    }
    w.pass(TTL_MS);
    let party = |party_size| Join { party_size, channels: &channels[..party_size as usize - 1], ..join(lobby) };
    assert_eq!(shrink_of(&mut w, |e, cx| e.join(cx, &party(2))), TOKEN_BYTES, "one more, two fewer");
    assert_eq!(shrink_of(&mut w, |e, cx| e.join(cx, &party(11))), 10 * TOKEN_BYTES, "10 more, 20 fewer");
    let read = w.run(|e, cx| e.channel_events(cx, &channels[62])).result.unwrap();
    assert_eq!(read, [], "a reader checks the time");
}

#[test]
fn one_event_drops_at_most_two_expired_captcha_passes() {
    const PASS_BYTES: usize = 20;
    let mut w = TestEngine::new();
    for source in 1..=EXPIRED as u64 {
        w.run(|e, cx| e.record_captcha_pass(cx, source)).result.unwrap();
    }
    w.pass(12 * HOUR_MS);
    assert_eq!(shrink_of(&mut w, |e, cx| e.record_captcha_pass(cx, 1_000)), PASS_BYTES, "one more, two fewer");
    let status = w.run(|e, cx| e.captcha_status(cx, EXPIRED as u64));
    assert_eq!(status.passed_ago_ms, None, "a reader checks the time");
}

#[test]
fn one_event_drops_at_most_two_expired_mock_tokens() {
    const MOCK_BYTES: usize = 20;
    let mut w = TestEngine::new();
    let token_of = |w: &mut TestEngine, number: usize| {
        let mut nonce = [0; 16];
        nonce[..8].copy_from_slice(&number.to_le_bytes());
        w.run(|e, cx| e.mock_player_token(cx, NAMESPACE, VERSION, &nonce))
    };
    let mut used = Vec::new();
    for number in 0..EXPIRED {
        let token = token_of(&mut w, number);
        w.run(|e, cx| e.consume_mock_token(cx, NAMESPACE, NAMESPACE, VERSION, &token)).result.unwrap();
        used.push(token);
    }
    w.pass(2 * HOUR_MS);
    let newer = token_of(&mut w, EXPIRED);
    let shrink = shrink_of(&mut w, |e, cx| e.consume_mock_token(cx, NAMESPACE, NAMESPACE, VERSION, &newer));
    assert_eq!(shrink, MOCK_BYTES, "one more, two fewer");
    for token in &used {
        let repeated = w.run(|e, cx| e.consume_mock_token(cx, NAMESPACE, NAMESPACE, VERSION, token));
        assert_eq!(repeated.result, Err(PlayerTokenExpired), "a reader checks the time");
    }
}

#[test]
fn find_examines_at_most_4096_lobbies() {
    const LOBBIES: u64 = 5_000;
    let mut engine = fresh_engine();
    let mut events = EventBuffer::default();
    let mut w = TestEngine::new();
    let cx = &mut Context { now: w.now, credit: Credit::UNLIMITED, events: &mut events };
    for number in 1..=LOBBIES {
        let tags: &[(&str, &str)] = if number % 2 == 0 { &[("map", "red")] } else { &[("rank", "high")] };
        let mut lobby = w.own_lobby().lobby;
        (lobby.id, lobby.tags, lobby.lobby_count_max) = (lobby_id(number), tags, LOBBIES as u32);
        engine.attach(cx, &lobby).result.unwrap();
        engine.ready(cx, lobby.id).result.unwrap();
    }
    for mode_count in [1, 2] {
        let before = engine.find_candidates_visited();
        let find =
            Find { modes: &["duel", "other"][..mode_count], tags: &[("map", "red"), ("rank", "high")], ..find() };
        assert_eq!(engine.find(cx, &find).result, Err(NoAvailableLobbies));
        let visited = engine.find_candidates_visited() - before;
        assert!((2_000..=4_096).contains(&visited), "{visited} lobbies examined");
    }
}

#[test]
fn find_skips_at_most_4096_silent_lobbies() {
    const LOBBIES: u64 = 5_000;
    let mut engine = fresh_engine();
    let mut events = EventBuffer::default();
    let mut w = TestEngine::new();
    let cx = &mut Context { now: w.now, credit: Credit::UNLIMITED, events: &mut events };
    for number in 1..=LOBBIES {
        let mut lobby = w.own_lobby().lobby;
        (lobby.id, lobby.heartbeat_timeout_ms, lobby.lobby_count_max) = (lobby_id(number), 1_000, LOBBIES as u32);
        engine.attach(cx, &lobby).result.unwrap();
        engine.ready(cx, lobby.id).result.unwrap();
    }
    cx.now += 1_001;
    let before = engine.find_candidates_visited();
    let find = find();
    assert_eq!(engine.find(cx, &find).result, Err(NoAvailableLobbies));
    assert!(engine.find_candidates_visited() - before <= 4_096);
}

#[test]
fn one_heartbeat_frees_at_most_1024_slots() {
    const PLAYERS: u32 = 1_500;
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (PLAYERS, PLAYERS, PLAYERS));
    for _ in 0..PLAYERS {
        let token = w.join(lobby).unwrap();
        w.connect(lobby, &token).unwrap();
    }
    w.pass(10_000);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.written, 0, "the first list frees nobody");
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.written, MAX_STEPS);
    w.heartbeat(lobby, Some(&[])).unwrap();
    assert_eq!(w.players(lobby), [0; 4]);
}

fn with_tombstones_max(tombstones_max: u32) -> TestEngine {
    let config = || EngineConfig { tombstones_max, ..EngineConfig::new(1, keys(&[1], 1)) };
    TestEngine::with(Engine::new(config()), Engine::new(config()))
}

#[test]
fn surplus_tombstones_are_dropped_oldest_first() {
    let mut w = with_tombstones_max(3);
    let ended: Vec<(Id, String)> = (0..5)
        .map(|_| {
            let lobby = w.lobby(|_| {});
            let token = w.join(lobby).unwrap();
            w.connect(lobby, &token).unwrap();
            w.detach(lobby).unwrap();
            w.pass(1);
            (lobby, token)
        })
        .collect();
    let refusals: Vec<Refusal> = ended.iter().map(|(lobby, token)| w.connect(*lobby, token).unwrap_err()).collect();
    assert_eq!(refusals[..2], [LobbyTokenExpired, LobbyTokenExpired], "a used token stays refused");
    assert_eq!(refusals[2..], [PlayerRemoved, PlayerRemoved, PlayerRemoved]);
    let other = w.lobby(|_| {});
    assert_eq!(w.connect(other, &ended[0].1), Err(PlayerTokenWrongLobby), "also in a lobby with the same number");
}

#[test]
fn surplus_tombstone_stays_while_a_key_needs_it() {
    let mut w = with_tombstones_max(1);
    let first = w.attach_with(|c| c.idempotency = key(1)).result.unwrap().lobby;
    for lobby in [first, w.lobby(|_| {}), w.lobby(|_| {})] {
        w.detach(lobby).unwrap();
        w.pass(1);
    }
    assert_eq!(w.attach_with(|c| c.idempotency = key(1)).result, Err(LobbyStopped), "no second lobby");
    w.pass(602_000);
    assert_eq!(w.ready(first), Err(LobbyTokenExpired));
    assert!(w.attach_with(|c| c.idempotency = key(1)).result.is_ok(), "the key has expired");
}

#[test]
fn key_search_goes_on_in_steps_while_records_change() {
    const SLOTS: u32 = 1_500;
    let mut w = TestEngine::new();
    let first = w.lobby(|_| {});
    let large = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (SLOTS, SLOTS, SLOTS));
    for _ in 0..SLOTS - 1 {
        w.join(large).unwrap();
    }
    w.engine.add_key(2, &[7; 32]).unwrap();
    w.join(large).unwrap();
    w.engine.add_key(3, &[8; 32]).unwrap();

    w.engine.start_key_search();
    assert!(w.engine.continue_key_search(), "the step ends inside the large lobby");
    assert_eq!(w.engine.unused_keys(), [], "unknown before the end");
    assert!(!w.engine.drop_key(2));
    w.detach(first).unwrap();
    w.detach(large).unwrap();
    let mut steps = 1;
    while w.engine.continue_key_search() {
        steps += 1;
    }
    assert!(steps <= 4, "{steps} steps");
    assert_eq!(w.engine.unused_keys(), [], "the tombstone that replaced the lobby names both keys");

    w.pass(86_400_000 + 2_000);
    w.engine.start_key_search();
    w.engine.add_key(4, &[9; 32]).unwrap();
    while w.engine.continue_key_search() {}
    assert_eq!(w.engine.unused_keys(), [1, 2], "key 3 signed during the search");
}
