//! No answer leaves before the events that it depends on are durable.

use crate::namespace::SERVICE_TOKEN;
use crate::world::{World, find, request_to, wait_until};

#[test]
fn answer_waits_for_its_event() {
    let (world, clock) = World::stepped();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let (player, left) = (world.new_player(), world.new_player());
    world.commit();
    let of_lobby = |operation: &str, body: &str| request_to(operation, &world.lobby.lobby_token, body);
    let with_player = format!(r#"{{"player_token":"{left}"}}"#);
    let empty_list = of_lobby("lobbies/heartbeat", r#"{"player_tokens":[]}"#);
    let mut check = |request: &[u8], players| {
        client.send(request);
        wait_until(|| world.players() == players);
        world.settle(&mut prober);
        assert!(!client.has_answer(), "{}", request.escape_ascii());
        world.commit();
        assert_eq!(client.answer(), "OK");
    };
    check(&world.request(&player), [1, 1]);
    check(&world.join(SERVICE_TOKEN), [2, 1]);
    check(&find(SERVICE_TOKEN, "duel"), [3, 1]);
    check(&of_lobby("players/disconnected", &with_player), [2, 1]);
    // A list frees the players that were connected before the list before.
    assert_eq!(world.connect().ask(&empty_list).code, "OK");
    clock.pass(10_000);
    check(&empty_list, [2, 0]);
}

#[test]
fn refusal_waits_for_the_event_that_it_reveals() {
    let (world, _) = World::stepped();
    let (mut first, mut second, mut prober) = (world.connect(), world.connect(), world.connect());
    let request = world.request_of_new_player();
    world.commit();
    first.send(&request);
    wait_until(|| world.players() == [0, 1]);
    second.send(&request);
    world.settle(&mut prober);
    assert!(!first.has_answer() && !second.has_answer());
    world.commit();
    assert_eq!((first.answer(), second.answer()), ("OK".into(), "PLAYER_TOKEN_CONSUMED".into()));
}

#[test]
fn pipelined_answers_wait_for_the_last_event_of_their_turn() {
    let (world, _) = World::stepped();
    let (mut client, mut prober) = (world.connect(), world.connect());
    let requests = [world.refused_request(), world.request_of_new_player(), world.refused_request()];
    world.commit();
    client.send(&requests.concat());
    wait_until(|| world.players() == [0, 1]);
    world.settle(&mut prober);
    assert!(!client.has_answer());
    world.commit();
    assert_eq!(client.answers(3), ["PLAYER_TOKEN_INVALID", "OK", "PLAYER_TOKEN_INVALID"]);
}

#[test]
fn one_batch_answers_all_connections() {
    let (world, _) = World::stepped();
    let mut clients: Vec<_> = (0..20).map(|_| world.connect()).collect();
    for client in &mut clients {
        client.send(&world.request_of_new_player());
    }
    wait_until(|| world.players() == [0, 20]);
    world.settle(&mut world.connect());
    assert!(clients.iter().all(|client| !client.has_answer()));
    world.commit();
    for client in &mut clients {
        assert_eq!(client.answer(), "OK");
    }
}

#[test]
fn answer_for_a_client_that_left_blocks_no_other() {
    let (world, _) = World::stepped();
    let (mut gone, mut client) = (world.connect(), world.connect());
    gone.send(&world.request_of_new_player());
    wait_until(|| world.players() == [0, 1]);
    drop(gone);
    client.send(&world.request_of_new_player());
    wait_until(|| world.players() == [0, 2]);
    world.commit();
    assert_eq!(client.answer(), "OK");
    wait_until(|| world.budget.count() == 1);
}

#[test]
fn request_is_measured_when_its_event_is_durable() {
    let (world, _) = World::stepped();
    let mut client = world.connect();
    client.send(&world.request_of_new_player());
    wait_until(|| world.players() == [0, 1]);
    assert_eq!(world.take_answered_count(), 0);
    world.commit();
    assert_eq!(client.answer(), "OK");
    assert_eq!(world.take_answered_count(), 1);
}
