//! A client of the front.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use crate::world::{LIMIT, is_readable};

pub struct Answer {
    pub code: String,
    pub ray_id: String,
    pub body: String,
    /// Whether it has `connection: close`.
    pub is_last: bool,
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

    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    pub fn end_sending(&self) {
        self.0.get_ref().shutdown(Shutdown::Write).unwrap();
    }

    /// Waits for the next answer. Returns its code and its ray id.
    pub fn answer_with_ray_id(&mut self) -> (String, String) {
        let answer = self.read_answer();
        (answer.code, answer.ray_id)
    }

    /// Waits for the next answer.
    pub fn read_answer(&mut self) -> Answer {
        let status = self.line();
        let code = status.splitn(3, ' ').nth(2).expect("a status line with a code").to_owned();
        let mut headers = HashMap::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_owned(), value.to_owned());
        }
        let ray_id = headers.remove("x-ray-id").expect("a ray id");
        assert!(ray_id.len() == 32 && ray_id.bytes().all(|digit| b"0123456789abcdef".contains(&digit)), "{ray_id}");
        let mut body = vec![0; headers["content-length"].parse().unwrap()];
        self.0.read_exact(&mut body).unwrap();
        let is_last = headers.get("connection").is_some_and(|value| value == "close");
        Answer { code, ray_id, body: String::from_utf8(body).unwrap(), is_last }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.strip_suffix("\r\n").expect("a whole line").to_owned()
    }

    /// Waits for the next answer. Returns its code.
    pub fn answer(&mut self) -> String {
        self.answer_with_ray_id().0
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
