//! Bodies that the front reads, and bodies that it leaves to Python.

use crate::world::{World, request_to};

#[test]
fn forms_of_one_body() {
    let world = World::new();
    let mut client = world.connect();
    let forms: [fn(&str) -> String; 7] = [
        |token| format!(r#"{{"player_token":"","player_token":"{token}"}}"#),
        |token| format!(r#"{{"other":[],"player_token":"{token}"}}"#),
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

#[test]
fn bodies_of_any_length_are_read() {
    let world = World::new();
    for bytes in [8 << 10, 80 << 10, (80 << 10) + 1, 95_000] {
        let body = format!("{{{}}}", " ".repeat(bytes - 2));
        let heartbeat = request_to("lobbies/heartbeat", &world.lobby.lobby_token, body);
        assert_eq!(world.connect().ask(heartbeat).code, "OK", "{bytes}");
    }
    assert!(world.pass_reasons().is_empty());
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

/// Python describes text that is not JSON.
#[test]
fn other_bodies_are_refused_or_left_to_python() {
    let world = World::new();
    for body in other_bodies(&world.new_player()) {
        let request = world.request_with_body(&body);
        let is_json = body.is_empty() || serde_json::from_slice::<serde_json::Value>(&body).is_ok();
        if is_json {
            assert_eq!(world.check_refused(&request), "BODY_INVALID", "{}", body.escape_ascii());
        } else {
            world.check_left_to_python(&request);
        }
    }
    assert_eq!(world.players(), [1, 0]);
}
