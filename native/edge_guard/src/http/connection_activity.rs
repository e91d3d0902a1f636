//! Activity of a player's connection, from which its timeouts are computed. One timer per connection replaces a timer
//! per request.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

use crate::config::Timeouts;

#[derive(Debug)]
pub struct ActivityTracker {
    started: Instant,
    exchanges: AtomicU32,
    /// Start of the current request header in milliseconds since `started`, at least 1. 0 if no header is being received.
    head_since: AtomicU64,
    idle_since: AtomicU64,
    /// Time since which the player has accepted no bytes, in milliseconds since `started`. 0 if the player accepts bytes.
    blocked_since: AtomicU64,
    has_activity: AtomicBool,
    last_activity: AtomicU64,
    /// Task of a half-closed connection. It ends after its last exchange.
    half_closed: Mutex<Option<Waker>>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum TimeoutCheck {
    Expired,
    /// No timeout has expired. The next check is due at this time.
    CheckAgainAt(Instant),
}

impl Default for ActivityTracker {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            exchanges: AtomicU32::new(0),
            // A silent connection has the timeout of a request header.
            head_since: AtomicU64::new(1),
            idle_since: AtomicU64::new(1),
            blocked_since: AtomicU64::new(0),
            has_activity: AtomicBool::new(false),
            last_activity: AtomicU64::new(1),
            half_closed: Mutex::default(),
        }
    }
}

impl ActivityTracker {
    /// Counts a new exchange (a request and its response). Returns true if other exchanges are in progress.
    pub fn start_exchange(&self) -> bool {
        let concurrent = self.exchanges.fetch_add(1, Relaxed);
        self.head_since.store(0, Relaxed);
        concurrent > 0
    }

    /// Reports whether the caller's exchange is the only one on this connection.
    pub fn is_alone(&self) -> bool {
        self.exchanges.load(Relaxed) == 1
    }

    pub fn end_exchange(&self) {
        if self.exchanges.fetch_sub(1, Relaxed) == 1 {
            self.idle_since.store(self.now(), Relaxed);
            if let Some(connection) = self.half_closed().take() {
                connection.wake();
            }
        }
    }

    pub fn check_timeouts(&self, timeouts: &Timeouts) -> TimeoutCheck {
        let now = Instant::now();
        if self.has_activity.swap(false, Relaxed) {
            self.last_activity.store(self.now(), Relaxed);
        }
        let (since, time) = match (self.has_exchange(), self.blocked_since.load(Relaxed), self.head_since.load(Relaxed))
        {
            (true, 0, _) => (self.last_activity.load(Relaxed), timeouts.stream_idle),
            (true, since, _) => (since, timeouts.response),
            (false, _, 0) => (self.idle_since.load(Relaxed), timeouts.keep_alive),
            (false, _, since) => (since, timeouts.head),
        };
        let end = self.started + Duration::from_millis(since) + time;
        if end <= now {
            return TimeoutCheck::Expired;
        }
        // A request header, which has its own timeout, may begin before this time.
        TimeoutCheck::CheckAgainAt(end.min(now + timeouts.head))
    }

    fn has_exchange(&self) -> bool {
        self.exchanges.load(Relaxed) > 0
    }

    fn half_closed(&self) -> MutexGuard<'_, Option<Waker>> {
        self.half_closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether bytes wait because the player does not accept them.
    fn is_blocked(&self) -> bool {
        self.blocked_since.load(Relaxed) > 0
    }

    fn record_write<T>(&self, result: &Poll<std::io::Result<T>>) {
        if result.is_ready() {
            self.has_activity.store(true, Relaxed);
            self.blocked_since.store(0, Relaxed);
        } else if self.blocked_since.load(Relaxed) == 0 {
            self.blocked_since.store(self.now(), Relaxed);
        }
    }

