//! Descriptions of requests that cannot be read: the error with all problems, in the words of Python.
//!
//! Some are left to Python: text that is not JSON, and fields with raw JSON or a captcha.

use percent_encoding::percent_decode_str;
use prost::{DecodeError, Message};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::contract::{Code, SET_LOBBY_STATE_BODY_BYTES_MAX};
use crate::error::{FieldProblem, ServiceError};
use crate::field_forms::json_problem;
use crate::json_fields::{Json, fields, members, read_fields};
use crate::operation::Operation;
use crate::proto;
use crate::request_rules::{self as rules, Finding};
use crate::requests::{Body, LOBBIES_PATH, STATE_PATH};

const WRONG_MESSAGE: &str = "The message does not have the request type of this method; check the proto file.";
const MALFORMED: &str = "is not percent-encoded UTF-8";
/// Python shortens longer descriptions.
const PROBLEMS_MAX: usize = 200;
const PROBLEMS_BYTES_MAX: usize = 32 * 1024;
const NAME_LENGTH_MAX: usize = 256;

/// Returns the error of a request that cannot be read, or None if only Python can describe it.
pub fn describe(operation: Operation, body: Body<'_>) -> Option<ServiceError> {
    match body {
        Body::Json(text) => describe_json(operation, text),
        Body::Proto(message) => describe_proto(operation, message),
        Body::Target { path, query } => describe_target(operation, path, query),
        // Python has checked the message, or will do.
        Body::Checked(_) | Body::Other => None,
    }
}

fn describe_json(operation: Operation, text: &[u8]) -> Option<ServiceError> {
    if operation == Operation::SetState {
        return error(Code::BodyInvalid, state(text));
    }
    let members = match members(text)? {
        Ok(members) => members,
        Err(finding) => return error(Code::BodyInvalid, vec![finding]),
    };
    let mut unread = Vec::new();
    let message = read_fields(fields(operation), members, &mut unread)?;
    error(Code::BodyInvalid, with_others(unread, rules_of_body(operation, message).ok()?))
}

/// Source of a message: its decoded fields, or its bytes.
trait Source {
    type Error;

    fn message<M: Message + Default + DeserializeOwned>(self) -> Result<M, Self::Error>;
}

impl Source for Value {
    type Error = serde_json::Error;

    fn message<M: Message + Default + DeserializeOwned>(self) -> serde_json::Result<M> {
        serde_json::from_value(self)
    }
}

impl Source for &[u8] {
    type Error = DecodeError;

    fn message<M: Message + Default + DeserializeOwned>(self) -> Result<M, DecodeError> {
        M::decode(self)
    }
}

/// Returns the rules that a message in a body breaks. Other operations have no such rules.
fn rules_of_body<S: Source>(operation: Operation, source: S) -> Result<Vec<Finding>, S::Error> {
    match operation {
        Operation::Connected => source.message().map(|message| rules::connected(&message)),
        Operation::Disconnected => source.message().map(|message| rules::disconnected(&message)),
        Operation::Heartbeat => source.message().map(|message| rules::heartbeat(&message)),
        Operation::Join => source.message().map(|message| rules::join(&message)),
        Operation::Find => source.message().map(|message| rules::find(&message)),
        Operation::Closed => source.message().map(|message| rules::closed(&message)),
        _ => Ok(Vec::new()),
    }
}

fn describe_proto(operation: Operation, message: &[u8]) -> Option<ServiceError> {
    if operation == Operation::SetState {
        let state_bytes = proto::SetLobbyStateRequest::decode(message).map_or(0, |one| one.state.len());
        if state_bytes > SET_LOBBY_STATE_BODY_BYTES_MAX {
            let detail = format!("Send at most {SET_LOBBY_STATE_BODY_BYTES_MAX} bytes, not {state_bytes}.");
            return Some(ServiceError::from(Code::BodyTooLarge).with_detail(detail));
        }
    }
    let code = match operation {
        Operation::GetState => Code::IdInvalid,
        Operation::List => Code::QueryInvalid,
        _ => Code::BodyInvalid,
    };
    match rules_of_proto(operation, message) {
        Ok(findings) => error(code, findings),
        // Python takes the field for an unknown one.
        Err(error) if error.to_string().contains("invalid wire type") => None,
        Err(_) => Some(ServiceError::from(Code::BodyInvalid).with_detail(WRONG_MESSAGE)),
    }
}

/// Returns the rules that a message breaks.
pub fn rules_of_proto(operation: Operation, message: &[u8]) -> Result<Vec<Finding>, DecodeError> {
    fn read<M: Message + Default>(message: &[u8], check: fn(&M) -> Vec<Finding>) -> Result<Vec<Finding>, DecodeError> {
        M::decode(message).map(|message| check(&message))
    }
    match operation {
        Operation::List => read(message, rules::list),
        Operation::GetState => read(message, |message: &proto::GetLobbyStateRequest| {
            if message.lobby_id.is_empty() { Vec::new() } else { rules::lobby_of_path(&message.lobby_id) }
        }),
        Operation::SetState => read(message, |message: &proto::SetLobbyStateRequest| state(&message.state)),
        Operation::Ready | Operation::Regions | Operation::Statistics => read::<()>(message, |()| Vec::new()),
        _ => rules_of_body(operation, message),
    }
}

