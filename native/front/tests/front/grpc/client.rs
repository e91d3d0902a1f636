//! A gRPC client of the front.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::grpc::python::name;
use crate::problem_names::name_of;
use crate::world::LIMIT;

/// Frames of a request, until the sender is dropped.
pub struct CallBody(mpsc::UnboundedReceiver<Frame<Bytes>>);

impl Body for CallBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}

/// A connection of a client. Dropping it closes the connection.
pub struct Client {
    runtime: Runtime,
    sender: SendRequest<CallBody>,
    connection: Option<JoinHandle<()>>,
}

/// A complete response.
#[derive(Debug)]
pub struct Answer {
    pub headers: HeaderMap,
    pub data: Vec<u8>,
    /// Trailers, or the headers of a response without them.
    pub last: HeaderMap,
    code: String,
}

/// A `google.rpc.Status` with its details.
#[derive(Message)]
struct Status {
    #[prost(string, tag = 2)]
    message: String,
    #[prost(message, repeated, tag = 3)]
    details: Vec<Detail>,
}

/// A `google.protobuf.Any`.
#[derive(Message)]
struct Detail {
    #[prost(bytes = "vec", tag = 2)]
    value: Vec<u8>,
}

/// A `google.rpc.ErrorInfo`.
#[derive(Message)]
struct ErrorInfo {
    #[prost(string, tag = 1)]
    reason: String,
}

/// Returns the code of an error of the front.
fn code_of(last: &HeaderMap) -> Option<String> {
    let details = STANDARD_NO_PAD.decode(last.get("grpc-status-details-bin")?).ok()?;
    let status = Status::decode(&details[..]).ok()?;
    let code = ErrorInfo::decode(&status.details.first()?.value[..]).ok()?.reason;
    Some(name_of(&code, &status.message).map_or(code, str::to_uppercase))
}

impl Answer {
    pub fn text(&self, name: &str) -> &str {
        self.last.get(name).map_or("", |value| value.to_str().unwrap())
    }

    pub fn status(&self) -> &str {
        self.text("grpc-status")
    }

    /// Returns the code of an error. Errors of the front that share a code have names.
    pub fn code(&self) -> &str {
        &self.code
    }

    pub fn message<M: Message + Default>(&self) -> M {
        M::decode(&self.data[5..]).unwrap()
    }
}

/// A call without its whole response.
pub struct OpenCall {
    pub messages: Option<mpsc::UnboundedSender<Frame<Bytes>>>,
    response: JoinHandle<hyper::Result<Response<Incoming>>>,
    body: Option<Incoming>,
}

impl OpenCall {
    pub fn send(&self, data: &[u8]) {
        // The front may have answered already.
        let _ = self.messages.as_ref().unwrap().send(Frame::data(Bytes::copy_from_slice(data)));
    }

    /// Ends the messages with trailers.
    pub fn end_with(&mut self, entries: &[(&str, &str)]) {
        self.messages.take().unwrap().send(Frame::trailers(trailers(entries))).unwrap();
    }
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client::over(async { TcpStream::connect(address).await.unwrap() })
    }

    /// Connects a client that takes no bytes of messages.
    pub fn connect_without_window(address: SocketAddr) -> Client {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(0);
        Client::built(builder, async { TcpStream::connect(address).await.unwrap() })
    }

    pub fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(connecting: impl Future<Output = S>) -> Client {
        Client::built(Builder::new(TokioExecutor::new()), connecting)
    }

    fn built<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        builder: Builder<TokioExecutor>,
        connecting: impl Future<Output = S>,
    ) -> Client {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, connection) = runtime.block_on(async {
            let stream = connecting.await;
            let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
            let running = async {
                let _ = connection.await;
            };
            (sender, tokio::spawn(running))
        });
        Client { runtime, sender, connection: Some(connection) }
    }

    /// Starts a call. Its messages are not ended.
    pub fn open(&mut self, path: &str, metadata: &[(&str, &str)]) -> OpenCall {
        let (messages, body) = mpsc::unbounded_channel();
        let mut request = Request::post(format!("http://localhost{path}")).body(CallBody(body)).unwrap();
        let headers = request.headers_mut();
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("te", HeaderValue::from_static("trailers"));
        headers.extend(trailers(metadata));
        let sending = self.sender.send_request(request);
        OpenCall { messages: Some(messages), response: self.runtime.spawn(sending), body: None }
    }

    pub fn start(&mut self, path: &str, metadata: &[(&str, &str)], message: &[u8]) -> OpenCall {
        let mut call = self.open(path, metadata);
        call.send(message);
        call.messages = None;
        call
    }

    pub fn call(&mut self, path: &str, metadata: &[(&str, &str)], message: &[u8]) -> Answer {
        let call = self.start(path, metadata, message);
        self.finish(call)
    }

    /// Waits for the beginning of a response.
    pub fn begin(&self, call: &mut OpenCall) -> HeaderMap {
        let response = self.wait(&mut call.response).unwrap().unwrap();
        let (head, body) = response.into_parts();
        call.body = Some(body);
        head.headers
    }

    /// Returns whether the response has begun.
    pub fn has_begun(&self, call: &mut OpenCall) -> bool {
        call.response.is_finished()
    }

    pub fn next_data(&self, call: &mut OpenCall) -> Bytes {
        let frame = self.wait(next_frame(call.body.as_mut().unwrap())).unwrap().unwrap();
        frame.into_data().unwrap()
    }

    pub fn finish(&self, mut call: OpenCall) -> Answer {
        let headers = if call.body.is_none() { self.begin(&mut call) } else { HeaderMap::new() };
        let mut body = call.body.unwrap();
        let (mut data, mut last) = (Vec::new(), headers.clone());
        while let Some(frame) = self.wait(next_frame(&mut body)) {
            match frame.unwrap().into_trailers() {
                Ok(trailers) => last = trailers,
                Err(frame) => data.extend_from_slice(&frame.into_data().unwrap()),
            }
        }
        let message = || last.get("grpc-message").map_or("", |text| text.to_str().unwrap()).to_owned();
        let code = code_of(&last).unwrap_or_else(message);
        Answer { headers, data, last, code }
    }

    /// Resets a call.
    pub fn cancel(&self, call: OpenCall) {
        call.response.abort();
    }

    /// Waits until the front closes the connection.
    pub fn wait_closed(&mut self) {
        let connection = self.connection.take().unwrap();
        self.wait(connection).unwrap();
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { timeout(LIMIT, future).await }).unwrap()
    }
}

pub async fn next_frame(body: &mut Incoming) -> Option<hyper::Result<Frame<Bytes>>> {
    std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
}

pub fn trailers(entries: &[(&str, &str)]) -> HeaderMap {
    entries.iter().map(|(key, value)| (name(key), HeaderValue::try_from(*value).unwrap())).collect()
}

/// Returns a message after its prefix.
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

pub fn encoded(message: &impl Message) -> Vec<u8> {
    framed(&message.encode_to_vec())
}

pub fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

pub fn texts(headers: &HeaderMap) -> HashMap<String, String> {
    headers.iter().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect()
}
