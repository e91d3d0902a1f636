//! Responses of Python processes, while their frames go to clients.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::HeaderMap;
use http_body::{Body as _, Frame};
use tokio::time::Sleep;

use crate::limits::body_budget::Reservation;
use crate::limits::permits::Permit;
use crate::measurements::measuring::Measuring;
use crate::passing::upstream::UpstreamBody;
use crate::requests::internal_headers::remove_internal;
use crate::responses::error_response::{GRPC_STATUS, STATUS_OK};

/// Response of a Python process, while its frames go to the client.
pub struct PassedResponse {
    pub first: Option<Frame<Bytes>>,
    pub rest: Option<UpstreamBody>,
    /// Trailers of a response that ends without any.
    pub unavailable: HeaderMap,
    pub measuring: Measuring,
    pub held: Held,
}

/// The part of a limit that a response takes until its end.
pub enum Held {
    Stream {
        _permit: Permit,
        /// Ends the response. None: it has any age.
        age: Option<Pin<Box<Sleep>>>,
    },
    Answer {
        _unwritten: Reservation,
    },
}

impl PassedResponse {
    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(frame) = self.first.take() {
            return Poll::Ready(Some(frame));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let is_too_old = match &mut self.held {
            Held::Stream { age: Some(age), .. } => age.as_mut().poll(context).is_ready(),
            Held::Stream { age: None, .. } | Held::Answer { .. } => false,
        };
        // Without its last frame, the response ends with the trailers for a process that is away: the client may try again.
        let frame = if is_too_old { None } else { ready!(Pin::new(rest).poll_frame(context)) };
        let trailers = match frame.and_then(Result::ok).map(Frame::into_trailers) {
            Some(Err(data)) => return Poll::Ready(Some(data)),
            Some(Ok(mut trailers)) => {
                let is_ok = trailers.get(GRPC_STATUS).is_some_and(|status| status == STATUS_OK);
                self.measuring.end_passed(&trailers, is_ok);
                remove_internal(&mut trailers);
                trailers
            }
            None => {
                self.measuring.end_passed(&self.unavailable, false);
                std::mem::take(&mut self.unavailable)
            }
        };
        self.rest = None;
        Poll::Ready(Some(Frame::trailers(trailers)))
    }
}
