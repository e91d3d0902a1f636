//! CORS: rules for requests of web pages. Responses never allow credentials, because the API has no cookies.

use std::collections::HashSet;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, HeaderMap, HeaderValue, VARY,
};

const ANY: HeaderValue = HeaderValue::from_static("*");
const EXPOSED: HeaderValue = HeaderValue::from_static("x-ray-id, retry-after");
/// Header lines of a response to a web page, for paths that pages of all origins may use.
pub const OPEN_LINES: &str =
    "access-control-allow-origin: *\r\naccess-control-expose-headers: x-ray-id, retry-after\r\n";
const REQUEST_HEADERS: HeaderValue =
    HeaderValue::from_static("authorization, content-type, idempotency-key, traceparent");
const EXPOSED_OF_DOCUMENT: HeaderValue = HeaderValue::from_static("x-ray-id, etag");
const DOCUMENT_REQUEST_HEADERS: HeaderValue = HeaderValue::from_static("authorization, if-none-match, traceparent");
const MAX_AGE: HeaderValue = HeaderValue::from_static("7200");
const ORIGIN: HeaderValue = HeaderValue::from_static("origin");
/// Paths that web pages of all origins may use.
const OPEN_PREFIXES: [&str; 2] = ["/matchmaker/", "/events/"];
const OPEN_PATH: &str = "/cloud/bootstrap";
/// Description of the API. Its responses are cached, so they are the same with and without an origin.
const DOCUMENT: &str = "/openapi.json";
pub const DOCUMENT_METHODS: [&str; 2] = ["GET", "HEAD"];

pub fn is_document(path: &str) -> bool {
    path == DOCUMENT
}

pub struct Cors {
    origins: HashSet<Vec<u8>>,
    is_any: bool,
}

impl Cors {
    /// `origins` are such as `https://console.example.com`, or `*`.
    pub fn new(origins: impl IntoIterator<Item = String>) -> Cors {
        let origins: HashSet<_> = origins.into_iter().map(String::into_bytes).collect();
        let is_any = origins.contains(ANY.as_bytes());
        Cors { origins, is_any }
    }

    /// Adds the headers of a response to a request of `origin`.
    pub fn add(&self, path: &str, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if is_document(path) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED_OF_DOCUMENT);
            return;
        }
        let Some(origin) = origin else { return };
        if self.is_open(path) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, ANY);
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
            return;
        }
        headers.insert(VARY, ORIGIN);
        if self.origins.contains(origin.as_bytes()) {
            headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        }
    }

    /// Adds the headers of the response to a preflight request, with the methods of the path.
    pub fn add_preflight(&self, path: &str, origin: &HeaderValue, methods: &[&str], headers: &mut HeaderMap) {
        self.add(path, Some(origin), headers);
        if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
            let methods = HeaderValue::try_from(methods.join(", ")).expect("methods are tokens");
            headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
            let names = if is_document(path) { DOCUMENT_REQUEST_HEADERS } else { REQUEST_HEADERS };
            headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
            headers.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
    }

    fn is_open(&self, path: &str) -> bool {
        self.is_any || path == OPEN_PATH || OPEN_PREFIXES.into_iter().any(|prefix| path.starts_with(prefix))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `tests/front/cors.rs` has the rules of the other paths.
    #[test]
    fn setting_and_one_path_allow_all_origins() {
        let origin = HeaderValue::from_static("https://a.example");
        for (setting, path, expected) in
            [(Some("*"), "/cloud/games", Some(&ANY)), (None, "/cloud/games", None), (None, OPEN_PATH, Some(&ANY))]
        {
            let mut headers = HeaderMap::new();
            Cors::new(setting.map(str::to_owned)).add(path, Some(&origin), &mut headers);
            assert_eq!(headers.get(ACCESS_CONTROL_ALLOW_ORIGIN), expected, "{path}");
        }
    }
}
