//! HTTP/1.1 responses to plain requests. Python writes each error response once, before the front starts.

use std::collections::HashMap;
use std::io::Write as _;

use bytes::Bytes;
use hosting_core::Refusal;
use http::header::{HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::operations::{Executed, Reply};
use crate::ray_id::RayId;

const OK: &str = "OK";
/// Bound of the headers of a response.
const HEADERS_MAX: usize = 16;
const NO_MESSAGE: &[u8] = b"{}";

/// Bytes of a whole HTTP response, without the ray ids between its parts.
pub struct AnswerTemplate(Vec<Vec<u8>>);

impl AnswerTemplate {
    pub fn new(parts: Vec<Vec<u8>>) -> AnswerTemplate {
        AnswerTemplate(parts)
    }

    fn write(&self, ray_id: &[u8], out: &mut Vec<u8>) {
        for (number, part) in self.0.iter().enumerate() {
            if number > 0 {
                out.extend_from_slice(ray_id);
            }
            out.extend_from_slice(part);
        }
    }
}

/// The response to each refusal of the engine. The number of a code is its place in [`Answers::codes`].
pub struct Answers {
    /// `OK`, then the codes of the refusals.
    codes: Vec<&'static str>,
    refusals: Vec<AnswerTemplate>,
}

impl Answers {
    /// Returns an error with the code that has no template.
    pub fn new(mut templates: HashMap<String, AnswerTemplate>) -> Result<Answers, &'static str> {
        let take = |code: &&'static str| templates.remove(*code).ok_or(*code);
        let refusals = Refusal::SLUGS.iter().map(take).collect::<Result<_, _>>()?;
        Ok(Answers { codes: [OK].into_iter().chain(Refusal::SLUGS.iter().copied()).collect(), refusals })
    }

    pub fn codes(&self) -> &[&'static str] {
        &self.codes
    }

    pub fn number(&self, result: &Result<(), Refusal>) -> usize {
        let Err(refusal) = result else { return 0 };
        let slug = refusal.slug();
        self.codes.iter().position(|code| *code == slug).expect("each refusal has a code")
    }

    /// Appends the whole response to an executed request.
    pub fn write(&self, executed: &Executed, ray_id: RayId, out: &mut Vec<u8>) {
        match &executed.reply {
            Reply::Empty => write_ok(ray_id, NO_MESSAGE, out),
            Reply::Placed(placement) => {
                let mut body = Vec::new();
                placement.lobby.write_json(&placement.tokens, &mut body);
                write_ok(ray_id, &body, out);
            }
            Reply::Refused => self.refusals[executed.code - 1].write(&ray_id.digits(), out),
        }
    }
}

impl Answers {
    /// Returns the response to an executed request in the form of hyper.
    pub fn response(&self, executed: &Executed, ray_id: RayId) -> Response<Bytes> {
        let mut bytes = Vec::new();
        self.write(executed, ray_id, &mut bytes);
        let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut head = httparse::Response::new(&mut fields);
        let parsed = head.parse(&bytes);
        let Ok(httparse::Status::Complete(length)) = parsed else { unreachable!("the front has written a response") };
        let mut response = Response::new(Bytes::copy_from_slice(&bytes[length..]));
        *response.status_mut() =
            head.code.and_then(|code| StatusCode::from_u16(code).ok()).expect("a status was written");
        for field in head.headers {
            let name = HeaderName::from_bytes(field.name.as_bytes()).expect("a header was written");
            response.headers_mut().append(name, HeaderValue::from_bytes(field.value).expect("a value was written"));
        }
        response
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
