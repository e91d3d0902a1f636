//! Requests that the rules of the matchmaker decide at once, in both protocols.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use hosting_core::Lsn;
use hosting_matchmaker::{
    Body, Call, ClientKey, Code, Decision, Limit, Matchmaker, Operation, Outcome, Progress, Reply, ServiceError,
    Subject,
};
use hosting_shard::Shard;
use http::Response;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use tokio::sync::Semaphore;
use tokio::task::{spawn_blocking, yield_now};

use crate::connections::client_address::coordinates;
use crate::measurements::code_number;
use crate::measurements::measurer::Measurer;
use crate::measurements::pass_reason::PassReason;
use crate::passing::passing_options::PassingOptions;
use crate::requests::internal_headers::{COORDINATES, RAY_ID, ray_id_value};
use crate::requests::ray_id::RayId;
use crate::responses::error_response;
use crate::responses::problems::Problem;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
/// Longest request that the rules decide on a thread of the front. Its decoding takes less than a millisecond.
const SHORT_BYTES_MAX: usize = 80 * 1024;
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// A decided request. Its response may be sent when the event `wait` is durable.
pub struct Decided {
    pub subject: Option<Subject>,
    pub wait: Lsn,
    /// The rate limit that refused the request.
    pub exceeded: Option<Limit>,
    pub result: Result<Reply, Box<ServiceError>>,
}

impl Decided {
    /// Returns the number of the code of the response.
    pub fn code(&self) -> usize {
        self.result.as_ref().map_or_else(|error| code_number::of(error.code), |_| code_number::OK)
    }

    pub fn is_rate_limited(&self) -> bool {
        matches!(&self.result, Err(error) if error.code == Code::RateLimited)
    }

    /// Reads a page of the lobby list in parts, so that other requests run between them.
    pub async fn complete(&mut self, shard: &Shard, pages: &Semaphore) {
        let Ok(Reply::Lobbies(page)) = &mut self.result else { return };
        let _permit = pages.acquire().await.expect("the semaphore is never closed");
        while !page.read_part(shard) {
            yield_now().await;
        }
    }

    /// Appends the bytes of the whole HTTP/1.1 response, with further header lines.
    pub fn write_http1(&self, ray_id: RayId, lines: &str, out: &mut Vec<u8>) {
        match &self.result {
            Ok(reply) => write_ok(ray_id, lines, &reply.json(), out),
            Err(error) => error_response::write_http1(error, ray_id, lines, out),
        }
    }

    /// Returns the response in the form of hyper.
    pub fn response(&self, ray_id: RayId) -> Response<Bytes> {
        let body = match &self.result {
            Ok(reply) => Bytes::from(reply.json().into_owned()),
            Err(error) => return error_response::response(error, ray_id),
        };
        let mut response = Response::new(body);
        response.headers_mut().insert(CONTENT_TYPE, JSON);
        response.headers_mut().insert(RAY_ID, ray_id_value(ray_id));
        response
    }
}

