//! The socket of a client under hyper: bytes that were read before, progress of the client, and hyper's own error pages.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use hosting_tls::TlsStream;
use memchr::memchr;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout};

use crate::responses::problems::Problem;
use crate::shutdown::{Counted, Shutdown};

/// A client must read this many bytes a second.
const READ_BYTES_PER_SECOND: u128 = 8 * 1024;
/// Pause of a connection after a 429.
pub const SLOWED_DOWN: Duration = Duration::from_millis(100);
/// Bytes of the preface of HTTP/2 with the client's settings.
const PREFACE_BYTES: usize = 33;
/// Bytes that a client may send while its request waits.
const PIPELINED_BYTES: usize = 2 * 1024;
/// Offset of `tcpi_bytes_acked` in Linux's `struct tcp_info`.
const BYTES_ACKED_AT: usize = 120;

pub trait ClientSocket: AsyncRead + AsyncWrite + AsRawFd + Unpin + 'static {
    /// Whether the client has agreed on HTTP/2 in its handshake.
    fn has_agreed_http2(&self) -> bool {
        false
    }
}

impl ClientSocket for TcpStream {}
impl ClientSocket for UnixStream {}

impl ClientSocket for TlsStream<TcpStream> {
    fn has_agreed_http2(&self) -> bool {
        self.get_ref().1.alpn_protocol() == Some(b"h2")
    }
}

/// Progress of the client of one connection, for its timeouts.
pub struct Activity {
    shutdown: Rc<Shutdown>,
    descriptor: RawFd,
    /// Whether received bytes are heads of requests. HTTP/2 has other frames too.
    has_heads: bool,
    /// Time over which the rate of a reader is measured.
    read_window: Duration,
    /// Requests that the front works on.
    answering: Cell<usize>,
    /// The next request waits until then.
    slowed_until: Cell<Option<Instant>>,
    /// Bytes of the preface of HTTP/2 that have not come. Until then, the timeout of a head applies.
    preface_left: Cell<usize>,
    /// Since when the client has no request, or since when it sends the head of one.
    idle_since: Cell<Instant>,
    head_since: Cell<Option<Instant>>,
    /// A connection with a part of a head is busy.
    head: Cell<Option<Counted>>,
    /// Whether the request line has ended.
    has_line: Cell<bool>,
    /// Since when bytes wait for the client.
    unread_since: Cell<Option<Instant>>,
    /// Earlier time for which bytes waited, and the bytes that the client had read before it.
    unread_before: Cell<(Duration, u64)>,
    written: Cell<u64>,
    /// The part of `written` that is data of responses.
    data_written: Cell<u64>,
    /// Bytes of responses that hyper has not written. The window of a client over HTTP/2 may keep them back.
    unwritten: Cell<usize>,
    /// Whether bytes of a response may be unwritten.
    has_response: Cell<bool>,
    error_page: Cell<Option<Problem>>,
}

/// State of the timeouts of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing can have timed out before this time.
    Fine(Instant),
    Idle,
    SlowHead,
    SlowReader,
}

impl Activity {
    fn new(shutdown: Rc<Shutdown>, read_window: Duration, descriptor: RawFd, has_heads: bool) -> Activity {
        let now = Instant::now();
        Activity {
            read_window,
            shutdown,
            descriptor,
            has_heads,
            answering: Cell::new(0),
            slowed_until: Cell::new(None),
            preface_left: Cell::new(if has_heads { 0 } else { PREFACE_BYTES }),
            idle_since: Cell::new(now),
            head_since: Cell::new((!has_heads).then_some(now)),
            head: Cell::new(None),
            has_line: Cell::new(false),
            unread_since: Cell::new(None),
            unread_before: Cell::default(),
            written: Cell::new(0),
            data_written: Cell::new(0),
            unwritten: Cell::new(0),
            has_response: Cell::new(false),
            error_page: Cell::new(None),
        }
    }

    /// Counts a request until the returned value is dropped.
    pub fn begin_request(self: &Rc<Self>) -> CountedRequest {
        self.answering.set(self.answering.get() + 1);
        self.head_since.set(None);
        self.head.set(None);
        self.has_response.set(true);
        CountedRequest(self.clone())
    }

    /// Returns the error of hyper in place of which the front answers.
    pub fn error_page(&self) -> Option<Problem> {
        self.error_page.get()
    }

    /// `head` is the timeout of a request's head, and `idle` that of a connection without a request.
    pub fn check(&self, head: Duration, idle: Duration, now: Instant) -> Progress {
        if let Some(since) = self.unread_since.get() {
            let (before, read) = self.unread_before.get();
            let unread = before + (now - since);
            if unread < self.read_window {
                return Progress::Fine(now + self.read_window - unread);
            }
            let read_now = self.read_bytes();
            if is_slow(read_now.saturating_sub(read), unread) {
                return Progress::SlowReader;
            }
            self.unread_since.set(Some(now));
            self.unread_before.set((Duration::ZERO, read_now));
            return Progress::Fine(now + self.read_window);
        }
        if self.answering.get() > 0 {
            return Progress::Fine(now + head.min(idle).min(self.read_window));
        }
        let (end, late) = match self.head_since.get() {
            Some(since) => (since + head, Progress::SlowHead),
            None => (self.idle_since.get() + idle, Progress::Idle),
        };
        if now >= end { late } else { Progress::Fine(end.min(now + head.min(self.read_window))) }
    }

