//! The client of the hosting service: HTTP/1.1, one call at a time, over a connection that is kept.
//!
//! Plain HTTP alone: a game server speaks to the service on its own machine or network. Every call may be repeated, so
//! one that met a kept connection at its end is sent again at once. What an answer is made of is in `answer`.

mod answer;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::json::Value;
use crate::lobby::Outcome;

pub use answer::{Answer, NoAnswer};

/// Statuses with which the service decides nothing: the same call may be made again.
const UNDECIDED: [u16; 6] = [408, 429, 500, 502, 503, 504];

/// Where the service is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// Host and port, as the header has them.
    authority: String,
    host: String,
    port: u16,
    prefix: String,
}

/// A caller with its token and its connection.
#[derive(Debug)]
pub struct Service {
    address: Address,
    bearer: String,
    kept: Option<TcpStream>,
}

impl Address {
    /// Of a URL.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub fn of_url(url: &str) -> Result<Self, String> {
        if url.starts_with("https://") {
            return Err("is https, which this program does not speak: give it the plain http address of the service, \
                        on the same machine or network"
                .to_owned());
        }
        let wrong = || "must be like http://127.0.0.1:8080".to_owned();
        let rest = url.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@\"<>\\".contains(&byte));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if !is_plain || host.is_empty() || port == 0 {
            return Err(wrong());
        }
        let path = path.trim_end_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { authority: authority.to_owned(), host: host.to_owned(), port, prefix })
    }
}

impl Service {
    /// Nothing is sent yet.
    pub fn new(address: Address, token: &str) -> Self {
        Self { address, bearer: token.to_owned(), kept: None }
    }

    /// One call with a JSON body. It takes no longer than `timeout`.
    ///
    /// # Errors
    /// There is no whole answer; the call may have been made.
    pub fn call(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        key: Option<&str>,
        timeout: Duration,
    ) -> Result<Answer, NoAnswer> {
        let until = Instant::now() + timeout;
        let Address { authority, prefix, .. } = &self.address;
        let key = key.map(|key| format!("idempotency-key: {key}\r\n")).unwrap_or_default();
        let request = format!(
            "{method} {prefix}{path} HTTP/1.1\r\nhost: {authority}\r\nauthorization: Bearer {}\r\n{key}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.bearer,
            body.len()
        );
        if let Some(kept) = self.kept.take() {
            match self.exchange(kept, &request, until) {
                Err(NoAnswer::Ended) => {}
                other => return other,
            }
        }
        let fresh = self.connect(until)?;
        self.exchange(fresh, &request, until)
    }

    fn exchange(&mut self, stream: TcpStream, request: &str, until: Instant) -> Result<Answer, NoAnswer> {
        let mut timed = Timed { stream: &stream, until };
        timed.write_all(request.as_bytes()).map_err(|error| NoAnswer::of(&error))?;
        let (answer, is_reusable) = answer::read(timed)?;
        if is_reusable {
            self.kept = Some(stream);
        }
        Ok(answer)
    }

    fn connect(&self, until: Instant) -> Result<TcpStream, NoAnswer> {
        let found = (self.address.host.as_str(), self.address.port).to_socket_addrs();
        let mut failure = NoAnswer::Unreachable(io::ErrorKind::NotFound);
        for address in found.map_err(|error| NoAnswer::Unreachable(error.kind()))? {
            let stream = left(until).and_then(|left| TcpStream::connect_timeout(&address, left));
            match stream {
                Ok(stream) => {
                    // A call is one write: nothing is gained by waiting for more.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => failure = NoAnswer::Unreachable(error.kind()),
            }
        }
        Err(failure)
    }
}

/// What a call came to.
pub fn outcome(called: &Result<Answer, NoAnswer>) -> Outcome {
    match called {
        Ok(answer) if answer.status == 200 => Outcome::Done,
        Ok(answer) if UNDECIDED.contains(&answer.status) => Outcome::Undecided { retry_after: answer.retry_after },
        Ok(answer) => {
            let problem = Value::read(&answer.body).unwrap_or(Value::Null);
            let code = problem.at(&["code"]).and_then(Value::text).unwrap_or("UNKNOWN");
            Outcome::Refused { status: answer.status, code: code.to_owned() }
        }
        Err(_) => Outcome::Undecided { retry_after: None },
    }
}

/// A connection whose every read and write ends in time.
struct Timed<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.until)?))?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.until)?))?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[cfg(test)]
mod tests;
