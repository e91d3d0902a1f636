//! A connection that hyper reads, in HTTP/1.1 or HTTP/2: with TLS, from edge-guard, or after its first request
//! that the front does not read itself.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::Response;
use http::header::{CONNECTION, CONTENT_LENGTH};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout};

use crate::connections::client_address::Peer;
use crate::connections::client_stream::{Activity, ClientSocket, ClientStream, Progress};
use crate::connections::http2_connection::{self, Http2Options};
use crate::connections::timeouts::Timeouts;
use crate::limits::connection_budget::Admission;
use crate::measurements::code_number;
use crate::measurements::pass_reason::PassReason;
use crate::passing::exchange::{self, Http1Request, ParkedExchange, Parking};
use crate::requests::request_form::HEADERS_MAX;
use crate::responses::answer_body::AnswerBody;
use crate::responses::error_response;
use crate::responses::problems::Problem;
use crate::thread_context::ThreadContext;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HTTP2_STREAMS_MAX: u32 = 100;
const HTTP2_SEND_BUFFER_BYTES: usize = 16 * 1024;
/// Smallest buffer that hyper takes.
const BUFFER_BYTES_MIN: usize = 8 * 1024;
/// Time for a refused client to send the rest of its request. Closing at once would discard the response.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are discarded at once.
const DISCARDED_BYTES: usize = 4096;

/// Serves a connection until it ends.
pub async fn serve<S: ClientSocket>(context: Rc<ThreadContext>, mut socket: S, peer: Peer, admission: Admission) {
    let mut unread = Vec::new();
    let first = timeout(context.timeouts.receive, socket.read_buf(&mut unread)).await;
    if !matches!(first, Ok(Ok(1..))) {
        return linger(socket).await;
    }
    let mut rest = Some((socket, unread));
    while let Some((socket, unread)) = rest {
        rest = serve_until_parked(&context, socket, unread, peer, None).await;
    }
    drop(admission);
}

/// Serves a connection until it ends. Returns it after the response to a parked request, with the bytes that follow. `reason`
/// says why the first request is passed on, if that is decided.
pub async fn serve_until_parked<S: ClientSocket>(
    context: &Rc<ThreadContext>,
    mut socket: S,
    mut unread: Vec<u8>,
    peer: Peer,
    reason: Option<PassReason>,
) -> Option<(S, Vec<u8>)> {
    let _ = timeout(context.timeouts.receive, read_preface(&mut socket, &mut unread)).await;
    let is_http2 = unread.starts_with(HTTP2_PREFACE) || socket.has_agreed_http2();
    let (stream, activity) =
        ClientStream::new(context.shutdown.clone(), context.timeouts.slow_reader, socket, unread, !is_http2);
    if is_http2 {
        Box::pin(serve_http2(context, stream, &activity, peer)).await;
        return None;
    }
    // Boxed, so that a connection with a parked request takes little memory.
    let (mut stream, parked) = Box::pin(serve_http1(context, stream, &activity, peer, reason)).await?;
    let response = tokio::select! {
        biased;
        response = parked.answer() => response,
        () = stream.disconnected() => return None,
    };
    Box::pin(write_response(context.timeouts, stream, &activity, response)).await
}

/// Reads on while the bytes may become the preface of HTTP/2, and more than the first byte, which may begin a slow POST.
async fn read_preface<S: ClientSocket>(socket: &mut S, unread: &mut Vec<u8>) {
    let is_partial =
        |unread: &[u8]| unread.len() > 1 && unread.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(unread);
    while is_partial(unread) && socket.read_buf(unread).await.is_ok_and(|count| count > 0) {}
}

