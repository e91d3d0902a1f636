//! Relay: copies bytes both ways between two streams until both directions have ended.
//!
//! An idle relay owns no buffer. All relays of a thread read into the same buffer, and a relay stores only bytes that
//! the other side does not accept at once. Half closes are relayed. Two sockets without TLS use splice(2) at high
//! traffic.

mod one_way_socket;
mod pipe;
mod stage;

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hosting_client_addresses::Speech;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::connection_limits::ConnectionPermit;
use crate::metrics::{Direction, ThreadCounters};
use crate::traffic::Traffic;
use one_way_socket::OneWaySocketRelay;
use stage::{BUFFER, STEPS_PER_POLL, Stage, ignore_not_connected};

/// Time limits of a relay.
#[derive(Clone, Copy)]
pub struct RelayLimits<'a> {
    /// Longest time without traffic.
    pub idle: Duration,
    /// Longest time before the first byte, and the permit that records which side has sent bytes.
    pub first: Option<(Duration, &'a ConnectionPermit)>,
}

impl RelayLimits<'_> {
    pub fn idle(idle: Duration) -> Self {
        Self { idle, first: None }
    }
}

/// Counters of the bytes of a relay.
#[derive(Clone, Copy)]
pub struct RelayCounters<'a> {
    pub thread: &'a ThreadCounters,
    pub owner: &'a Traffic,
}

/// Relays bytes between two sockets. Fails on a socket error, or after a time without traffic.
pub async fn relay_sockets(
    client: &mut TcpStream,
    backend: &mut TcpStream,
    limits: RelayLimits<'_>,
    counters: RelayCounters<'_>,
) -> io::Result<()> {
    let (mut to_backend, mut to_client) = (OneWaySocketRelay::default(), OneWaySocketRelay::default());
    let mut is_over = (false, false);
    until_idle(limits, |cx| {
        let (in_before, out_before) = (to_backend.relayed_bytes(), to_client.relayed_bytes());
        is_over.0 = is_over.0 || to_backend.poll(cx, client, backend)?.is_ready();
        is_over.1 = is_over.1 || to_client.poll(cx, backend, client)?.is_ready();
        count(counters, to_backend.relayed_bytes() - in_before, to_client.relayed_bytes() - out_before);
        let has_relayed = (to_backend.relayed_bytes() != in_before, to_client.relayed_bytes() != out_before);
        Ok(RelayProgress { has_relayed, is_over: is_over.0 && is_over.1 })
    })
    .await
}

pub async fn relay_streams<A, B>(
    client: &mut A,
    backend: &mut B,
    limits: RelayLimits<'_>,
    counters: RelayCounters<'_>,
) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut to_backend, mut to_client) = (OneWayStreamRelay::default(), OneWayStreamRelay::default());
    until_idle(limits, |cx| {
        let (in_before, out_before) = (to_backend.relayed_bytes, to_client.relayed_bytes);
        let _ = to_backend.poll(cx, client, backend)?;
        let _ = to_client.poll(cx, backend, client)?;
        count(counters, to_backend.relayed_bytes - in_before, to_client.relayed_bytes - out_before);
        let has_relayed = (to_backend.relayed_bytes != in_before, to_client.relayed_bytes != out_before);
        Ok(RelayProgress { has_relayed, is_over: to_backend.is_over() && to_client.is_over() })
    })
    .await
}

fn count(counters: RelayCounters<'_>, received_bytes: u64, sent_bytes: u64) {
    for (direction, bytes) in [(Direction::In, received_bytes), (Direction::Out, sent_bytes)] {
        if bytes > 0 {
            counters.thread.stream_bytes.with_label(direction).add(bytes);
            counters.owner.add_bytes(direction, bytes);
        }
    }
}

struct RelayProgress {
    /// Whether bytes have moved to the backend, and to the client.
    has_relayed: (bool, bool),
    is_over: bool,
}

async fn until_idle(
    RelayLimits { idle, first }: RelayLimits<'_>,
    mut step_relay: impl FnMut(&mut Context<'_>) -> io::Result<RelayProgress>,
) -> io::Result<()> {
    let timer = tokio::time::sleep(first.map_or(idle, |(first_byte, _)| first_byte));
    tokio::pin!(timer);
    // The timer is not reset with each byte. When it fires, the loop checks whether bytes have moved.
    let mut has_relayed = false;
    let mut recorded = Speech::Silent;
    poll_fn(|cx| {
        let result = step_relay(cx)?;
        let speech = match result.has_relayed {
            (true, _) => Speech::Spoken,
            (false, true) => Speech::Listening,
            (false, false) => Speech::Silent,
        };
        has_relayed |= speech != Speech::Silent;
        if let Some((_, permit)) = first.filter(|_| speech > recorded) {
            permit.record(speech);
            recorded = speech;
        }
        if result.is_over {
            return Poll::Ready(Ok(()));
        }
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut has_relayed) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(tokio::time::Instant::now() + idle);
        }
        Poll::Pending
    })
    .await
}

#[derive(Default)]
struct OneWayStreamRelay {
    unsent: Vec<u8>,
    sent: usize,
    stage: Stage,
    is_unflushed: bool,
    relayed_bytes: u64,
}

impl OneWayStreamRelay {
    fn is_over(&self) -> bool {
        self.stage == Stage::Closed
    }

    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> io::Result<Poll<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..STEPS_PER_POLL {
            match self.step(cx, from, to) {
                Poll::Ready(Ok(())) if self.is_over() => return Ok(Poll::Ready(())),
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    if self.is_unflushed && Pin::new(&mut *to).poll_flush(cx)?.is_ready() {
                        self.is_unflushed = false;
                    }
                    return Ok(Poll::Pending);
                }
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    fn step<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<io::Result<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        if self.sent < self.unsent.len() {
            let sent = ready!(Pin::new(to).poll_write(cx, &self.unsent[self.sent..]))?;
            self.record_sent(sent)?;
            self.sent += sent;
            if self.sent == self.unsent.len() {
                (self.unsent, self.sent) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        match self.stage {
            Stage::Closed => Poll::Ready(Ok(())),
            Stage::Closing => {
                ready!(Pin::new(to).poll_shutdown(cx)).or_else(ignore_not_connected)?;
                self.is_unflushed = false;
                self.stage = Stage::Closed;
                Poll::Ready(Ok(()))
            }
            Stage::Open => BUFFER.with_borrow_mut(|buffer| {
                let mut buffer = ReadBuf::new(buffer);
                ready!(Pin::new(from).poll_read(cx, &mut buffer)).or_else(accept_missing_close_notify)?;
                if buffer.filled().is_empty() {
                    self.stage = Stage::Closing;
                    return Poll::Ready(Ok(()));
                }
                match Pin::new(to).poll_write(cx, buffer.filled()) {
                    Poll::Ready(sent) => {
                        let sent = sent?;
                        self.record_sent(sent)?;
                        self.unsent.extend_from_slice(&buffer.filled()[sent..]);
                    }
                    Poll::Pending => self.unsent.extend_from_slice(buffer.filled()),
                }
                Poll::Ready(Ok(()))
            }),
        }
    }

    fn record_sent(&mut self, sent: usize) -> io::Result<()> {
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.is_unflushed = true;
        self.relayed_bytes += sent as u64;
        Ok(())
    }
}

/// Treats the end of a TLS stream without close_notify as a normal end, because many clients omit close_notify.
///
/// A reset of the connection could discard data that such a client has sent.
fn accept_missing_close_notify(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::UnexpectedEof { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
