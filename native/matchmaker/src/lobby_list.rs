//! Pages of the lobby list, bounded in lobbies, bytes and time under the engine's lock.

use std::collections::HashSet;
use std::io::Write as _;

use hosting_core::{Id, ListLobbies, ListedLobby, LobbyPage, Lsn};
use hosting_shard::Shard;
use prost::Message as _;
use uuid::Uuid;

use crate::field_forms::read_cursor;
use crate::proto;

pub const LOBBIES_MAX: usize = 10_000;
/// Limit for a page as JSON. It has at least one lobby, whatever game modes and regions take.
const BYTES_MAX: usize = 1024 * 1024;
/// More than the largest lobby as JSON, which has a state of 64 KiB.
const LOBBY_BYTES_MAX: usize = 80 * 1024;
const CURSOR_BYTES: usize = 64;
/// Limit for the parts that a page reads, so that lobbies of other versions do not make it endless.
const PARTS_MAX: usize = 64;

/// Part of a list, limited to some game modes, a number of lobbies, and a number of bytes as JSON.
pub struct ListPart {
    pub lobbies: Vec<ListedLobby>,
    /// The lobbies as JSON, with commas between them.
    pub json: Vec<u8>,
    pub following: Option<Lsn>,
    /// Whether a limit ended the part.
    pub is_full: bool,
}

/// Limits of a part.
pub struct ListLimits<'a> {
    pub modes: &'a HashSet<String>,
    pub lobbies_max: usize,
    pub json_bytes_max: usize,
}

