//! The requests of a connection that the front reads itself, until another one comes.

use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use hosting_core::Lsn;
use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::connections::client_address::Peer;
use crate::connections::client_stream::{SLOWED_DOWN, write_all_in_time};
use crate::connections::deadline::Deadline;
use crate::measurements::code_number;
use crate::measurements::measurer::RequestRecord;
use crate::measurements::pass_reason::PassReason;
use crate::plain_requests::plain_request::Received;
use crate::requests::trace_context::trace;
use crate::responses::cors::OPEN_LINES;
use crate::responses::error_response;
use crate::responses::problems::Problem;
use crate::shutdown::Counted;
use crate::thread_context::ThreadContext;
use hosting_matchmaker::ClientKey;

/// Time for the rest of a plain request. Hyper then gets the connection, and waits longer.
const REST_WAIT: Duration = Duration::from_secs(1);
/// Memory of an idle connection. A usual request fits into it.
const READ_BYTES: usize = 2 * 1024;
/// Memory for answers that an idle connection keeps.
const KEPT_BYTES: usize = 8 * 1024;
/// Header of the last answer of a connection.
const LAST_ANSWER: &[u8] = b"connection: close\r\n";

enum End {
    Closed,
    /// The received bytes begin with something that is not plain, or with a request that is passed on for this reason.
    NotPlain(Option<PassReason>),
}

struct Connection {
    context: Rc<ThreadContext>,
    stream: TcpStream,
    peer: Peer,
    received: Vec<u8>,
    turn: Turn,
    deadline: Deadline,
    /// Set while `received` is not empty.
    busy: Option<Counted>,
}

/// Serves a connection until hyper has to read its next request. Returns the connection then, with the bytes of that request.
/// `received` are bytes that follow earlier requests, and `idle` is the timeout before the next one.
pub async fn serve(
    context: Rc<ThreadContext>,
    stream: TcpStream,
    peer: Peer,
    received: Vec<u8>,
    idle: Duration,
) -> Option<HandedOver> {
    let (turn, deadline) = (Turn::default(), Deadline::after(idle));
    let mut connection = Connection { context, stream, peer, received, turn, deadline, busy: None };
    let end = connection.answer_plain_requests().await;
    let Ok(End::NotPlain(reason)) = end else { return None };
    Some(HandedOver { stream: connection.stream, unread: connection.received, reason })
}

/// A connection with a request for hyper.
pub struct HandedOver {
    pub stream: TcpStream,
    pub unread: Vec<u8>,
    /// Why the first request is passed on, if that is decided.
    pub reason: Option<PassReason>,
}

impl Connection {
    async fn answer_plain_requests(&mut self) -> io::Result<End> {
        let mut has_unread = !self.received.is_empty();
        loop {
            let was_partial = !self.received.is_empty() && !has_unread;
            if !std::mem::take(&mut has_unread) && !self.read().await? {
                return Ok(if self.received.is_empty() { End::Closed } else { End::NotPlain(None) });
            }
            if self.busy.is_none() {
                self.busy = Some(self.context.shutdown.begin_request());
            }
            let executed = self.turn.run(&self.context, &self.received, self.peer)?;
            let ended = if self.turn.requests.is_empty() { executed } else { self.answer().await? };
            remove_answered(&mut self.received, self.turn.length);
            if !self.turn.is_rest_plain {
                return Ok(End::NotPlain(self.turn.reason.take()));
            }
            if self.turn.is_slowed_down {
                sleep(SLOWED_DOWN).await;
                has_unread = !self.received.is_empty();
            }
            if self.turn.is_last {
                self.busy = None;
                self.await_disconnect().await;
                return Ok(End::Closed);
            }
            if self.received.is_empty() {
                self.busy = None;
                self.deadline.set(ended + self.context.timeouts.keep_alive);
            } else if !was_partial || self.turn.length > 0 {
                // Further bytes of the same request give no more time.
                self.deadline.set(ended + REST_WAIT);
            }
        }
    }

    /// Returns false if nothing came within the deadline. Fails at the end of the stream.
    async fn read(&mut self) -> io::Result<bool> {
        self.received.reserve(READ_BYTES);
        tokio::select! {
            biased;
            count = self.stream.read_buf(&mut self.received) => match count? {
                0 => Err(io::ErrorKind::UnexpectedEof.into()),
                _ => Ok(true),
            },
            () = self.deadline.elapsed() => Ok(false),
        }
    }

    /// Discards requests after the last answer. Closing with unread bytes could reset the connection before the client
    /// has the answer.
    async fn await_disconnect(&mut self) {
        let discard = async {
            self.stream.shutdown().await?;
            while self.stream.read_buf(&mut self.received).await? > 0 {
                self.received.clear();
            }
            io::Result::Ok(())
        };
        let _ = timeout(self.context.timeouts.receive, discard).await;
    }

