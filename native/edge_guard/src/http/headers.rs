//! Request and response headers: removes hop-by-hop headers, and adds headers such as X-Forwarded-For.

use std::net::{IpAddr, SocketAddr};

use hosting_client_addresses::forwarded_client;
use http::header::{CONNECTION, EXPECT, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, Method, Request, Uri, Version};
use ipnet::IpNet;

/// Limit of the headers of one request or response of HTTP/1.1.
pub const HEADERS_MAX: usize = 1_000;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Values for headers that describe the client to the backend, computed once per connection.
#[derive(Debug)]
pub struct ForwardedHeaders {
    peer: IpAddr,
    client: HeaderValue,
    scheme: HeaderValue,
    /// Local address of the connection, which becomes the Host header of HTTP/1.0 requests that have none.
    local: SocketAddr,
}

impl ForwardedHeaders {
    pub fn new(peer: SocketAddr, local: SocketAddr, is_tls: bool) -> Self {
        Self {
            peer: peer.ip(),
            local,
            client: text_of(peer.ip().to_canonical()),
            scheme: HeaderValue::from_static(if is_tls { "https" } else { "http" }),
        }
    }
}

pub fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let host = uri.authority().map(|authority| authority.as_str()).or_else(|| headers.get(HOST)?.to_str().ok())?;
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.starts_with('[') {
        return host.split_once(']').map(|(literal, _)| &literal[1..]);
    }
    Some(host.split(':').next().unwrap_or(host)).filter(|host| !host.is_empty())
}

pub fn is_upgrade(request: &Request<impl Sized>) -> bool {
    request.version() == Version::HTTP_11
        && request.headers().contains_key(UPGRADE)
        && request.headers().get_all(CONNECTION).iter().any(|value| {
            value.to_str().is_ok_and(|value| value.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
        })
}

/// Converts a player's request to a request for the backend. Returns `None` for CONNECT or an invalid path.
pub fn add_forwarding_headers(
    request: &mut Request<impl Sized>,
    forwarded: &ForwardedHeaders,
    is_upgrade: bool,
    trusted: Option<&[IpNet]>,
) -> Option<()> {
    if request.method() == Method::CONNECT {
        return None;
    }
    let host = match request.uri().authority() {
        Some(authority) => HeaderValue::from_str(authority.as_str()).ok(),
        None if request.version() == Version::HTTP_10 && !request.headers().contains_key(HOST) => {
            HeaderValue::from_str(
                &SocketAddr::new(forwarded.local.ip().to_canonical(), forwarded.local.port()).to_string(),
            )
            .ok()
        }
        None => request.headers().get(HOST).cloned(),
    };
    if request.uri().authority().is_some() {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).parse().ok()?;
        *request.uri_mut() = path;
    }
    if request.version() == Version::HTTP_2 {
        join_cookies(request.headers_mut());
    }
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    let named = headers.get_all(FORWARDED_FOR).iter().map(HeaderValue::as_bytes);
    let client = trusted.map(|trusted| text_of(forwarded_client(trusted, forwarded.peer, named)));
    strip(headers, is_upgrade);
    headers.remove(EXPECT);
    if trusted.is_none() || !headers.contains_key(FORWARDED_PROTO) {
        headers.insert(FORWARDED_PROTO, forwarded.scheme.clone());
    }
    headers.remove(FORWARDED);
    headers.remove(REAL_IP);
    headers.insert(FORWARDED_FOR, client.unwrap_or_else(|| forwarded.client.clone()));
    if let Some(host) = host {
        headers.insert(FORWARDED_HOST, host.clone());
        headers.insert(HOST, host);
    }
    Some(())
}

/// Returns the client in the headers that [`add_forwarding_headers`] has set.
pub fn client(headers: &HeaderMap) -> Option<IpAddr> {
    headers.get(FORWARDED_FOR)?.to_str().ok()?.parse().ok()
}

pub fn strip(headers: &mut HeaderMap, is_upgrade: bool) {
    let upgrade = if is_upgrade { headers.remove(UPGRADE) } else { None };
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = (headers.get_all(CONNECTION).iter())
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|token| token.trim().parse().ok())
            .filter(|name| *name != HOST)
            .collect();
        for name in named {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [KEEP_ALIVE, PROXY_CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    if let Some(upgrade) = upgrade {
        headers.insert(UPGRADE, upgrade);
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    }
}

/// Joins the Cookie headers of HTTP/2 into one, because HTTP/1.1 allows only one.
fn join_cookies(headers: &mut HeaderMap) {
    use http::header::COOKIE;
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        let pieces: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
        if let Ok(whole) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
            headers.insert(COOKIE, whole);
        }
    }
}

