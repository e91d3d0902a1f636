//! Descriptions of requests that cannot be read: the error with all problems, in the words of Python.

use percent_encoding::percent_decode_str;
use prost::{DecodeError, Message};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::contract::{Code, MALFORMED_PARAMETER, REPEATED_PARAMETER, WRONG_MESSAGE, too_large};
use crate::error::{FieldProblem, ServiceError, standard_reason};
use crate::json_fields::{Json, fields, read_body, read_fields};
use crate::left_to_python::LeftToPython;
use crate::operation::Operation;
use crate::request_rules::{self as rules, Finding};
use crate::requests::{Body, Encoded, LOBBIES_PATH, NoFields, Request, STATE_BYTES_MAX, STATE_PATH};

/// Python shortens longer descriptions.
const PROBLEMS_MAX: usize = 200;
const PROBLEMS_BYTES_MAX: usize = 32 * 1024;
const NAME_LENGTH_MAX: usize = 256;

/// Returns the error of a request that cannot be read.
pub fn describe(operation: Operation, body: Body<'_>) -> Result<ServiceError, LeftToPython> {
    match body {
        Body::Json(text) => describe_json(operation, text),
        Body::Proto(message) => describe_proto(operation, message),
        Body::Target { path, query } => describe_target(operation, path, query),
        Body::Checked(_) | Body::Other => Err(LeftToPython::OtherForm),
    }
}

fn describe_json(operation: Operation, text: &[u8]) -> Result<ServiceError, LeftToPython> {
    if operation == Operation::SetState {
        return error(Code::BodyInvalid, Request::of_state(text).findings());
    }
    let mut unread = Vec::new();
    let message = read_body(operation, text, &mut unread)?;
    let of_rules = broken_rules(operation, message);
    error(Code::BodyInvalid, with_others(unread, of_rules))
}

/// The decoded fields of a message.
impl Encoded for Value {
    type Error = serde_json::Error;

    fn message<M: Message + Default + DeserializeOwned>(self) -> serde_json::Result<M> {
        serde_json::from_value(self)
    }
}

/// Returns the rules that decoded fields break.
fn broken_rules(operation: Operation, message: Value) -> Vec<Finding> {
    Request::decode(operation, message).map(|request| request.findings()).unwrap_or_default()
}

fn describe_proto(operation: Operation, message: &[u8]) -> Result<ServiceError, LeftToPython> {
    let request = match Request::decode(operation, message) {
        Ok(request) => request,
        // Python may take a field for an unknown one.
        Err(_) if NoFields::decode(message).is_ok() => return Err(LeftToPython::UnusualEncoding),
        Err(_) => return Ok(ServiceError::from(Code::BodyInvalid).with_detail(WRONG_MESSAGE)),
    };
    let code = match &request {
        Request::SetState(message) if message.state.len() > STATE_BYTES_MAX => {
            let detail = too_large(STATE_BYTES_MAX, message.state.len());
            return Ok(ServiceError::from(Code::BodyTooLarge).with_detail(detail));
        }
        Request::GetState(_) => Code::IdInvalid,
        Request::List(_) => Code::QueryInvalid,
        _ => Code::BodyInvalid,
    };
    error(code, request.findings())
}

/// Returns the rules that a message breaks.
pub fn rules_of_proto(operation: Operation, message: &[u8]) -> Result<Vec<Finding>, DecodeError> {
    Request::decode(operation, message).map(|request| request.findings())
}

fn describe_target(operation: Operation, path: &str, query: &str) -> Result<ServiceError, LeftToPython> {
    let mut in_path = Vec::new();
    if operation == Operation::GetState {
        let id = path.strip_prefix(LOBBIES_PATH).and_then(|rest| rest.strip_suffix(STATE_PATH));
        in_path = rules::lobby_of_path(id.filter(|id| !id.contains('%')).ok_or(LeftToPython::EscapedPath)?);
    }
    let fields = fields(operation);
    let (mut findings, mut members): (Vec<_>, Vec<(String, Json)>) = (Vec::new(), Vec::new());
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (raw_name, raw_text) = parameter.split_once('=').unwrap_or((parameter, ""));
        let finding = |word, reason: &'static str| Finding::new(vec![raw_name.to_owned().into()], word, reason);
        let Some(name) = decoded(raw_name) else {
            findings.push(finding("invalid", MALFORMED_PARAMETER));
            continue;
        };
        let location = vec![name.clone().into()];
        let Some((_, form)) = fields.iter().find(|(known, _)| *known == name) else {
            findings.push(Finding::new(location, "unknown-parameter", standard_reason("unknown-parameter")));
            continue;
        };
        if members.iter().any(|(known, _)| *known == name) {
            findings.push(Finding::new(location, "not-unique", REPEATED_PARAMETER));
            continue;
        }
        let Some(text) = decoded(raw_text) else {
            findings.push(Finding::new(location, "invalid", MALFORMED_PARAMETER));
            members.push((name, Json::Null));
            continue;
        };
        let member = (name, Json::of_text(*form, text));
        members.push(member.clone());
        read_fields(fields, vec![member], &mut findings)?;
    }
    let mut unlisted = Vec::new();
    let message = read_fields(fields, members, &mut unlisted)?;
    let of_rules = broken_rules(operation, message);
    let code = if in_path.is_empty() { Code::QueryInvalid } else { Code::IdInvalid };
    in_path.extend(with_others(findings, of_rules));
    error(code, in_path)
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

fn error(code: Code, findings: Vec<Finding>) -> Result<ServiceError, LeftToPython> {
    let names = || findings.iter().flat_map(|finding| &finding.location);
    let bytes: usize = names().map(|name| 6 * name.len()).sum();
    if findings.is_empty() {
        return Err(LeftToPython::NoProblem);
    }
    if findings.iter().any(|finding| finding.word == "not-json") {
        return Err(LeftToPython::NotJson);
    }
    if findings.len() > PROBLEMS_MAX
        || bytes > PROBLEMS_BYTES_MAX
        || names().any(|name| name.chars().count() > NAME_LENGTH_MAX)
    {
        return Err(LeftToPython::LongDescription);
    }
    Ok(findings.iter().fold(ServiceError::from(code), |error, finding| {
        let location: Vec<&str> = finding.location.iter().map(|name| &**name).collect();
        error.with_problem(FieldProblem::new(&location, finding.word, Some(&finding.reason)))
    }))
}
