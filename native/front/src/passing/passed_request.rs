//! Requests for Python, and the part of a long poll that stays in memory.

use std::collections::HashSet;
use std::rc::Rc;

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    ORIGIN, USER_AGENT,
};
use http::{Method, Request, Uri};
use http_body_util::Full;

use crate::long_polls::repeats::{RepeatCaller, RepeatKey};
use crate::requests::internal_headers::{CHANGED, COORDINATES, EXPIRED, REPEAT, RequestSource};
use crate::requests::request_form::HEADERS_MAX;
use crate::requests::trace_context::TRACEPARENT;
use crate::responses::decider::IDEMPOTENCY_KEY;
use hosting_matchmaker::token_of;

/// Headers that are passed on although a client declares them as those of its connection.
const NEVER_OF_CONNECTION: [HeaderName; 3] = [AUTHORIZATION, HOST, TRACEPARENT];
/// Headers that Python reads. The others of a client end here.
pub const PASSED: [HeaderName; 10] = [
    HOST,
    AUTHORIZATION,
    ORIGIN,
    TRACEPARENT,
    CONTENT_TYPE,
    CONTENT_ENCODING,
    USER_AGENT,
    IF_NONE_MATCH,
    IDEMPOTENCY_KEY,
    COORDINATES,
];
/// Headers that a repeated request needs.
const KEPT: [HeaderName; 4] = [HOST, AUTHORIZATION, ORIGIN, TRACEPARENT];

/// A request for Python.
pub struct PassedRequest {
    pub method: Method,
    pub path_and_query: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl PassedRequest {
    pub fn into_request(self) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(self.body));
        *request.method_mut() = self.method;
        *request.uri_mut() = Uri::builder()
            .scheme("http")
            .authority("python")
            .path_and_query(self.path_and_query)
            .build()
            .expect("the parts are valid");
        *request.headers_mut() = self.headers;
        request
    }
}

/// The parts of a request that a repeat needs. It has no body.
pub struct KeptRequest {
    pub method: Method,
    path_and_query: Box<str>,
    headers: Box<[(HeaderName, Box<[u8]>)]>,
}

impl KeptRequest {
    pub fn of(request: &PassedRequest) -> KeptRequest {
        let header = |name: &HeaderName| request.headers.get(name).map(|value| (name.clone(), value.as_bytes().into()));
        KeptRequest {
            method: request.method.clone(),
            path_and_query: request.path_and_query.as_str().into(),
            headers: KEPT.iter().filter_map(header).collect(),
        }
    }

    pub fn bytes(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len());
        self.path_and_query.len() + headers.sum::<usize>()
    }

    pub fn token(&self) -> Option<&str> {
        token_of(self.header(&AUTHORIZATION)).ok()
    }

    fn header(&self, name: &HeaderName) -> Option<&[u8]> {
        self.headers.iter().find(|(one, _)| one == name).map(|(_, value)| &**value)
    }

    /// Returns the request as it is repeated, because of a change or because its wait is over.
    pub fn repeated(&self, source: &RequestSource, is_over: bool) -> PassedRequest {
        let mut headers = HeaderMap::with_capacity(KEPT.len() + 3);
        for (name, value) in &self.headers {
            headers.insert(name, HeaderValue::from_bytes(value).expect("it was a valid value"));
        }
        source.add_to(&mut headers);
        headers.insert(REPEAT, if is_over { EXPIRED } else { CHANGED });
        let path_and_query = self.path_and_query.clone().into();
        PassedRequest { method: self.method.clone(), path_and_query, headers, body: Bytes::new() }
    }

    /// `sharing` is the key of callers that share the response.
    pub fn key(&self, sharing: Option<&Rc<str>>, is_over: bool) -> RepeatKey {
        let value = |name| self.header(name).map(<[u8]>::to_vec);
        RepeatKey {
            method: self.method.clone(),
            path_and_query: self.path_and_query.to_string(),
            origin: value(&ORIGIN),
            caller: sharing
                .map_or_else(|| RepeatCaller::Own(value(&AUTHORIZATION)), |key| RepeatCaller::Sharing(key.clone())),
            is_over,
        }
    }
}

/// Returns the names of the headers that a client declares as those of its connection. The passed request has none of them.
///
/// It is a set, because a client may name hundreds.
pub fn headers_of_connection(headers: &HeaderMap) -> HashSet<String> {
    let names = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let names = names.flat_map(|names| names.split(',')).map(|name| name.trim().to_ascii_lowercase());
    let is_declared = |name: &String| !name.is_empty() && !NEVER_OF_CONNECTION.iter().any(|kept| kept.as_str() == name);
    names.filter(is_declared).take(HEADERS_MAX).collect()
}

/// Returns whether Python may execute a request twice.
pub fn is_safe(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}
