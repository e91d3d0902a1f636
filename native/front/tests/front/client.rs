//! A client of the front.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::problem_names::name_of;
use crate::world::{LIMIT, is_readable};

pub struct Answer {
    pub status: u16,
    /// Reason phrase, or the code of an error.
    pub code: String,
    pub ray_id: String,
    /// Without the ray id.
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Returns whether the connection ends with the answer.
    pub fn is_last(&self) -> bool {
        self.header("connection") == Some("close")
    }

    /// Returns the status, the name of the problem, and whether the connection ends.
    pub fn problem(&self) -> (u16, &str, bool) {
        let problem: Value = serde_json::from_str(&self.body).unwrap_or_default();
        let name = problem["detail"].as_str().and_then(|detail| name_of(&self.code, detail));
        (self.status, name.unwrap_or(&self.body), self.is_last())
    }
}

pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client::of(TcpStream::connect(address).unwrap())
    }

    pub fn of(stream: TcpStream) -> Client {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Client(BufReader::new(stream))
    }

    /// Connects to the socket of edge-guard.
    pub fn connect_unix(path: &Path) -> Client {
        // The calls of a TCP stream work for all stream sockets.
        let stream = TcpStream::from(OwnedFd::from(UnixStream::connect(path).unwrap()));
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Client(BufReader::new(stream))
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn end_sending(&self) {
        self.0.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Waits for the next answer.
    pub fn read_answer(&mut self) -> Answer {
        let mut answer = self.read_head();
        if let Some(length) = answer.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut body).unwrap();
            answer.body = String::from_utf8(body).unwrap();
        } else if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = self.read_chunks();
        } else {
            assert_eq!(answer.status, 204, "an answer without a length");
        }
        if answer.header("content-type") == Some("application/problem+json") {
            let problem: Value = serde_json::from_str(&answer.body).unwrap();
            assert_eq!((&problem["status"], &problem["ray_id"]), (&json!(answer.status), &json!(answer.ray_id)));
            answer.code = problem["code"].as_str().unwrap().to_owned();
        }
        answer
    }

    /// Waits for the head of the next answer, for example to a HEAD request.
    pub fn read_head(&mut self) -> Answer {
        let line = self.line();
        let [_, status, code] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let mut headers = HashMap::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            assert_eq!(headers.insert(name.to_owned(), value.to_owned()), None, "{name} occurs twice");
        }
        let ray_id = headers.remove("x-ray-id").expect("a ray id");
        assert!(ray_id.len() == 32 && ray_id.bytes().all(|digit| b"0123456789abcdef".contains(&digit)), "{ray_id}");
        let (status, code, body) = (status.parse().unwrap(), code.to_owned(), String::new());
        Answer { status, code, ray_id, headers, body }
    }

    fn read_chunks(&mut self) -> String {
        let mut body = Vec::new();
        loop {
            let length = usize::from_str_radix(&self.line(), 16).unwrap();
            let start = body.len();
            body.resize(start + length, 0);
            self.0.read_exact(&mut body[start..]).unwrap();
            assert_eq!(self.line(), "");
            if length == 0 {
                return String::from_utf8(body).unwrap();
            }
        }
    }

    /// Waits for so many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Sends a request and waits for its answer.
    pub fn ask(&mut self, request: impl AsRef<[u8]>) -> Answer {
        self.send(request.as_ref());
        self.read_answer()
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").expect("a whole line").to_owned()
    }

    /// Waits for the next answer. Returns its code.
    pub fn answer(&mut self) -> String {
        self.read_answer().code
    }

    pub fn answers(&mut self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.answer()).collect()
    }

    pub fn has_answer(&self) -> bool {
        !self.0.buffer().is_empty() || is_readable(self.0.get_ref().as_raw_fd(), Duration::ZERO)
    }

    /// Waits for the end of the connection. Returns what came before.
    pub fn rest(mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if error.kind() != io::ErrorKind::ConnectionReset => panic!("{error}"),
            _ => rest,
        }
    }
}
