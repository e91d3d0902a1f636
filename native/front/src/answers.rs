//! Responses to plain requests: the bytes of HTTP/1.1, and those of hyper.

use std::collections::HashMap;
use std::io::Write as _;

use bytes::Bytes;
use hosting_core::Refusal;
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};

use crate::error_response::{ErrorResponse, ErrorTemplate};
use crate::internal_headers::{RAY_ID, ray_id_value};
use crate::operations::{Executed, Reply};
use crate::ray_id::RayId;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_MESSAGE: &[u8] = b"{}";

/// The responses to the refusals of the engine, in the order of their codes.
pub struct Answers(Vec<Refused>);

struct Refused {
    response: ErrorResponse,
    /// Bytes of the whole HTTP/1.1 response, split where the ray id belongs.
    http1: Vec<Vec<u8>>,
}

impl Answers {
    /// Takes the templates of all refusals. Returns an error that names the missing or wrong one.
    pub fn new(templates: &mut HashMap<String, ErrorTemplate>) -> Result<Answers, String> {
        let take = |code: &&'static str| {
            let template = templates.remove(*code).ok_or_else(|| format!("{code} has no response"))?;
            let response = ErrorResponse::new(template).map_err(|problem| format!("{code}: {problem}"))?;
            Ok(Refused { http1: response.http1(""), response })
        };
        Refusal::SLUGS.iter().map(take).collect::<Result<_, String>>().map(Answers)
    }

    /// Appends the whole response to an executed request.
    pub fn write(&self, executed: &Executed, ray_id: RayId, out: &mut Vec<u8>) {
        match &executed.reply {
            Reply::Empty => write_ok(ray_id, NO_MESSAGE, out),
            Reply::Placed(placement) => write_ok(ray_id, &placement.lobby.json(&placement.tokens), out),
            Reply::Refused => out.extend(self.0[executed.code - 1].http1.join(&ray_id.digits()[..])),
        }
    }

    /// Returns the response to an executed request in the form of hyper.
    pub fn response(&self, executed: &Executed, ray_id: RayId) -> Response<Bytes> {
        let body = match &executed.reply {
            Reply::Empty => Bytes::from_static(NO_MESSAGE),
            Reply::Placed(placement) => placement.lobby.json(&placement.tokens).into(),
            Reply::Refused => return self.refusal(executed.code).response(ray_id),
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response.headers_mut().insert(RAY_ID, ray_id_value(ray_id));
        response
    }

    /// `code` is the number of a refusal.
    pub fn refusal(&self, code: usize) -> &ErrorResponse {
        &self.0[code - 1].response
    }
}

fn write_ok(ray_id: RayId, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-ray-id: ");
    out.extend_from_slice(&ray_id.digits());
    // Writing to a Vec cannot fail.
    let _ = write!(out, "\r\ncontent-length: {}\r\n\r\n", body.len());
    out.extend_from_slice(body);
}

#[cfg(test)]
mod tests;
