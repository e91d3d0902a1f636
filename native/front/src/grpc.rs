//! The gRPC server of the front. It answers calls of the matchmaker itself, and passes all others on to the Python processes.

mod call;
mod call_head;
mod health;
mod message;
mod methods;
mod passing;
mod reply;
mod upstream;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::body_budget::BodyBudget;
use crate::client_address::Peer;
use crate::client_stream::{ClientSocket, ClientStream, CountedRequest, UnwrittenBytes};
use crate::connection;
use crate::connection_budget::{Admission, ConnectionBudget};
use crate::front::{ACCEPT_PAUSE, Answering, Counted, ThreadContext, serve_open};
use crate::http2_connection::{self, Http2Options};
use crate::permits::Permits;
use crate::routes::Plane;
use crate::tls::{self, TlsAcceptor};

pub use health::Health;
pub use methods::MethodOptions;
use methods::Methods;
use reply::ReplyBody;
use upstream::GrpcUpstream;

/// Metadata above the limit, up to this multiple, gets an error of the service. HTTP/2 refuses more.
const METADATA_FACTOR: usize = 4;
/// Bytes of a response that wait for a slow client.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

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
    pub data_socket: PathBuf,
    pub control_socket: PathBuf,
    /// Limit on the bytes of messages in memory.
    pub bodies: Arc<BodyBudget>,
    pub limits: GrpcLimits,
    pub health: Arc<Health>,
}

impl GrpcOptions {
    /// Returns the options of another thread, for the same listening socket.
    pub fn try_clone(&self) -> io::Result<GrpcOptions> {
        Ok(GrpcOptions {
            listener: self.listener.try_clone()?,
            budget: self.budget.clone(),
            methods: self.methods.clone(),
            data_socket: self.data_socket.clone(),
            control_socket: self.control_socket.clone(),
            bodies: self.bodies.clone(),
            limits: self.limits,
            health: self.health.clone(),
        })
    }
}

/// State that all gRPC connections of a thread share.
pub(crate) struct GrpcServer {
    context: Rc<ThreadContext>,
    methods: Methods,
    limits: GrpcLimits,
    budget: Arc<ConnectionBudget>,
    bodies: Arc<BodyBudget>,
    health: Arc<Health>,
    data: GrpcPlane,
    control: GrpcPlane,
}

/// A Python process that gets calls.
struct GrpcPlane {
    upstream: GrpcUpstream,
    permits: Arc<Permits>,
    /// Permits of open streams.
    streams: Arc<Permits>,
    /// Permits of open streams with a token that the front cannot verify.
    unverified_streams: Arc<Permits>,
    /// Permits of calls that a change has woken.
    woken: Arc<Permits>,
}

impl GrpcPlane {
    fn new(context: &ThreadContext, plane: Plane, socket: PathBuf) -> GrpcPlane {
        let permits = context.grpc_permits();
        GrpcPlane {
            upstream: GrpcUpstream::new(socket),
            permits: permits.calls.of(plane).clone(),
            streams: permits.streams.of(plane).clone(),
            unverified_streams: permits.unverified_streams.of(plane).clone(),
            woken: permits.woken.of(plane).clone(),
        }
    }
}

impl GrpcServer {
    /// Serves connections until the front stops.
    pub async fn serve(context: Rc<ThreadContext>, options: GrpcOptions) -> io::Result<()> {
        let GrpcOptions { listener, budget, methods, data_socket, control_socket, bodies, limits, health } = options;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let server = Rc::new(GrpcServer {
            data: GrpcPlane::new(&context, Plane::Data, data_socket),
            control: GrpcPlane::new(&context, Plane::Control, control_socket),
            methods: Methods::new(methods, &context.passing.options.routes),
            context,
            budget,
            bodies,
            limits,
            health,
        });
        let mut stopping = pin!(server.context.stopping());
        loop {
            tokio::select! {
                biased;
                () = stopping.as_mut() => return Ok(()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => server.admit(stream, peer),
                    Err(_) => sleep(ACCEPT_PAUSE).await,
                },
            }
        }
    }

    fn admit(self: &Rc<Self>, stream: TcpStream, peer: SocketAddr) {
        if let Some((peer, admission)) = self.context.admit(&self.budget, &stream, peer) {
            let serving = self.clone().serve_connection(stream, peer, admission);
            serve_open(&self.context, |context| &context.open_grpc, serving);
        }
    }

    async fn serve_connection(self: Rc<Self>, mut stream: TcpStream, peer: Peer, mut admission: Admission) {
        let context = &self.context;
        let begun = tokio::select! {
            () = context.stopping() => None,
            begun = connection::begin(context, &mut stream, peer, &mut admission) => begun,
        };
        let Some(peer) = begun else { return };
        match context.tls() {
            // Boxed, so that a connection without TLS has less memory.
            Some(tls) => Box::pin(self.run_tls(tls.grpc.clone(), stream, peer)).await,
            None => self.run(stream, peer).await,
        }
    }

    async fn run_tls(self: &Rc<Self>, acceptor: TlsAcceptor, stream: TcpStream, peer: Peer) {
        if let Some(stream) = tls::accept(&acceptor, &self.context, stream).await {
            self.run(stream, peer).await;
        }
    }

    async fn run(self: &Rc<Self>, socket: impl ClientSocket, peer: Peer) {
        let (stream, activity) = ClientStream::new(self.context.clone(), socket, Vec::new(), false);
        let answer = {
            let (server, activity) = (self.clone(), activity.clone());
            move |request| answer_counted(server.clone(), activity.begin_request(), peer, request)
        };
        let options = Http2Options {
            streams_max: self.limits.streams_per_connection,
            header_list_bytes: METADATA_FACTOR * self.limits.metadata_bytes,
            send_buffer_bytes: SEND_BUFFER_BYTES,
            idle: self.limits.idle,
        };
        http2_connection::serve(&self.context, stream, &activity, options, answer).await;
    }
}

async fn answer_counted(
    server: Rc<GrpcServer>,
    counted: CountedRequest,
    peer: Peer,
    request: Request<Incoming>,
) -> io::Result<Response<CountedBody>> {
    let counted = (counted, server.context.clone().begin_call(), server.context.begin_request());
    let response = call::answer(server, peer, request).await?;
    Ok(response.map(|body| CountedBody { body, counted }))
}

/// Body of a response, which counts until it is written.
struct CountedBody {
    body: ReplyBody,
    counted: (CountedRequest, Answering, Counted),
}

impl Body for CountedBody {
    type Data = UnwrittenBytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<UnwrittenBytes>>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        frame.map_ok(|frame| frame.map_data(|bytes| self.counted.0.unwritten(bytes)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
