//! A gRPC server in place of a Python process. A test answers each of its calls.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio::runtime;
use tokio::sync::{mpsc as async_mpsc, oneshot};

use crate::grpc::client::{next_frame, trailers};
use crate::world::LIMIT;

/// A call that waits for the test's answer.
pub struct ReceivedCall {
    pub path: String,
    pub metadata: HeaderMap,
    frames: mpsc::Receiver<Bytes>,
    trailers: mpsc::Receiver<HeaderMap>,
    answer: Option<oneshot::Sender<Response<AnswerBody>>>,
}

impl ReceivedCall {
    pub fn text(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(|value| value.to_str().unwrap())
    }

    /// Returns the bytes of the next messages, with their prefixes.
    pub fn next_data(&self) -> Bytes {
        self.frames.recv_timeout(LIMIT).unwrap()
    }

    /// Returns all bytes until the client ends its messages.
    pub fn data(&self) -> Vec<u8> {
        let mut data = Vec::new();
        while let Ok(frame) = self.frames.recv_timeout(LIMIT) {
            data.extend_from_slice(&frame);
        }
        data
    }

    /// Returns the trailers after all bytes, if there are any.
    pub fn trailers(&self) -> Option<HeaderMap> {
        self.trailers.try_recv().ok()
    }

    pub fn answer(mut self, message: &'static [u8], last: &[(&str, &str)]) {
        let frames = self.begin();
        let _ = frames.send(Frame::data(Bytes::from_static(message)));
        let _ = frames.send(Frame::trailers(trailers(last)));
    }

    /// Answers without a message, in one frame.
    pub fn answer_trailers_only(mut self, last: &[(&str, &str)]) {
        let mut response = response(AnswerBody(None));
        response.headers_mut().extend(trailers(last));
        let _ = self.answer.take().unwrap().send(response);
    }

    /// Begins a response. Its frames may be sent until the sender is dropped.
    pub fn begin(&mut self) -> async_mpsc::UnboundedSender<Frame<Bytes>> {
        let (frames, body) = async_mpsc::unbounded_channel();
        let mut response = response(AnswerBody(Some(body)));
        response.headers_mut().insert("x-from-python", HeaderValue::from_static("yes"));
        response.headers_mut().insert("x-hosting-secret", HeaderValue::from_static("yes"));
        let _ = self.answer.take().unwrap().send(response);
        frames
    }

    /// Waits until the front has reset the call.
    pub fn wait_cancelled(mut self) {
        let mut answer = self.answer.take().unwrap();
        let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(LIMIT, answer.closed()).await }).unwrap();
    }
}

fn response(body: AnswerBody) -> Response<AnswerBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

pub struct AnswerBody(Option<async_mpsc::UnboundedReceiver<Frame<Bytes>>>);

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut self.0 {
            Some(frames) => frames.poll_recv(context).map(|frame| frame.map(Ok)),
            None => std::task::Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }
}

pub struct Python {
    calls: Mutex<mpsc::Receiver<ReceivedCall>>,
    pub listener: std::os::unix::net::UnixListener,
    connections: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Python {
    pub fn start(socket: &Path) -> Python {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let serving = listener.try_clone().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let accepted = connections.clone();
        let (sender, calls) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = serve(UnixListener::from_std(serving).unwrap(), sender, &accepted) => {}
                    _ = stopped => {}
                }
            });
        });
        Python { calls: Mutex::new(calls), listener, connections, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the number of connections that the front has opened.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub fn next_call(&self) -> ReceivedCall {
        self.next_call_within(LIMIT).unwrap()
    }

    pub fn next_call_within(&self, limit: Duration) -> Option<ReceivedCall> {
        self.calls.lock().unwrap().recv_timeout(limit).ok()
    }

    pub fn has_call(&self) -> bool {
        self.calls.lock().unwrap().try_recv().is_ok()
    }

    /// Closes all connections, and removes the server.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn serve(listener: UnixListener, calls: mpsc::Sender<ReceivedCall>, connections: &AtomicUsize) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.fetch_add(1, Ordering::Relaxed);
        let calls = calls.clone();
        let service = service_fn(move |request| answer(request, calls.clone()));
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let connection = builder.auto_date_header(false).serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async {
            let _ = connection.await;
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    calls: mpsc::Sender<ReceivedCall>,
) -> Result<Response<AnswerBody>, oneshot::error::RecvError> {
    let (parts, mut body) = request.into_parts();
    let (sender, frames) = mpsc::channel();
    let (trailers_sender, trailers) = mpsc::channel();
    let (answer, answered) = oneshot::channel();
    let metadata = parts.headers;
    let _ = calls.send(ReceivedCall { path: parts.uri.to_string(), metadata, frames, trailers, answer: Some(answer) });
    tokio::spawn(async move {
        while let Some(Ok(frame)) = next_frame(&mut body).await {
            match frame.into_data() {
                Ok(data) => drop(sender.send(data)),
                Err(frame) => drop(trailers_sender.send(frame.into_trailers().unwrap())),
            }
        }
    });
    answered.await
}

pub fn name(text: &str) -> HeaderName {
    HeaderName::try_from(text).unwrap()
}
