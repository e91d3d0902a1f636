//! Bodies of the responses that hyper writes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::connections::client_stream::{CountedRequest, UnwrittenBytes};
use crate::limits::body_budget::Reservation;
use crate::limits::permits::Permit;
use crate::measurements::measurer::InFlight;
use crate::passing::upstream::UpstreamBody;
use crate::shutdown::Counted;

/// Content of a response.
pub enum Content {
    Whole(Option<Bytes>),
    Passed(StreamedBody),
}

/// Body of a long response of Python.
pub struct StreamedBody {
    pub body: UpstreamBody,
    /// Its bytes that are not written yet.
    pub unwritten: Reservation,
    /// Bounds the connections to Python that slow readers hold.
    pub _permit: Permit,
}

/// Body of a response. The request counts until it is written.
pub struct AnswerBody {
    content: Content,
    counted: Counts,
}

/// Counts of a request: by its connection, by the answers, and by the connections that are busy.
pub type Counts = (CountedRequest, InFlight, Counted);

impl AnswerBody {
    pub fn new(content: Content, counted: Counts) -> AnswerBody {
        AnswerBody { content, counted }
    }

    /// Takes the content of a whole answer.
    pub fn take_whole(&mut self) -> Bytes {
        match &mut self.content {
            Content::Whole(content) => content.take().unwrap_or_default(),
            Content::Passed(..) => unreachable!("only a whole answer is taken"),
        }
    }
}

impl Body for AnswerBody {
    type Data = UnwrittenBytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<UnwrittenBytes>>>> {
        let frame = match &mut self.content {
            Content::Whole(content) => Poll::Ready(content.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Passed(StreamedBody { body, unwritten, .. }) => {
                let frame = Pin::new(&mut *body).poll_frame(context);
                unwritten.shrink_to(usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX));
                frame
            }
        };
        frame.map_ok(|frame| frame.map_data(|bytes| self.counted.0.unwritten(bytes)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Whole(content) => content.is_none(),
            Content::Passed(streamed) => streamed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(content) => SizeHint::with_exact(content.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Content::Passed(streamed) => streamed.body.size_hint(),
        }
    }
}
