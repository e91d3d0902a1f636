//! Errors of gRPC calls: status, message and details, which travel in trailers. Python describes each error once, before
//! the front starts.

use std::collections::HashMap;

use hosting_core::Refusal;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use prost::encoding;

use crate::internal_headers::{RAY_ID, ray_id_value};
use crate::ray_id::RayId;

pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
// Fields of google.rpc.Status.
const STATUS_CODE: u32 = 1;
const STATUS_MESSAGE: u32 = 2;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Error that the front finds itself, without the engine and without Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallProblem {
    HeadersTooLarge,
    BodyTooLarge,
    NoMessage,
    RequestTimeout,
    TokenMissing,
    TokenInvalid,
    TokenNotBearer,
    Overloaded,
    OverloadedBodies,
    OverloadedAll,
    OverloadedAddress,
    OverloadedToken,
    OverloadedTokenless,
    ShuttingDown,
    Internal,
    ControlPlaneUnavailable,
    DeadlineExceeded,
    RateLimitedFailures,
}

impl CallProblem {
    /// All problems, with their names in the Python contract.
    pub const ALL: [(CallProblem, &str); 18] = [
        (CallProblem::HeadersTooLarge, "headers_too_large"),
        (CallProblem::BodyTooLarge, "body_too_large"),
        (CallProblem::NoMessage, "no_message"),
        (CallProblem::RequestTimeout, "request_timeout"),
        (CallProblem::TokenMissing, "token_missing"),
        (CallProblem::TokenInvalid, "token_invalid"),
        (CallProblem::TokenNotBearer, "token_not_bearer"),
        (CallProblem::Overloaded, "overloaded"),
        (CallProblem::OverloadedBodies, "overloaded_bodies"),
        (CallProblem::OverloadedAll, "overloaded_all"),
        (CallProblem::OverloadedAddress, "overloaded_address"),
        (CallProblem::OverloadedToken, "overloaded_token"),
        (CallProblem::OverloadedTokenless, "overloaded_tokenless"),
        (CallProblem::ShuttingDown, "shutting_down"),
        (CallProblem::Internal, "internal"),
        (CallProblem::ControlPlaneUnavailable, "control_plane_unavailable"),
        (CallProblem::DeadlineExceeded, "deadline_exceeded"),
        (CallProblem::RateLimitedFailures, "rate_limited_failures"),
    ];
}

/// One error, as Python describes it.
#[derive(Clone)]
pub struct ErrorTemplate {
    /// Error code of the service.
    pub code: String,
    /// Number of the gRPC status.
    pub status: i32,
    pub message: String,
    /// A `google.rpc.Status` with the details alone.
    pub details: Vec<u8>,
}

/// All errors of the front.
#[derive(Clone)]
pub struct CallErrors {
    /// In the order of [`Refusal::SLUGS`].
    refusals: Vec<CallError>,
    problems: Vec<CallError>,
}

impl CallErrors {
    /// `refusals` are by code, and `problems` by name. Returns an error that names a missing template.
    pub fn new(
        mut refusals: HashMap<String, ErrorTemplate>,
        mut problems: HashMap<String, ErrorTemplate>,
    ) -> Result<CallErrors, &'static str> {
        let mut refusal = |code: &&'static str| refusals.remove(*code).map(CallError::new).ok_or(*code);
        let mut problem =
            |(_, name): &(CallProblem, &'static str)| problems.remove(*name).map(CallError::new).ok_or(*name);
        Ok(CallErrors {
            refusals: Refusal::SLUGS.iter().map(&mut refusal).collect::<Result<_, _>>()?,
            problems: CallProblem::ALL.iter().map(&mut problem).collect::<Result<_, _>>()?,
        })
    }

    /// `code` is a number of [`crate::Answers::codes`], above 0.
    pub fn refusal(&self, code: usize) -> &CallError {
        &self.refusals[code - 1]
    }

    pub fn problem(&self, problem: CallProblem) -> &CallError {
        &self.problems[problem as usize]
    }
}

#[derive(Clone)]
pub struct CallError {
    code: String,
    template: ErrorTemplate,
    status: HeaderValue,
    message: HeaderValue,
    details: HeaderValue,
}

impl CallError {
    fn new(template: ErrorTemplate) -> CallError {
        let (message, details) = message_and_details(&template, &template.message);
        let code = template.code.clone();
        CallError { code, status: HeaderValue::from(template.status), message, details, template }
    }

    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn trailers(&self, ray_id: RayId) -> HeaderMap {
        self.trailers_of(self.message.clone(), self.details.clone(), ray_id)
    }

