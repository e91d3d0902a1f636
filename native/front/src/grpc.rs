//! The gRPC server of the front. It answers plain calls itself, and passes all others on to the Python processes.

mod call;
mod call_head;
mod errors;
mod measuring;
mod message;
mod methods;
mod passing;
mod reply;
mod upstream;

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::body_budget::BodyBudget;
use crate::client_address::Peer;
use crate::connection_budget::{Admission, ClientKey, ConnectionBudget};
use crate::front::{ACCEPT_PAUSE, Answering, Counted, ThreadContext, serve_open};
use crate::permits::Permits;
use crate::routes::Plane;
use crate::upstream::LocalExecutor;

pub use errors::{CallErrors, CallProblem, ErrorTemplate};
pub use methods::MethodOptions;
use methods::Methods;
use reply::ReplyBody;
use upstream::Upstream;

/// Metadata above the limit, up to this multiple, gets an error of the service. HTTP/2 refuses more.
const METADATA_FACTOR: usize = 4;
/// Idle time after which the front asks whether a client is there.
const PING_INTERVAL: Duration = Duration::from_secs(75);
/// Bytes of calls that one connection may send before the front reads them. The windows of all its calls share them.
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Bytes of a response that wait for a slow client.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Calls that a client resets before the front has seen them. More end the connection.
const RESETS_MAX: usize = 100;
/// Violations of the protocol by one connection. More end it.
const STREAM_ERRORS_MAX: usize = 256;
/// Bytes of a client's preface with its settings.
const HANDSHAKE_BYTES: usize = 33;
/// Calls that a change has woken and that Python answers at a time.
const WOKEN_AT_ONCE: usize = 256;
/// Time for the last answers at the stop.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

#[derive(Clone, Copy)]
pub struct GrpcLimits {
    pub streams_per_connection: u32,
    pub metadata_bytes: usize,
    /// For a connection without a call.
    pub idle: Duration,
}

pub struct GrpcOptions {
    pub listener: TcpListener,
    pub budget: Arc<ConnectionBudget>,
    pub methods: Vec<MethodOptions>,
    pub errors: CallErrors,
    pub data_socket: PathBuf,
    pub control_socket: PathBuf,
    /// Limit on the bytes of messages in memory.
    pub bodies: Arc<BodyBudget>,
    pub limits: GrpcLimits,
}

impl GrpcOptions {
    /// Returns the options of another thread, for the same listening socket.
    pub fn try_clone(&self) -> io::Result<GrpcOptions> {
        Ok(GrpcOptions {
            listener: self.listener.try_clone()?,
            budget: self.budget.clone(),
            methods: self.methods.clone(),
            errors: self.errors.clone(),
            data_socket: self.data_socket.clone(),
            control_socket: self.control_socket.clone(),
            bodies: self.bodies.clone(),
            limits: self.limits,
        })
    }
}

/// State that all gRPC connections of a thread share.
pub(crate) struct GrpcServer {
    context: Rc<ThreadContext>,
    methods: Methods,
    errors: CallErrors,
    limits: GrpcLimits,
    budget: Arc<ConnectionBudget>,
    bodies: Arc<BodyBudget>,
    data: PassedPlane,
    control: PassedPlane,
    connections: Cell<usize>,
    all_closed: Notify,
}

/// A Python process that gets calls.
struct PassedPlane {
    upstream: Upstream,
    permits: Arc<Permits>,
    /// Permits of calls that a change has woken.
    woken: Arc<Permits>,
}

impl PassedPlane {
    fn new(socket: PathBuf, permits: Arc<Permits>) -> PassedPlane {
        PassedPlane { upstream: Upstream::new(socket), permits, woken: Permits::patient(WOKEN_AT_ONCE) }
    }
}

impl GrpcServer {
    /// Starts to serve at the listener, until the front stops.
    pub fn start(context: Rc<ThreadContext>, options: GrpcOptions) -> io::Result<Rc<GrpcServer>> {
        let GrpcOptions { listener, budget, methods, errors, data_socket, control_socket, bodies, limits } = options;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let permits = context.grpc_permits();
        let server = Rc::new(GrpcServer {
            data: PassedPlane::new(data_socket, permits.of(Plane::Data).clone()),
            control: PassedPlane::new(control_socket, permits.of(Plane::Control).clone()),
            methods: Methods::new(methods, &context.passing.options.routes),
            context,
            errors,
            budget,
            bodies,
            limits,
            connections: Cell::new(0),
            all_closed: Notify::new(),
        });
        spawn_local(server.clone().accept(listener));
        Ok(server)
    }

