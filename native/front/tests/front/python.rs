//! A stand-in for a Python process: it records the requests of the front, and answers what the test says.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::world::LIMIT;

/// One request that Python got.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    /// Names in lower case, in the order of the front.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub connection: UnixStream,
}

impl Request {
    /// Returns the only value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(one, _)| one == name).map(|(_, value)| value.as_str());
        let value = values.next();
        assert_eq!(values.next(), None, "{name} occurs twice");
        value
    }

    pub fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(one, _)| one == name)
    }

    pub fn ray_id(&self) -> &str {
        let trace_id = || &self.header("traceparent").expect("a ray id or a trace")[3..35];
        self.header("x-hosting-ray").unwrap_or_else(trace_id)
    }

    /// Returns a response to this request. `headers` end with a line break each.
    pub fn response(&self, status: &str, headers: &str, body: impl AsRef<[u8]>) -> Vec<u8> {
        let body = body.as_ref();
        let head = format!(
            "HTTP/1.1 {status}\r\nx-ray-id: {}\r\ncontent-length: {}\r\n{headers}\r\n",
            self.ray_id(),
            body.len()
        );
        [head.as_bytes(), if self.method == "HEAD" { b"" } else { body }].concat()
    }

    pub fn answer(&mut self, bytes: &[u8]) {
        self.connection.write_all(bytes).unwrap();
    }

    pub fn answer_ok(&mut self, body: &str) {
        let response = self.response("200 OK", "", body);
        self.answer(&response);
    }
}

pub enum Reply {
    Answer(Vec<u8>),
    /// The test answers on the connection of the request.
    ByTest,
    Close,
}

type Replying = Box<dyn FnMut(&Request) -> Reply + Send>;

pub struct Python {
    path: PathBuf,
    requests: Mutex<Receiver<Request>>,
    closed: Mutex<Receiver<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    replying: Mutex<Replying>,
    requests: Sender<Request>,
    closed: Sender<()>,
    /// Number of connections that the front has opened.
    opened: AtomicUsize,
    /// Open connections of the front, by number.
    connections: Mutex<HashMap<usize, UnixStream>>,
    listener: Mutex<Option<UnixListener>>,
}

impl Python {
    /// Serves on a Unix socket. Each request is answered with its target.
    pub fn start(path: &Path) -> Python {
        let (requests, received) = channel();
        let (closed, closings) = channel();
        let by_target = |request: &Request| Reply::Answer(request.response("200 OK", "", &request.target));
        let shared = Arc::new(Shared {
            replying: Mutex::new(Box::new(by_target)),
            requests,
            closed,
            opened: AtomicUsize::new(0),
            connections: Mutex::default(),
            listener: Mutex::default(),
        });
        let python = Python { path: path.into(), requests: received.into(), closed: closings.into(), shared };
        python.serve();
        python
    }

    /// Serves again after [`Python::end`].
    pub fn serve(&self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        *self.shared.listener.lock().unwrap() = Some(listener.try_clone().unwrap());
        let shared = self.shared.clone();
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let mut connections = shared.connections.lock().unwrap();
                if shared.listener.lock().unwrap().is_none() {
                    return;
                }
                let number = shared.opened.fetch_add(1, Ordering::Relaxed);
                connections.insert(number, stream.try_clone().unwrap());
                drop(connections);
                let shared = shared.clone();
                thread::spawn(move || {
                    serve_connection(&shared, stream);
                    shared.connections.lock().unwrap().remove(&number);
                    let _ = shared.closed.send(());
                });
            }
        });
    }

    pub fn listener(&self) -> UnixListener {
        self.shared.listener.lock().unwrap().as_ref().unwrap().try_clone().unwrap()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Closes the socket and all connections.
    pub fn end(&self) {
        let Some(listener) = self.shared.listener.lock().unwrap().take() else { return };
        // The listening thread wakes up, and ends.
        let _ = UnixStream::connect(&self.path);
        drop(listener);
        std::fs::remove_file(&self.path).unwrap();
        self.end_connections();
    }

    pub fn end_connections(&self) {
        for (_, connection) in self.shared.connections.lock().unwrap().drain() {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    pub fn reply(&self, replying: impl FnMut(&Request) -> Reply + Send + 'static) {
        *self.shared.replying.lock().unwrap() = Box::new(replying);
    }

    /// Leaves all answers to the test.
    pub fn reply_by_test(&self) {
        self.reply(|_| Reply::ByTest);
    }

    /// Answers all requests with a status line, headers that end with a line break each, and a body.
    pub fn reply_with(&self, status: &'static str, headers: &'static str, body: &'static str) {
        self.reply(move |request| Reply::Answer(request.response(status, headers, body)));
    }

    /// Waits for the next request.
    pub fn request(&self) -> Request {
        self.requests.lock().unwrap().recv_timeout(LIMIT).expect("a request")
    }

    /// Returns the next request if there is one.
    pub fn received(&self) -> Option<Request> {
        self.requests.lock().unwrap().try_recv().ok()
    }

    pub fn targets(&self, count: usize) -> Vec<String> {
        (0..count).map(|_| self.request().target).collect()
    }

    /// Checks that each request was taken from the record.
    pub fn check_no_request(&self) {
        match self.requests.lock().unwrap().recv_timeout(Duration::ZERO) {
            Err(RecvTimeoutError::Timeout) => {}
            other => panic!("{other:?}"),
        }
    }

    /// Waits until the front closes a connection.
    pub fn wait_for_close(&self) {
        self.closed.lock().unwrap().recv_timeout(LIMIT).expect("a closed connection");
    }

    /// Returns the number of connections that the front has opened.
    pub fn connections(&self) -> usize {
        self.shared.opened.load(Ordering::Relaxed)
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve_connection(shared: &Shared, stream: UnixStream) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let reply = shared.replying.lock().unwrap()(&request);
        let answer = match &reply {
            Reply::Answer(bytes) => bytes.clone(),
            Reply::ByTest | Reply::Close => Vec::new(),
        };
        // The test sees the request before the client sees the answer.
        let mut connection = request.connection.try_clone().unwrap();
        let _ = shared.requests.send(request);
        if matches!(reply, Reply::Close) || connection.write_all(&answer).is_err() {
            break;
        }
    }
    let _ = reader.get_ref().shutdown(Shutdown::Both);
}

/// Returns None at the end of the connection.
fn read_request(reader: &mut BufReader<UnixStream>) -> Option<Request> {
    let mut line = Vec::new();
    let mut read_line = |reader: &mut BufReader<UnixStream>| {
        line.clear();
        reader.read_until(b'\n', &mut line).ok()?;
        line.strip_suffix(b"\r\n").map(|line| String::from_utf8_lossy(line).into_owned())
    };
    let first = read_line(reader)?;
    let [method, target, "HTTP/1.1"] = first.split(' ').collect::<Vec<_>>()[..] else { panic!("{first}") };
    let mut headers = Vec::new();
    while let Some((name, value)) = read_line(reader)?.split_once(": ") {
        headers.push((name.to_owned(), value.to_owned()));
    }
    let connection = reader.get_ref().try_clone().ok()?;
    let mut request = Request { method: method.into(), target: target.into(), headers, body: Vec::new(), connection };
    let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
    request.body.resize(length, 0);
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}
