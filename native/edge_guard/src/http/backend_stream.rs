//! Connection to a game server. It counts its bytes, and still returns the response after a failed write.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::metrics::Direction;
use crate::traffic::Traffic;

/// Stream that discards what the caller writes after a failed write.
///
/// A game server can respond before it has read the whole request, and close the connection. The next write then fails,
/// while the response waits to be read. The caller would stop reading at this error.
#[derive(Debug)]
pub struct BackendStream<S> {
    stream: S,
    traffic: Arc<Traffic>,
    write_error: Option<ErrorKind>,
}

impl<S> BackendStream<S> {
    pub fn new(stream: S, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic, write_error: None }
    }

    pub fn into_inner(self) -> S {
        self.stream
    }

    fn record_write(&mut self, written: Poll<std::io::Result<usize>>, length: usize) -> Poll<std::io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.traffic.add_bytes(Direction::In, bytes as u64);
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => {
                self.write_error = Some(error.kind());
                Poll::Ready(Ok(length))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BackendStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let bytes = buffer.filled().len() - before;
        if bytes > 0 {
            self.traffic.add_bytes(Direction::Out, bytes as u64);
        } else if let (Poll::Ready(Ok(())), Some(ErrorKind::ConnectionReset)) = (&read, self.write_error) {
            // The failed write has taken the error of the socket. Without it, a response that ends with the connection
            // would look complete.
            return Poll::Ready(Err(ErrorKind::ConnectionReset.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BackendStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        if self.write_error.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.record_write(written, bytes.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let length = bytes.iter().map(|part| part.len()).sum();
        if self.write_error.is_some() {
            return Poll::Ready(Ok(length));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.record_write(written, length)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
