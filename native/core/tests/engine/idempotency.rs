//! Idempotency keys: replay, reuse, sharing and expiry.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

const LIFE_MS: u64 = 600_000;

#[test]
fn repeated_find_or_join_returns_the_same_tokens() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players, c.max_players_direct, c.max_players_party) = (3, 3, 3));
    let found = w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2));
    let joined = w.join_with(lobby, |c| c.idempotency = key(2));
    let again = |w: &mut TestEngine| {
        let find = w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2));
        assert_eq!((find.result, w.written), (found.result.clone(), 0));
        let join = w.join_with(lobby, |c| c.idempotency = key(2));
        assert_eq!((join.result, w.written), (joined.result.clone(), 0));
        assert_eq!(join.wait, w.engine.lobby_lsn(lobby));
    };
    again(&mut w);
    assert_eq!(w.players(lobby), [0, 3, 0, 0]);
    let token = one_token(joined.result.clone().unwrap());
    w.connect(lobby, &token).unwrap();
    again(&mut w);
    w.disconnect(lobby, &token, None).unwrap();
    again(&mut w);
    let party = reservation(found.result.clone().unwrap()).tokens;
    w.disconnect(lobby, &party[1], None).unwrap();
    w.join_with(lobby, |c| c.party_size = 2).result.unwrap();
    again(&mut w);
    w.pass(TTL_MS);
    again(&mut w);
    w.detach(lobby).unwrap();
    assert_eq!(w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2)).result, Err(LobbyStopped));
    assert_eq!(w.join_with(lobby, |c| c.idempotency = key(2)).result, Err(LobbyStopped));
}

#[test]
fn reused_key_with_another_message_is_refused() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = one_token(w.join_with(lobby, |c| c.idempotency = key(1)).result.unwrap());
    let reused = w.find_with(|c| c.idempotency = same_key_other_message(1));
    assert_eq!((reused.result, reused.wait), (Err(IdempotencyKeyReused), w.engine.lobby_lsn(lobby)));
    assert_eq!(w.join_with(lobby, |c| c.idempotency = same_key_other_message(1)).result, Err(IdempotencyKeyReused));
    let attach = w.attach_with(|c| c.idempotency = same_key_other_message(1));
    assert_eq!(attach.result, Err(IdempotencyKeyReused));
    assert_eq!(w.connect_with(lobby, &token, same_key_other_message(1)).result, Err(IdempotencyKeyReused));
    assert_eq!(w.disconnect_with(lobby, &token, None, same_key_other_message(1)).result, Err(IdempotencyKeyReused));
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
}

#[test]
fn failed_request_is_not_stored() {
    let mut w = TestEngine::new();
    assert_eq!(w.find_with(|c| c.idempotency = key(1)).result, Err(NoAvailableLobbies));
    let lobby = w.lobby(|_| {});
    assert!(w.find_with(|c| c.idempotency = key(1)).result.is_ok());
    let token = w.join(lobby).unwrap();
    assert_eq!(w.connect_with(lobby, "player_x", key(2)).result, Err(PlayerTokenInvalid));
    assert_eq!(w.connect_with(lobby, &token, same_key_other_message(2)).result, Ok(()));
    let full = w.attach_with(|c| (c.idempotency, c.lobby_count_max) = (key(3), 1));
    assert_eq!(full.result, Err(TooManyLobbies));
    assert!(w.attach_with(|c| c.idempotency = key(3)).result.is_ok());
}

#[test]
fn hold_in_flight_is_shared_by_its_key() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    let first = hold(w.join_with(lobby, |c| c.idempotency = key(1)).result.unwrap());
    let again = hold(w.join_with(lobby, |c| c.idempotency = key(1)).result.unwrap());
    assert_eq!(first, again);
    assert_eq!(w.find_with(|c| c.idempotency = same_key_other_message(1)).result, Err(IdempotencyKeyReused));
    assert_eq!(w.players(lobby), [1, 0, 0, 0]);
    w.detach(lobby).unwrap();
    assert_eq!(w.resolved().len(), 1);
    assert_eq!(w.join_with(lobby, |c| c.idempotency = key(1)).result, Err(LobbyStopped), "tried afresh");
    assert_eq!(w.find_with(|c| c.idempotency = same_key_other_message(1)).result, Err(NoAvailableLobbies));
}

#[test]
fn hold_key_is_stored_when_the_lobby_is_ready() {
    let mut w = TestEngine::new();
    let lobby = w.starting(|_| {});
    w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 3)).result.unwrap();
    w.ready(lobby).unwrap();
    let tokens = w.resolved().remove(0).outcome.result.unwrap().tokens;
    let again = w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 3));
    assert_eq!(reservation(again.result.unwrap()).tokens, tokens);
    assert_eq!(w.players(lobby), [0, 3, 0, 0]);
}

#[test]
fn entry_lives_ten_minutes() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let first = w.find_with(|c| c.idempotency = key(1)).result.unwrap();
    w.pass(LIFE_MS - 1);
    assert_eq!(w.find_with(|c| c.idempotency = key(1)).result.unwrap(), first);
    w.pass_unnoticed(1);
    let second = w.find_with(|c| c.idempotency = key(1)).result.unwrap();
    assert_ne!(first, second, "over at its time, forgotten or not");
    w.pass(LIFE_MS + 5_000);
    assert_ne!(w.join_with(lobby, |c| c.idempotency = same_key_other_message(1)).result, Err(IdempotencyKeyReused));
}

