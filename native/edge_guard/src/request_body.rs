//! Request bodies that are forwarded to backends, with their progress.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use tokio::runtime::Handle;
use tokio::time::timeout;

pub type BackendSender = SendRequest<RequestBody>;

/// Body of a request for a backend. Only a request without a body can be sent again.
#[derive(Debug)]
pub enum RequestBody {
    Forwarded(ForwardedBody),
    Empty,
}

/// Body that a player sends.
///
/// If the response is there before the whole body, a drop reads and discards the rest. Otherwise the connection would be
/// reset, and a player that is still sending would lose the response.
#[derive(Debug)]
pub struct ForwardedBody {
    /// Always there, except during a drop.
    incoming: Option<Incoming>,
    progress: Arc<BodyProgress>,
    discard_within: Duration,
}

#[derive(Debug, Default)]
pub struct BodyProgress {
    frames: AtomicU64,
    is_over: AtomicBool,
    is_waiting_for_player: AtomicBool,
}

impl BodyProgress {
    pub fn frames(&self) -> u64 {
        self.frames.load(Relaxed)
    }

    pub fn is_over(&self) -> bool {
        self.is_over.load(Relaxed)
    }

    /// Reports whether the request waits for the next part of its body from the player.
    pub fn is_waiting_for_player(&self) -> bool {
        self.is_waiting_for_player.load(Relaxed)
    }
}

impl RequestBody {
    /// `discard_within` is the time that a player has to send the rest after the response.
    #[must_use]
    pub fn new(body: Incoming, discard_within: Duration) -> Self {
        if body.is_end_stream() {
            return Self::Empty;
        }
        Self::Forwarded(ForwardedBody { incoming: Some(body), progress: Arc::default(), discard_within })
    }

    #[must_use]
    pub fn progress(&self) -> Option<Arc<BodyProgress>> {
        match self {
            Self::Forwarded(body) => Some(body.progress.clone()),
            Self::Empty => None,
        }
    }
}

impl ForwardedBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        self.progress.is_waiting_for_player.store(frame.is_pending(), Relaxed);
        if frame.is_ready() {
            self.progress.frames.fetch_add(1, Relaxed);
            if matches!(frame, Poll::Ready(None)) || body.is_end_stream() {
                self.progress.is_over.store(true, Relaxed);
            }
        }
        frame
    }
}

impl Drop for ForwardedBody {
    fn drop(&mut self) {
        if self.progress.is_over() || self.discard_within.is_zero() {
            return;
        }
        if let (Some(rest), Ok(runtime)) = (self.incoming.take(), Handle::try_current()) {
            runtime.spawn(timeout(self.discard_within, discard(rest)));
        }
    }
}

async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {}
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Forwarded(body) => body.poll_frame(cx),
            Self::Empty => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Forwarded(body) => body.incoming.as_ref().is_none_or(Incoming::is_end_stream),
            Self::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Forwarded(ForwardedBody { incoming: Some(body), .. }) => body.size_hint(),
            _ => SizeHint::with_exact(0),
        }
    }
}
