//! Responses of gRPC calls.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Body, Frame, SizeHint};

use crate::grpc::health::HealthWatch;
use crate::grpc::passed_response::PassedResponse;
use crate::requests::internal_headers::{RAY_ID, ray_id_value};
use crate::requests::ray_id::RayId;
use crate::responses::error_response::{GRPC_STATUS, STATUS_OK};

const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Body of a response to a client.
pub enum ReplyBody {
    Empty,
    /// One message and its trailers, each until it is sent.
    Message(Option<Bytes>, Option<HeaderMap>),
    Passed(Box<PassedResponse>),
    Health(Box<HealthWatch>),
}

impl ReplyBody {
    fn next_own_frame(&mut self) -> Option<Frame<Bytes>> {
        let ReplyBody::Message(message, trailers) = self else { return None };
        message.take().map(Frame::data).or_else(|| trailers.take().map(Frame::trailers))
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            ReplyBody::Passed(response) => response.poll_frame(context).map(|frame| frame.map(Ok)),
            ReplyBody::Health(watch) => watch.poll_frame(context).map(|frame| frame.map(Ok)),
            own => Poll::Ready(own.next_own_frame().map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ReplyBody::Empty)
    }

    fn size_hint(&self) -> SizeHint {
        // Without a length, no content-length is sent.
        SizeHint::default()
    }
}

pub fn new_response(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

pub fn message(message: Bytes, ray_id: RayId) -> Response<ReplyBody> {
    let mut trailers = HeaderMap::with_capacity(2);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static(STATUS_OK));
    trailers.insert(RAY_ID, ray_id_value(ray_id));
    new_response(ReplyBody::Message(Some(message), Some(trailers)))
}

/// Returns a response without a message.
pub fn trailers_only(trailers: HeaderMap) -> Response<ReplyBody> {
    let mut response = new_response(ReplyBody::Empty);
    response.headers_mut().extend(trailers);
    response
}

/// Response to a request that is not gRPC.
pub fn not_grpc() -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Empty);
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    response
}
