//! Player tokens: connect, disconnect, keep and rejoin.

use hosting_core::Refusal::*;
use hosting_core::*;

use crate::test_engine::*;

#[test]
fn token_connects_once() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    assert_eq!(w.connect(lobby, &token), Ok(()));
    assert_eq!(w.players(lobby), [0, 0, 1, 0]);
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenConsumed));
    assert_eq!(w.players(lobby), [0, 0, 1, 0]);
    w.pass(10 * TTL_MS);
    assert_eq!(w.players(lobby), [0, 0, 1, 0], "a connected slot does not expire");
}

#[test]
fn expired_reservation_frees_its_slot() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let token = w.join(lobby).unwrap();
    w.pass(TTL_MS - 1);
    assert_eq!(w.join(lobby), Err(LobbyFull));
    w.pass(1);
    assert_eq!(w.players(lobby), [0; 4]);
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
    let next = w.join(lobby).unwrap();
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired), "also when the slot went on");
    assert_eq!(w.connect(lobby, &next), Ok(()));
}

#[test]
fn token_connects_just_before_its_deadline() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.pass(TTL_MS - 1);
    assert_eq!(w.connect(lobby, &token), Ok(()));
}

#[test]
fn commands_expire_due_slots_without_a_timer() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let token = w.join(lobby).unwrap();
    w.pass_unnoticed(TTL_MS);
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
    let token = w.join(lobby).unwrap();
    w.pass_unnoticed(TTL_MS);
    assert_eq!(w.find(), Ok(lobby), "find drains first");
    w.pass_unnoticed(TTL_MS);
    assert!(w.join(lobby).is_ok(), "join too");
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenExpired));
}

#[test]
fn forged_and_other_engines_are_refused_differently() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    for forged in
        ["", "player_", "x", &token[..token.len() - 1], &format!("{token}A"), &token.replace("player_", "pub_")]
    {
        let answer = w.connect_with(lobby, forged, None);
        assert_eq!((answer.result, answer.wait), (Err(PlayerTokenInvalid), 0), "{forged}");
        assert_eq!(w.disconnect(lobby, forged, None), Err(PlayerTokenInvalid));
    }
    assert_eq!(w.connect(other, &token), Err(PlayerTokenWrongLobby));
    assert_eq!(w.disconnect(other, &token, None), Err(PlayerTokenWrongLobby));
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    assert_eq!(w.connect(lobby, &token), Ok(()));
}

#[test]
fn token_of_an_unknown_key_is_invalid() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    w.join(lobby).unwrap();
    let mut other_engine = TestEngine::with(
        Engine::new(EngineConfig::new(1, keys(&[2], 2))),
        Engine::new(EngineConfig::new(1, keys(&[2], 2))),
    );
    let same_lobby = other_engine.lobby(|_| {});
    assert_eq!(same_lobby, lobby);
    let token = other_engine.join(lobby).unwrap();
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenInvalid));
}

#[test]
fn never_issued_slot_or_generation_is_invalid() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let mut ahead = TestEngine::new();
    assert_eq!(ahead.lobby(|_| {}), lobby);
    let tokens: Vec<String> = (0..2).map(|_| ahead.join(lobby).unwrap()).collect();
    assert_eq!(w.connect(lobby, &tokens[1]), Err(PlayerTokenInvalid), "slot 1 was never used here");
    ahead.disconnect(lobby, &tokens[0], None).unwrap();
    ahead.join(lobby).unwrap();
    ahead.join(lobby).unwrap();
    let second_use = ahead.join(lobby).unwrap();
    w.join(lobby).unwrap();
    assert_eq!(w.connect(lobby, &second_use), Err(PlayerTokenInvalid), "slot 0 is in its first use here");
    assert_eq!(w.disconnect(lobby, &second_use, None), Ok(()), "disconnected refuses only form, MAC and lobby");
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
}

#[test]
fn repeated_disconnect_never_touches_a_later_use() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let first = w.join(lobby).unwrap();
    w.connect(lobby, &first).unwrap();
    assert_eq!(w.find(), Err(NoAvailableLobbies));
    assert_eq!(w.disconnect(lobby, &first, None), Ok(()));
    let second = w.join(lobby).unwrap();
    assert_ne!(first, second);
    assert_eq!(w.disconnect(lobby, &first, None), Ok(()));
    assert_eq!(w.disconnect(lobby, &first, Some(1_000)), Ok(()));
    assert_eq!(w.players(lobby), [0, 1, 0, 0], "the later holder stays");
    assert_eq!(w.connect(lobby, &first), Err(PlayerTokenConsumed), "it had been connected");
    assert_eq!(w.connect(lobby, &second), Ok(()));
    assert_eq!(w.disconnect(lobby, &first, None), Ok(()));
    assert_eq!(w.players(lobby), [0, 0, 1, 0]);
}

