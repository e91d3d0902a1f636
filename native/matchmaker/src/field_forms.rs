//! Forms of single fields.

use std::net::IpAddr;

use hosting_core::Id;
use serde_json::Value;
use uuid::Uuid;

use crate::contract::JSON_DEPTH_MAX;
use crate::error::standard_reason;

/// Reads an address without a zone.
pub fn ip_address(text: &str) -> Option<IpAddr> {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')).then(|| text.parse().ok())?
}

/// Reads a lobby id in lower case.
pub fn lobby_id(text: &str) -> Option<Id> {
    let id = Uuid::try_parse(text).ok()?;
    (id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(Id(id.into_bytes()))
}

/// Reads the cursor of a page: the position of the last lobby of the page before.
pub fn read_cursor(cursor: &str) -> Option<u64> {
    let is_valid =
        (1..=16).contains(&cursor.len()) && cursor.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    is_valid.then(|| u64::from_str_radix(cursor, 16).ok())?
}

/// Returns the word and the reason of the problem of a JSON text.
pub fn json_problem(text: &[u8]) -> Option<(&'static str, &'static str)> {
    match serde_json::from_slice::<Value>(text) {
        Ok(value) if depth(&value) > JSON_DEPTH_MAX => Some(("too-deep", standard_reason("too-deep"))),
        Ok(_) => None,
        Err(_) => Some(("not-json", standard_reason("not-json"))),
    }
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
