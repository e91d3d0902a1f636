//! A second reader of HTTP/1.1 requests. Its framing (RFC 9112, 6 and 7.1) shares no code with the front.

use http::{Method, Uri};

/// Bound of the front on the headers of a request.
const HEADERS_MAX: usize = 128;
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub struct Request {
    pub method: String,
    /// Path and query, or None for a target without a path.
    pub target: Option<String>,
    /// Names in lower case.
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Number of bytes with the body.
    pub length: usize,
}

impl Request {
    pub fn values(&self, name: &str) -> Vec<&[u8]> {
        values(&self.headers, name)
    }
}

fn values<'a>(headers: &'a [(String, Vec<u8>)], name: &str) -> Vec<&'a [u8]> {
    headers.iter().filter(|(one, _)| one == name).map(|(_, value)| value.as_slice()).collect()
}

/// Kind of the request at the beginning of the received bytes.
pub enum Next {
    Request(Request),
    /// The beginning of a request, or nothing.
    Partial,
    Invalid,
    Http2,
}

pub fn read(bytes: &[u8]) -> Next {
    if bytes.starts_with(HTTP2) {
        return Next::Http2;
    }
    let mut fields = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let head_length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Next::Partial,
        Err(_) => return Next::Invalid,
    };
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Next::Invalid;
    };
    let Ok(uri) = Uri::try_from(target) else { return Next::Invalid };
    if Method::from_bytes(method.as_bytes()).is_err() {
        return Next::Invalid;
    }
    let headers: Vec<_> =
        head.headers.iter().map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec())).collect();
    let Some(framing) = framing(&headers, version) else { return Next::Invalid };
    let (body, body_length) = match framing {
        Framing::Length(length) => match bytes[head_length..].get(..length) {
            Some(body) => (body.to_vec(), length),
            None => return Next::Partial,
        },
        Framing::Chunked => match read_chunks(&bytes[head_length..]) {
            Chunks::Complete(body, length) => (body, length),
            Chunks::Partial => return Next::Partial,
            Chunks::Invalid => return Next::Invalid,
        },
    };
    let target = uri.path_and_query().map(|target| target.as_str().to_owned()).filter(|target| target.starts_with('/'));
    Next::Request(Request { method: method.into(), target, headers, body, length: head_length + body_length })
}

enum Framing {
    Length(usize),
    Chunked,
}

/// Returns None for a request that has no certain length.
fn framing(headers: &[(String, Vec<u8>)], version: u8) -> Option<Framing> {
    if let Some(codings) = values(headers, "transfer-encoding").last() {
        let last = codings.rsplit(|byte| *byte == b',').next()?.trim_ascii();
        return (version == 1 && last.eq_ignore_ascii_case(b"chunked")).then_some(Framing::Chunked);
    }
    let mut lengths = values(headers, "content-length").into_iter().map(|digits| {
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        is_number.then(|| std::str::from_utf8(digits).ok()?.parse::<usize>().ok()).flatten()
    });
    let Some(length) = lengths.next() else { return Some(Framing::Length(0)) };
    lengths.all(|other| other == length).then_some(Framing::Length(length?))
}

enum Chunks {
    /// The body, and the number of bytes with the trailers.
    Complete(Vec<u8>, usize),
    Partial,
    Invalid,
}

fn read_chunks(bytes: &[u8]) -> Chunks {
    let (mut body, mut at) = (Vec::new(), 0);
    loop {
        let Some(end) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else { return Chunks::Partial };
        let line = &bytes[at..at + end];
        at += end + 2;
        let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
        let number = std::str::from_utf8(digits).ok().filter(|_| is_number);
        let Some(size) = number.and_then(|number| u64::from_str_radix(number, 16).ok()) else {
            return Chunks::Invalid;
        };
        if size == 0 {
            return read_trailers(bytes, at, body);
        }
        let data = usize::try_from(size).ok().and_then(|size| bytes[at..].get(..size));
        let Some(data) = data else { return Chunks::Partial };
        body.extend_from_slice(data);
        at += data.len();
        match bytes[at..].get(..2) {
            Some(b"\r\n") => at += 2,
            Some(_) => return Chunks::Invalid,
            None => return Chunks::Partial,
        }
    }
}

/// Trailers end with an empty line.
fn read_trailers(bytes: &[u8], mut at: usize, body: Vec<u8>) -> Chunks {
    loop {
        let Some(end) = bytes[at..].windows(2).position(|pair| pair == b"\r\n") else { return Chunks::Partial };
        at += end + 2;
        if end == 0 {
            return Chunks::Complete(body, at);
        }
    }
}
