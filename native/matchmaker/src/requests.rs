//! Decoding of request messages from JSON and protobuf, and their rules in the proto files.
//!
//! A request that breaks a rule, or has an unusual encoding, is [`Undecoded`]: Python describes its problems.

use std::net::IpAddr;

use hosting_core::Id;
use prost::Message;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::contract::{
    FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MAX_LEN, FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN,
    FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS, FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_MAX_BYTES,
    FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS, FIND_LOBBY_REQUEST_MAX_PLAYERS_GTE, FIND_LOBBY_REQUEST_MAX_PLAYERS_LTE,
    FIND_LOBBY_REQUEST_PARTY_SIZE_GTE, FIND_LOBBY_REQUEST_PARTY_SIZE_LTE, FIND_LOBBY_REQUEST_REGIONS_ITEMS_MAX_BYTES,
    FIND_LOBBY_REQUEST_REGIONS_MAX_ITEMS, FIND_LOBBY_REQUEST_TAGS_KEYS_MAX_BYTES, FIND_LOBBY_REQUEST_TAGS_KEYS_MIN_LEN,
    FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS, FIND_LOBBY_REQUEST_TAGS_VALUES_MAX_BYTES, JOIN_LOBBY_REQUEST_PARTY_SIZE_GTE,
    JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE, LIST_LOBBIES_REQUEST_LIMIT_GTE, LIST_LOBBIES_REQUEST_LIMIT_LTE,
    PLAYER_DISCONNECTED_REQUEST_HOLD_MS_LTE, PLAYER_TOKENS_TOKENS_MAX_ITEMS, SET_LOBBY_STATE_BODY_BYTES_MAX,
};
use crate::operation::Operation;
use crate::proto;

/// Limit of a lobby's state, which is that of the body in HTTP.
const STATE_BYTES_MAX: usize = SET_LOBBY_STATE_BODY_BYTES_MAX;
const JSON_DEPTH_MAX: usize = 64;
const LOBBIES_PATH: &str = "/matchmaker/lobbies/";
const STATE_PATH: &str = "/state";

