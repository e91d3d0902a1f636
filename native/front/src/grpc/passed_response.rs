//! Responses of Python processes, while their frames go to clients.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::header::HeaderMap;
use http_body::{Body as _, Frame};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::limits::body_budget::Reservation;
use crate::limits::permits::Permit;
use crate::measurements::request_measurement::RequestMeasurement;
use crate::passing::upstream::UpstreamBody;
use crate::requests::internal_headers::remove_internal;
use crate::responses::error_response::{GRPC_STATUS, STATUS_OK};

/// Response of a Python process, while its frames go to the client.
pub struct PassedResponse {
    first: Option<Frame<Bytes>>,
    open: Rc<RefCell<Option<Open>>>,
    has_ended: bool,
    /// Trailers of a response that ends without any.
    unavailable: HeaderMap,
    measurement: RequestMeasurement,
    _end: Option<EndTask>,
}

/// The rest of a response, until its end.
struct Open {
    rest: UpstreamBody,
    /// Waits for the next frame.
    reader: Option<Waker>,
    _held: Held,
}

/// The part of a limit that a response takes until its end.
#[expect(dead_code, reason = "held until it is dropped")]
pub enum Held {
    Stream(Permit),
    Answer(Reservation),
}

/// Task that ends a response at its time. A body cannot do so itself: hyper polls none while its client takes no bytes.
struct EndTask(JoinHandle<()>);

impl EndTask {
    fn spawn(open: Rc<RefCell<Option<Open>>>, end: Instant) -> EndTask {
        EndTask(spawn_local(async move {
            sleep_until(end).await;
            let reader = open.borrow_mut().take().and_then(|open| open.reader);
            reader.into_iter().for_each(Waker::wake);
        }))
    }
}

impl Drop for EndTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl PassedResponse {
    /// `end` is the time after which the response ends.
    pub fn new(
        first: Option<Frame<Bytes>>,
        rest: UpstreamBody,
        unavailable: HeaderMap,
        measurement: RequestMeasurement,
        held: Held,
        end: Option<Instant>,
    ) -> PassedResponse {
        let open = Rc::new(RefCell::new(Some(Open { rest, reader: None, _held: held })));
        let _end = end.map(|end| EndTask::spawn(open.clone(), end));
        PassedResponse { first, open, has_ended: false, unavailable, measurement, _end }
    }

    pub fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        if let Some(frame) = self.first.take() {
            return Poll::Ready(Some(frame));
        }
        if self.has_ended {
            return Poll::Ready(None);
        }
        // Without its last frame, the response ends with the trailers for a process that is away: the client may try again.
        let frame = match &mut *self.open.borrow_mut() {
            Some(open) => {
                open.reader = Some(context.waker().clone());
                ready!(Pin::new(&mut open.rest).poll_frame(context))
            }
            None => None,
        };
        let trailers = match frame.and_then(Result::ok).map(Frame::into_trailers) {
            Some(Err(data)) => return Poll::Ready(Some(data)),
            Some(Ok(mut trailers)) => {
                let is_ok = trailers.get(GRPC_STATUS).is_some_and(|status| status == STATUS_OK);
                self.measurement.end_passed(&trailers, is_ok);
                remove_internal(&mut trailers);
                trailers
            }
            None => {
                self.measurement.end_passed(&self.unavailable, false);
                std::mem::take(&mut self.unavailable)
            }
        };
        self.has_ended = true;
        *self.open.borrow_mut() = None;
        Poll::Ready(Some(Frame::trailers(trailers)))
    }
}
