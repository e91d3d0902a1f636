//! Metadata of a call.

use std::net::IpAddr;
use std::str;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use tokio::time::Instant;

use crate::connections::client_address::{ClientAddresses, Peer};
use crate::requests::internal_headers::{self, RequestSource};
use crate::requests::request_form::header_bytes;

const GRPC: &[u8] = b"application/grpc";
const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Returns whether a content type is one of gRPC.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let media_type = headers.get(header::CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    media_type.strip_prefix(GRPC).is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

pub struct CallHead {
    pub metadata_bytes: usize,
    pub client: IpAddr,
    /// Time that the client gives the call.
    pub timeout: Option<Duration>,
}

impl CallHead {
    pub fn read(headers: &HeaderMap, addresses: &ClientAddresses, peer: Peer) -> CallHead {
        CallHead {
            metadata_bytes: header_bytes(headers),
            client: addresses.client_of(peer, headers),
            timeout: headers.get(GRPC_TIMEOUT).and_then(|value| read_timeout(value.as_bytes())),
        }
    }
}

/// Reads a `grpc-timeout`: at most 8 digits and a unit.
fn read_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

/// Writes the time until `deadline`.
fn timeout_value(deadline: Instant) -> HeaderValue {
    let micros = deadline.saturating_duration_since(Instant::now()).as_micros();
    let text =
        if micros < 100_000_000 { format!("{micros}u") } else { format!("{}m", (micros / 1000).min(99_999_999)) };
    HeaderValue::from_str(&text).expect("digits and a letter")
}

/// Returns the metadata for Python: the client's, without what the front alone may say.
///
/// Values of clients stay out of the table of the connection (RFC 7541, 6.2.3). The HTTP/2 of Python remembers an invalid value
/// with its entry, and refuses all later calls that refer to the name of this entry.
pub fn passed_metadata(headers: &HeaderMap, peer: Peer, source: &RequestSource) -> HeaderMap {
    let trusts_peer = matches!(peer, Peer::Proxy(_));
    let mut passed = HeaderMap::with_capacity(headers.len() + 3);
    for (name, value) in headers {
        let is_dropped = [GRPC_TIMEOUT, header::HOST].contains(name)
            || internal_headers::is_of_front(name, trusts_peer, source.is_traced);
        if !is_dropped {
            let mut value = value.clone();
            value.set_sensitive(true);
            passed.append(name, value);
        }
    }
    source.add_to(&mut passed);
    passed
}

pub fn set_deadline(metadata: &mut HeaderMap, deadline: Instant) {
    metadata.insert(GRPC_TIMEOUT, timeout_value(deadline));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::ray_id::RayId;

    const CLIENT: Peer = Peer::Client(IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1)));

    const RAY: RayId = RayId::from_bytes([0x12; 16]);

    fn headers(entries: &[(&str, &str)]) -> HeaderMap {
        let entry = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).expect("a name"), HeaderValue::try_from(*value).expect("a value"))
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn timeouts_of_each_unit() {
        let rows: [(&[u8], Option<Duration>); 10] = [
            (b"2H", Some(Duration::from_secs(7200))),
            (b"2M", Some(Duration::from_secs(120))),
            (b"2S", Some(Duration::from_secs(2))),
            (b"20m", Some(Duration::from_millis(20))),
            (b"20u", Some(Duration::from_micros(20))),
            (b"99999999n", Some(Duration::from_nanos(99_999_999))),
            (b"999999999n", None),
            (b"S", None),
            (b"-1S", None),
            (b"1s", None),
        ];
        for (value, expected) in rows {
            assert_eq!(read_timeout(value), expected, "{}", value.escape_ascii());
        }
    }

    #[test]
    fn remaining_time_is_written_in_at_most_eight_digits() {
        assert_eq!(timeout_value(Instant::now()), "0u");
        let in_a_year = timeout_value(Instant::now() + Duration::from_secs(366 * 86_400));
        assert_eq!(in_a_year, "99999999m");
        let soon = timeout_value(Instant::now() + Duration::from_secs(99));
        assert!(read_timeout(soon.as_bytes()).is_some_and(|left| left > Duration::from_secs(90)));
    }

    #[test]
    fn only_the_front_names_the_client() {
        let client: IpAddr = "192.0.2.1".parse().expect("an address");
        let received = headers(&[
            ("authorization", "Bearer cloud_x"),
            ("x-hosting-client", "192.0.2.9"),
            ("x-hosting-repeat", "over"),
            ("x-forwarded-for", "192.0.2.9"),
            ("x-coords", "1,2"),
            ("traceparent", "x"),
            ("grpc-timeout", "1S"),
            ("data-bin", "AA"),
            ("data-bin", "AQ"),
        ]);
        let source = RequestSource { client, ray_id: RAY, is_traced: false };
        let passed = passed_metadata(&received, CLIENT, &source);
        let expected = headers(&[
            ("authorization", "Bearer cloud_x"),
            ("data-bin", "AA"),
            ("data-bin", "AQ"),
            ("x-hosting-client", "192.0.2.1"),
            ("x-hosting-ray", "12121212121212121212121212121212"),
        ]);
        assert_eq!(passed, expected);
        let of_proxy = passed_metadata(&received, Peer::Proxy(client), &RequestSource { is_traced: true, ..source });
        assert!(of_proxy.contains_key("x-coords") && of_proxy.contains_key("traceparent"));
        assert!(!of_proxy.contains_key("x-hosting-ray"));
    }

    #[test]
    fn content_types_of_grpc() {
        for (media_type, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc-web", false),
            ("text/plain", false),
        ] {
            assert_eq!(is_grpc(&headers(&[("content-type", media_type)])), expected, "{media_type}");
        }
    }
}
