//! Parts of the lobby list, which are rendered as JSON without the GIL and without the lock of the engine.

use std::io::Write;

use hosting_core as core;
use hosting_core::{LobbyPage, Lsn};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::ListedLobby;

/// Part of a list, limited to some game modes, a number of lobbies, and a number of bytes as JSON.
#[pyclass(frozen, module = "pyservice._native")]
pub struct ListPart {
    lobbies: Vec<core::ListedLobby>,
    json: Vec<u8>,
    following: Option<Lsn>,
    is_full: bool,
}

/// Limits of a part.
pub struct ListLimits {
    pub modes: Vec<String>,
    pub lobbies_max: usize,
    pub json_bytes_max: usize,
}

impl ListPart {
    /// Keeps the lobbies of a page that are within the limits. The page begins after the position `after`.
    pub fn new(page: LobbyPage, after: Lsn, limits: &ListLimits) -> Self {
        let mut part = Self { lobbies: Vec::new(), json: Vec::new(), following: page.next, is_full: false };
        let mut last = after;
        for lobby in page.lobbies {
            if !limits.modes.contains(&lobby.mode) {
                continue;
            }
            let end = part.json.len();
            if end > 0 {
                part.json.push(b',');
            }
            write_lobby(&mut part.json, &lobby);
            if part.lobbies.len() == limits.lobbies_max || part.json.len() > limits.json_bytes_max {
                part.json.truncate(end);
                part.following = Some(last);
                part.is_full = true;
                break;
            }
            last = lobby.position;
            part.lobbies.push(lobby);
        }
        part
    }
}

#[pymethods]
impl ListPart {
    #[getter]
    fn json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.json)
    }
    #[getter]
    fn count(&self) -> usize {
        self.lobbies.len()
    }
    #[getter]
    fn lobbies(&self) -> Vec<ListedLobby> {
        self.lobbies.iter().map(|lobby| ListedLobby { inner: lobby.clone() }).collect()
    }
    #[getter]
    fn following(&self) -> Option<u64> {
        self.following
    }
    #[getter]
    fn is_full(&self) -> bool {
        self.is_full
    }
}

/// Appends a `LobbyInfo` as JSON. Names of modes and regions need no escapes, and the state is JSON.
fn write_lobby(json: &mut Vec<u8>, lobby: &core::ListedLobby) {
    let [normal, direct, party] = lobby.max_players;
    let id = u128::from_be_bytes(lobby.id.0);
    write!(
        json,
        r#"{{"lobby_id":"{:08x}-{:04x}-{:04x}-{:04x}-{:012x}","game_mode_id":"{}","region_id":"{}","max_players_normal":{normal},"max_players_direct":{direct},"max_players_party":{party},"total_player_count":{}"#,
        id >> 96,
        id >> 80 & 0xffff,
        id >> 64 & 0xffff,
        id >> 48 & 0xffff,
        id & 0xffff_ffff_ffff,
        lobby.mode,
        lobby.region,
        lobby.connected,
    )
    .expect("writing to a vector succeeds");
    if let Some(state) = lobby.state.as_ref().filter(|state| !state.is_empty()) {
        json.extend_from_slice(br#","state":"#);
        json.extend_from_slice(state);
    }
    json.push(b'}');
}
