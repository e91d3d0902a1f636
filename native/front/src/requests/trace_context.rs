//! The header `traceparent` of W3C Trace Context.

use http::header::{HeaderMap, HeaderName};

use crate::requests::ray_id::RayId;

pub const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

const VERSION_00_BYTES: usize = 55;
const SPAN_DIGITS: usize = 16;

/// The trace that a request continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trace {
    /// The ray id of the request.
    pub id: RayId,
    /// Hexadecimal digits of the client's span.
    pub parent_span: [u8; SPAN_DIGITS],
}

/// Returns the trace of a request with one valid header.
pub fn trace_of(headers: &HeaderMap) -> Option<Trace> {
    let mut values = headers.get_all(TRACEPARENT).iter();
    let value = values.next().filter(|_| values.next().is_none())?;
    trace(value.as_bytes())
}

/// Returns the trace of a valid header value.
pub fn trace(traceparent: &[u8]) -> Option<Trace> {
    let fixed = traceparent.get(..VERSION_00_BYTES)?;
    let rest = &traceparent[VERSION_00_BYTES..];
    let [version, id, parent, flags] = split(fixed)?;
    let is_hex = |digits: &[u8]| digits.iter().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let is_zero = |digits: &[u8]| digits.iter().all(|digit| *digit == b'0');
    let is_version = is_hex(version) && version != b"ff";
    // Later versions may append fields.
    let is_end = if version == b"00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with(b"-") };
    let is_valid = is_version && is_end && is_hex(parent) && !is_zero(parent) && is_hex(flags) && !is_zero(id);
    let parent_span = parent.try_into().ok().filter(|_| is_valid)?;
    Some(Trace { id: RayId::from_digits(id)?, parent_span })
}

/// Splits `version-id-parent-flags`.
fn split(fixed: &[u8]) -> Option<[&[u8]; 4]> {
    let has_dashes = fixed[2] == b'-' && fixed[35] == b'-' && fixed[52] == b'-';
    has_dashes.then(|| [&fixed[..2], &fixed[3..35], &fixed[36..52], &fixed[53..]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0af7651916cd43dd8448eb211c80319c";

    fn digits(traceparent: &str) -> Option<String> {
        trace(traceparent.as_bytes()).map(|trace| {
            assert_eq!(&trace.parent_span, b"b7ad6b7169203331");
            String::from_utf8_lossy(&trace.id.digits()).into_owned()
        })
    }

    #[test]
    fn valid_header_names_its_trace() {
        assert_eq!(digits(&format!("00-{ID}-b7ad6b7169203331-01")).as_deref(), Some(ID));
        assert_eq!(digits(&format!("01-{ID}-b7ad6b7169203331-00-more")).as_deref(), Some(ID));
    }

    #[test]
    fn invalid_headers_are_ignored() {
        let zeros = "0".repeat(32);
        for header in [
            String::new(),
            format!("00-{ID}-b7ad6b7169203331-0"),
            format!("00-{ID}-b7ad6b7169203331-01-more"),
            format!("01-{ID}-b7ad6b7169203331-01more"),
            format!("ff-{ID}-b7ad6b7169203331-01"),
            format!("00-{zeros}-b7ad6b7169203331-01"),
            format!("00-{ID}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", ID.to_uppercase()),
            format!("00_{ID}-b7ad6b7169203331-01"),
        ] {
            assert_eq!(digits(&header), None, "{header}");
        }
    }
}