#[test]
fn entry_lives_as_long_as_its_reservation() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let placed = w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2)).result.unwrap();
    let tokens = reservation(placed.clone()).tokens;
    w.connect_with(lobby, &tokens[1], key(2)).result.unwrap();
    w.pass(5 * LIFE_MS);
    assert_eq!(w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2)).result.unwrap(), placed);
    assert_eq!(w.connect_with(lobby, &tokens[1], key(2)).result, Ok(()), "still connected");
    assert_eq!(w.connect_with(lobby, &tokens[1], same_key_other_message(2)).result, Err(IdempotencyKeyReused));
    w.disconnect(lobby, &tokens[1], None).unwrap();
    let fresh = w.find_with(|c| (c.idempotency, c.party_size) = (key(1), 2)).result.unwrap();
    assert_ne!(fresh, placed, "its last use has ended, and its ten minutes long ago");
}

#[test]
fn connect_is_replayed_only_while_connected() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    assert_eq!(w.connect_with(lobby, &token, key(1)).result, Ok(()));
    let again = w.connect_with(lobby, &token, key(1));
    assert_eq!((again.result, again.wait, w.written), (Ok(()), w.engine.lobby_lsn(lobby), 0));
    assert_eq!(w.connect_with(lobby, &token, key(2)).result, Err(PlayerTokenConsumed), "another socket");
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenConsumed), "no key");
    w.disconnect(lobby, &token, Some(1_000)).unwrap();
    assert_eq!(w.connect_with(lobby, &token, key(1)).result, Err(PlayerTokenConsumed), "kept is not connected");
    w.pass(1_000);
    assert_eq!(w.connect_with(lobby, &token, key(1)).result, Err(PlayerTokenConsumed));
    let next = w.join(lobby).unwrap();
    w.connect(lobby, &next).unwrap();
    assert_eq!(w.connect_with(lobby, &token, key(1)).result, Err(PlayerTokenConsumed), "the slot went on");
    w.detach(lobby).unwrap();
    assert_eq!(w.connect_with(lobby, &token, key(1)).result, Err(PlayerRemoved));
}

#[test]
fn repeated_disconnect_acts_once() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    assert_eq!(w.disconnect_with(lobby, &token, Some(60_000), key(1)).result, Ok(()));
    assert_eq!(w.disconnect_with(lobby, &token, Some(60_000), key(1)).result, Ok(()));
    assert_eq!(w.written, 0);
    assert_eq!(w.disconnect_with(lobby, &token, None, key(2)).result, Ok(()));
    assert_eq!(w.players(lobby), [0; 4]);
    assert_eq!(w.disconnect_with(lobby, &token, None, same_key_other_message(2)).result, Err(IdempotencyKeyReused));
}

#[test]
fn disconnect_without_effect_stores_no_key() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(60_000)).unwrap();
    assert_eq!(w.disconnect_with(lobby, &token, Some(60_000), key(1)).result, Ok(()), "the slot is kept already");
    assert_eq!(w.written, 0);
    let again = w.rejoin(lobby, &token).unwrap();
    w.connect(lobby, &again).unwrap();
    assert_eq!(w.disconnect_with(lobby, &token, Some(60_000), key(1)).result, Ok(()));
    assert_eq!((w.written, w.players(lobby)), (0, [0, 0, 1, 0]), "the repetition changes nothing");
    w.detach(lobby).unwrap();
    assert_eq!(w.disconnect_with(lobby, &again, None, key(2)).result, Ok(()), "the lobby has ended");
    assert_eq!(w.written, 0);
}

#[test]
fn repeated_attach_returns_the_same_lobby_while_it_lives() {
    let mut w = TestEngine::new();
    let first = w.attach_with(|c| c.idempotency = key(1)).result.unwrap();
    assert_eq!(w.attach_with(|c| c.idempotency = key(1)).result, Ok(first.clone()));
    w.ready(first.lobby).unwrap();
    w.pass(10 * LIFE_MS);
    assert_eq!(w.attach_with(|c| c.idempotency = key(1)).result, Ok(first.clone()), "as long as the lobby");
    let second = w.attach_with(|c| c.idempotency = key(2)).result.unwrap();
    w.detach(second.lobby).unwrap();
    assert_eq!(w.attach_with(|c| c.idempotency = key(2)).result, Err(LobbyStopped));
    w.pass(LIFE_MS);
    assert!(w.attach_with(|c| c.idempotency = key(2)).result.is_ok());
}

#[test]
fn concatenated_keys_and_messages_hash_differently() {
    let hash = HashKey::new([3; 32]);
    let one = hash.idempotency(b"caller", b"key", "join", b"message");
    assert_eq!(one, hash.idempotency(b"caller", b"key", "join", b"message"));
    assert_ne!(one.key, hash.idempotency(b"callerk", b"ey", "join", b"message").key);
    assert_ne!(one.message, hash.idempotency(b"caller", b"key", "joinm", b"essage").message);
    assert_ne!(one.key, HashKey::new([4; 32]).idempotency(b"caller", b"key", "join", b"message").key);
    let long = vec![7u8; 100_000];
    assert_ne!(hash.idempotency(b"c", b"k", "j", &long).message, hash.idempotency(b"c", b"k", "j", &long[1..]).message);
    assert_ne!(hash.source(NAMESPACE, b"10.0.0.1"), hash.source(OTHER_NAMESPACE, b"10.0.0.1"));
    assert_ne!(hash.source(NAMESPACE, b"10.0.0.1"), hash.source(NAMESPACE, b"10.0.0.2"));
}