    fn received(&self, bytes: &[u8]) {
        if self.preface_left.get() > 0 {
            self.preface_left.update(|left| left.saturating_sub(bytes.len()));
            if self.preface_left.get() == 0 {
                self.head_since.set(None);
            }
        }
        if self.answering.get() > 0 || !self.has_heads {
            return;
        }
        if self.head_since.get().is_none() {
            self.head_since.set(Some(Instant::now()));
            self.head.set(Some(self.shutdown.begin_request()));
            self.has_line.set(false);
        }
        if !self.has_line.get() {
            self.has_line.set(memchr(b'\n', bytes).is_some());
        }
    }

    fn wrote(&self, outcome: &Poll<io::Result<usize>>) {
        match outcome {
            Poll::Pending => self.begin_unread(),
            Poll::Ready(Ok(count)) => self.written.set(self.written.get() + *count as u64),
            Poll::Ready(Err(_)) => {}
        }
    }

    /// TLS takes bytes that the socket does not take, so that they wait for a flush. Over HTTP/2, bytes that are unwritten
    /// after a flush wait for the client's window.
    fn flushed(&self, is_pending: bool) {
        if is_pending || self.unwritten.get() > 0 {
            return self.begin_unread();
        }
        // The time goes on at the next wait: a slow reader empties the buffers of this machine again and again.
        if let Some(since) = self.unread_since.take() {
            let (before, read) = self.unread_before.get();
            self.unread_before.set((before + since.elapsed(), read));
        }
        if self.answering.get() == 0 {
            self.has_response.set(false);
        }
    }

    fn begin_unread(&self) {
        if self.unread_since.get().is_none() {
            self.unread_since.set(Some(Instant::now()));
            if self.unread_before.get().0.is_zero() {
                self.unread_before.set((Duration::ZERO, self.read_bytes()));
            }
        }
    }

    /// Returns the bytes of responses that the client has read. Frames of HTTP/2 without data do not count: a client could
    /// ask for any number of them.
    fn read_bytes(&self) -> u64 {
        let others = if self.has_heads { 0 } else { self.written.get().saturating_sub(self.data_written.get()) };
        self.acked_bytes().saturating_sub(others)
    }

    fn acked_bytes(&self) -> u64 {
        // A Unix socket has none, and its buffer is small.
        acked_bytes(self.descriptor).unwrap_or(self.written.get())
    }
}