impl ListPart {
    /// Keeps the lobbies of a page that are within the limits. The page begins after the position `after`.
    pub fn new(page: LobbyPage, after: Lsn, limits: &ListLimits<'_>) -> ListPart {
        let mut part = ListPart { lobbies: Vec::new(), json: Vec::new(), following: page.next, is_full: false };
        let mut last = after;
        for lobby in page.lobbies {
            let is_as_before = part.lobbies.last().is_some_and(|before: &ListedLobby| before.mode == lobby.mode);
            if !is_as_before && !limits.modes.contains(&lobby.mode) {
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

/// A page of the lobby list, which is read part by part.
pub struct LobbyListPage {
    namespace: Id,
    version: Id,
    modes: HashSet<String>,
    with_state: bool,
    position: Lsn,
    lobbies_left: usize,
    bytes_left: usize,
    parts: usize,
    /// Game modes and regions. The lobbies are in the other fields.
    head: proto::ListLobbiesResponse,
    head_json: Vec<u8>,
    lobbies: Vec<ListedLobby>,
    lobbies_json: Vec<u8>,
    has_more: bool,
}

impl LobbyListPage {
    pub fn new(
        namespace: Id,
        version: Id,
        modes: HashSet<String>,
        regions: Vec<proto::RegionInfo>,
        request: &proto::ListLobbiesRequest,
    ) -> LobbyListPage {
        let mut names: Vec<String> = modes.iter().cloned().collect();
        names.sort_unstable();
        let game_modes = names.into_iter().map(|game_mode_id| proto::GameModeInfo { game_mode_id }).collect();
        let head = proto::ListLobbiesResponse { game_modes, regions, ..proto::ListLobbiesResponse::default() };
        let mut head_json = b"{\"game_modes\":".to_vec();
        head_json.extend(serde_json::to_vec(&head.game_modes).expect("a list of messages is JSON"));
        head_json.extend_from_slice(b",\"regions\":");
        head_json.extend(serde_json::to_vec(&head.regions).expect("a list of messages is JSON"));
        let bytes_left = BYTES_MAX.saturating_sub(head_json.len() + CURSOR_BYTES).max(LOBBY_BYTES_MAX);
        LobbyListPage {
            namespace,
            version,
            modes,
            with_state: request.include_state.unwrap_or(false),
            position: request.cursor.as_deref().and_then(read_cursor).unwrap_or(0),
            lobbies_left: request.limit.map_or(LOBBIES_MAX, |limit| limit as usize),
            bytes_left,
            parts: 0,
            head,
            head_json,
            lobbies: Vec::new(),
            lobbies_json: Vec::new(),
            has_more: true,
        }
    }

    /// Reads the next part, which locks the engine for a bounded time. Returns whether the page is complete.
    pub fn read_part(&mut self, shard: &Shard) -> bool {
        let (namespace, version, after) = (self.namespace, self.version, self.position);
        let page = shard.engine().list(&ListLobbies { namespace, version, after, with_state: self.with_state });
        let limits = ListLimits { modes: &self.modes, lobbies_max: self.lobbies_left, json_bytes_max: self.bytes_left };
        let part = ListPart::new(page, after, &limits);
        if !part.lobbies.is_empty() {
            self.bytes_left = self.bytes_left.saturating_sub(part.json.len() + 1);
            if self.lobbies_json.is_empty() {
                self.lobbies_json = part.json;
            } else {
                self.lobbies_json.push(b',');
                self.lobbies_json.extend(part.json);
            }
            self.lobbies_left -= part.lobbies.len();
            self.lobbies.extend(part.lobbies);
        }
        self.parts += 1;
        self.has_more = part.following.is_some();
        self.position = part.following.unwrap_or(after);
        !self.has_more || part.is_full || self.parts == PARTS_MAX
    }

    pub fn json(&self) -> Vec<u8> {
        let mut json = Vec::with_capacity(self.head_json.len() + self.lobbies_json.len() + CURSOR_BYTES);
        json.extend_from_slice(&self.head_json);
        if self.has_more {
            write!(json, ",\"cursor\":\"{:x}\"", self.position).expect("a vector grows");
        }
        json.extend_from_slice(b",\"lobbies\":[");
        json.extend_from_slice(&self.lobbies_json);
        json.extend_from_slice(b"]}");
        json
    }

    pub fn proto(&self) -> Vec<u8> {
        let mut message = self.head.clone();
        message.cursor = self.has_more.then(|| format!("{:x}", self.position));
        message.lobbies = self.lobbies.iter().map(lobby_info).collect();
        message.encode_to_vec()
    }
}

fn lobby_info(lobby: &ListedLobby) -> proto::LobbyInfo {
    let [normal, direct, party] = lobby.max_players;
    proto::LobbyInfo {
        lobby_id: Uuid::from_bytes(lobby.id.0).to_string(),
        game_mode_id: lobby.mode.clone(),
        region_id: lobby.region.clone(),
        max_players_normal: normal,
        max_players_direct: direct,
        max_players_party: party,
        total_player_count: lobby.connected,
        state: lobby.state.clone().filter(|state| !state.is_empty()),
    }
}

/// Appends a `LobbyInfo` as JSON. Names of modes and regions need no escapes, and the state is JSON.
fn write_lobby(json: &mut Vec<u8>, lobby: &ListedLobby) {
    let [normal, direct, party] = lobby.max_players;
    let mut id = Uuid::encode_buffer();
    let id = Uuid::from_bytes(lobby.id.0).as_hyphenated().encode_lower(&mut id);
    // A page has thousands of these fields, and the macros of the library take several times as long.
    let [mut normal_text, mut direct_text, mut party_text, mut count_text] = [(); 4].map(|()| itoa::Buffer::new());
    for part in [
        r#"{"lobby_id":""#,
        id,
        r#"","game_mode_id":""#,
        &lobby.mode,
        r#"","region_id":""#,
        &lobby.region,
        r#"","max_players_normal":"#,
        normal_text.format(normal),
        r#","max_players_direct":"#,
        direct_text.format(direct),
        r#","max_players_party":"#,
        party_text.format(party),
        r#","total_player_count":"#,
        count_text.format(lobby.connected),
    ] {
        json.extend_from_slice(part.as_bytes());
    }
    if let Some(state) = lobby.state.as_ref().filter(|state| !state.is_empty()) {
        json.extend_from_slice(br#","state":"#);
        json.extend_from_slice(state);
    }
    json.push(b'}');
}