fn state(text: &[u8]) -> Vec<Finding> {
    let problem = json_problem(text).filter(|_| !text.is_empty());
    problem.map(|(word, reason)| Finding::new(vec!["state".into()], word, reason)).into_iter().collect()
}

fn describe_target(operation: Operation, path: &str, query: &str) -> Option<ServiceError> {
    let mut in_path = Vec::new();
    if operation == Operation::GetState {
        let id = path.strip_prefix(LOBBIES_PATH)?.strip_suffix(STATE_PATH)?;
        in_path = rules::lobby_of_path(Some(id).filter(|id| !id.contains('%'))?);
    }
    let fields = fields(operation);
    let (mut findings, mut members): (Vec<_>, Vec<(String, Json)>) = (Vec::new(), Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (raw_name, raw_text) = parameter.split_once('=').unwrap_or((parameter, ""));
        let finding = |word, reason: &'static str| Finding::new(vec![raw_name.to_owned().into()], word, reason);
        let Some(name) = decoded(raw_name) else {
            findings.push(finding("invalid", MALFORMED));
            continue;
        };
        let location = vec![name.clone().into()];
        let Some((_, form)) = fields.iter().find(|(known, _)| *known == name) else {
            findings.push(Finding::new(location, "unknown-parameter", "is not a known parameter"));
            continue;
        };
        if members.iter().any(|(known, _)| *known == name) {
            findings.push(Finding::new(location, "not-unique", "must occur only once"));
            continue;
        }
        let Some(text) = decoded(raw_text) else {
            findings.push(Finding::new(location, "invalid", MALFORMED));
            members.push((name, Json::Null));
            continue;
        };
        let member = (name, Json::of_text(*form, text));
        members.push(member.clone());
        read_fields(fields, vec![member], &mut findings)?;
    }
    let mut unlisted = Vec::new();
    let message = read_fields(fields, members, &mut unlisted)?;
    let of_rules = match operation {
        Operation::List => rules::list(&list_message(&message)),
        _ => Vec::new(),
    };
    let code = if in_path.is_empty() { Code::QueryInvalid } else { Code::IdInvalid };
    in_path.extend(with_others(findings, of_rules));
    error(code, in_path)
}

fn list_message(fields: &Value) -> proto::ListLobbiesRequest {
    proto::ListLobbiesRequest {
        include_state: fields["include_state"].as_bool(),
        limit: fields["limit"].as_u64().and_then(|limit| u32::try_from(limit).ok()),
        cursor: fields["cursor"].as_str().map(str::to_owned),
    }
}

/// Decodes a part of a query. Returns None for bytes that are no UTF-8, and for a wrong escape.
fn decoded(raw: &str) -> Option<String> {
    let is_escape =
        |rest: &str| rest.get(..2).is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
    if !raw.is_ascii() || !raw.split('%').skip(1).all(is_escape) {
        return None;
    }
    let spaced = raw.replace('+', " ");
    percent_decode_str(&spaced).decode_utf8().ok().map(|text| text.into_owned())
}

/// Adds the broken rules of the fields that were decoded.
fn with_others(unread: Vec<Finding>, others: Vec<Finding>) -> Vec<Finding> {
    let is_unread = |other: &Finding| {
        unread.iter().filter(|finding| finding.word != "too-many").any(|finding| {
            other.location.starts_with(&finding.location)
                || matches!(other.word, "required" | "not-unique") && finding.location.starts_with(&other.location)
        })
    };
    let others: Vec<Finding> = others.into_iter().filter(|other| !is_unread(other)).collect();
    [unread, others].concat()
}

fn error(code: Code, findings: Vec<Finding>) -> Option<ServiceError> {
    let names = || findings.iter().flat_map(|finding| &finding.location);
    let bytes: usize = names().map(|name| 6 * name.len()).sum();
    let is_short = findings.len() <= PROBLEMS_MAX && bytes <= PROBLEMS_BYTES_MAX;
    let is_describable = is_short
        && names().all(|name| name.chars().count() <= NAME_LENGTH_MAX)
        && findings.iter().all(|finding| finding.word != "not-json");
    if findings.is_empty() || !is_describable {
        return None;
    }
    Some(findings.iter().fold(ServiceError::from(code), |error, finding| {
        let location: Vec<&str> = finding.location.iter().map(|name| &**name).collect();
        error.with_problem(FieldProblem::new(&location, finding.word, Some(&finding.reason)))
    }))
}
