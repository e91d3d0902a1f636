//! Minimal HTTP/1.1 client and servers that show each message unchanged.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::backends::tcp;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub first_line: String,
    /// Header values by name in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl Message {
    pub fn status(&self) -> u16 {
        self.first_line.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    #[track_caller]
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
    }
}

/// Reads one message header. Returns `None` at the end of the stream.
pub fn read_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if !matches!(stream.read(&mut byte), Ok(1)) {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

pub fn read(stream: &mut impl Read) -> Option<Message> {
    let head = read_head(stream)?;
    let mut lines = head.trim_end().split("\r\n");
    let first_line = lines.next()?.to_owned();
    let headers: BTreeMap<String, String> = lines
        .map(|line| line.split_once(':').unwrap())
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut body = Vec::new();
    if let Some(length) = headers.get("content-length") {
        body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).ok()?;
    } else if headers.get("transfer-encoding").is_some_and(|coding| coding == "chunked") {
        loop {
            let chunk = read_chunk(stream)?;
            if chunk.is_empty() {
                break;
            }
            body.extend(chunk);
        }
    }
    Some(Message { first_line, headers, body })
}

/// Reads one chunk. An empty chunk is the last.
pub fn read_chunk(stream: &mut impl Read) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        line.push(byte[0]);
    }
    let length = usize::from_str_radix(String::from_utf8_lossy(&line).trim(), 16).unwrap();
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk).ok()?;
    chunk.truncate(length);
    Some(chunk)
}

#[track_caller]
pub fn ask(stream: &mut (impl Read + Write), request: &str) -> Message {
    stream.write_all(request.as_bytes()).unwrap();
    read(stream).expect("an answer")
}

#[track_caller]
pub fn get(stream: &mut (impl Read + Write), host: &str, path: &str) -> Message {
    ask(stream, &format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n"))
}

/// Starts a server with persistent connections. `answer` returns the response to a request.
pub fn server(answer: impl Fn(&Message, SocketAddr) -> String + Clone + Send + 'static) -> SocketAddr {
    tcp(move |mut stream: TcpStream| {
        let peer = stream.peer_addr().unwrap();
        while let Some(request) = read(&mut stream) {
            let text = answer(&request, peer);
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", text.len());
            if stream.write_all((head + &text).as_bytes()).is_err() {
                return;
            }
        }
    })
}

/// Starts a server that responds with the received request line, headers and body.
pub fn mirror() -> SocketAddr {
    server(|request, _| {
        let headers: Vec<String> = request.headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{}\n{}\n{}", request.first_line, headers.join("\n"), request.text())
    })
}

/// Starts a server that upgrades connections and echoes bytes.
pub fn websocket() -> SocketAddr {
    tcp(upgraded_echo)
}

pub fn upgraded_echo(mut stream: impl Read + Write) {
    let Some(request) = read(&mut stream) else { return };
    assert_eq!(request.header("upgrade"), "websocket");
    assert_eq!(request.header("connection").to_ascii_lowercase(), "upgrade");
    let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\nhello";
    stream.write_all(head.as_bytes()).unwrap();
    let mut buffer = [0; 4_096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

/// Upgrades a connection and reads the first bytes after the response header.
#[track_caller]
pub fn upgrade(stream: &mut (impl Read + Write), host: &str) {
    let request = format!("GET /play HTTP/1.1\r\nhost: {host}\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
    let answer = ask(stream, &request);
    assert_eq!(answer.status(), 101, "{answer:?}");
    let mut hello = [0; 5];
    stream.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello");
}