#[test]
fn released_reservation_is_removed_not_consumed() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    assert_eq!(w.disconnect(lobby, &token, Some(60_000)), Ok(()), "hold_ms is ignored on a reserved slot");
    assert_eq!(w.players(lobby), [0; 4]);
    assert_eq!(w.connect(lobby, &token), Err(PlayerRemoved));
}

#[test]
fn slot_remembers_how_its_last_32_uses_ended() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let mut ended_uses = Vec::new();
    for round in 0..40 {
        let token = w.join(lobby).unwrap();
        let truth = match round % 3 {
            0 => {
                w.pass(TTL_MS);
                PlayerTokenExpired
            }
            1 => {
                w.connect(lobby, &token).unwrap();
                w.disconnect(lobby, &token, None).unwrap();
                PlayerTokenConsumed
            }
            _ => {
                w.disconnect(lobby, &token, None).unwrap();
                PlayerRemoved
            }
        };
        ended_uses.push((token, truth));
    }
    for (token, truth) in &ended_uses[8..] {
        assert_eq!(w.connect(lobby, token).as_ref(), Err(truth));
    }
    for (token, _) in &ended_uses[..8] {
        assert_eq!(w.connect(lobby, token), Err(PlayerRemoved), "older than it remembers");
    }
}

#[test]
fn kept_slot_counts_as_player_and_ends_consumed() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    assert_eq!(w.disconnect(lobby, &token, Some(30_000)), Ok(()));
    assert_eq!(w.players(lobby), [0, 0, 0, 1]);
    assert_eq!(w.join(lobby), Err(LobbyFull));
    assert_eq!(w.engine.player_counts(NAMESPACE)[0].player_count, 0, "not a connected player");
    assert_eq!(w.run(|e, cx| e.stop(cx, lobby, true)).result, Ok(false), "not idle");
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenConsumed));
    w.pass(29_999);
    assert_eq!(w.disconnect(lobby, &token, Some(600_000)), Ok(()), "a repeat with hold_ms changes nothing");
    assert_eq!(w.players(lobby), [0, 0, 0, 1]);
    w.pass(1);
    assert_eq!(w.players(lobby), [0; 4]);
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenConsumed));
}

#[test]
fn kept_slot_ends_by_disconnect_or_after_ten_minutes() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(u64::MAX)).unwrap();
    w.pass(599_999);
    assert_eq!(w.players(lobby), [0, 0, 0, 1]);
    w.pass(1);
    assert_eq!(w.players(lobby), [0; 4]);
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(60_000)).unwrap();
    w.disconnect(lobby, &token, None).unwrap();
    assert_eq!(w.players(lobby), [0; 4]);
    w.connect(lobby, &token).unwrap_err();
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(0)).unwrap();
    assert_eq!(w.players(lobby), [0; 4], "kept for no time at all");
}

#[test]
fn kept_slot_can_be_rejoined_in_a_closed_full_lobby() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let token = one_token(w.join_with(lobby, |c| (c.source, c.source_limit) = (7, 1)).result.unwrap());
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(60_000)).unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(w.join(lobby), Err(LobbyClosed));
    let over = w.join_with(lobby, |c| (c.rejoin_token, c.source, c.source_limit) = (Some(token.as_str()), 7, 0));
    assert_eq!(over.result, Err(TooManyPlayersFromSource));
    let answer = w.join_with(lobby, |c| (c.rejoin_token, c.source, c.source_limit) = (Some(token.as_str()), 7, 1));
    let next = one_token(answer.result.unwrap());
    assert_ne!(next, token);
    assert_eq!(w.players(lobby), [0, 1, 0, 0], "reserved again, with new time");
    assert_eq!(w.connect(lobby, &token), Err(PlayerTokenConsumed));
    w.pass(TTL_MS - 1);
    assert_eq!(w.connect(lobby, &next), Ok(()));
}

