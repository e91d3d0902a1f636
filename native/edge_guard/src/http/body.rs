//! Bodies of answers: passed on from a back end, or short texts of our own.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::Front;
use crate::address::Place;
use crate::asked::{Progress, Sender};
use crate::limits::Permit;

/// A body, and what has to happen at its end.
pub struct Answer {
    source: Source,
    exchange: Option<Exchange>,
}

enum Source {
    BackEnd(Incoming),
    Own(Option<Bytes>),
}

/// An exchange under way: its end is told to the tracker, however it comes.
pub struct Exchange {
    front: Arc<Front>,
    /// The connection that the answer comes through, free when it has come.
    connection: Option<Through>,
    /// Whether others of the same connection were under way when it began.
    pub is_beside_others: bool,
    /// Its right to a back end of its own beside theirs.
    pub permit: Option<Permit>,
}

/// A connection to a back end while it is used.
pub struct Through {
    /// It was told who the player is, and is nobody else's.
    pub is_own: bool,
    /// Number of the route.
    pub route: u64,
    /// Where it leads.
    pub backend: Place,
    /// Sends the next request over it.
    pub sender: Sender,
    /// The body of the request, if it has one.
    pub progress: Option<Arc<Progress>>,
}

impl Exchange {
    /// A request was read.
    pub fn begin(front: &Arc<Front>) -> Self {
        let is_beside_others = front.tracker.begin_exchange();
        Self { front: front.clone(), connection: None, is_beside_others, permit: None }
    }

    /// The answer comes through this connection.
    pub fn through(&mut self, connection: Through) {
        self.connection = Some(connection);
    }

    fn end_well(&mut self) {
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

impl Answer {
    /// Passes a body on.
    pub fn from_back_end(body: Incoming, mut exchange: Exchange) -> Self {
        if body.is_end_stream() {
            exchange.end_well();
        }
        Self { source: Source::BackEnd(body), exchange: Some(exchange) }
    }

    /// A text of our own.
    pub fn own(text: Bytes, exchange: Exchange) -> Self {
        Self { source: Source::Own((!text.is_empty()).then_some(text)), exchange: Some(exchange) }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match &mut this.source {
            Source::Own(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Source::BackEnd(body) => {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                let is_end = matches!(frame, Poll::Ready(None)) || body.is_end_stream();
                if is_end && let Some(exchange) = &mut this.exchange {
                    exchange.end_well();
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
            Source::BackEnd(body) => body.is_end_stream(),
            Source::Own(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            Source::BackEnd(body) => body.size_hint(),
            Source::Own(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
