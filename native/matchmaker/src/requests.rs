//! Decoding of request messages from JSON and protobuf, and their rules in the proto files.
//!
//! A request that breaks a rule is [`Undecoded`].

use hosting_core::Id;
use prost::Message;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::contract::SET_LOBBY_STATE_BODY_BYTES_MAX;
use crate::field_forms::{json_problem, lobby_id};
use crate::json_fields::read_unusual;
use crate::operation::Operation;
use crate::proto;
use crate::request_rules as rules;

/// Limit of a lobby's state, which is that of the body in HTTP.
const STATE_BYTES_MAX: usize = SET_LOBBY_STATE_BODY_BYTES_MAX;
pub const LOBBIES_PATH: &str = "/matchmaker/lobbies/";
pub const STATE_PATH: &str = "/state";

/// Body of a request, as its transport received it.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Text of a JSON body.
    Json(&'a [u8]),
    /// A protobuf message.
    Proto(&'a [u8]),
    /// A protobuf message that Python has decoded, checked and encoded with its fields in order.
    Checked(&'a [u8]),
    /// A form that only Python reads.
    Other,
    /// Path and query of a request without a body.
    Target { path: &'a str, query: &'a str },
}

/// A request with problems. `description.rs` and Python describe them.
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
            Operation::Connected => Request::Connected(message(operation, body)?),
            Operation::Disconnected => Request::Disconnected(message(operation, body)?),
            Operation::Heartbeat => Request::Heartbeat(message(operation, body)?),
            Operation::Join => Request::Join(message(operation, body)?),
            Operation::Find => Request::Find(message(operation, body)?),
            Operation::Ready => empty(operation, body, Request::Ready)?,
            Operation::Closed => {
                let message: proto::SetLobbyClosedRequest = message(operation, body)?;
                Request::Closed { is_closed: message.is_closed.ok_or(Undecoded)? }
            }
            Operation::SetState => Request::SetState(state(body)?),
            Operation::GetState => Request::GetState(lobby_of_state(body)?),
            Operation::List => Request::List(list(body)?),
            Operation::Regions => empty(operation, body, Request::Regions)?,
            Operation::Statistics => empty(operation, body, Request::Statistics)?,
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
        let findings = match self {
            Request::Connected(message) => rules::connected(message),
            Request::Disconnected(message) => rules::disconnected(message),
            Request::Heartbeat(message) => rules::heartbeat(message),
            Request::Join(message) => rules::join(message),
            Request::Find(message) => rules::find(message),
            Request::List(message) => rules::list(message),
            Request::Ready
            | Request::Closed { .. }
            | Request::SetState(_)
            | Request::GetState(_)
            | Request::Regions
            | Request::Statistics => return true,
        };
        findings.is_empty()
    }
}

fn message<M: Message + Default + DeserializeOwned>(operation: Operation, body: Body<'_>) -> Result<M, Undecoded> {
    match body {
        Body::Json([]) => Ok(M::default()),
        Body::Json(text) if is_object(text) => {
            serde_json::from_slice(text).ok().or_else(|| read_unusual(operation, text)).ok_or(Undecoded)
        }
        _ => decoded(body),
    }
}

fn decoded<M: Message + Default>(body: Body<'_>) -> Result<M, Undecoded> {
    match body {
        Body::Proto(bytes) | Body::Checked(bytes) => proto_message(bytes),
        Body::Json(_) | Body::Target { .. } | Body::Other => Err(Undecoded),
    }
}

/// Reads a message. Decoding drops unknown fields.
fn proto_message<M: Message + Default>(bytes: &[u8]) -> Result<M, Undecoded> {
    M::decode(bytes).map_err(|_| Undecoded)
}

/// Returns whether a JSON text is no array. The parser also reads the fields of a message from an array.
fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{")
}

/// Reads a request without fields.
fn empty(operation: Operation, body: Body<'_>, request: Request) -> Result<Request, Undecoded> {
    let is_empty = match body {
        Body::Json(text) => text.is_empty() || read_unusual::<NoFields>(operation, text).is_some(),
        Body::Proto(bytes) | Body::Checked(bytes) => proto_message::<()>(bytes).is_ok(),
        Body::Target { query, .. } => query.is_empty(),
        Body::Other => false,
    };
    if is_empty { Ok(request) } else { Err(Undecoded) }
}

#[derive(Deserialize)]
struct NoFields {}

/// Reads the state of a lobby, which is the whole body in HTTP. An empty one clears the state.
fn state(body: Body<'_>) -> Result<Vec<u8>, Undecoded> {
    let state = match body {
        Body::Json(text) => text.to_vec(),
        Body::Proto(_) | Body::Checked(_) => decoded::<proto::SetLobbyStateRequest>(body)?.state,
        Body::Target { .. } | Body::Other => return Err(Undecoded),
    };
    let is_valid = state.len() <= STATE_BYTES_MAX && (state.is_empty() || json_problem(&state).is_none());
    if is_valid { Ok(state) } else { Err(Undecoded) }
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
        Body::Target { .. } | Body::Json(_) | Body::Other => return Err(Undecoded),
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
