//! Decoding of request messages from JSON and protobuf, and their rules in the proto files.

use prost::{DecodeError, Message};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::contract::SET_LOBBY_STATE_BODY_BYTES_MAX;
use crate::field_forms::json_problem;
use crate::json_fields::read_body;
use crate::operation::Operation;
use crate::proto;
use crate::request_rules::{self as rules, Finding};

/// Limit of a lobby's state, which is that of the body in HTTP.
pub const STATE_BYTES_MAX: usize = SET_LOBBY_STATE_BODY_BYTES_MAX;
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

/// The request has problems, or only Python reads it. `description.rs` says which.
#[derive(Debug)]
pub struct Undecoded;

/// The message of one request.
#[derive(Debug)]
pub enum Request {
    Connected(proto::PlayerConnectedRequest),
    Disconnected(proto::PlayerDisconnectedRequest),
    Heartbeat(proto::HeartbeatRequest),
    Join(proto::JoinLobbyRequest),
    Find(proto::FindLobbyRequest),
    Ready(NoFields),
    Closed(proto::SetLobbyClosedRequest),
    SetState(proto::SetLobbyStateRequest),
    GetState(proto::GetLobbyStateRequest),
    List(proto::ListLobbiesRequest),
    Regions(NoFields),
    Statistics(NoFields),
}

/// The message of a request without fields.
#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoFields {}

/// Encoding of the message of a request.
pub trait Encoded {
    type Error;

    fn message<M: Message + Default + DeserializeOwned>(self) -> Result<M, Self::Error>;
}

/// Protobuf drops unknown fields.
impl Encoded for &[u8] {
    type Error = DecodeError;

    fn message<M: Message + Default + DeserializeOwned>(self) -> Result<M, DecodeError> {
        M::decode(self)
    }
}

/// Operation and text of a JSON body.
struct JsonBody<'a>(Operation, &'a [u8]);

impl Encoded for JsonBody<'_> {
    type Error = Undecoded;

    fn message<M: Message + Default + DeserializeOwned>(self) -> Result<M, Undecoded> {
        match self {
            JsonBody(_, []) => Ok(M::default()),
            JsonBody(operation, text) if is_object(text) => {
                serde_json::from_slice(text).or_else(|_| read_unusual(operation, text))
            }
            JsonBody(..) => Err(Undecoded),
        }
    }
}

/// Reads a message with unknown, repeated or null fields.
fn read_unusual<M: DeserializeOwned>(operation: Operation, text: &[u8]) -> Result<M, Undecoded> {
    let mut findings = Vec::new();
    let message = read_body(operation, text, &mut findings).map_err(|_| Undecoded)?;
    if findings.is_empty() { serde_json::from_value(message).map_err(|_| Undecoded) } else { Err(Undecoded) }
}

impl Request {
    /// Returns a request that keeps the rules of the proto files.
    pub fn read(operation: Operation, body: Body<'_>) -> Result<Request, Undecoded> {
        let request = match body {
            Body::Json(text) if operation == Operation::SetState => Request::of_state(text),
            Body::Json(text) => Request::decode(operation, JsonBody(operation, text))?,
            Body::Proto(bytes) | Body::Checked(bytes) => Request::decode(operation, bytes).map_err(|_| Undecoded)?,
            Body::Target { path, query } => Request::of_target(operation, path, query)?,
            Body::Other => return Err(Undecoded),
        };
        let is_complete = match &request {
            Request::SetState(message) => message.state.len() <= STATE_BYTES_MAX,
            Request::GetState(message) => !message.lobby_id.is_empty(),
            _ => true,
        };
        if is_complete && request.findings().is_empty() { Ok(request) } else { Err(Undecoded) }
    }

    /// Returns a request without a check of its rules.
    pub fn decode<E: Encoded>(operation: Operation, encoded: E) -> Result<Request, E::Error> {
        Ok(match operation {
            Operation::Connected => Request::Connected(encoded.message()?),
            Operation::Disconnected => Request::Disconnected(encoded.message()?),
            Operation::Heartbeat => Request::Heartbeat(encoded.message()?),
            Operation::Join => Request::Join(encoded.message()?),
            Operation::Find => Request::Find(encoded.message()?),
            Operation::Ready => Request::Ready(encoded.message()?),
            Operation::Closed => Request::Closed(encoded.message()?),
            Operation::SetState => Request::SetState(encoded.message()?),
            Operation::GetState => Request::GetState(encoded.message()?),
            Operation::List => Request::List(encoded.message()?),
            Operation::Regions => Request::Regions(encoded.message()?),
            Operation::Statistics => Request::Statistics(encoded.message()?),
        })
    }

    /// Returns the rules of the proto files that the request breaks.
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Request::Connected(message) => rules::connected(message),
            Request::Disconnected(message) => rules::disconnected(message),
            Request::Heartbeat(message) => rules::heartbeat(message),
            Request::Join(message) => rules::join(message),
            Request::Find(message) => rules::find(message),
            Request::Closed(message) => rules::closed(message),
            Request::List(message) => rules::list(message),
            Request::SetState(message) => {
                let problem = json_problem(&message.state).filter(|_| !message.state.is_empty());
                problem.map(|(word, reason)| Finding::new(vec!["state".into()], word, reason)).into_iter().collect()
            }
            Request::GetState(message) if !message.lobby_id.is_empty() => rules::lobby_of_path(&message.lobby_id),
            Request::GetState(_) | Request::Ready(_) | Request::Regions(_) | Request::Statistics(_) => Vec::new(),
        }
    }

    /// Returns the request with the state of a lobby, which is the whole body in HTTP. An empty one clears the state.
    pub fn of_state(text: &[u8]) -> Request {
        Request::SetState(proto::SetLobbyStateRequest { state: text.to_vec() })
    }

    fn of_target(operation: Operation, path: &str, query: &str) -> Result<Request, Undecoded> {
        match operation {
            Operation::List => list(query).map(Request::List),
            Operation::GetState if query.is_empty() => {
                let rest = path.strip_prefix(LOBBIES_PATH).ok_or(Undecoded)?;
                let lobby_id = rest.strip_suffix(STATE_PATH).ok_or(Undecoded)?.to_owned();
                Ok(Request::GetState(proto::GetLobbyStateRequest { lobby_id }))
            }
            Operation::Regions if query.is_empty() => Ok(Request::Regions(NoFields {})),
            Operation::Statistics if query.is_empty() => Ok(Request::Statistics(NoFields {})),
            _ => Err(Undecoded),
        }
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
}

/// Returns whether a JSON text is no array. The parser also reads the fields of a message from an array.
fn is_object(text: &[u8]) -> bool {
    text.trim_ascii_start().starts_with(b"{")
}

fn list(query: &str) -> Result<proto::ListLobbiesRequest, Undecoded> {
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
