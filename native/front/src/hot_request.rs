//! Requests that the engine can answer at once, read from the JSON or protobuf body of a plain request.

use std::borrow::Cow;

use prost::Message;
use serde::{Deserialize, Deserializer};

use crate::operations::Operation;
use crate::proto;

/// Headers and metadata that change no answer.
pub const WITHOUT_EFFECT: [&str; 16] = [
    "user-agent",
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "content-length",
    "forwarded",
    "pragma",
    "priority",
    "sec-fetch-mode",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "x-unity-version",
];

/// The fields of one request, whatever its transport.
#[derive(Debug, PartialEq)]
pub enum HotRequest<'a> {
    Connected(ConnectedRequest<'a>),
    Disconnected(DisconnectedRequest<'a>),
    Heartbeat(HeartbeatRequest<'a>),
    Join(JoinRequest<'a>),
    Find(FindRequest<'a>),
}

// A JSON field that is unknown, repeated, null or of another type makes a request not plain.

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectedRequest<'a> {
    #[serde(borrow)]
    pub player_token: Cow<'a, str>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DisconnectedRequest<'a> {
    #[serde(borrow)]
    pub player_token: Cow<'a, str>,
    #[serde(default, deserialize_with = "present")]
    pub hold_ms: Option<u64>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatRequest<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    pub player_tokens: Option<Vec<Cow<'a, str>>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest<'a> {
    #[serde(borrow)]
    pub lobby_id: Cow<'a, str>,
    #[serde(default, deserialize_with = "present")]
    pub party_size: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub client_address: Option<Cow<'a, str>>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindRequest<'a> {
    #[serde(borrow)]
    pub game_modes: Vec<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub regions: Option<Vec<Cow<'a, str>>>,
    #[serde(default, deserialize_with = "present")]
    pub party_size: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    pub client_address: Option<Cow<'a, str>>,
    #[serde(rename = "prevent_auto_create_lobby", default, deserialize_with = "present")]
    pub _prevent_auto_create_lobby: Option<bool>,
}

/// Reads a value that may be missing, but not null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

fn read_json<'a, Body: Deserialize<'a>>(bytes: &'a [u8]) -> Option<Body> {
    // The parser also reads the fields of a body from an array.
    bytes.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(bytes).ok())?
}

/// Reads a message in its shortest encoding. Decoding drops unknown fields, repeated single fields, and fields that are
/// set to their default. Each of them makes the message longer than the encoding of what remains.
fn read_proto<Body: Message + Default>(bytes: &[u8]) -> Option<Body> {
    Body::decode(bytes).ok().filter(|message| message.encoded_len() == bytes.len())
}

impl<'a> HotRequest<'a> {
    /// Returns None for a body that is not plain.
    pub fn from_json(operation: Operation, body: &'a [u8]) -> Option<HotRequest<'a>> {
        Some(match operation {
            Operation::Connected => HotRequest::Connected(read_json(body)?),
            Operation::Disconnected => HotRequest::Disconnected(read_json(body)?),
            Operation::Heartbeat => HotRequest::Heartbeat(read_json(body)?),
            Operation::Join => HotRequest::Join(read_json(body)?),
            Operation::Find => HotRequest::Find(read_json(body)?),
        })
    }
}

impl HotRequest<'static> {
    /// Returns None for a message that is not plain.
    pub fn from_proto(operation: Operation, message: &[u8]) -> Option<HotRequest<'static>> {
        Some(match operation {
            Operation::Connected => {
                let proto::PlayerConnectedRequest { player_token } = read_proto(message)?;
                HotRequest::Connected(ConnectedRequest { player_token: player_token.into() })
            }
            Operation::Disconnected => {
                let proto::PlayerDisconnectedRequest { player_token, hold_ms } = read_proto(message)?;
                let hold_ms = hold_ms.map(u64::from);
                HotRequest::Disconnected(DisconnectedRequest { player_token: player_token.into(), hold_ms })
            }
            Operation::Heartbeat => {
                let proto::HeartbeatRequest { player_tokens } = read_proto(message)?;
                let player_tokens = player_tokens.map(|list| owned(list.tokens));
                HotRequest::Heartbeat(HeartbeatRequest { player_tokens })
            }
            Operation::Join => HotRequest::Join(JoinRequest::from_proto(read_proto(message)?)?),
            Operation::Find => HotRequest::Find(FindRequest::from_proto(read_proto(message)?)?),
        })
    }
}

impl JoinRequest<'static> {
    fn from_proto(message: proto::JoinLobbyRequest) -> Option<JoinRequest<'static>> {
        let proto::JoinLobbyRequest {
            lobby_id,
            captcha: None,
            verification_data: None,
            party_size,
            rejoin_token: None,
            client_address,
            event_channels,
        } = message
        else {
            return None;
        };
        let client_address = client_address.map(Cow::Owned);
        event_channels.is_empty().then_some(JoinRequest { lobby_id: lobby_id.into(), party_size, client_address })
    }
}

impl FindRequest<'static> {
    fn from_proto(message: proto::FindLobbyRequest) -> Option<FindRequest<'static>> {
        let proto::FindLobbyRequest {
            game_modes,
            regions,
            tags,
            max_players: None,
            prevent_auto_create_lobby,
            captcha: None,
            verification_data: None,
            party_size,
            client_address,
            event_channels,
        } = message
        else {
            return None;
        };
        (tags.is_empty() && event_channels.is_empty()).then(|| FindRequest {
            game_modes: owned(game_modes),
            regions: Some(owned(regions)),
            party_size,
            client_address: client_address.map(Cow::Owned),
            _prevent_auto_create_lobby: prevent_auto_create_lobby,
        })
    }
}

fn owned(texts: Vec<String>) -> Vec<Cow<'static, str>> {
    texts.into_iter().map(Cow::Owned).collect()
}

#[cfg(test)]
mod tests;