fn text_of(address: IpAddr) -> HeaderValue {
    HeaderValue::from_str(&address.to_string()).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forwarded() -> ForwardedHeaders {
        ForwardedHeaders::new("198.51.100.7:5000".parse().unwrap(), "203.0.113.1:443".parse().unwrap(), true)
    }

    #[test]
    fn host_is_read_without_its_port() {
        for (text, expected) in [("a.example:443", "a.example"), ("a.example", "a.example"), ("[::1]:80", "::1")] {
            let headers = HeaderMap::from_iter([(HOST, text.parse().unwrap())]);
            assert_eq!(host(&Uri::from_static("/x"), &headers), Some(expected));
        }
        assert_eq!(host(&Uri::from_static("https://b.example/x"), &HeaderMap::new()), Some("b.example"));
        assert_eq!(host(&Uri::from_static("/x"), &HeaderMap::new()), None);
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let mut request = Request::get("/x")
            .header("host", "a.example")
            .header("connection", "close, X-Secret")
            .header("x-secret", "1")
            .header("keep-alive", "timeout=5")
            .header("te", "trailers")
            .header("upgrade", "h2c")
            .header("x-kept", "yes")
            .body(())
            .unwrap();
        add_forwarding_headers(&mut request, &forwarded(), false, None).unwrap();
        let mut names: Vec<&str> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-kept"]);
    }

    #[test]
    fn forwarding_headers_of_players_are_replaced() {
        let mut request = Request::get("/")
            .header("host", "a.example:443")
            .header("x-forwarded-for", "1.2.3.4")
            .header("x-forwarded-proto", "gopher")
            .header("forwarded", "for=1.2.3.4")
            .header("x-real-ip", "1.2.3.4")
            .body(())
            .unwrap();
        add_forwarding_headers(&mut request, &forwarded(), false, None).unwrap();
        let headers = request.headers();
        assert_eq!(headers["x-forwarded-for"], "198.51.100.7");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "a.example:443");
        assert!(!headers.contains_key("forwarded") && !headers.contains_key("x-real-ip"));
    }

    #[test]
    fn trusted_proxy_names_the_client() {
        let trusted = ["10.0.0.0/8".parse().unwrap()];
        for (lines, client) in [
            (&["1.1.1.1, 203.0.113.9", "10.0.0.4"][..], "203.0.113.9"),
            (&["203.0.113.9:51234"], "203.0.113.9"),
            (&["[2001:db8::7]:443"], "2001:db8::7"),
            (&["[2001:db8::7]"], "2001:db8::7"),
            (&["203.0.113.9, unknown, 10.0.0.4"], "10.0.0.4"),
            (&["10.0.0.5, 10.0.0.4"], "10.0.0.5"),
            (&["unknown"], "198.51.100.7"),
            (&[], "198.51.100.7"),
        ] {
            let mut request = Request::get("/").body(()).unwrap();
            for line in lines {
                request.headers_mut().append("x-forwarded-for", line.parse().unwrap());
            }
            add_forwarding_headers(&mut request, &forwarded(), false, Some(&trusted)).unwrap();
            assert_eq!(request.headers()["x-forwarded-for"], client, "{lines:?}");
        }
    }

    #[test]
    fn upgrade_request_keeps_its_upgrade_headers() {
        let mut request = Request::get("/")
            .header("connection", "keep-alive, Upgrade")
            .header("upgrade", "websocket")
            .body(())
            .unwrap();
        assert!(is_upgrade(&request));
        add_forwarding_headers(&mut request, &forwarded(), true, None).unwrap();
        assert_eq!(request.headers()["connection"], "Upgrade");
        assert_eq!(request.headers()["upgrade"], "websocket");
    }

    #[test]
    fn connection_header_cannot_remove_the_host() {
        let mut request = Request::get("/").header("host", "a").header("connection", "host").body(()).unwrap();
        add_forwarding_headers(&mut request, &forwarded(), false, None).unwrap();
        assert_eq!(request.headers()["host"], "a");
    }
}
