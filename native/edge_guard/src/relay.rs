//! Relay: copies bytes both ways between two streams until both directions have ended.
//!
//! An idle relay owns no buffer. All relays of a thread read into the same buffer, and a relay stores only bytes that
//! the other side does not accept at once. Half closes are relayed. Two sockets without TLS use splice(2) at high
//! traffic.

mod pipe;
mod splice;

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::metrics::{Direction, ThreadCounters};
use splice::SpliceFlow;

const SCRATCH: usize = 65_536;

const TURNS: usize = 32;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH].into_boxed_slice());
}

/// Relays bytes between two sockets. Fails on a socket error, or after the duration `idle` without traffic.
pub async fn sockets(
    client: &mut TcpStream,
    backend: &mut TcpStream,
    idle: Duration,
    counters: &ThreadCounters,
) -> io::Result<()> {
    let (mut there, mut back) = (SpliceFlow::default(), SpliceFlow::default());
    let mut is_over = (false, false);
    until_idle(idle, |cx| {
        let before = there.relayed_bytes() + back.relayed_bytes();
        let (in_before, out_before) = (there.relayed_bytes(), back.relayed_bytes());
        is_over.0 = is_over.0 || there.poll(cx, client, backend)?.is_ready();
        is_over.1 = is_over.1 || back.poll(cx, backend, client)?.is_ready();
        count(counters, there.relayed_bytes() - in_before, back.relayed_bytes() - out_before);
        let has_moved = there.relayed_bytes() + back.relayed_bytes() != before;
        Ok(Turn { has_moved, is_over: is_over.0 && is_over.1 })
    })
    .await
}

pub async fn streams<A, B>(client: &mut A, backend: &mut B, idle: Duration, counters: &ThreadCounters) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut there, mut back) = (Flow::default(), Flow::default());
    until_idle(idle, |cx| {
        let (in_before, out_before) = (there.relayed_bytes, back.relayed_bytes);
        let _ = there.poll(cx, client, backend)?;
        let _ = back.poll(cx, backend, client)?;
        count(counters, there.relayed_bytes - in_before, back.relayed_bytes - out_before);
        let has_moved = (there.relayed_bytes, back.relayed_bytes) != (in_before, out_before);
        Ok(Turn { has_moved, is_over: there.is_over() && back.is_over() })
    })
    .await
}

fn count(counters: &ThreadCounters, more_in: u64, more_out: u64) {
    if more_in > 0 {
        counters.stream_bytes.of(Direction::In).add(more_in);
    }
    if more_out > 0 {
        counters.stream_bytes.of(Direction::Out).add(more_out);
    }
}

struct Turn {
    has_moved: bool,
    is_over: bool,
}

async fn until_idle(idle: Duration, mut turn: impl FnMut(&mut Context<'_>) -> io::Result<Turn>) -> io::Result<()> {
    let timer = tokio::time::sleep(idle);
    tokio::pin!(timer);
    // The timer is not reset with each byte. When it fires, the loop checks whether bytes have moved.
    let mut has_moved = false;
    poll_fn(|cx| {
        let result = turn(cx)?;
        has_moved |= result.has_moved;
        if result.is_over {
            return Poll::Ready(Ok(()));
        }
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut has_moved) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            timer.as_mut().reset(tokio::time::Instant::now() + idle);
        }
        Poll::Pending
    })
    .await
}

#[derive(Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    Closing,
    Closed,
}

#[derive(Default)]
struct Flow {
    rest: Vec<u8>,
    sent: usize,
    stage: Stage,
    is_unflushed: bool,
    relayed_bytes: u64,
}

impl Flow {
    fn is_over(&self) -> bool {
        self.stage == Stage::Closed
    }

    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> io::Result<Poll<()>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..TURNS {
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
        if self.sent < self.rest.len() {
            let sent = ready!(Pin::new(to).poll_write(cx, &self.rest[self.sent..]))?;
            self.moved(sent)?;
            self.sent += sent;
            if self.sent == self.rest.len() {
                (self.rest, self.sent) = (Vec::new(), 0);
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
                        self.moved(sent)?;
                        self.rest.extend_from_slice(&buffer.filled()[sent..]);
                    }
                    Poll::Pending => self.rest.extend_from_slice(buffer.filled()),
                }
                Poll::Ready(Ok(()))
            }),
        }
    }

    fn moved(&mut self, sent: usize) -> io::Result<()> {
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

fn ignore_not_connected(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotConnected { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