    /// Returns the trailers with a message of this call.
    pub fn trailers_with_message(&self, message: &str, ray_id: RayId) -> HeaderMap {
        let (message, details) = message_and_details(&self.template, message);
        self.trailers_of(message, details, ray_id)
    }

    fn trailers_of(&self, message: HeaderValue, details: HeaderValue, ray_id: RayId) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        trailers.insert(GRPC_STATUS, self.status.clone());
        trailers.insert(GRPC_MESSAGE, message);
        trailers.insert(RAY_ID, ray_id_value(ray_id));
        trailers.insert(DETAILS, details);
        trailers
    }
}

fn message_and_details(template: &ErrorTemplate, message: &str) -> (HeaderValue, HeaderValue) {
    let mut status = Vec::new();
    encoding::int32::encode(STATUS_CODE, &template.status, &mut status);
    encoding::string::encode(STATUS_MESSAGE, &message.to_owned(), &mut status);
    status.extend_from_slice(&template.details);
    (header_value(&percent_encoded(message)), header_value(&base64(&status)))
}

fn header_value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("the encoding has visible characters only")
}

/// Encodes a message as the gRPC protocol asks for.
fn percent_encoded(message: &str) -> String {
    let mut encoded = String::with_capacity(message.len());
    for byte in message.bytes() {
        if matches!(byte, b' '..=b'~') && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns the standard alphabet without padding, as gRPC sends binary metadata.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| (group << 8) | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..=chunk.len() {
            text.push(char::from(BASE64[(group >> (18 - 6 * place)) as usize & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAY: RayId = RayId::from_bytes([0x12; 16]);

    fn error(message: &str) -> CallError {
        let (code, message, details) = ("OVERLOADED".into(), message.into(), vec![0x1a, 0x00]);
        CallError::new(ErrorTemplate { code, status: 14, message, details })
    }

    fn text<'a>(trailers: &'a HeaderMap, name: &str) -> &'a str {
        trailers[name].to_str().expect("text")
    }

    #[test]
    fn trailers_have_status_message_ray_id_and_details() {
        let trailers = error("a b").trailers(RAY);
        assert_eq!((text(&trailers, "grpc-status"), text(&trailers, "grpc-message")), ("14", "a b"));
        assert_eq!(text(&trailers, "x-ray-id"), "12".repeat(16));
        // 08 0e 12 03 "a b" 1a 00
        assert_eq!(text(&trailers, "grpc-status-details-bin"), "CA4SA2EgYhoA");
    }

    #[test]
    fn message_of_one_call_replaces_that_of_the_error() {
        let trailers = error("a b").trailers_with_message("c", RAY);
        assert_eq!(text(&trailers, "grpc-message"), "c");
        assert_eq!(text(&trailers, "grpc-status-details-bin"), "CA4SAWMaAA");
    }

    #[test]
    fn messages_are_percent_encoded() {
        assert_eq!(percent_encoded("100 % \u{e4}\n~"), "100 %25 %C3%A4%0A~");
    }

    #[test]
    fn base64_of_each_length() {
        let rows: [(&[u8], &str); 5] =
            [(b"", ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo", "Zm9v"), (b"\xfb\xff\xbf\x00", "+/+/AA")];
        for (bytes, expected) in rows {
            assert_eq!(base64(bytes), expected);
        }
    }

    #[test]
    fn missing_template_is_named() {
        let template = |code: &str| {
            (code.to_owned(), ErrorTemplate { code: code.into(), status: 3, message: String::new(), details: vec![] })
        };
        let refusals = || Refusal::SLUGS.iter().map(|code| template(code)).collect();
        let mut problems: HashMap<_, _> = CallProblem::ALL.iter().map(|(_, name)| template(name)).collect();
        let errors = CallErrors::new(refusals(), CallProblem::ALL.iter().map(|(_, name)| template(name)).collect());
        let errors = errors.unwrap_or_else(|name| panic!("{name}"));
        for (problem, name) in CallProblem::ALL {
            assert_eq!(errors.problem(problem).code(), name);
        }
        assert_eq!(errors.refusal(1).code(), Refusal::SLUGS[0]);
        problems.remove("internal");
        assert_eq!(CallErrors::new(refusals(), problems).err(), Some("internal"));
    }
}
