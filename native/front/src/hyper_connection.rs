//! A connection of a client after its first request that is not plain. Hyper reads its requests, in HTTP/1.1 or HTTP/2.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep_until, timeout};

use crate::client_address::Peer;
use crate::client_stream::{Activity, ClientSocket, ClientStream, Progress};
use crate::connection_budget::Admission;
use crate::front::ThreadContext;
use crate::http2_connection::{self, Http2Options};
use crate::passing::{self, HEADERS_MAX};
use crate::problems::Problem;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HTTP2_STREAMS_MAX: u32 = 100;
const HTTP2_SEND_BUFFER_BYTES: usize = 16 * 1024;
/// Smallest buffer that hyper takes.
const BUFFER_BYTES_MIN: usize = 8 * 1024;
/// Time for a refused client to send the rest of its request. Closing at once would discard the response.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that are discarded at once.
const DISCARDED_BYTES: usize = 4096;

/// Serves a connection until it ends. `unread` are the bytes that the caller has read.
pub async fn serve<S: ClientSocket>(
    context: Rc<ThreadContext>,
    mut socket: S,
    mut unread: Vec<u8>,
    peer: Peer,
    admission: Admission,
) {
    let _ = timeout(context.timeouts.receive, read_preface(&mut socket, &mut unread)).await;
    let is_http2 = unread.starts_with(HTTP2_PREFACE) || socket.has_agreed_http2();
    let (stream, activity) = ClientStream::new(context.clone(), socket, unread, !is_http2);
    if is_http2 {
        Box::pin(serve_http2(&context, stream, &activity, peer)).await;
    } else {
        serve_http1(&context, stream, &activity, peer).await;
    }
    drop(admission);
}

/// Reads on while the bytes may become the preface of HTTP/2, and more than the first byte, which may begin a slow POST.
async fn read_preface<S: ClientSocket>(socket: &mut S, unread: &mut Vec<u8>) {
    let is_partial =
        |unread: &[u8]| unread.len() > 1 && unread.len() < HTTP2_PREFACE.len() && HTTP2_PREFACE.starts_with(unread);
    while is_partial(unread) && socket.read_buf(unread).await.is_ok_and(|count| count > 0) {}
}

async fn serve_http1<S: ClientSocket>(
    context: &Rc<ThreadContext>,
    stream: ClientStream<S>,
    activity: &Rc<Activity>,
    peer: Peer,
) {
    let service = {
        let (context, activity) = (context.clone(), activity.clone());
        service_fn(move |request| Box::pin(passing::answer(context.clone(), peer, activity.begin_request(), request)))
    };
    let limits = context.passing.options.limits;
    let head_bytes_max = limits.url_bytes_max + limits.headers_bytes_max;
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(HEADERS_MAX)
        .max_buf_size(head_bytes_max.max(BUFFER_BYTES_MIN))
        .auto_date_header(false)
        .serve_connection(TokioIo::new(stream), service);
    let timeouts = context.timeouts;
    // Without keep-alive, an idle connection is one before its only request.
    let idle = if timeouts.keep_alive.is_zero() { timeouts.receive } else { timeouts.keep_alive };
    let mut check_at = Instant::now() + timeouts.receive.min(idle).min(timeouts.slow_reader);
    let last = loop {
        tokio::select! {
            biased;
            _ = poll_fn(|task| connection.poll_without_shutdown(task)) => break activity.error_page(),
            () = sleep_until(check_at) => {
                match activity.check(timeouts.receive, idle, Instant::now()) {
                    Progress::Fine(next) => check_at = next,
                    Progress::SlowHead => break Some(Problem::RequestTimeout),
                    Progress::Idle => break None,
                    Progress::SlowReader => return,
                }
            }
        }
    };
    let mut socket = connection.into_parts().io.into_inner().socket;
    if let Some(problem) = last
        && let Ok(ray_id) = context.ray_ids.next()
    {
        let problems = &context.passing.options.problems;
        let unrouted = context.passing.options.routes.unrouted();
        context.measurer().count_own(ray_id, unrouted, problems.code(problem), std::time::Instant::now());
        let _ = timeout(LINGER, socket.write_all(&problems.last_response(problem, ray_id))).await;
    }
    linger(socket).await;
}

async fn serve_http2<S: ClientSocket>(
    context: &Rc<ThreadContext>,
    stream: ClientStream<S>,
    activity: &Rc<Activity>,
    peer: Peer,
) {
    let answer = {
        let (context, activity) = (context.clone(), activity.clone());
        move |request| passing::answer(context.clone(), peer, activity.begin_request(), request)
    };
    let timeouts = context.timeouts;
    let options = Http2Options {
        streams_max: HTTP2_STREAMS_MAX,
        header_list_bytes: context.passing.options.limits.headers_bytes_max,
        send_buffer_bytes: HTTP2_SEND_BUFFER_BYTES,
        idle: if timeouts.keep_alive.is_zero() { timeouts.receive } else { timeouts.keep_alive },
    };
    http2_connection::serve(context, stream, activity, options, answer).await;
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