    fn record_read(&self) {
        if !self.has_exchange() && self.head_since.load(Relaxed) == 0 {
            self.head_since.store(self.now(), Relaxed);
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }
}

#[derive(Debug)]
pub struct TrackedStream<S> {
    stream: S,
    tracker: Arc<ActivityTracker>,
    /// Time that a player has for the next bytes of a response after it closed its sending side. HTTP/2 has no such
    /// half close, and no header that begins with the first bytes after an exchange.
    half_close: Option<Duration>,
    /// End of the wait after a half close.
    half_close_end: Option<Pin<Box<Sleep>>>,
    has_written: bool,
}

impl<S> TrackedStream<S> {
    pub fn new(stream: S, tracker: Arc<ActivityTracker>, half_close: Option<Duration>) -> Self {
        Self { stream, tracker, half_close, half_close_end: None, has_written: false }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Waits while a response is on its way to a player that closed its sending side. TCP reports a player that left in
    /// the same way, so the wait ends when the player gets no bytes.
    fn poll_half_close(&mut self, cx: &mut Context<'_>, within: Duration) -> Poll<()> {
        if self.half_close_end.is_none() {
            self.has_written = false;
        }
        let end = self.half_close_end.get_or_insert_with(|| Box::pin(sleep(within)));
        while self.tracker.has_exchange() {
            *self.tracker.half_closed() = Some(cx.waker().clone());
            ready!(end.as_mut().poll(cx));
            if !std::mem::take(&mut self.has_written) && !self.tracker.is_blocked() {
                break;
            }
            end.as_mut().reset(Instant::now() + within);
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if let (Poll::Ready(Ok(())), Some(within)) = (&read, self.half_close)
            && buffer.filled().len() == before
        {
            ready!(self.poll_half_close(cx, within));
        } else if read.is_ready() {
            self.tracker.has_activity.store(true, Relaxed);
            if self.half_close.is_some() {
                self.tracker.record_read();
            }
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TrackedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.has_written |= written.is_ready();
        self.tracker.record_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.has_written |= written.is_ready();
        self.tracker.record_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.tracker.record_write(&flushed);
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeouts() -> Timeouts {
        let mut config = crate::config::Config::parse(r#"{"folder": "/a", "source": "/b"}"#).unwrap();
        config.timeouts.head = Duration::from_secs(15);
        config.timeouts.keep_alive = Duration::from_secs(60);
        config.timeouts
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connection_ends_with_the_head_timeout() {
        let tracker = ActivityTracker::default();
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tokio::time::advance(Duration::from_millis(15_001)).await;
        assert_eq!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn response_in_progress_ends_with_the_idle_timeout() {
        let tracker = ActivityTracker::default();
        tracker.start_exchange();
        tokio::time::advance(Duration::from_secs(3_600)).await;
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tracker.record_write(&Poll::Ready(Ok(())));
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tokio::time::advance(Duration::from_secs(7_199)).await;
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tracker.end_exchange();
        tokio::time::advance(Duration::from_secs(59)).await;
        assert_ne!(
            tracker.check_timeouts(&timeouts()),
            TimeoutCheck::Expired,
            "between requests it may wait for longer"
        );
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
    }

    #[tokio::test(start_paused = true)]
    async fn unread_response_ends_with_the_response_timeout() {
        let (near, far) = tokio::io::duplex(10);
        let tracker = Arc::new(ActivityTracker::default());
        let mut stream = TrackedStream::new(near, tracker.clone(), None);
        tracker.start_exchange();
        let mut write = |bytes: &'static [u8]| {
            let mut cx = Context::from_waker(std::task::Waker::noop());
            Pin::new(&mut stream).poll_write(&mut cx, bytes).is_ready()
        };
        assert!(write(b"0123456789") && !write(b"more"));
        tokio::time::advance(timeouts().response - Duration::from_secs(1)).await;
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        let mut far = far;
        tokio::io::AsyncReadExt::read_exact(&mut far, &mut [0; 10]).await.unwrap();
        assert!(write(b"more"));
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired, "it is taken again");
    }

    #[tokio::test(start_paused = true)]
    async fn second_head_has_its_own_timeout() {
        let tracker = ActivityTracker::default();
        tracker.start_exchange();
        tracker.end_exchange();
        tokio::time::advance(Duration::from_secs(30)).await;
        tracker.record_read();
        tokio::time::advance(Duration::from_secs(14)).await;
        tracker.record_read();
        assert_ne!(tracker.check_timeouts(&timeouts()), TimeoutCheck::Expired);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(
            tracker.check_timeouts(&timeouts()),
            TimeoutCheck::Expired,
            "a byte now and then does not prolong it"
        );
    }

    /// Reports whether a half-closed stream has reached its end.
    fn has_ended(stream: &mut TrackedStream<tokio::io::DuplexStream>) -> bool {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut bytes = [0; 8];
        Pin::new(stream).poll_read(&mut cx, &mut ReadBuf::new(&mut bytes)).is_ready()
    }

    #[tokio::test(start_paused = true)]
    async fn half_close_ends_when_the_player_gets_no_bytes() {
        use tokio::io::AsyncWriteExt;
        let (near, mut far) = tokio::io::duplex(1_000);
        let tracker = Arc::new(ActivityTracker::default());
        let mut stream = TrackedStream::new(near, tracker.clone(), Some(Duration::from_secs(2)));
        far.shutdown().await.unwrap();
        tracker.start_exchange();
        for _ in 0..10 {
            assert!(!has_ended(&mut stream));
            stream.write_all(b"event").await.unwrap();
            tokio::time::advance(Duration::from_millis(1_900)).await;
        }
        assert!(!has_ended(&mut stream));
        tokio::time::advance(Duration::from_millis(2_001)).await;
        assert!(has_ended(&mut stream));
    }

    #[tokio::test(start_paused = true)]
    async fn half_close_ends_with_the_exchange() {
        use tokio::io::AsyncWriteExt;
        let (near, mut far) = tokio::io::duplex(1_000);
        let tracker = Arc::new(ActivityTracker::default());
        let mut stream = TrackedStream::new(near, tracker.clone(), Some(Duration::from_secs(2)));
        far.shutdown().await.unwrap();
        tracker.start_exchange();
        assert!(!has_ended(&mut stream));
        tracker.end_exchange();
        assert!(has_ended(&mut stream));
    }
}
