//! How a client gets its player into a lobby: find, with a public token, until the service decides.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::http::{Address, Service, outcome};
use crate::json::{Value, quoted};
use crate::lobby::Outcome;
use crate::system::{Dice, idempotency_key};

/// A find that starts a lobby is answered when the lobby is ready.
const FIND: Duration = Duration::from_secs(60);
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(2);

/// A place in a lobby.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which one.
    pub lobby_id: String,
    /// Where its server is reached.
    pub server: SocketAddr,
    /// What is shown there.
    pub token: String,
}

/// A place in any lobby of the game mode. It is asked for again, under one key, while the service does not decide.
///
/// # Errors
/// A word that says why there is none: the code of the error, or what is wrong with the answer.
pub fn find(api: &Address, public_token: &str, mode: &str, port_name: &str) -> Result<Found, String> {
    let mut service = Service::new(api.clone(), public_token);
    let (body, key) = (format!("{{\"game_modes\":[{}]}}", quoted(mode)), idempotency_key());
    let (mut pause, mut dice, until) = (PAUSE_FIRST, Dice::new(), Instant::now() + FIND);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let called = service.call("POST", "/matchmaker/lobbies/find", &body, Some(&key), left);
        match (outcome(&called), called) {
            (Outcome::Done, Ok(answer)) => return read(&answer.body, port_name).ok_or_else(|| "NO_PLACE".to_owned()),
            (Outcome::Refused { code, .. }, _) => return Err(code),
            (Outcome::Undecided { retry_after }, called) => {
                let wait = dice.jitter(pause).max(retry_after.unwrap_or_default());
                if Instant::now() + wait >= until {
                    let status = called.map(|answer| answer.status);
                    return Err(status.map_or("AWAY".to_owned(), |status| format!("STATUS_{status}")));
                }
                std::thread::sleep(wait);
                pause = (pause * 2).min(PAUSE_LONGEST);
            }
            (Outcome::Done, Err(_)) => return Err("AWAY".to_owned()),
        }
    }
}

fn read(body: &[u8], port_name: &str) -> Option<Found> {
    let answer = Value::read(body)?;
    let port = answer.at(&["ports", port_name])?;
    let (host, number) = (port.at(&["hostname"])?.text()?, port.at(&["port"])?.port()?);
    Some(Found {
        lobby_id: answer.at(&["lobby", "lobby_id"])?.text()?.to_owned(),
        server: (host, number).to_socket_addrs().ok()?.next()?,
        token: answer.at(&["player", "token"])?.text()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_from_the_answer_of_find() {
        let answer = br#"{"lobby": {"lobby_id": "a-b"}, "player": {"token": "player_x"},
            "ports": {"game": {"host": "127.0.0.1:26001", "hostname": "127.0.0.1", "port": 26001, "is_tls": false}}}"#;
        let found = read(answer, "game").unwrap();
        assert_eq!((found.lobby_id.as_str(), found.token.as_str()), ("a-b", "player_x"));
        assert_eq!(found.server, ([127, 0, 0, 1], 26_001).into());
        assert_eq!(read(answer, "other"), None);
        assert_eq!(read(b"{}", "game"), None);
    }
}
