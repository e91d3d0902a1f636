//! Bodies that the front reads, and bodies that it leaves to Python.

use crate::world::{World, request_to};

#[test]
fn forms_of_one_body() {
    let world = World::new();
    let mut client = world.connect();
    let forms: [fn(&str) -> String; 5] = [
        |token| format!(r#"{{"player_token":"{token}"}}"#),
        |token| format!(r#"{{"player_token": "{token}"}}"#),
        |token| format!("\r\n\t {{ \"player_token\"\n:\t\"{token}\" }} \n"),
        |token| format!(r#"{{"player_token":"{}"}}"#, token.replacen('p', r"\u0070", 1)),
        |token| format!(r#"{{"player\u005ftoken":"{token}"}}"#),
    ];
    for form in forms {
        let body = form(&world.new_player());
        client.send(&world.request_with_body(&body));
        assert_eq!(client.answer(), "OK", "{body}");
    }
}

/// The front parses bodies on the threads of all clients, so they have to be short.
#[test]
fn long_bodies_are_left_to_python() {
    let world = World::new();
    let heartbeat = |bytes: usize| {
        let body = format!("{{{}}}", " ".repeat(bytes - 2));
        request_to("lobbies/heartbeat", &world.lobby.lobby_token, body)
    };
    for bytes in [8 << 10, 80 << 10] {
        assert_eq!(world.connect().ask(heartbeat(bytes)).code, "OK", "{bytes}");
    }
    world.check_left_to_python(&heartbeat((80 << 10) + 1));
    assert_eq!(world.pass_reasons(), ["large_body"]);
}

#[test]
fn player_tokens_of_another_form_are_refused() {
    let world = World::new();
    let player = world.new_player();
    let (shorter, longer) = (&player[..player.len() - 1], format!("{player}A"));
    let (of_lobby, upper) = (player.replacen("player_", "lobby_", 1), player.replacen("player_", "PLAYER_", 1));
    let texts = ["a", " ", r"\u0000", "\u{e4}", r"\n", "\u{7f}", "player_", &"a".repeat(7_000)];
    for token in texts.into_iter().chain([shorter, &longer, &of_lobby, &upper]) {
        assert_eq!(world.check_refused(&world.request(token)), "PLAYER_TOKEN_INVALID", "{token}");
    }
    assert_eq!(world.players(), [1, 0]);
}

/// Returns bodies that Python refuses, or reads in its own way.
fn other_bodies(token: &str) -> Vec<Vec<u8>> {
    let texts = [
        String::new(),
        "null".into(),
        "{}".into(),
        format!(r#""{token}""#),
        format!(r#"["{token}"]"#),
        format!(r#"[{{"player_token":"{token}"}}]"#),
        r#"{"player_token":""}"#.into(),
        r#"{"player_token":null}"#.into(),
        r#"{"player_token":1}"#.into(),
        format!(r#"{{"player_token":["{token}"]}}"#),
        format!(r#"{{"player_token":"{token}","hold_ms":1}}"#),
        format!(r#"{{"player_token":"{token}","player_token":"{token}"}}"#),
        format!(r#"{{"Player_token":"{token}"}}"#),
        format!(r#"{{"playerToken":"{token}"}}"#),
        format!(r#"{{"player_token":"{token}"}}{{}}"#),
        format!(r#"{{"player_token":"{token}"}}x"#),
        format!(r#"{{"player_token":"{token}",}}"#),
        format!(r#"{{"player_token":"{token}""#),
        format!("{{'player_token':'{token}'}}"),
        format!("\u{feff}{{\"player_token\":\"{token}\"}}"),
        r#"{"player_token":"\ud800"}"#.into(),
        "{\"player_token\":\"a\nb\"}".into(),
        "player_token=a".into(),
    ];
    let mut bodies = texts.map(String::into_bytes).to_vec();
    bodies.push(b"{\"player_token\":\"\xff\"}".to_vec());
    bodies
}

#[test]
fn other_bodies_are_left_to_python() {
    let world = World::new();
    for body in other_bodies(&world.new_player()) {
        world.check_left_to_python(&world.request_with_body(&body));
    }
    assert_eq!(world.players(), [1, 0]);
}
