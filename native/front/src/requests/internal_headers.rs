//! Headers between the front and Python, which are also metadata of gRPC. A client cannot send them, and does not get them.

use std::net::IpAddr;

use http::header::{CONTENT_LENGTH, FORWARDED, HeaderMap, HeaderName, HeaderValue};

use crate::connections::client_address::FORWARDED_FOR;
use crate::requests::ray_id::RayId;
use crate::requests::trace_context::TRACEPARENT;

pub const COORDINATES: HeaderName = HeaderName::from_static("x-coords");
const PREFIX: &str = "x-hosting-";
pub const CLIENT: HeaderName = HeaderName::from_static("x-hosting-client");
/// Ray id that the front chose.
pub const RAY: HeaderName = HeaderName::from_static("x-hosting-ray");
/// Why a parked request is repeated: [`CHANGED`] or [`EXPIRED`].
pub const REPEAT: HeaderName = HeaderName::from_static("x-hosting-repeat");
pub const CHANGED: HeaderValue = HeaderValue::from_static("changed");
pub const EXPIRED: HeaderValue = HeaderValue::from_static("expired");
/// Error code of a response.
const CODE: HeaderName = HeaderName::from_static("x-hosting-code");
/// Wait of a parked request, in place of a response.
pub const PARK: HeaderName = HeaderName::from_static("x-hosting-park");
/// Key of a response that several callers may share. With [`PARK`] it is `<key> <topic>,<topic>`, with the topics of the
/// caller's rights. With the response it is `<key> <run>.<sequence>`.
pub const SHARE: HeaderName = HeaderName::from_static("x-hosting-share");
/// Marks a request that has paid its rate limits.
pub const ADMITTED: HeaderName = HeaderName::from_static("x-hosting-admitted");
pub const YES: HeaderValue = HeaderValue::from_static("1");
/// The ray id of a response. Clients get it.
pub const RAY_ID: HeaderName = HeaderName::from_static("x-ray-id");

pub fn ray_id_value(ray_id: RayId) -> HeaderValue {
    HeaderValue::from_bytes(&ray_id.digits()).expect("digits are a valid header value")
}

/// Returns whether Python does not get a header of a client: the front itself says what it means. `trusts_peer` is whether
/// the client is a trusted proxy, and `is_traced` whether the header `traceparent` is valid.
pub fn is_of_front(name: &HeaderName, trusts_peer: bool, is_traced: bool) -> bool {
    name.as_str().starts_with(PREFIX)
        || [CONTENT_LENGTH, FORWARDED, FORWARDED_FOR].contains(name)
        || (*name == COORDINATES && !trusts_peer)
        || (*name == TRACEPARENT && !is_traced)
}

/// Sender of a request, and its ray id.
#[derive(Debug, Clone, Copy)]
pub struct RequestSource {
    pub client: IpAddr,
    pub ray_id: RayId,
    /// Whether the ray id is the trace id of the client.
    pub is_traced: bool,
}

impl RequestSource {
    /// Adds the headers of the front to a request for Python.
    pub fn add_to(&self, headers: &mut HeaderMap) {
        let client = HeaderValue::try_from(self.client.to_string()).expect("an address is a valid header value");
        headers.insert(CLIENT, client);
        if !self.is_traced {
            headers.insert(RAY, ray_id_value(self.ray_id));
        }
    }
}

/// Returns the error code of a response of Python.
pub fn code(headers: &HeaderMap) -> Option<&str> {
    headers.get(CODE).and_then(|code| code.to_str().ok())
}

/// Removes the headers that clients do not get.
pub fn remove_internal(headers: &mut HeaderMap) {
    let internal: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    internal.iter().for_each(|name| drop(headers.remove(name)));
}
