//! Response bodies: forwarded from a backend, or written by edge-guard itself.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::player_connection::{BackendConnection, PlayerConnection};
use crate::client_sessions::ClientSession;
use crate::connection_limits::ConnectionPermit;

pub struct ResponseBody {
    source: BodySource,
    exchange: Option<Exchange>,
}

enum BodySource {
    Backend(Incoming),
    Text(Option<Bytes>),
}

/// HTTP exchange in progress: a request and its response. Dropping it records the end for the connection's timeouts.
pub struct Exchange {
    player: Arc<PlayerConnection>,
    /// Backend connection, which can be reused when the response is complete.
    connection: Option<BackendConnection>,
    pub is_concurrent: bool,
    /// Permit for the additional backend connection of a concurrent HTTP/2 request.
    pub permit: Option<ConnectionPermit>,
    /// Counts the request with the owner of its route.
    pub session: Option<ClientSession>,
}

impl Exchange {
    pub fn start(player: &Arc<PlayerConnection>) -> Self {
        let is_concurrent = player.tracker.start_exchange();
        Self { player: player.clone(), connection: None, is_concurrent, permit: None, session: None }
    }

    pub fn set_backend_connection(&mut self, connection: BackendConnection) {
        self.connection = Some(connection);
    }

    fn reuse_connection(&mut self) {
        let Some(connection) = self.connection.take() else { return };
        // An unfinished request body would block the next request, which may be another player's.
        if connection.progress.as_ref().is_none_or(|progress| progress.is_over()) {
            self.player.store_idle(connection);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.player.tracker.end_exchange();
    }
}

impl ResponseBody {
    pub fn from_backend(body: Incoming, mut exchange: Exchange) -> Self {
        if body.is_end_stream() {
            exchange.reuse_connection();
        }
        Self { source: BodySource::Backend(body), exchange: Some(exchange) }
    }

    pub fn from_text(text: Bytes, exchange: Exchange) -> Self {
        Self { source: BodySource::Text((!text.is_empty()).then_some(text)), exchange: Some(exchange) }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let this = &mut *self;
        let frame = match &mut this.source {
            BodySource::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            BodySource::Backend(body) => {
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
            BodySource::Backend(body) => body.is_end_stream(),
            BodySource::Text(text) => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Backend(body) => body.size_hint(),
            BodySource::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
