//! One direction of a relay between two sockets: read and write at low traffic, splice(2) at high traffic.

use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use super::pipe::Pipe;
use super::stage::{BUFFER, STEPS_PER_POLL, Stage, ignore_not_connected};

/// Minimum size of a read after which the relay moves bytes through a pipe. After a smaller read, the relay copies
/// them.
const SPLICE_THRESHOLD: usize = 16_384;

#[derive(Default)]
pub(super) struct OneWaySocketRelay {
    unsent: Vec<u8>,
    sent: usize,
    pipe: Option<Pipe>,
    has_high_traffic: bool,
    stage: Stage,
    relayed_bytes: u64,
}

impl OneWaySocketRelay {
    pub(super) fn relayed_bytes(&self) -> u64 {
        self.relayed_bytes
    }

    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> io::Result<Poll<()>> {
        for _ in 0..STEPS_PER_POLL {
            match self.step(cx, from, to) {
                Poll::Ready(Ok(())) if self.stage == Stage::Closed => return Ok(Poll::Ready(())),
                Poll::Ready(result) => result?,
                Poll::Pending => {
                    // Returns the pipe while there is no traffic.
                    if self.pipe.as_ref().is_some_and(|pipe| pipe.len() == 0) {
                        self.pipe.take().into_iter().for_each(Pipe::give_back);
                    }
                    return Ok(Poll::Pending);
                }
            }
        }
        cx.waker().wake_by_ref();
        Ok(Poll::Pending)
    }

    fn step(&mut self, cx: &mut Context<'_>, from: &mut TcpStream, to: &mut TcpStream) -> Poll<io::Result<()>> {
        if let Some(pipe) = self.pipe.as_mut().filter(|pipe| pipe.len() > 0) {
            let sent = ready!(poll_write_with(cx, to, || pipe.empty(to.as_fd())))?;
            self.relayed_bytes += sent as u64;
            return Poll::Ready(Ok(()));
        }
        if self.sent < self.unsent.len() {
            let sent = ready!(Pin::new(to).poll_write(cx, &self.unsent[self.sent..]))?;
            self.relayed_bytes += sent as u64;
            self.sent += sent;
            if self.sent == self.unsent.len() {
                (self.unsent, self.sent) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        match self.stage {
            Stage::Closed => Poll::Ready(Ok(())),
            Stage::Closing => {
                socket2::SockRef::from(&*to).shutdown(std::net::Shutdown::Write).or_else(ignore_not_connected)?;
                self.pipe = None;
                self.stage = Stage::Closed;
                Poll::Ready(Ok(()))
            }
            Stage::Open if self.has_high_traffic => self.fill(cx, from),
            Stage::Open => self.copy(cx, from, to),
        }
    }

    fn fill(&mut self, cx: &mut Context<'_>, from: &mut TcpStream) -> Poll<io::Result<()>> {
        if self.pipe.is_none() {
            match Pipe::take() {
                Ok(pipe) => self.pipe = Some(pipe),
                // No descriptor for a pipe: copies as before.
                Err(_) => {
                    self.has_high_traffic = false;
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let Some(pipe) = self.pipe.as_mut() else { return Poll::Ready(Ok(())) };
        let count = ready!(poll_read_with(cx, from, || pipe.fill(from.as_fd())))?;
        self.has_high_traffic = count >= SPLICE_THRESHOLD;
        if count == 0 {
            self.stage = Stage::Closing;
        }
        Poll::Ready(Ok(()))
    }

    fn copy(&mut self, cx: &mut Context<'_>, from: &mut TcpStream, to: &mut TcpStream) -> Poll<io::Result<()>> {
        self.pipe.take().into_iter().for_each(Pipe::give_back);
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            ready!(Pin::new(from).poll_read(cx, &mut buffer))?;
            let bytes = buffer.filled();
            if bytes.is_empty() {
                self.stage = Stage::Closing;
                return Poll::Ready(Ok(()));
            }
            self.has_high_traffic = bytes.len() >= SPLICE_THRESHOLD;
            let sent = match Pin::new(to).poll_write(cx, bytes) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            self.relayed_bytes += sent as u64;
            self.unsent.extend_from_slice(&bytes[sent..]);
            Poll::Ready(Ok(()))
        })
    }
}

fn poll_read_with<T>(
    cx: &mut Context<'_>,
    stream: &TcpStream,
    mut read_or_write: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        ready!(stream.poll_read_ready(cx))?;
        match stream.try_io(Interest::READABLE, &mut read_or_write) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}

fn poll_write_with<T>(
    cx: &mut Context<'_>,
    stream: &TcpStream,
    mut read_or_write: impl FnMut() -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        ready!(stream.poll_write_ready(cx))?;
        match stream.try_io(Interest::WRITABLE, &mut read_or_write) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return Poll::Ready(result),
        }
    }
}