    /// Returns the time at which the answers were durable.
    async fn answer(&mut self) -> io::Result<Instant> {
        let Connection { context, turn, .. } = self;
        let _answering = context.measurer.begin(turn.requests.len());
        if let Err(problem) = context.shutdown.within_grace(context.waiters.wait(turn.wait)).await {
            turn.refuse(problem);
        }
        let ended = Instant::now();
        context.measurer.count(&turn.requests, ended.into_std());
        let written = match self.stream.try_write(&turn.answers) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        let rest = &turn.answers[written..];
        if let (false, Some(client)) = (rest.is_empty(), turn.client) {
            // A client with too many unread answers is cut off.
            let mut unread = context.options.answers.reserve(ClientKey::of(client));
            if unread.add_if_room(rest.len()).is_err() {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            write_all_in_time(&mut self.stream, rest, context.timeouts.slow_reader).await?;
        }
        turn.answers.clear();
        turn.answers.shrink_to(KEPT_BYTES);
        Ok(ended)
    }
}

/// Removes answered requests from the buffer. An idle connection keeps no buffer of a long request.
fn remove_answered(received: &mut Vec<u8>, length: usize) {
    received.drain(..length);
    if received.is_empty() {
        received.shrink_to(READ_BYTES);
    }
}

/// All plain requests that a client has sent completely.
#[derive(Default)]
struct Turn {
    requests: Vec<RequestRecord>,
    answers: Vec<u8>,
    /// The answers must wait until this event is durable.
    wait: Lsn,
    /// Client of the last request.
    client: Option<IpAddr>,
    /// Number of bytes of the requests.
    length: usize,
    /// Whether the bytes after the requests may become a plain request.
    is_rest_plain: bool,
    /// Why the next request is passed on.
    reason: Option<PassReason>,
    /// Whether a rate limit refused a request of a client. Its next one waits.
    is_slowed_down: bool,
    /// Whether the last answer says that the connection closes, because the front stops or does not keep connections.
    is_last: bool,
}

impl Turn {
    /// Returns the time after the last request.
    fn run(&mut self, context: &ThreadContext, received: &[u8], peer: Peer) -> io::Result<Instant> {
        let mut now = Instant::now();
        let started = now.into_std();
        let turn = self;
        turn.requests.clear();
        turn.answers.clear();
        (turn.wait, turn.length, turn.is_rest_plain) = (0, 0, true);
        (turn.is_last, turn.reason, turn.is_slowed_down) = (false, None, false);
        let trusts_peer = matches!(peer, Peer::Proxy(proxy) if context.addresses.trusts(proxy));
        let mut last_answer = 0;
        let has_one_request = context.timeouts.keep_alive.is_zero();
        while turn.length < received.len() && !(has_one_request && turn.length > 0) {
            let request = match Received::read(&received[turn.length..], context.request_bytes_max) {
                Received::Plain(request) => request,
                Received::Partial => break,
                Received::Other => {
                    turn.is_rest_plain = false;
                    break;
                }
            };
            let head = &request.head;
            let client = context.addresses.client(peer, head.forwarded_for);
            let call = head.call(request.operation, client, trusts_peer, request.body);
            let done = match context.decider.decide(&call) {
                Ok(done) => done,
                Err(reason) => {
                    (turn.is_rest_plain, turn.reason) = (false, Some(reason));
                    break;
                }
            };
            let trace = head.traceparent.and_then(trace);
            let ray_id = trace.map_or_else(|| context.ray_ids.next(), |trace| Ok(trace.id))?;
            last_answer = turn.answers.len();
            done.write_http1(ray_id, if head.origin.is_some() { OPEN_LINES } else { "" }, &mut turn.answers);
            (turn.wait, turn.client) = (turn.wait.max(done.wait), Some(client));
            turn.length += request.length;
            now = Instant::now();
            turn.requests.push(RequestRecord {
                ray_id,
                trace,
                operation: request.operation as usize,
                caller: done.subject,
                code: done.code(),
                exceeded: done.exceeded,
                started,
                executed: now.into_std(),
                ended: now.into_std(),
            });
            if done.is_rate_limited() && matches!(peer, Peer::Client(_)) {
                turn.is_slowed_down = true;
                break;
            }
        }
        // A request behind the last answer would get none, so the front reads the rest of a partial one first.
        if turn.length > 0 && (has_one_request || context.shutdown.is_begun() && turn.length == received.len()) {
            turn.say_last(last_answer);
        }
        Ok(now)
    }

    /// Puts one last answer in place of all that are not durable.
    fn refuse(&mut self, problem: Problem) {
        self.requests.truncate(1);
        let request = &mut self.requests[0];
        request.code = code_number::of(problem.code());
        let is_open = memmem::find(&self.answers, OPEN_LINES.as_bytes()).is_some();
        self.answers.clear();
        let cors_lines = if is_open { OPEN_LINES } else { "" };
        error_response::write_http1(&problem.error(), request.ray_id, cors_lines, &mut self.answers);
        self.say_last(0);
    }

    /// Adds a header to the answer that begins at `begin`.
    fn say_last(&mut self, begin: usize) {
        let status_line = self.answers[begin..].windows(2).position(|pair| pair == b"\r\n");
        let headers = begin + status_line.expect("an answer has a status line") + 2;
        self.answers.splice(headers..headers, LAST_ANSWER.iter().copied());
        self.is_last = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_connection_keeps_a_small_buffer() {
        for (unread, is_idle) in [(0, true), (1, false)] {
            let mut received = vec![0; 64 * 1024];
            remove_answered(&mut received, 64 * 1024 - unread);
            assert_eq!((received.len(), received.capacity() <= READ_BYTES), (unread, is_idle));
        }
    }
}
