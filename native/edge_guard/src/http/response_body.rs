//! Bodies of answers: passed on from a back end, or short texts of our own.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::PlayerConnection;
use crate::address::BackendAddress;
use crate::connection_limits::ConnectionPermit;
use crate::request_body::{BackendSender, BodyProgress};

/// A body, and what has to happen at its end.
pub struct ResponseBody {
    source: BodySource,
    exchange: Option<Exchange>,
}

enum BodySource {
    BackEnd(Incoming),
    Own(Option<Bytes>),
}

/// An exchange under way: its end is told to the tracker, however it comes.
pub struct Exchange {
    front: Arc<PlayerConnection>,
    /// The connection that the answer comes through, free when it has come.
    connection: Option<BackendConnection>,
    /// Whether others of the same connection were under way when it began.
    pub is_concurrent: bool,
    /// Its right to a back end of its own beside theirs.
    pub permit: Option<ConnectionPermit>,
}

/// A connection to a back end while it is used.
pub struct BackendConnection {
    /// It was told who the player is, and is nobody else's.
    pub is_own: bool,
    /// Number of the route.
    pub route: u64,
    /// Where it leads.
    pub backend: BackendAddress,
    /// Sends the next request over it.
    pub sender: BackendSender,
    /// The body of the request, if it has one.
    pub progress: Option<Arc<BodyProgress>>,
}

impl Exchange {
    /// A request was read.
    pub fn begin(front: &Arc<PlayerConnection>) -> Self {
        let is_concurrent = front.tracker.begin_exchange();
        Self { front: front.clone(), connection: None, is_concurrent, permit: None }
    }

    /// The answer comes through this connection.
    pub fn set_backend_connection(&mut self, connection: BackendConnection) {
        self.connection = Some(connection);
    }

    fn reuse_connection(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // Where a body is still awaited the next request would wait for it, too: it may be another player's.
        if connection.progress.as_ref().is_none_or(|progress| progress.is_over()) {
            self.front.keep(connection);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.front.tracker.end_exchange();
    }
}

impl ResponseBody {
    /// Passes a body on.
    pub fn from_back_end(body: Incoming, mut exchange: Exchange) -> Self {
        if body.is_end_stream() {
            exchange.reuse_connection();
        }
        Self { source: BodySource::BackEnd(body), exchange: Some(exchange) }
    }

    /// A text of our own.
    pub fn from_text(text: Bytes, exchange: Exchange) -> Self {
        Self { source: BodySource::Own((!text.is_empty()).then_some(text)), exchange: Some(exchange) }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match &mut this.source {
            BodySource::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            BodySource::BackEnd(body) => {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                let is_end = matches!(frame, Poll::Ready(None)) || body.is_end_stream();
                if is_end && let Some(exchange) = &mut this.exchange {
                    exchange.reuse_connection();
                }
                frame
            }
        };
        if matches!(frame, Poll::Ready(None)) {
            this.exchange = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::BackEnd(body) => body.is_end_stream(),
            BodySource::Own(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::BackEnd(body) => body.size_hint(),
            BodySource::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
