//! Headers between the front and Python, which are also metadata of gRPC. A client cannot send them, and does not get them.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::ray_id::RayId;

pub const PREFIX: &str = "x-hosting-";
pub const CLIENT: HeaderName = HeaderName::from_static("x-hosting-client");
/// Ray id that the front chose.
pub const RAY: HeaderName = HeaderName::from_static("x-hosting-ray");
/// Why a parked request is repeated: [`WOKEN`] or [`OVER`].
pub const HELD: HeaderName = HeaderName::from_static("x-hosting-held");
pub const WOKEN: HeaderValue = HeaderValue::from_static("woken");
pub const OVER: HeaderValue = HeaderValue::from_static("over");
/// Error code of a response.
pub const CODE: HeaderName = HeaderName::from_static("x-hosting-code");
/// Wait of a parked request, in place of a response.
pub const PARK: HeaderName = HeaderName::from_static("x-hosting-park");
/// The ray id of a response. Clients get it.
pub const RAY_ID: HeaderName = HeaderName::from_static("x-ray-id");

pub fn ray_id_value(ray_id: RayId) -> HeaderValue {
    HeaderValue::from_bytes(&ray_id.digits()).expect("digits are a valid header value")
}

/// Removes the headers that clients do not get.
pub fn remove_internal(headers: &mut HeaderMap) {
    let internal: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    internal.iter().for_each(|name| drop(headers.remove(name)));
}