/// Returns the connection if a parked request leaves hyper.
async fn serve_http1<S: ClientSocket>(
    context: &Rc<ThreadContext>,
    stream: ClientStream<S>,
    activity: &Rc<Activity>,
    peer: Peer,
    reason: Option<PassReason>,
) -> Option<(ClientStream<S>, Box<ParkedExchange>)> {
    let (parking, reason) = (Rc::new(Parking::default()), Cell::new(reason));
    let service = {
        let (context, activity, parking) = (context.clone(), activity.clone(), parking.clone());
        service_fn(move |request| {
            let http1 = Http1Request { parking: parking.clone(), reason: reason.take() };
            Box::pin(exchange::answer(context.clone(), peer, activity.begin_request(), request, Some(http1)))
        })
    };
    let limits = context.options.limits;
    let head_bytes_max = limits.url_bytes_max + limits.headers_bytes_max;
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(HEADERS_MAX)
        .max_buf_size(head_bytes_max.max(BUFFER_BYTES_MIN))
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let ending = poll_fn(|task| connection.poll_without_shutdown(task));
    let last = match unless_late(context.timeouts, activity, ending).await {
        Ok(_) => activity.error_page(),
        Err(Late::Head) => Some(Problem::RequestTimeout),
        Err(Late::Idle) => None,
        Err(Late::Reader) => return None,
    };
    let parts = connection.into_parts();
    let mut stream = parts.io.into_inner();
    if let Some(parked) = parking.take() {
        stream.put_back(&parts.read_buf);
        return Some((stream, parked));
    }
    if let Some(problem) = last
        && let Ok(ray_id) = context.ray_ids.next()
    {
        let unrouted = context.options.routes.unrouted();
        context.measurer.count_own(ray_id, None, unrouted, code_number::of(problem.code()), std::time::Instant::now());
        let mut response = Vec::new();
        error_response::write_http1(&problem.error(), ray_id, "connection: close\r\n", &mut response);
        let _ = timeout(LINGER, stream.socket.write_all(&response)).await;
    }
    linger(stream.socket).await;
    None
}

/// Writes the response to a parked request. Returns the connection if further requests may follow.
async fn write_response<S: ClientSocket>(
    timeouts: Timeouts,
    mut stream: ClientStream<S>,
    activity: &Activity,
    mut response: Response<AnswerBody>,
) -> Option<(S, Vec<u8>)> {
    let body = response.body_mut().take_whole();
    let is_last = response.headers().contains_key(CONNECTION);
    let mut bytes = Bytes::from(head_bytes(&mut response, body.len())).chain(body);
    let writing = async {
        stream.write_all_buf(&mut bytes).await?;
        stream.flush().await
    };
    unless_late(timeouts, activity, writing).await.ok()?.ok()?;
    // The request counts until its response is written.
    drop(response);
    if is_last {
        linger(stream.socket).await;
        return None;
    }
    Some(stream.into_parts())
}

/// Returns the head of a response as it is sent. Adds the length of the body, unless there is one.
fn head_bytes<T>(response: &mut Response<T>, length: usize) -> Vec<u8> {
    response.headers_mut().entry(CONTENT_LENGTH).or_insert_with(|| length.into());
    let reason = response.status().canonical_reason().unwrap_or_default();
    let mut bytes = format!("HTTP/1.1 {} {reason}\r\n", response.status().as_str()).into_bytes();
    for (name, value) in response.headers() {
        bytes.extend_from_slice(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes
}

/// Timeout of a client.
enum Late {
    Idle,
    Head,
    Reader,
}

/// Runs a future while the client makes progress.
async fn unless_late<T>(timeouts: Timeouts, activity: &Activity, future: impl Future<Output = T>) -> Result<T, Late> {
    let idle = timeouts.idle();
    let mut check_at = Instant::now() + timeouts.receive.min(idle).min(timeouts.slow_reader);
    let mut future = pin!(future);
    loop {
        tokio::select! {
            biased;
            output = future.as_mut() => return Ok(output),
            () = sleep_until(check_at) => match activity.check(timeouts.receive, idle, Instant::now()) {
                Progress::Fine(next) => check_at = next,
                Progress::SlowHead => return Err(Late::Head),
                Progress::Idle => return Err(Late::Idle),
                Progress::SlowReader => return Err(Late::Reader),
            }
        }
    }
}

async fn serve_http2<S: ClientSocket>(
    context: &Rc<ThreadContext>,
    stream: ClientStream<S>,
    activity: &Rc<Activity>,
    peer: Peer,
) {
    let answer = {
        let (context, activity) = (context.clone(), activity.clone());
        move |request| exchange::answer(context.clone(), peer, activity.begin_request(), request, None)
    };
    let options = Http2Options {
        streams_max: HTTP2_STREAMS_MAX,
        header_list_bytes: context.options.limits.headers_bytes_max,
        send_buffer_bytes: HTTP2_SEND_BUFFER_BYTES,
        idle: context.timeouts.idle(),
    };
    http2_connection::serve(&context.shutdown, context.timeouts, stream, activity, options, answer).await;
}

/// Ends a connection without losing the last response: a reset would discard it if the client still sends.
async fn linger<S: ClientSocket>(mut socket: S) {
    let discard = async {
        if socket.shutdown().await.is_err() {
            return;
        }
        let mut buffer = vec![0; DISCARDED_BYTES];
        while socket.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    let _ = timeout(LINGER, discard).await;
}
