//! Error responses of the front itself, over HTTP and gRPC. Python describes each of them once, before the front starts.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::grpc::CallError;
use crate::internal_headers::{RAY_ID, ray_id_value};
use crate::ray_id::{DIGITS, RayId};

/// One error, as Python describes it.
pub struct ErrorTemplate {
    /// Error code of the service.
    pub code: String,
    pub http_status: u16,
    /// Without length and ray id.
    pub headers: Vec<(String, String)>,
    /// The body, split where the ray id belongs.
    pub body: Vec<Vec<u8>>,
    /// Number of the gRPC status.
    pub grpc_status: i32,
    pub message: String,
    /// A `google.rpc.Status` with the details alone.
    pub details: Vec<u8>,
}

pub struct ErrorResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<Vec<u8>>,
    pub over_grpc: CallError,
}

impl ErrorResponse {
    pub fn new(template: ErrorTemplate) -> Result<ErrorResponse, String> {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::try_from(name).map_err(|error| error.to_string())?;
            Ok((name, HeaderValue::try_from(value).map_err(|error| error.to_string())?))
        };
        Ok(ErrorResponse {
            status: StatusCode::from_u16(template.http_status).map_err(|error| error.to_string())?,
            headers: template.headers.into_iter().map(header).collect::<Result<_, String>>()?,
            body: template.body,
            over_grpc: CallError::new(template.grpc_status, template.message, template.details),
        })
    }

    pub fn response(&self, ray_id: RayId) -> Response<Bytes> {
        let mut response = Response::new(Bytes::from(self.body.join(&ray_id.digits()[..])));
        *response.status_mut() = self.status;
        response.headers_mut().clone_from(&self.headers);
        response.headers_mut().insert(RAY_ID, ray_id_value(ray_id));
        response
    }

    /// Returns the bytes of a whole HTTP/1.1 response with further header lines, split where the ray id belongs.
    pub fn http1(&self, lines: &str) -> Vec<Vec<u8>> {
        let length = self.body.join(&[0; DIGITS][..]).len();
        let (status, reason) = (self.status.as_str(), self.status.canonical_reason().unwrap_or_default());
        let mut head = format!("HTTP/1.1 {status} {reason}\r\n{lines}content-length: {length}\r\n").into_bytes();
        for (name, value) in &self.headers {
            head.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        head.extend_from_slice(b"x-ray-id: ");
        let mut parts = vec![head, b"\r\n\r\n".to_vec()];
        let mut body = self.body.iter();
        parts[1].extend(body.next().into_iter().flatten());
        parts.extend(body.cloned());
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAY: RayId = RayId::from_bytes([0x12; 16]);

    fn error(body: &[&str]) -> ErrorResponse {
        let template = ErrorTemplate {
            code: "OVERLOADED".into(),
            http_status: 503,
            headers: vec![("retry-after".into(), "1".into())],
            body: body.iter().map(|part| part.as_bytes().to_vec()).collect(),
            grpc_status: 14,
            message: String::new(),
            details: Vec::new(),
        };
        ErrorResponse::new(template).unwrap_or_else(|problem| panic!("{problem}"))
    }

    #[test]
    fn ray_id_stands_in_the_header_and_between_the_parts_of_the_body() {
        let ray = "12".repeat(16);
        for (parts, length, body) in
            [(&["a ", " b"][..], 36, format!("a {ray} b")), (&["a"], 1, "a".into()), (&[], 0, String::new())]
        {
            let error = error(parts);
            let expected = format!(
                "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: {length}\r\n\
                 retry-after: 1\r\nx-ray-id: {ray}\r\n\r\n{body}"
            );
            assert_eq!(error.http1("connection: close\r\n").join(ray.as_bytes()), expected.as_bytes());
            let response = error.response(RAY);
            assert_eq!((response.status().as_u16(), &response.body()[..]), (503, body.as_bytes()));
            assert_eq!(
                (&response.headers()["retry-after"], &response.headers()["x-ray-id"]),
                (&"1".parse().expect("a value"), &ray.parse().expect("a value"))
            );
        }
    }
}
