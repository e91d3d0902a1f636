//! Error responses of the front itself. Python writes each of them once, before the front starts.

use std::collections::HashMap;

use bytes::Bytes;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::codes::Codes;
use crate::internal_headers::{RAY_ID, ray_id_value};
use crate::ray_id::RayId;

/// Error that the front finds itself, without the engine and without Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    NotHttp,
    TwoHosts,
    NoHost,
    UriTooLong,
    HeadersTooLarge,
    BodyTooLarge,
    RequestTimeout,
    ShuttingDown,
    Internal,
    Overloaded,
    OverloadedBodies,
    OverloadedAll,
    OverloadedAddress,
    OverloadedToken,
    OverloadedTokenless,
    ControlPlaneUnavailable,
    /// The control plane may have carried out the request.
    ControlPlaneUnavailableSent,
    DeadlineExceeded,
    TokenMissing,
    TokenInvalid,
    TokenNotBearer,
    RateLimitedFailures,
    NotFound,
}

impl Problem {
    /// All problems, with their names in the Python contract.
    pub const ALL: [(Problem, &str); 23] = [
        (Problem::NotHttp, "not_http"),
        (Problem::TwoHosts, "two_hosts"),
        (Problem::NoHost, "no_host"),
        (Problem::UriTooLong, "uri_too_long"),
        (Problem::HeadersTooLarge, "headers_too_large"),
        (Problem::BodyTooLarge, "body_too_large"),
        (Problem::RequestTimeout, "request_timeout"),
        (Problem::ShuttingDown, "shutting_down"),
        (Problem::Internal, "internal"),
        (Problem::Overloaded, "overloaded"),
        (Problem::OverloadedBodies, "overloaded_bodies"),
        (Problem::OverloadedAll, "overloaded_all"),
        (Problem::OverloadedAddress, "overloaded_address"),
        (Problem::OverloadedToken, "overloaded_token"),
        (Problem::OverloadedTokenless, "overloaded_tokenless"),
        (Problem::ControlPlaneUnavailable, "control_plane_unavailable"),
        (Problem::ControlPlaneUnavailableSent, "control_plane_unavailable_sent"),
        (Problem::DeadlineExceeded, "deadline_exceeded"),
        (Problem::TokenMissing, "token_missing"),
        (Problem::TokenInvalid, "token_invalid"),
        (Problem::TokenNotBearer, "token_not_bearer"),
        (Problem::RateLimitedFailures, "rate_limited_failures"),
        (Problem::NotFound, "not_found"),
    ];
}

/// Response to one problem.
pub struct ProblemTemplate {
    pub code: String,
    pub status: u16,
    pub headers: Vec<(String, String)>,
    /// The body, split where the ray id belongs.
    pub body: Vec<Vec<u8>>,
}

/// The responses to all problems.
pub struct Problems(Vec<Template>);

struct Template {
    code: usize,
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<Vec<u8>>,
}

impl Problems {
    /// Returns an error that names the missing or wrong template.
    pub fn new(mut templates: HashMap<String, ProblemTemplate>, codes: &Codes) -> Result<Problems, String> {
        let take = |(_, name): &(Problem, &str)| {
            let template = templates.remove(*name).ok_or_else(|| format!("{name} has no response"))?;
            Template::new(template, codes).map_err(|problem| format!("{name}: {problem}"))
        };
        Problem::ALL.iter().map(take).collect::<Result<_, _>>().map(Problems)
    }

    pub fn code(&self, problem: Problem) -> usize {
        self.0[problem as usize].code
    }

    pub fn response(&self, problem: Problem, ray_id: RayId) -> Response<Bytes> {
        let template = &self.0[problem as usize];
        let mut response = Response::new(Bytes::from(template.body.join(&ray_id.digits()[..])));
        *response.status_mut() = template.status;
        response.headers_mut().extend(template.headers.iter().cloned());
        response.headers_mut().insert(RAY_ID, ray_id_value(ray_id));
        response
    }

    /// Returns the bytes of a whole HTTP/1.1 response, after which the connection closes.
    pub fn last_response(&self, problem: Problem, ray_id: RayId) -> Vec<u8> {
        let response = self.response(problem, ray_id);
        let reason = response.status().canonical_reason().unwrap_or_default();
        let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", response.status().as_str()).into_bytes();
        for (name, value) in response.headers() {
            bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
        }
        let length = response.body().len();
        bytes.extend_from_slice(format!("content-length: {length}\r\nconnection: close\r\n\r\n").as_bytes());
        bytes.extend_from_slice(response.body());
        bytes
    }
}

impl Template {
    fn new(template: ProblemTemplate, codes: &Codes) -> Result<Template, String> {
        let header = |(name, value): (String, String)| {
            let name = HeaderName::try_from(name).map_err(|error| error.to_string())?;
            Ok((name, HeaderValue::try_from(value).map_err(|error| error.to_string())?))
        };
        Ok(Template {
            code: codes.number(&template.code).ok_or_else(|| format!("unknown code {}", template.code))?,
            status: StatusCode::from_u16(template.status).map_err(|error| error.to_string())?,
            headers: template.headers.into_iter().map(header).collect::<Result<_, String>>()?,
            body: template.body,
        })
    }
}
