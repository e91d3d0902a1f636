//! Form and sizes of the requests that hyper reads.

use bytes::Bytes;
use http::header::{HOST, HeaderMap, HeaderValue};
use http::request::Parts;
use http::{Method, Version};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use crate::limits::body_budget::Reservation;
use crate::responses::problems::Problem;

/// Bound on the number of headers. Each costs memory and time, however short it is.
pub const HEADERS_MAX: usize = 128;
/// A body in memory grows by this part of its bytes, or by some bytes.
const GROWTH_PART: usize = 8;
const GROWTH_BYTES_MIN: usize = 16 * 1024;
/// Overhead of a header beside its name and value.
const HEADER_OVERHEAD_BYTES: usize = 4;

/// Returns the target that Python gets, or None for a target without a path. Uvicorn takes only ASCII. A CONNECT would
/// reach Python with the host in place of the path.
pub fn target(parts: &Parts) -> Option<&str> {
    let target = parts.uri.path_and_query()?.as_str();
    (target.starts_with('/') && target.is_ascii() && parts.method != Method::CONNECT).then_some(target)
}

pub fn check_headers(parts: &mut Parts, bytes_max: usize) -> Result<(), Problem> {
    let headers = &mut parts.headers;
    if header_bytes(headers) > bytes_max || headers.len() > HEADERS_MAX {
        return Err(Problem::HeadersTooLarge);
    }
    if let (Version::HTTP_2, Some(authority)) = (parts.version, parts.uri.authority()) {
        let host = HeaderValue::try_from(authority.as_str()).map_err(|_| Problem::NotHttp)?;
        headers.insert(HOST, host);
    }
    match headers.get_all(HOST).iter().count() {
        0 if parts.version >= Version::HTTP_11 => Err(Problem::NoHost),
        0 | 1 => Ok(()),
        _ => Err(Problem::TwoHosts),
    }
}

/// Returns the bytes of headers or metadata, with the overhead of each.
pub fn header_bytes(headers: &HeaderMap) -> usize {
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD_BYTES).sum()
}

pub async fn collect(
    mut body: Incoming,
    reservation: &mut Reservation,
    check: impl Fn(usize) -> Result<(), Problem>,
) -> Result<Bytes, Problem> {
    let mut collected = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::NotHttp)?;
        let Ok(data) = frame.into_data() else { continue };
        let bytes = collected.len() + data.len();
        check(bytes)?;
        reservation.grow_to(bytes)?;
        if collected.is_empty() && body.is_end_stream() {
            return Ok(data);
        }
        if collected.capacity() < bytes {
            // Doubling would take up to twice the memory that the budget counts.
            collected.reserve_exact(data.len() + (bytes / GROWTH_PART).max(GROWTH_BYTES_MIN));
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.into())
}
