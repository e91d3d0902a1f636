//! Recognition of plain requests. Anything unusual makes a request not plain, so that Python decides about it.

use std::str;

use memchr::{memchr, memchr_iter};

use crate::bearer_token::plain_token;
use crate::hot_request::WITHOUT_EFFECT;
use crate::operations::Operation;

const LINES: [(&[u8], Operation); 5] = [
    (b"POST /matchmaker/players/connected HTTP/1.1\r\n", Operation::Connected),
    (b"POST /matchmaker/players/disconnected HTTP/1.1\r\n", Operation::Disconnected),
    (b"POST /matchmaker/lobbies/heartbeat HTTP/1.1\r\n", Operation::Heartbeat),
    (b"POST /matchmaker/lobbies/join HTTP/1.1\r\n", Operation::Join),
    (b"POST /matchmaker/lobbies/find HTTP/1.1\r\n", Operation::Find),
];
const JSON: &[u8] = b"application/json";
const HEADERS_MAX: usize = 24;
/// Bound of the longest plain request. A request of a usual client has less than 1 KiB.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024;
#[derive(Debug, PartialEq, Eq)]
pub struct PlainRequest<'a> {
    pub operation: Operation,
    /// Token of the authorization header.
    pub token: &'a str,
    /// Value of the header `x-forwarded-for`.
    pub forwarded_for: Option<&'a [u8]>,
    pub body: &'a [u8],
    /// Length with head and body.
    pub length: usize,
}

/// Kind of the request at the beginning of the received bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    Plain(PlainRequest<'a>),
    /// The beginning of a request that is plain until here.
    Partial,
    Other,
}

impl<'a> Received<'a> {
    /// `bytes_max` is the length of the longest plain request.
    pub fn read(bytes: &'a [u8], bytes_max: usize) -> Received<'a> {
        let is_possible = |line: &[u8]| bytes.starts_with(line) || line.starts_with(bytes);
        let Some((line, operation)) = LINES.into_iter().find(|(line, _)| is_possible(line)) else {
            return Received::Other;
        };
        let Some(rest) = bytes.get(line.len()..) else { return Received::Partial };
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let (head_length, fields) = match httparse::parse_headers(rest, &mut fields) {
            Ok(httparse::Status::Complete(parsed)) => parsed,
            Ok(httparse::Status::Partial) if bytes.len() < bytes_max => return Received::Partial,
            _ => return Received::Other,
        };
        let (head, rest) = rest.split_at(head_length);
        let fields = fields.iter().map(|field| (field.name, field.value));
        let Some(Head { token, forwarded_for, body_length: Some(body_length) }) =
            is_strict(head).then(|| Head::read(fields)).flatten()
        else {
            return Received::Other;
        };
        let length = (line.len() + head_length).saturating_add(body_length);
        if length > bytes_max {
            return Received::Other;
        }
        match rest.get(..body_length) {
            Some(body) => Received::Plain(PlainRequest { operation, token, forwarded_for, body, length }),
            None => Received::Partial,
        }
    }
}

/// The parser also takes lines that end without a carriage return, and drops tabs around values. Other servers, Python
/// included, may read both differently.
fn is_strict(head: &[u8]) -> bool {
    memchr(b'\t', head).is_none() && memchr_iter(b'\n', head).all(|at| at > 0 && head[at - 1] == b'\r')
}

/// Headers of a plain request.
pub struct Head<'a> {
    pub token: &'a str,
    forwarded_for: Option<&'a [u8]>,
    body_length: Option<usize>,
}

impl<'a> Head<'a> {
    /// Returns None unless each header is known, occurs once, and has a usual value.
    pub fn read(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Option<Head<'a>> {
        let (mut host, mut token, mut length) = (None, None, None);
        let (mut media_type, mut connection, mut forwarded_for) = (None, None, None);
        for (field, value) in fields {
            let is = |name: &str| field.eq_ignore_ascii_case(name);
            let slot = match field.len() {
                4 if is("host") => &mut host,
                13 if is("authorization") => &mut token,
                14 if is("content-length") => &mut length,
                12 if is("content-type") => &mut media_type,
                10 if is("connection") => &mut connection,
                15 if is("x-forwarded-for") => &mut forwarded_for,
                _ if WITHOUT_EFFECT.into_iter().any(is) => continue,
                _ => return None,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        host?;
        let is_usual =
            media_type.is_none_or(is_json) && connection.is_none_or(|value| value.eq_ignore_ascii_case(b"keep-alive"));
        if !is_usual {
            return None;
        }
        let token = plain_token(token?)?;
        let body_length = match length {
            Some(digits) => Some(decimal(digits)?),
            None => None,
        };
        Some(Head { token, forwarded_for, body_length })
    }
}

fn is_json(media_type: &[u8]) -> bool {
    media_type.strip_prefix(JSON).is_some_and(|parameters| matches!(parameters.first(), None | Some(b';')))
}

fn decimal(digits: &[u8]) -> Option<usize> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
