//! Request bodies that are forwarded to backends, with their progress.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;

pub type BackendSender = SendRequest<RequestBody>;

/// Body of a request for a backend. Only a request without a body can be sent again.
#[derive(Debug)]
pub enum RequestBody {
    Forwarded(Incoming, Arc<BodyProgress>),
    Empty,
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
    #[must_use]
    pub fn new(body: Incoming) -> Self {
        if body.is_end_stream() { Self::Empty } else { Self::Forwarded(body, Arc::default()) }
    }

    #[must_use]
    pub fn progress(&self) -> Option<Arc<BodyProgress>> {
        match self {
            Self::Forwarded(_, progress) => Some(progress.clone()),
            Self::Empty => None,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self::Forwarded(body, progress) = &mut *self else { return Poll::Ready(None) };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        progress.is_waiting_for_player.store(frame.is_pending(), Relaxed);
        if frame.is_ready() {
            progress.frames.fetch_add(1, Relaxed);
            if matches!(frame, Poll::Ready(None)) || body.is_end_stream() {
                progress.is_over.store(true, Relaxed);
            }
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Forwarded(body, _) => body.is_end_stream(),
            Self::Empty => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Forwarded(body, _) => body.size_hint(),
            Self::Empty => SizeHint::with_exact(0),
        }
    }
}
