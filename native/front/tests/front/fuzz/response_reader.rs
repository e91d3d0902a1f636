//! A strict reader of the responses of one connection.

use http::StatusCode;

pub struct Response {
    pub status: StatusCode,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    /// Returns the only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(one, _)| one == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} occurs twice");
        value
    }

    pub fn is_last(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

/// Reads a final response from the beginning of `received`, and interim ones before it. Returns None if a part is missing.
pub fn take_response(received: &mut Vec<u8>, has_no_body: bool) -> Option<Response> {
    loop {
        let (response, length) = read_response(received, has_no_body)?;
        received.drain(..length);
        if !response.status.is_informational() {
            return Some(response);
        }
        assert_eq!(response.status, StatusCode::CONTINUE);
    }
}

fn read_response(received: &[u8], has_no_body: bool) -> Option<(Response, usize)> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    let parsed = head.parse(received).unwrap_or_else(|error| panic!("{error}: {}", received.escape_ascii()));
    let httparse::Status::Complete(head_length) = parsed else { return None };
    let status = StatusCode::from_u16(head.code.expect("a whole head")).expect("a status");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let headers = head.headers.iter().map(|field| (field.name.to_ascii_lowercase(), text(field.value))).collect();
    let mut response = Response { status, headers, body: Vec::new() };
    assert_eq!(response.header("transfer-encoding"), None, "each response has a length");
    let length = response.header("content-length").map_or(0, |digits| digits.parse().expect("a length"));
    if !has_no_body && !status.is_informational() && status != StatusCode::NO_CONTENT {
        assert!(response.header("content-length").is_some(), "{}", received.escape_ascii());
        response.body = received.get(head_length..head_length + length)?.to_vec();
    }
    let length = head_length + response.body.len();
    Some((response, length))
}