fn write_ok(ray_id: RayId, lines: &str, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-ray-id: ");
    out.extend_from_slice(&ray_id.digits());
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(lines.as_bytes());
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(itoa::Buffer::new().format(body.len()).as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
    out.extend_from_slice(body);
}

/// The rules of the matchmaker for the requests of one transport.
#[derive(Clone)]
pub struct Decider {
    pub matchmaker: Arc<Matchmaker>,
    pub options: Arc<PassingOptions>,
    pub measurer: Arc<Measurer>,
    /// Held by the one long request of the thread that is being decided.
    pub long_request: Arc<Semaphore>,
}

impl Decider {
    /// Decides a request, or returns why it is passed on to Python. A failed authentication counts for its client.
    pub fn decide(&self, call: &Call<'_>) -> Result<Decided, PassReason> {
        let Outcome { subject, decision, exceeded } = self.matchmaker.answer(call);
        let (mut result, wait) = match decision {
            Decision::Answered(answer) => (Ok(answer.reply), answer.wait),
            Decision::Refused { error, wait } => (Err(error), wait),
            Decision::Needs(need) => return Err(PassReason::Needs(need)),
            Decision::Held(_) => unreachable!("the front lets no request wait for a lobby"),
        };
        let has_wrong_credentials = subject.is_none() && result.as_ref().is_err_and(|error| is_failure(error.code));
        let failed_authentications = &self.options.failed_authentications;
        if has_wrong_credentials && failed_authentications.fail(ClientKey::of(call.client)).is_err() {
            self.measurer.count_limited_failure();
            result = Err(Box::new(Problem::RateLimitedFailures.error()));
        }
        Ok(Decided { subject, wait, exceeded, result })
    }

    /// Decides a request of any length. Other requests of the thread run while a long one is decoded.
    pub async fn decide_any(
        &self,
        headers: EffectiveHeaders<'_>,
        operation: Operation,
        client: IpAddr,
        content: Content<'_>,
    ) -> Result<Decided, PassReason> {
        let bytes = match content {
            Content::Target { .. } => None,
            Content::Json(bytes) | Content::Proto(bytes) => Some(bytes).filter(|bytes| bytes.len() > SHORT_BYTES_MAX),
        };
        let Some(bytes) = bytes.cloned() else { return self.decide(&headers.call(operation, client, content.body())) };
        let is_json = matches!(content, Content::Json(_));
        let decider = self.clone();
        let deciding = move |headers: EffectiveHeaders<'_>| {
            let content = if is_json { Content::Json(&bytes) } else { Content::Proto(&bytes) };
            decider.decide(&headers.call(operation, client, content.body()))
        };
        // Boxed, because the future of each request is moved several times.
        Box::pin(self.decide_apart(headers.into_owned(), deciding)).await
    }

    async fn decide_apart(
        &self,
        headers: EffectiveHeaders<'static>,
        decide: impl FnOnce(EffectiveHeaders<'_>) -> Result<Decided, PassReason> + Send + 'static,
    ) -> Result<Decided, PassReason> {
        let turn = self.long_request.clone().acquire_owned().await.expect("the semaphore is never closed");
        // The decision goes on if its request is cancelled, and keeps its turn until its end.
        let deciding = spawn_blocking(move || {
            let _turn = turn;
            decide(headers)
        });
        deciding.await.expect("a decision does not panic")
    }
}

/// Content of a request that hyper has read.
#[derive(Clone, Copy)]
pub enum Content<'a> {
    Json(&'a Bytes),
    Proto(&'a Bytes),
    Target { path: &'a str, query: &'a str },
}

impl<'a> Content<'a> {
    fn body(self) -> Body<'a> {
        match self {
            Content::Json(text) => Body::Json(text),
            Content::Proto(message) => Body::Proto(message),
            Content::Target { path, query } => Body::Target { path, query },
        }
    }
}

/// Returns whether credentials are wrong. Missing ones cost no look-up.
fn is_failure(code: Code) -> bool {
    code.row().http_status == 401 && code != Code::TokenMissing
}

/// Headers or metadata with an effect. Repeated ones are read as one, with commas between their values.
pub struct EffectiveHeaders<'a> {
    authorization: Option<Cow<'a, [u8]>>,
    origin: Option<Cow<'a, [u8]>>,
    idempotency_key: Option<Cow<'a, [u8]>>,
    media_type: Option<Cow<'a, [u8]>>,
    content_encoding: Option<Cow<'a, [u8]>>,
    coordinates: Option<(f64, f64)>,
}

impl<'a> EffectiveHeaders<'a> {
    /// `is_dropped` returns whether a header belongs to the connection alone.
    pub fn of(headers: &'a HeaderMap, trusts_peer: bool, is_dropped: impl Fn(&HeaderName) -> bool) -> Self {
        let value = |name: &HeaderName| if is_dropped(name) { None } else { joined(headers, name) };
        EffectiveHeaders {
            authorization: value(&AUTHORIZATION),
            origin: value(&ORIGIN),
            idempotency_key: value(&IDEMPOTENCY_KEY),
            media_type: value(&CONTENT_TYPE),
            content_encoding: value(&CONTENT_ENCODING),
            coordinates: value(&COORDINATES).filter(|_| trusts_peer).and_then(|text| coordinates(&text)),
        }
    }

    fn into_owned(self) -> EffectiveHeaders<'static> {
        let owned = |value: Option<Cow<'_, [u8]>>| value.map(|value| Cow::Owned(value.into_owned()));
        EffectiveHeaders {
            authorization: owned(self.authorization),
            origin: owned(self.origin),
            idempotency_key: owned(self.idempotency_key),
            media_type: owned(self.media_type),
            content_encoding: owned(self.content_encoding),
            coordinates: self.coordinates,
        }
    }

    fn call<'b>(&'b self, operation: Operation, client: IpAddr, body: Body<'b>) -> Call<'b> {
        Call {
            operation,
            authorization: self.authorization.as_deref(),
            origin: self.origin.as_deref(),
            idempotency_key: self.idempotency_key.as_deref(),
            media_type: self.media_type.as_deref(),
            content_encoding: self.content_encoding.as_deref(),
            coordinates: self.coordinates,
            client,
            body,
            progress: Progress::default(),
        }
    }
}

fn joined<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let first = values.next()?;
    let rest: Vec<&[u8]> = values.collect();
    if rest.is_empty() {
        return Some(Cow::Borrowed(first));
    }
    Some(Cow::Owned([&[first], &rest[..]].concat().join(&b", "[..])))
}
