//! Connections of the gRPC server.

use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::certificates::server_certificate::{TlsAcceptor, accept};
use crate::connections::client_address::Peer;
use crate::connections::client_stream::{ClientSocket, ClientStream, CountedRequest, UnwrittenBytes};
use crate::connections::connection::{self, ACCEPT_PAUSE};
use crate::connections::http2_connection::{self, Http2Options};
use crate::grpc::answering;
use crate::grpc::grpc_context::{GrpcContext, GrpcOptions, GrpcPlane};
use crate::grpc::methods::Methods;
use crate::grpc::reply::ReplyBody;
use crate::limits::connection_budget::{Admission, ConnectionBudget};
use crate::limits::permits::GrpcPermits;
use crate::measurements::measurer::InFlight;
use crate::measurements::measurer::Measurer;
use crate::requests::routes::{ByPlane, Plane};
use crate::responses::decider::Decider;
use crate::shutdown::Counted;
use crate::thread_context::ThreadContext;

/// Metadata above the limit, up to this multiple, gets an error of the service. HTTP/2 refuses more.
const METADATA_FACTOR: usize = 4;
/// Bytes of a response that wait for a slow client.
const SEND_BUFFER_BYTES: usize = 64 * 1024;

/// Serves connections until the front stops.
pub async fn serve(
    thread: Rc<ThreadContext>,
    measurer: Arc<Measurer>,
    permits: Arc<GrpcPermits>,
    options: GrpcOptions,
) -> io::Result<()> {
    let GrpcOptions { listener, budget, methods, data_socket, control_socket, bodies, limits, health } = options;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let context = Rc::new(GrpcContext {
        planes: ByPlane {
            data: GrpcPlane::new(&permits, Plane::Data, data_socket),
            control: GrpcPlane::new(&permits, Plane::Control, control_socket),
        },
        methods: Methods::new(methods, &thread.options.routes),
        decider: Decider { measurer: measurer.clone(), ..thread.decider.clone() },
        thread,
        measurer,
        bodies,
        limits,
        health,
    });
    let mut stopping = pin!(context.thread.shutdown.begun());
    loop {
        tokio::select! {
            biased;
            () = stopping.as_mut() => return Ok(()),
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => admit(&context, &budget, stream, peer),
                Err(_) => sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

fn admit(context: &Rc<GrpcContext>, budget: &Arc<ConnectionBudget>, stream: TcpStream, peer: SocketAddr) {
    let thread = &context.thread;
    if let Some((peer, admission)) = connection::admit(&thread.addresses, budget, &stream, peer) {
        thread.shutdown.serve_grpc(serve_connection(context.clone(), stream, peer, admission));
    }
}

async fn serve_connection(context: Rc<GrpcContext>, mut stream: TcpStream, peer: Peer, mut admission: Admission) {
    let thread = &context.thread;
    let receive = thread.timeouts.receive;
    let begun = tokio::select! {
        () = thread.shutdown.begun() => None,
        begun = connection::begin(&thread.addresses, receive, &mut stream, peer, &mut admission) => begun,
    };
    let Some(peer) = begun else { return };
    match &thread.tls {
        // Boxed, so that a connection without TLS has less memory.
        Some(tls) => Box::pin(run_tls(&context, &tls.grpc, stream, peer)).await,
        None => run(&context, stream, peer).await,
    }
}

async fn run_tls(context: &Rc<GrpcContext>, acceptor: &TlsAcceptor, stream: TcpStream, peer: Peer) {
    if let Some(stream) = accept(acceptor, stream, context.thread.timeouts.receive).await {
        run(context, stream, peer).await;
    }
}

async fn run(context: &Rc<GrpcContext>, socket: impl ClientSocket, peer: Peer) {
    let ThreadContext { shutdown, timeouts, .. } = &*context.thread;
    let (stream, activity) = ClientStream::new(shutdown.clone(), timeouts.slow_reader, socket, Vec::new(), false);
    let answer = {
        let (context, activity) = (context.clone(), activity.clone());
        move |request| answer_counted(context.clone(), activity.begin_request(), peer, request)
    };
    let options = Http2Options {
        streams_max: context.limits.streams_per_connection,
        header_list_bytes: METADATA_FACTOR * context.limits.metadata_bytes,
        send_buffer_bytes: SEND_BUFFER_BYTES,
        idle: context.limits.idle,
    };
    http2_connection::serve(shutdown, *timeouts, stream, &activity, options, answer).await;
}

async fn answer_counted(
    context: Rc<GrpcContext>,
    counted: CountedRequest,
    peer: Peer,
    request: Request<Incoming>,
) -> io::Result<Response<CountedBody>> {
    let counted = (counted, context.measurer.begin(1), context.thread.shutdown.begin_request());
    let response = answering::answer(context, peer, request).await?;
    Ok(response.map(|body| CountedBody { body, counted }))
}

/// Body of a response, which counts until it is written.
struct CountedBody {
    body: ReplyBody,
    counted: (CountedRequest, InFlight, Counted),
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