/// Writes all bytes. Fails if the client reads them too slowly in `window`.
pub async fn write_all_in_time(stream: &mut TcpStream, bytes: &[u8], window: Duration) -> io::Result<()> {
    let descriptor = stream.as_raw_fd();
    let mut writing = pin!(stream.write_all(bytes));
    let mut read = acked_bytes(descriptor);
    loop {
        if let Ok(outcome) = timeout(window, writing.as_mut()).await {
            return outcome;
        }
        let before = std::mem::replace(&mut read, acked_bytes(descriptor));
        if read.zip(before).is_none_or(|(now, before)| is_slow(now.saturating_sub(before), window)) {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Returns the bytes that the client's kernel has acknowledged. The buffer of this machine takes megabytes at once, so
/// written bytes show no progress. Returns None for a socket that is not TCP.
pub fn acked_bytes(descriptor: RawFd) -> Option<u64> {
    let mut info = [0_u8; BYTES_ACKED_AT + 8];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: pointer and length belong to one live array. The caller has the open socket.
    let outcome = unsafe {
        libc::getsockopt(descriptor, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut length)
    };
    if outcome != 0 || (length as usize) < info.len() {
        return None;
    }
    let mut acked = [0; 8];
    acked.copy_from_slice(&info[BYTES_ACKED_AT..]);
    Some(u64::from_ne_bytes(acked))
}

fn is_slow(read_bytes: u64, time: Duration) -> bool {
    u128::from(read_bytes) * 1_000 < READ_BYTES_PER_SECOND * time.as_millis()
}

pub struct CountedRequest(Rc<Activity>);

impl CountedRequest {
    /// Makes the next request of the connection wait. Python then works for other clients, although this one ignores
    /// `retry-after`.
    pub fn slow_down_next(&self) {
        self.0.slowed_until.set(Some(Instant::now() + SLOWED_DOWN));
    }

    /// Returns whether the socket has not taken all bytes of an earlier response.
    pub fn has_unread_answer(&self) -> bool {
        self.0.unread_since.get().is_some()
    }

    /// Returns bytes of the response to this request. The client has to read them in time.
    pub fn unwritten(&self, bytes: Bytes) -> UnwrittenBytes {
        self.0.unwritten.update(|unwritten| unwritten + bytes.len());
        UnwrittenBytes { bytes, activity: self.0.clone() }
    }

    /// Waits if the request before was too early.
    pub async fn wait_if_slowed_down(&self) {
        if let Some(until) = self.0.slowed_until.take() {
            sleep_until(until).await;
        }
    }
}

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.answering.set(self.0.answering.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

/// Bytes of a response, until hyper has written or dropped them.
pub struct UnwrittenBytes {
    bytes: Bytes,
    activity: Rc<Activity>,
}

impl Buf for UnwrittenBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.activity.unwritten.update(|unwritten| unwritten - count);
        self.activity.data_written.update(|written| written + count as u64);
    }
}

impl Drop for UnwrittenBytes {
    fn drop(&mut self) {
        self.activity.unwritten.update(|unwritten| unwritten - self.bytes.len());
    }
}

/// The socket of a client, with bytes that were read before.
pub struct ClientStream<S> {
    pub socket: S,
    unread: Vec<u8>,
    unread_from: usize,
    activity: Rc<Activity>,
}

impl<S: ClientSocket> ClientStream<S> {
    pub fn new(
        shutdown: Rc<Shutdown>,
        read_window: Duration,
        socket: S,
        unread: Vec<u8>,
        has_heads: bool,
    ) -> (ClientStream<S>, Rc<Activity>) {
        let activity = Rc::new(Activity::new(shutdown, read_window, socket.as_raw_fd(), has_heads));
        (ClientStream { socket, unread, unread_from: 0, activity: activity.clone() }, activity)
    }

    /// Puts bytes back that were read from this stream.
    pub fn put_back(&mut self, bytes: &[u8]) {
        self.unread = [bytes, &self.unread[self.unread_from..]].concat();
        self.unread_from = 0;
    }

    /// Waits until the client has left. Keeps the first bytes that the client sends meanwhile.
    pub async fn disconnected(&mut self) {
        poll_fn(|context| {
            while self.unread.is_empty() {
                let mut bytes = [0; PIPELINED_BYTES];
                let mut buffer = ReadBuf::new(&mut bytes);
                match ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer)) {
                    Ok(()) if !buffer.filled().is_empty() => self.unread = buffer.filled().to_vec(),
                    _ => return Poll::Ready(()),
                }
            }
            Poll::Pending
        })
        .await;
    }

    pub fn into_parts(self) -> (S, Vec<u8>) {
        (self.socket, self.unread)
    }

    /// Hyper answers a request that it cannot read with a status alone. The front answers with a whole problem after that.
    fn is_error_page(&self, bytes: &[u8]) -> bool {
        if self.activity.error_page.get().is_some() {
            return true;
        }
        if self.activity.has_response.get() || !bytes.starts_with(b"HTTP/1.1 4") {
            return false;
        }
        let problem = match bytes.get(9..12) {
            Some(b"414") => Problem::UriTooLong,
            // The memory of the head is full. Hyper does not tell of which part.
            Some(b"431") if !self.activity.has_line.get() => Problem::UriTooLong,
            Some(b"431") => Problem::HeadersTooLarge,
            _ => Problem::NotHttp,
        };
        self.activity.error_page.set(Some(problem));
        true
    }
}

impl<S: ClientSocket> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread_from < self.unread.len() {
            let count = buffer.remaining().min(self.unread.len() - self.unread_from);
            buffer.put_slice(&self.unread[self.unread_from..][..count]);
            self.activity.received(&self.unread[self.unread_from..][..count]);
            self.unread_from += count;
            if self.unread_from == self.unread.len() {
                (self.unread, self.unread_from) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.socket).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.activity.received(&buffer.filled()[before..]);
        }
        outcome
    }
}

impl<S: ClientSocket> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_error_page(bytes) {
            return Poll::Ready(Ok(bytes.len()));
        }
        let outcome = Pin::new(&mut self.socket).poll_write(context, bytes);
        self.activity.wrote(&outcome);
        outcome
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if parts.first().is_some_and(|part| self.is_error_page(part)) {
            return Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()));
        }
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(context, parts);
        self.activity.wrote(&outcome);
        outcome
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(context);
        self.activity.flushed(outcome.is_pending());
        outcome
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connections::timeouts::Timeouts;

    #[test]
    fn timeouts_without_a_setting() {
        let timeouts = Timeouts::new(Duration::ZERO, Duration::ZERO);
        assert_eq!([timeouts.slow_reader, timeouts.idle_grace], [10, 1].map(Duration::from_secs));
    }

    #[test]
    fn reader_needs_8_kib_a_second() {
        for (read_bytes, time_ms, expected) in
            [(81_919, 10_000, true), (81_920, 10_000, false), (81_920, 10_001, true), (0, 0, false)]
        {
            assert_eq!(is_slow(read_bytes, Duration::from_millis(time_ms)), expected, "{read_bytes} in {time_ms}");
        }
    }
}