/// Body of a request, as its transport received it.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Text of a JSON body.
    Json(&'a [u8]),
    /// A protobuf message.
    Proto(&'a [u8]),
    /// A protobuf message that Python has decoded, checked and encoded with its fields in order.
    Checked(&'a [u8]),
    /// Path and query of a request without a body.
    Target { path: &'a str, query: &'a str },
}

/// A request with problems, which Python describes.
#[derive(Debug)]
pub struct Undecoded;

/// The message of one request, which keeps the rules of the proto files.
#[derive(Debug)]
pub enum Request {
    Connected(proto::PlayerConnectedRequest),
    Disconnected(proto::PlayerDisconnectedRequest),
    Heartbeat(proto::HeartbeatRequest),
    Join(proto::JoinLobbyRequest),
    Find(proto::FindLobbyRequest),
    Ready,
    Closed { is_closed: bool },
    SetState(Vec<u8>),
    GetState(Id),
    List(proto::ListLobbiesRequest),
    Regions,
    Statistics,
}

impl Request {
    pub fn read(operation: Operation, body: Body<'_>) -> Result<Request, Undecoded> {
        let request = match operation {
            Operation::Connected => Request::Connected(message(body)?),
            Operation::Disconnected => Request::Disconnected(message(body)?),
            Operation::Heartbeat => Request::Heartbeat(message(body)?),
            Operation::Join => Request::Join(message(body)?),
            Operation::Find => Request::Find(message(body)?),
            Operation::Ready => empty(body, Request::Ready)?,
            Operation::Closed => {
                let message: proto::SetLobbyClosedRequest = message(body)?;
                Request::Closed { is_closed: message.is_closed.ok_or(Undecoded)? }
            }
            Operation::SetState => Request::SetState(state(body)?),
            Operation::GetState => Request::GetState(lobby_of_state(body)?),
            Operation::List => Request::List(list(body)?),
            Operation::Regions => empty(body, Request::Regions)?,
            Operation::Statistics => empty(body, Request::Statistics)?,
        };
        if request.is_valid() { Ok(request) } else { Err(Undecoded) }
    }

    /// Returns the bytes that identify a request together with its idempotency key: the message with its fields in order and
    /// its maps sorted. They are empty for an operation without keys.
    pub fn canonical_bytes(&mut self) -> Vec<u8> {
        match self {
            Request::Connected(message) => message.encode_to_vec(),
            Request::Disconnected(message) => message.encode_to_vec(),
            Request::Join(message) => message.encode_to_vec(),
            Request::Find(message) => find_bytes(message),
            _ => Vec::new(),
        }
    }

    fn is_valid(&self) -> bool {
        match self {
            Request::Connected(message) => !message.player_token.is_empty(),
            Request::Disconnected(message) => {
                let is_hold_valid = |hold_ms: u32| hold_ms as usize <= PLAYER_DISCONNECTED_REQUEST_HOLD_MS_LTE;
                !message.player_token.is_empty() && message.hold_ms.is_none_or(is_hold_valid)
            }
            Request::Heartbeat(message) => {
                message.player_tokens.as_ref().is_none_or(|list| list.tokens.len() <= PLAYER_TOKENS_TOKENS_MAX_ITEMS)
            }
            Request::Join(message) => is_join_valid(message),
            Request::Find(message) => is_find_valid(message),
            Request::List(message) => {
                let limits = LIST_LOBBIES_REQUEST_LIMIT_GTE..=LIST_LOBBIES_REQUEST_LIMIT_LTE;
                message.limit.is_none_or(|limit| limits.contains(&(limit as usize)))
                    && message.cursor.as_deref().is_none_or(|cursor| read_cursor(cursor).is_some())
            }
            Request::Ready
            | Request::Closed { .. }
            | Request::SetState(_)
            | Request::GetState(_)
            | Request::Regions
            | Request::Statistics => true,
        }
    }
}

fn is_join_valid(message: &proto::JoinLobbyRequest) -> bool {
    let party_sizes = JOIN_LOBBY_REQUEST_PARTY_SIZE_GTE..=JOIN_LOBBY_REQUEST_PARTY_SIZE_LTE;
    let party_size = message.party_size.unwrap_or(1) as usize;
    lobby_id(&message.lobby_id).is_some()
        && party_sizes.contains(&party_size)
        && (message.rejoin_token.is_none() || party_size == 1)
        && is_address_valid(message.client_address.as_deref())
        && are_channels_valid(&message.event_channels, party_size)
        && is_captcha_valid(message.captcha.as_ref())
        && is_json_object(message.verification_data.as_deref())
}

fn is_find_valid(message: &proto::FindLobbyRequest) -> bool {
    let party_sizes = FIND_LOBBY_REQUEST_PARTY_SIZE_GTE..=FIND_LOBBY_REQUEST_PARTY_SIZE_LTE;
    let limits = FIND_LOBBY_REQUEST_MAX_PLAYERS_GTE..=FIND_LOBBY_REQUEST_MAX_PLAYERS_LTE;
    let party_size = message.party_size.unwrap_or(1) as usize;
    let (modes, regions, tags) = (&message.game_modes, &message.regions, &message.tags);
    (1..=FIND_LOBBY_REQUEST_GAME_MODES_MAX_ITEMS).contains(&modes.len())
        && modes.iter().all(|mode| is_mode_name(mode))
        && modes.iter().enumerate().all(|(number, mode)| !modes[..number].contains(mode))
        && regions.len() <= FIND_LOBBY_REQUEST_REGIONS_MAX_ITEMS
        && regions.iter().all(|region| is_region_id(region))
        && tags.len() <= FIND_LOBBY_REQUEST_TAGS_MAX_PAIRS
        && tags.iter().all(|(name, value)| is_tag_valid(name, value))
        && message.max_players.is_none_or(|limit| limits.contains(&(limit as usize)))
        && party_sizes.contains(&party_size)
        && is_address_valid(message.client_address.as_deref())
        && are_channels_valid(&message.event_channels, party_size)
        && is_captcha_valid(message.captcha.as_ref())
        && is_json_object(message.verification_data.as_deref())
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fn is_mode_name(name: &str) -> bool {
    is_word(name) && name.len() <= FIND_LOBBY_REQUEST_GAME_MODES_ITEMS_MAX_BYTES
}

fn is_region_id(id: &str) -> bool {
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    id.split('-').all(is_part) && id.len() <= FIND_LOBBY_REQUEST_REGIONS_ITEMS_MAX_BYTES
}

fn is_tag_valid(name: &str, value: &str) -> bool {
    let names = FIND_LOBBY_REQUEST_TAGS_KEYS_MIN_LEN..=FIND_LOBBY_REQUEST_TAGS_KEYS_MAX_BYTES;
    names.contains(&name.len()) && value.len() <= FIND_LOBBY_REQUEST_TAGS_VALUES_MAX_BYTES
}

/// The first token belongs to the caller, and each channel gets one of the others.
fn are_channels_valid(channels: &[String], party_size: usize) -> bool {
    let lengths = FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MIN_LEN..=FIND_LOBBY_REQUEST_EVENT_CHANNELS_ITEMS_MAX_LEN;
    channels.is_empty()
        || channels.len() <= FIND_LOBBY_REQUEST_EVENT_CHANNELS_MAX_ITEMS
            && channels.len() < party_size
            && channels.iter().all(|channel| is_word(channel) && lengths.contains(&channel.len()))
}

fn is_captcha_valid(captcha: Option<&proto::Captcha>) -> bool {
    use proto::captcha::Provider::{CaptchaA, CaptchaB};
    match captcha.and_then(|captcha| captcha.provider.as_ref()) {
        Some(CaptchaA(answer) | CaptchaB(answer)) => !answer.client_response.is_empty(),
        None => true,
    }
}

fn is_json_object(text: Option<&[u8]>) -> bool {
    let text = text.unwrap_or_default();
    text.is_empty() || (text.trim_ascii_start().starts_with(b"{") && is_json(text))
}

fn is_address_valid(address: Option<&str>) -> bool {
    address.is_none_or(|address| ip_address(address).is_some())
}

/// Reads an address without a zone.
pub fn ip_address(text: &str) -> Option<IpAddr> {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')).then(|| text.parse().ok())?
}

/// Reads a lobby id in lower case.
pub fn lobby_id(text: &str) -> Option<Id> {
    let id = Uuid::try_parse(text).ok()?;
    (id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(Id(id.into_bytes()))
}

fn message<M: Message + Default + DeserializeOwned>(body: Body<'_>) -> Result<M, Undecoded> {
    match body {
        Body::Json([]) => Ok(M::default()),
        Body::Json(text) if is_object(text) => serde_json::from_slice(text).map_err(|_| Undecoded),
        _ => decoded(body),
    }
}

fn decoded<M: Message + Default>(body: Body<'_>) -> Result<M, Undecoded> {
    match body {
        Body::Proto(bytes) => proto_message(bytes),
        Body::Checked(bytes) => M::decode(bytes).map_err(|_| Undecoded),
        Body::Json(_) | Body::Target { .. } => Err(Undecoded),
    }
}

/// Reads a message in its shortest encoding. Decoding drops unknown fields. Fields that are unknown, repeated or set to their
/// default make the message longer.
fn proto_message<M: Message + Default>(bytes: &[u8]) -> Result<M, Undecoded> {
    M::decode(bytes).ok().filter(|message| message.encoded_len() == bytes.len()).ok_or(Undecoded)
}

/// Returns whether a JSON text is no array. The parser also reads the fields of a message from an array.
fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{")
}

/// Reads a request without fields.
fn empty(body: Body<'_>, request: Request) -> Result<Request, Undecoded> {
    let is_empty = match body {
        Body::Json(text) => text.is_empty() || is_object(text) && serde_json::from_slice::<NoFields>(text).is_ok(),
        Body::Proto(bytes) => bytes.is_empty(),
        Body::Checked(_) => true,
        Body::Target { query, .. } => query.is_empty(),
    };
    if is_empty { Ok(request) } else { Err(Undecoded) }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoFields {}

/// Reads the state of a lobby, which is the whole body in HTTP. An empty one clears the state.
fn state(body: Body<'_>) -> Result<Vec<u8>, Undecoded> {
    let state = match body {
        Body::Json(text) => text.to_vec(),
        Body::Proto(_) | Body::Checked(_) => decoded::<proto::SetLobbyStateRequest>(body)?.state,
        Body::Target { .. } => return Err(Undecoded),
    };
    let is_valid = state.len() <= STATE_BYTES_MAX && (state.is_empty() || is_json(&state));
    if is_valid { Ok(state) } else { Err(Undecoded) }
}

fn is_json(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|value| depth(&value) <= JSON_DEPTH_MAX)
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

fn lobby_of_state(body: Body<'_>) -> Result<Id, Undecoded> {
    let read;
    let text = match body {
        Body::Target { path, query: "" } => {
            path.strip_prefix(LOBBIES_PATH).and_then(|rest| rest.strip_suffix(STATE_PATH)).ok_or(Undecoded)?
        }
        Body::Proto(_) | Body::Checked(_) => {
            read = decoded::<proto::GetLobbyStateRequest>(body)?;
            &read.lobby_id
        }
        Body::Target { .. } | Body::Json(_) => return Err(Undecoded),
    };
    lobby_id(text).ok_or(Undecoded)
}

fn list(body: Body<'_>) -> Result<proto::ListLobbiesRequest, Undecoded> {
    let query = match body {
        Body::Target { query, .. } => query,
        _ => return decoded(body),
    };
    let mut request = proto::ListLobbiesRequest::default();
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let is_repeated = match parameter.split_once('=').ok_or(Undecoded)? {
            ("include_state", flag) => request.include_state.replace(flag.parse().map_err(|_| Undecoded)?).is_some(),
            ("limit", number) => request.limit.replace(decimal(number)?).is_some(),
            ("cursor", cursor) => request.cursor.replace(cursor.to_owned()).is_some(),
            _ => return Err(Undecoded),
        };
        if is_repeated {
            return Err(Undecoded);
        }
    }
    Ok(request)
}

fn decimal(digits: &str) -> Result<u32, Undecoded> {
    if digits.bytes().all(|byte| byte.is_ascii_digit()) {
        digits.parse().map_err(|_| Undecoded)
    } else {
        Err(Undecoded)
    }
}

/// Reads the cursor of a page: the position of the last lobby of the page before.
pub fn read_cursor(cursor: &str) -> Option<u64> {
    let is_valid =
        (1..=16).contains(&cursor.len()) && cursor.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_valid.then(|| u64::from_str_radix(cursor, 16).ok())?
}

/// Reads the list that stands for its message in JSON.
pub fn player_list<'de, D: Deserializer<'de>>(from: D) -> Result<Option<proto::PlayerTokens>, D::Error> {
    let tokens: Option<Vec<String>> = Option::deserialize(from)?;
    Ok(tokens.map(|tokens| proto::PlayerTokens { tokens }))
}

/// Reads JSON text that stands for itself.
pub fn raw_json<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<u8>>, D::Error> {
    let text: Option<Box<RawValue>> = Option::deserialize(from)?;
    Ok(text.map(|text| text.get().as_bytes().to_vec()))
}

/// Reads a captcha, which has one of two fields.
pub fn captcha<'de, D: Deserializer<'de>>(from: D) -> Result<Option<proto::Captcha>, D::Error> {
    use proto::captcha::Provider::{CaptchaA, CaptchaB};
    let text: Option<Box<RawValue>> = Option::deserialize(from)?;
    let Some(text) = text else { return Ok(None) };
    let CaptchaJson { captcha_a, captcha_b } = object(&text).map_err(D::Error::custom)?;
    let answer = |text: &RawValue| {
        let AnswerJson { client_response } = object(text).map_err(D::Error::custom)?;
        Ok(proto::CaptchaAnswer { client_response })
    };
    let provider = match (captcha_a, captcha_b) {
        (Some(_), Some(_)) => return Err(D::Error::custom("a captcha has one answer")),
        (Some(text), None) => Some(CaptchaA(answer(&text)?)),
        (None, Some(text)) => Some(CaptchaB(answer(&text)?)),
        (None, None) => None,
    };
    Ok(Some(proto::Captcha { provider }))
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct CaptchaJson {
    captcha_a: Option<Box<RawValue>>,
    captcha_b: Option<Box<RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct AnswerJson {
    client_response: String,
}

fn object<T: DeserializeOwned>(text: &RawValue) -> serde_json::Result<T> {
    let text = text.get();
    if is_object(text.as_bytes()) { serde_json::from_str(text) } else { Err(serde_json::Error::custom("no object")) }
}

/// Encodes a find with both fields of each tag. The library leaves out an empty value.
fn find_bytes(message: &mut proto::FindLobbyRequest) -> Vec<u8> {
    if message.tags.values().all(|value| !value.is_empty()) {
        return message.encode_to_vec();
    }
    let tags = std::mem::take(&mut message.tags);
    let before = proto::FindLobbyRequest {
        game_modes: std::mem::take(&mut message.game_modes),
        regions: std::mem::take(&mut message.regions),
        ..proto::FindLobbyRequest::default()
    };
    let mut bytes = before.encode_to_vec();
    for (name, value) in &tags {
        Tag { entry: TagEntry { name: name.clone(), value: value.clone() } }
            .encode(&mut bytes)
            .expect("a vector grows");
    }
    message.encode(&mut bytes).expect("a vector grows");
    (message.game_modes, message.regions, message.tags) = (before.game_modes, before.regions, tags);
    bytes
}

/// One entry of the map of tags, as a field of the find.
#[derive(Message)]
struct Tag {
    #[prost(message, required, tag = 3)]
    entry: TagEntry,
}

#[derive(Message)]
struct TagEntry {
    #[prost(string, required, tag = 1)]
    name: String,
    #[prost(string, required, tag = 2)]
    value: String,
}

#[cfg(test)]
mod tests;
