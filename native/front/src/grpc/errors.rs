//! Errors of gRPC calls: status, message and details, which travel in trailers.

use http::header::{HeaderMap, HeaderName, HeaderValue};
use prost::encoding;

use crate::internal_headers::{RAY_ID, ray_id_value};
use crate::ray_id::RayId;

pub const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub const DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
// Fields of google.rpc.Status.
const STATUS_CODE: u32 = 1;
const STATUS_MESSAGE: u32 = 2;
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// One error.
pub struct CallError {
    status: i32,
    /// A `google.rpc.Status` with the details alone.
    details: Vec<u8>,
    /// The usual message and details.
    encoded: (HeaderValue, HeaderValue),
}

impl CallError {
    pub fn new(status: i32, message: String, details: Vec<u8>) -> CallError {
        let encoded = message_and_details(status, message, &details);
        CallError { status, details, encoded }
    }

    pub fn trailers(&self, ray_id: RayId) -> HeaderMap {
        self.trailers_of(self.encoded.clone(), ray_id)
    }

    /// Returns the trailers with a message of this call.
    pub fn trailers_with_message(&self, message: String, ray_id: RayId) -> HeaderMap {
        self.trailers_of(message_and_details(self.status, message, &self.details), ray_id)
    }

    fn trailers_of(&self, (message, details): (HeaderValue, HeaderValue), ray_id: RayId) -> HeaderMap {
        let mut trailers = HeaderMap::with_capacity(4);
        trailers.insert(GRPC_STATUS, HeaderValue::from(self.status));
        trailers.insert(GRPC_MESSAGE, message);
        trailers.insert(RAY_ID, ray_id_value(ray_id));
        trailers.insert(DETAILS, details);
        trailers
    }
}

fn message_and_details(status: i32, message: String, details: &[u8]) -> (HeaderValue, HeaderValue) {
    let mut bytes = Vec::new();
    encoding::int32::encode(STATUS_CODE, &status, &mut bytes);
    encoding::string::encode(STATUS_MESSAGE, &message, &mut bytes);
    bytes.extend_from_slice(details);
    (header_value(&percent_encoded(&message)), header_value(&base64(&bytes)))
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
        CallError::new(14, message.into(), vec![0x1a, 0x00])
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
        let trailers = error("a b").trailers_with_message("c".into(), RAY);
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
}
