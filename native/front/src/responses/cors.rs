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

    fn added(origins: &[&str], path: &str, origin: &'static str) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        let cors = Cors::new(origins.iter().map(|origin| (*origin).to_owned()));
        cors.add_preflight(path, &HeaderValue::from_static(origin), &["GET", "POST"], &mut headers);
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let mut headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
        headers.sort();
        headers
            .into_iter()
            .filter(|(name, _)| name.ends_with("origin") || name == "vary" || name.ends_with("methods"))
            .collect()
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn open_paths_allow_all_origins() {
        let expected = [pair("access-control-allow-methods", "GET, POST"), pair("access-control-allow-origin", "*")];
        assert_eq!(added(&[], "/matchmaker/regions", "https://a.example"), expected);
        assert_eq!(added(&["*"], "/cloud/games", "https://a.example"), expected);
    }

    #[test]
    fn other_paths_allow_the_configured_origins() {
        let expected = [
            pair("access-control-allow-methods", "GET, POST"),
            pair("access-control-allow-origin", "https://a.example"),
            pair("vary", "origin"),
        ];
        assert_eq!(added(&["https://a.example"], "/cloud/games", "https://a.example"), expected);
        assert_eq!(added(&["https://a.example"], "/cloud/games", "https://b.example"), [pair("vary", "origin")]);
    }
}