    async fn accept(self: Rc<Self>, listener: tokio::net::TcpListener) {
        let mut stopping = pin!(self.context.stopping());
        loop {
            tokio::select! {
                biased;
                () = stopping.as_mut() => return,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(stream, peer),
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    /// Waits until all connections have written their last answers, or for a moment.
    pub async fn closed(&self) {
        let all_closed = async {
            while self.connections.get() > 0 {
                self.all_closed.notified().await;
            }
        };
        let _ = timeout(LAST_ANSWERS, all_closed).await;
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        let Ok(local) = stream.local_addr() else { return };
        let _ = stream.set_nodelay(true);
        let peer = self.context.addresses.peer(peer, local);
        let client = match peer {
            Peer::Client(address) => Some(ClientKey::of(address)),
            Peer::Proxy(_) => None,
        };
        if let Some(admission) = self.budget.admit(client) {
            serve_open(&self.context, OpenConnection::new(self.clone(), admission).run(stream, peer));
        }
    }
}

/// A connection that counts until it is dropped.
struct OpenConnection {
    server: Rc<GrpcServer>,
    activity: Rc<Activity>,
    _admission: Admission,
}

impl OpenConnection {
    fn new(server: Rc<GrpcServer>, admission: Admission) -> OpenConnection {
        server.connections.set(server.connections.get() + 1);
        OpenConnection { server, activity: Rc::new(Activity::new()), _admission: admission }
    }

    async fn run(self, stream: TcpStream, peer: Peer) {
        let (server, activity) = (&self.server, &self.activity);
        let receive = server.context.timeouts.receive;
        let service = service_fn(|request| answer_counted(server.clone(), activity.clone(), peer, request));
        let stream = TrackedStream { stream, activity: activity.clone() };
        let connection = server.http2().serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut timer = pin!(sleep(receive.min(server.limits.idle)));
        let mut stopping = pin!(server.context.stopping());
        let mut is_leaving = false;
        loop {
            tokio::select! {
                biased;
                _ = connection.as_mut() => return,
                () = timer.as_mut() => match activity.check(receive, server.limits.idle, is_leaving) {
                    Progress::Fine(until) => timer.as_mut().reset(until),
                    Progress::Stuck => return,
                    Progress::Idle => {
                        is_leaving = true;
                        connection.as_mut().graceful_shutdown();
                        timer.as_mut().reset(Instant::now() + receive);
                    }
                },
                () = stopping.as_mut(), if !is_leaving => {
                    is_leaving = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

async fn answer_counted(
    server: Rc<GrpcServer>,
    activity: Rc<Activity>,
    peer: Peer,
    request: Request<Incoming>,
) -> io::Result<Response<CountedBody>> {
    let open = OpenCall::new(activity);
    let counted = (server.context.clone().begin_answer(), server.context.begin_request());
    let response = call::answer(server, peer, request).await?;
    Ok(response.map(|body| CountedBody { body, _counted: counted, _open: open }))
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let left = self.server.connections.get() - 1;
        self.server.connections.set(left);
        if left == 0 {
            self.server.all_closed.notify_waiters();
        }
    }
}

impl GrpcServer {
    fn http2(&self) -> http2::Builder<LocalExecutor> {
        let header_list = u32::try_from(METADATA_FACTOR * self.limits.metadata_bytes).unwrap_or(u32::MAX);
        let mut builder = http2::Builder::new(LocalExecutor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.streams_per_connection)
            .max_header_list_size(header_list)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(self.context.timeouts.receive)
            .max_pending_accept_reset_streams(RESETS_MAX)
            .max_local_error_reset_streams(STREAM_ERRORS_MAX)
            .auto_date_header(false);
        builder
    }
}

/// Activity of the client of one connection, for its timeouts.
struct Activity {
    calls: Cell<usize>,
    idle_since: Cell<Instant>,
    received_bytes: Cell<usize>,
    /// Since when the client reads nothing of what is written.
    unread_since: Cell<Option<Instant>>,
}

enum Progress {
    /// Nothing times out before.
    Fine(Instant),
    Idle,
    Stuck,
}

impl Activity {
    fn new() -> Activity {
        Activity {
            calls: Cell::new(0),
            idle_since: Cell::new(Instant::now()),
            received_bytes: Cell::new(0),
            unread_since: Cell::new(None),
        }
    }

    fn check(&self, receive: Duration, idle: Duration, is_leaving: bool) -> Progress {
        let now = Instant::now();
        let is_unread = self.unread_since.get().is_some_and(|since| now >= since + receive);
        if is_unread || self.received_bytes.get() < HANDSHAKE_BYTES {
            return Progress::Stuck;
        }
        if self.calls.get() > 0 {
            return Progress::Fine(now + receive.min(idle));
        }
        let end = self.idle_since.get() + idle;
        match (now >= end, is_leaving) {
            (true, true) => Progress::Stuck,
            (true, false) => Progress::Idle,
            (false, _) => Progress::Fine(end.min(now + receive)),
        }
    }
}

/// A call that counts until its response is written.
struct OpenCall(Rc<Activity>);

impl OpenCall {
    fn new(activity: Rc<Activity>) -> OpenCall {
        activity.calls.set(activity.calls.get() + 1);
        OpenCall(activity)
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.calls.set(self.0.calls.get() - 1);
        self.0.idle_since.set(Instant::now());
    }
}

/// Body of a response, which counts until it is written.
struct CountedBody {
    body: ReplyBody,
    _counted: (Answering, Counted),
    _open: OpenCall,
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}

struct TrackedStream {
    stream: TcpStream,
    activity: Rc<Activity>,
}

impl TrackedStream {
    fn wrote(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Ready(_) => self.activity.unread_since.set(None),
            Poll::Pending if self.activity.unread_since.get().is_none() => {
                self.activity.unread_since.set(Some(Instant::now()));
            }
            Poll::Pending => {}
        }
        outcome
    }
}

impl AsyncRead for TrackedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut self.stream).poll_read(context, buffer);
        let received = self.activity.received_bytes.get().saturating_add(buffer.filled().len() - before);
        self.activity.received_bytes.set(received);
        outcome
    }
}

impl AsyncWrite for TrackedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.wrote(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
