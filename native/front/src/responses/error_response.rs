//! Responses to refused requests: the bytes of HTTP/1.1, the form of hyper, and the trailers of gRPC.

use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use hosting_matchmaker::ServiceError;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::requests::internal_headers::{RAY_ID, ray_id_value};
use crate::requests::ray_id::RayId;

pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub const STATUS_OK: &str = "0";
pub const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");
const BEARER: HeaderValue = HeaderValue::from_static("Bearer");
/// Bytes of a message that the gRPC protocol encodes.
const OF_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

fn status_of(error: &ServiceError) -> StatusCode {
    StatusCode::from_u16(error.code.row().http_status).expect("the contract has valid statuses")
}

pub fn response(error: &ServiceError, ray_id: RayId) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(error.problem_json(&ray_id.text())));
    *response.status_mut() = status_of(error);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, PROBLEM);
    if error.code.row().http_status == 401 {
        headers.insert(WWW_AUTHENTICATE, BEARER);
    }
    if let Some(seconds) = error.retry_after_s() {
        headers.insert(RETRY_AFTER, seconds.into());
    }
    headers.insert(RAY_ID, ray_id_value(ray_id));
    response
}

/// Appends the bytes of a whole HTTP/1.1 response, with further header lines.
pub fn write_http1(error: &ServiceError, ray_id: RayId, lines: &str, out: &mut Vec<u8>) {
    let (status, body) = (status_of(error), error.problem_json(&ray_id.text()));
    let reason = status.canonical_reason().unwrap_or_default();
    let authenticate = if status == StatusCode::UNAUTHORIZED { "www-authenticate: Bearer\r\n" } else { "" };
    // Writing to a Vec cannot fail.
    let _ = write!(
        out,
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/problem+json\r\n{authenticate}{lines}x-ray-id: {}\r\n",
        status.as_str(),
        ray_id.text()
    );
    if let Some(seconds) = error.retry_after_s() {
        let _ = write!(out, "retry-after: {seconds}\r\n");
    }
    let _ = write!(out, "content-length: {}\r\n\r\n", body.len());
    out.extend_from_slice(&body);
}

/// Returns the trailers of a gRPC response without details of the service, as gRPC itself answers.
pub fn status_trailers((status, message): (i32, &'static str)) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, status.into());
    if !message.is_empty() {
        trailers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    }
    trailers
}

/// Returns the trailers of a gRPC response: status, message, ray id and details.
pub fn trailers(error: &ServiceError, ray_id: RayId) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).expect("the encoding has visible characters only");
    let mut trailers = HeaderMap::with_capacity(4);
    trailers.insert(GRPC_STATUS, HeaderValue::from(error.code.row().grpc_status));
    trailers.insert(GRPC_MESSAGE, value(&utf8_percent_encode(error.detail(), OF_MESSAGE).to_string()));
    trailers.insert(RAY_ID, ray_id_value(ray_id));
    // Binary metadata has no padding.
    trailers.insert(DETAILS, value(&STANDARD_NO_PAD.encode(error.grpc_status())));
    trailers
}

#[cfg(test)]
mod tests {
    use hosting_matchmaker::Code;

    use super::*;

    const RAY: RayId = RayId::from_bytes([0x12; 16]);

    #[test]
    fn forms_of_an_error() {
        let error = ServiceError::rate_limited("client", 1.2);
        let mut bytes = Vec::new();
        write_http1(&error, RAY, "connection: close\r\n", &mut bytes);
        let text = String::from_utf8(bytes).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 429 Too Many Requests\r\n"), "{head}");
        for line in ["connection: close", "retry-after: 2", &format!("x-ray-id: {}", "12".repeat(16))] {
            assert!(head.lines().any(|one| one == line), "{line}: {head}");
        }
        assert!(head.ends_with(&format!("content-length: {}", body.len())));
        let over_hyper = response(&error, RAY);
        assert_eq!((over_hyper.status().as_u16(), &over_hyper.body()[..]), (429, body.as_bytes()));
        assert_eq!(over_hyper.headers()["retry-after"], "2");
        let trailers = trailers(&error, RAY);
        assert_eq!(trailers["grpc-status"], "8");
    }

    #[test]
    fn messages_are_percent_encoded() {
        let error = ServiceError::from(Code::Internal).with_detail("100 % \u{e4}\n~");
        assert_eq!(trailers(&error, RAY)["grpc-message"], "100 %25 %C3%A4%0A~");
    }
}