#[test]
fn rejoin_counts_against_the_new_source() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = one_token(w.join_with(lobby, |c| c.source = 7).result.unwrap());
    w.join_with(lobby, |c| c.source = 8).result.unwrap();
    let over = w.join_with(lobby, |c| (c.rejoin_token, c.source, c.source_limit) = (Some(token.as_str()), 8, 1));
    assert_eq!(over.result, Err(TooManyPlayersFromSource));
    w.join_with(lobby, |c| (c.rejoin_token, c.source, c.source_limit) = (Some(token.as_str()), 8, 2)).result.unwrap();
    let free_again = w.join_with(lobby, |c| (c.source, c.source_limit) = (7, 1));
    assert!(free_again.result.is_ok(), "the slot of source 7 went over");
}

#[test]
fn rejoin_replaces_the_reserved_token() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (1, 1, 1));
    let token = w.join(lobby).unwrap();
    w.pass(TTL_MS - 1);
    let next = w.rejoin(lobby, &token).unwrap();
    assert_eq!(w.players(lobby), [0, 1, 0, 0]);
    assert_eq!(w.connect(lobby, &token), Err(PlayerRemoved));
    w.pass(TTL_MS - 1);
    assert_eq!(w.connect(lobby, &next), Ok(()), "its time began anew");
}

#[test]
fn other_rejoin_is_a_normal_join() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|c| (c.max_players_direct, c.max_players, c.max_players_party) = (2, 2, 2));
    let connected = w.join(lobby).unwrap();
    w.connect(lobby, &connected).unwrap();
    let second = w.rejoin(lobby, &connected).unwrap();
    assert_eq!(w.players(lobby), [0, 1, 1, 0], "the connected player stays");
    assert_eq!(w.rejoin(lobby, &connected), Err(LobbyFull));
    w.disconnect(lobby, &second, None).unwrap();
    w.close(lobby, true).unwrap();
    assert_eq!(w.rejoin(lobby, &connected), Err(LobbyClosed));
    assert_eq!(w.rejoin(lobby, &second), Err(LobbyClosed), "an ended use is worth nothing");
}

#[test]
fn rejoin_token_must_be_authentic_and_of_the_lobby() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    let token = w.join(other).unwrap();
    assert_eq!(w.rejoin(lobby, &token), Err(PlayerTokenWrongLobby));
    assert_eq!(w.rejoin(lobby, "player_x"), Err(PlayerTokenInvalid));
    let party = w.join_with(other, |c| (c.rejoin_token, c.party_size) = (Some(token.as_str()), 2));
    assert_eq!(party.result, Err(PartyTooLarge(1)));
    assert_eq!(w.players(other), [0, 1, 0, 0]);
}

#[test]
fn overdue_kept_slot_cannot_be_rejoined() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let token = w.join(lobby).unwrap();
    w.connect(lobby, &token).unwrap();
    w.disconnect(lobby, &token, Some(1_000)).unwrap();
    w.close(lobby, true).unwrap();
    w.pass_unnoticed(1_000);
    assert_eq!(w.rejoin(lobby, &token), Err(LobbyClosed));
}

#[test]
fn tokens_of_an_ended_lobby_are_removed() {
    let mut w = TestEngine::new();
    let lobby = w.lobby(|_| {});
    let other = w.lobby(|_| {});
    let reserved = w.join(lobby).unwrap();
    let connected = w.join(lobby).unwrap();
    w.connect(lobby, &connected).unwrap();
    assert_eq!(w.detach(lobby), Ok(true));
    assert_eq!(w.connect(lobby, &reserved), Err(PlayerRemoved));
    assert_eq!(w.connect(lobby, &connected), Err(PlayerRemoved));
    assert_eq!(w.connect(lobby, "player_forged"), Err(PlayerTokenInvalid));
    assert_eq!(w.connect(other, &connected), Err(PlayerTokenWrongLobby));
    assert_eq!(w.disconnect(lobby, &connected, None), Ok(()));
    w.pass(86_400_000 - 1);
    assert_eq!(w.connect(lobby, &connected), Err(PlayerRemoved));
    w.pass(1);
    assert_eq!(w.connect(lobby, &connected), Err(LobbyTokenExpired));
    assert_eq!(w.disconnect(lobby, &connected, None), Err(LobbyTokenExpired));
    w.pass(10_000);
    assert_eq!(w.connect(lobby, &connected), Err(LobbyTokenExpired), "also when it was forgotten");
}
