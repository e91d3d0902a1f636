//! Decisions about players of a lobby, for its server.

use super::*;

/// Returns the number of reserved, connected and kept slots.
fn slots(world: &World) -> [u32; 3] {
    let [_, reserved, connected, kept] = world.0.shard.engine().lobby(LOBBY).expect("the lobby").players;
    [reserved, connected, kept]
}

fn asked(world: &World, operation: Operation, body: &str) -> &'static str {
    name(&world.ask(operation, &of_lobby(), body))
}

#[test]
fn slot_is_kept_as_long_as_the_server_says() {
    let world = World::new();
    let players = [(); 2].map(|()| confirm(&world.new_player()));
    let held = players[0].replace('}', r#","hold_ms":600000}"#);
    let not_held = players[1].replace('}', r#","hold_ms":0}"#);
    for (operation, body, expected) in [
        (Operation::Connected, &players[0], [1, 1, 0]),
        (Operation::Connected, &players[1], [0, 2, 0]),
        (Operation::Disconnected, &held, [0, 1, 1]),
        (Operation::Disconnected, &not_held, [0, 0, 1]),
        (Operation::Disconnected, &players[0], [0; 3]),
    ] {
        assert_eq!((asked(&world, operation, body), slots(&world)), ("OK", expected), "{body}");
    }
}

#[test]
fn heartbeat_frees_the_slots_that_its_list_misses() {
    const NONE: &str = r#"{"player_tokens":[]}"#;
    let world = World::new();
    let players = [world.new_player(), world.new_player()];
    for player in &players {
        assert_eq!(asked(&world, Operation::Connected, &confirm(player)), "OK");
    }
    let one = format!(r#"{{"player_tokens":["{}"]}}"#, players[0]);
    // The first list frees no slot.
    for (body, connected) in [("{}", 2), (NONE, 2), ("{}", 2), (&one, 1), (NONE, 0)] {
        assert_eq!((asked(&world, Operation::Heartbeat, body), slots(&world)), ("OK", [0, connected, 0]), "{body}");
    }
}

/// All threads share the lock. A request that takes it would wait for ever here.
#[test]
fn tokens_are_verified_before_the_engine_is_locked() {
    let world = World::new();
    let other_keys = KeyRing::new(vec![(1, [8; 32])], 1).expect("one key");
    let forged = bearer(&other_keys.sign_lobby(1, LOBBY).expect("a key"));
    let _engine = world.0.shard.engine();
    assert_eq!(name(&world.ask(Operation::Connected, &forged, "{")), "TOKEN_INVALID");
}
