//! HTTP/2 client for the gRPC server of a Python process, over a Unix socket.

use std::cell::Cell;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tokio::task::spawn_local;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::passing::process_state::{ProcessState, Stopped};
use crate::passing::upstream::{LocalExecutor, NoResponse, UpstreamBody};

/// Window of one call. It bounds the bytes of a response that a slow client leaves in memory.
const STREAM_WINDOW_BYTES: u32 = 64 * 1024;
/// Large enough that slow clients never block the calls of others.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
const HEADER_LIST_BYTES_MAX: u32 = 256 * 1024;
/// Calls take turns on them.
const CONNECTIONS: usize = 2;

/// Client of one process. Few connections are reused for all calls, and opened again at once when they end.
pub struct GrpcUpstream {
    socket: PathBuf,
    connections: [Mutex<Option<SendRequest<CallBody>>>; CONNECTIONS],
    next: Cell<usize>,
    process: Rc<ProcessState>,
}

impl GrpcUpstream {
    pub fn new(socket: PathBuf) -> GrpcUpstream {
        GrpcUpstream { socket, connections: Default::default(), next: Cell::new(0), process: ProcessState::new() }
    }

    /// Sends a call. The target needs a scheme and an authority, which are ignored.
    pub async fn send(&self, request: Request<CallBody>) -> Result<Response<UpstreamBody>, NoResponse> {
        let response =
            self.process.unless_stopped(self.send_anyway(request)).await.map_err(|Stopped| NoResponse::Stopped)??;
        Ok(response.map(|body| UpstreamBody::new(body, self.process.clone())))
    }

    async fn send_anyway(&self, request: Request<CallBody>) -> Result<Response<Incoming>, NoResponse> {
        let slot = self.next.replace((self.next.get() + 1) % CONNECTIONS);
        match self.sender(slot).await?.try_send_request(request).await {
            Ok(response) => Ok(response),
            Err(mut failure) => {
                // The connection ended before the call was sent.
                let unsent = failure.take_message().ok_or(NoResponse::Lost)?;
                self.sender(slot).await?.send_request(unsent).await.map_err(|_| NoResponse::Lost)
            }
        }
    }

    async fn sender(&self, slot: usize) -> Result<SendRequest<CallBody>, NoResponse> {
        // One call connects, and the others wait for it.
        let mut connection = self.connections[slot].lock().await;
        if let Some(sender) = connection.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(sender.clone());
        }
        let stream = UnixStream::connect(&self.socket).await.map_err(|_| NoResponse::NotSent)?;
        self.process.peer().set(&stream);
        let mut builder = Builder::new(LocalExecutor);
        builder
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES_MAX);
        let (sender, running) = builder.handshake(TokioIo::new(stream)).await.map_err(|_| NoResponse::NotSent)?;
        spawn_local(running);
        *connection = Some(sender.clone());
        Ok(sender)
    }
}

/// Body of a call to a Python process.
pub enum CallBody {
    /// The only message.
    One(Option<Bytes>),
    /// Messages of a client that sends further ones while it reads responses.
    Many(ClientMessages),
}

/// Messages of a client, without its trailers. They end if the client pauses for too long.
pub struct ClientMessages {
    body: Incoming,
    pause_max: Duration,
    timer: Pin<Box<Sleep>>,
    is_over: bool,
}

impl ClientMessages {
    pub fn new(body: Incoming, pause_max: Duration) -> ClientMessages {
        let timer = Box::pin(sleep_until(Instant::now() + pause_max));
        ClientMessages { body, pause_max, timer, is_over: false }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            CallBody::One(message) => Poll::Ready(message.take().map(|message| Ok(Frame::data(message)))),
            CallBody::Many(messages) => messages.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            CallBody::One(message) => message.is_none(),
            CallBody::Many(messages) => messages.is_over || messages.body.is_end_stream(),
        }
    }
}

impl ClientMessages {
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            self.timer.as_mut().reset(Instant::now() + self.pause_max);
            // Requests of gRPC have no trailers, and Python must not take them for metadata of the front.
            self.is_over = matches!(&frame, Some(Ok(frame)) if frame.is_trailers());
            return Poll::Ready(frame.filter(|_| !self.is_over));
        }
        if self.timer.as_mut().poll(context).is_ready() {
            self.is_over = true;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}
