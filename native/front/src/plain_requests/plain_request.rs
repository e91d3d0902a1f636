//! Reading of the requests that clients send most, from the bytes of an HTTP/1.1 connection.
//!
//! Other requests, and requests with a form that two readers could understand differently, are left to hyper.

use std::str;

use hosting_matchmaker::Operation;
use memchr::memchr;

const LINES: [(&[u8], Operation); 5] = [
    (b"POST /matchmaker/players/connected HTTP/1.1\r\n", Operation::Connected),
    (b"POST /matchmaker/players/disconnected HTTP/1.1\r\n", Operation::Disconnected),
    (b"POST /matchmaker/lobbies/heartbeat HTTP/1.1\r\n", Operation::Heartbeat),
    (b"POST /matchmaker/lobbies/join HTTP/1.1\r\n", Operation::Join),
    (b"POST /matchmaker/lobbies/find HTTP/1.1\r\n", Operation::Find),
];
/// Headers of a request. A browser behind two proxies sends about 25.
const HEADERS_MAX: usize = 40;
/// Bound of the longest request. A request of a usual client has less than 2 KiB.
pub const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// Options of a connection that change nothing, and name no header with an effect.
const CONNECTION_OPTIONS: [&str; 4] = ["keep-alive", "upgrade", "http2-settings", "te"];

#[derive(Debug, PartialEq, Eq)]
pub struct PlainRequest<'a> {
    pub operation: Operation,
    pub head: Head<'a>,
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
        let Some((head, body_length)) = is_strict(head).then(|| Head::read(fields)).flatten() else {
            return Received::Other;
        };
        let length = (line.len() + head_length).saturating_add(body_length);
        if length > bytes_max {
            return Received::Other;
        }
        match rest.get(..body_length) {
            Some(body) => Received::Plain(PlainRequest { operation, head, body, length }),
            None => Received::Partial,
        }
    }
}

/// The parser also takes lines that end without a carriage return, and drops tabs around values. Other servers may read both
/// differently.
fn is_strict(head: &[u8]) -> bool {
    // Without an early end, the check takes many bytes at once.
    let are_ends_strict = |all, (before, byte): (&u8, &u8)| all & ((*byte != b'\n') | (*before == b'\r'));
    let has_strict_ends = head.iter().zip(head.get(1..).unwrap_or_default()).fold(true, are_ends_strict);
    memchr(b'\t', head).is_none() && head.first() != Some(&b'\n') && has_strict_ends
}

/// Headers with an effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Head<'a> {
    pub authorization: Option<&'a [u8]>,
    pub origin: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a [u8]>,
    pub media_type: Option<&'a [u8]>,
    pub forwarded_for: Option<&'a [u8]>,
    pub coordinates: Option<&'a [u8]>,
    pub traceparent: Option<&'a [u8]>,
}

impl<'a> Head<'a> {
    /// Returns the headers and the length of the body. Returns None for a repeated header with an effect, and for headers that
    /// change how the connection is read.
    fn read(fields: impl Iterator<Item = (&'a str, &'a [u8])>) -> Option<(Head<'a>, usize)> {
        let mut head = Head::default();
        let (mut host, mut length, mut connection) = (None, None, None);
        for (field, value) in fields {
            let is = |name: &str| field.eq_ignore_ascii_case(name);
            let slot = match field.len() {
                4 if is("host") => &mut host,
                6 if is("origin") => &mut head.origin,
                6 if is("expect") => return None,
                8 if is("x-coords") => &mut head.coordinates,
                10 if is("connection") => &mut connection,
                11 if is("traceparent") => &mut head.traceparent,
                12 if is("content-type") => &mut head.media_type,
                13 if is("authorization") => &mut head.authorization,
                14 if is("content-length") => &mut length,
                // hyper reads a request with it, because the matchmaker refuses the body.
                16 if is("content-encoding") => return None,
                15 if is("x-forwarded-for") => &mut head.forwarded_for,
                15 if is("idempotency-key") => &mut head.idempotency_key,
                17 if is("transfer-encoding") => return None,
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return None;
            }
        }
        host?;
        if !connection.is_none_or(has_no_effect) {
            return None;
        }
        Some((head, decimal(length?)?))
    }
}

fn has_no_effect(connection: &[u8]) -> bool {
    let is_known = |option: &[u8]| {
        CONNECTION_OPTIONS.into_iter().any(|known| option.trim_ascii().eq_ignore_ascii_case(known.as_bytes()))
    };
    connection.split(|byte| *byte == b',').all(is_known)
}

fn decimal(digits: &[u8]) -> Option<usize> {
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
