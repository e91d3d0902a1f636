//! HTTP/2 connections of clients, for HTTP and for gRPC.

use std::io;
use std::pin::pin;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, sleep_until};

use crate::connections::client_stream::{Activity, ClientSocket, ClientStream, Progress, UnwrittenBytes};
use crate::connections::timeouts::Timeouts;
use crate::passing::upstream::LocalExecutor;
use crate::shutdown::Shutdown;

/// Bytes of request bodies that one connection may send before the front reads them. The windows of all its requests share
/// them.
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
const STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Idle time after which the front asks whether a client is there.
const PING_INTERVAL: Duration = Duration::from_secs(75);
/// Requests that a client resets before the front has seen them. More end the connection.
const RESETS_MAX: usize = 100;
/// Violations of the protocol by one connection. More end it.
const STREAM_ERRORS_MAX: usize = 256;

pub struct Http2Options {
    pub streams_max: u32,
    pub header_list_bytes: usize,
    /// Bytes of one response that wait for a slow client.
    pub send_buffer_bytes: usize,
    /// For a connection without a request.
    pub idle: Duration,
}

/// Serves a connection until it ends. `answer` counts each request in `activity` until its response is written.
pub async fn serve<S, A, R, B>(
    shutdown: &Shutdown,
    timeouts: Timeouts,
    stream: ClientStream<S>,
    activity: &Activity,
    options: Http2Options,
    answer: A,
) where
    S: ClientSocket,
    A: Fn(Request<Incoming>) -> R,
    R: Future<Output = io::Result<Response<B>>> + 'static,
    B: Body<Data = UnwrittenBytes, Error = io::Error> + 'static,
{
    let idle = options.idle;
    let connection = builder(&options, timeouts.receive).serve_connection(TokioIo::new(stream), service_fn(answer));
    let mut connection = pin!(connection);
    let mut check_at = Instant::now() + timeouts.receive.min(idle).min(timeouts.slow_reader);
    let mut is_leaving = false;
    loop {
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = shutdown.begun(), if !is_leaving => {
                is_leaving = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(check_at) => match activity.check(timeouts.receive, idle, Instant::now()) {
                Progress::Fine(next) => check_at = next,
                Progress::Idle if !is_leaving => {
                    is_leaving = true;
                    connection.as_mut().graceful_shutdown();
                    check_at = Instant::now() + timeouts.receive;
                }
                Progress::Idle | Progress::SlowHead | Progress::SlowReader => return,
            }
        }
    }
}

fn builder(options: &Http2Options, ping_timeout: Duration) -> http2::Builder<LocalExecutor> {
    let mut builder = http2::Builder::new(LocalExecutor);
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_max)
        .max_header_list_size(u32::try_from(options.header_list_bytes).unwrap_or(u32::MAX))
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_send_buf_size(options.send_buffer_bytes)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(ping_timeout)
        .max_pending_accept_reset_streams(RESETS_MAX)
        .max_local_error_reset_streams(STREAM_ERRORS_MAX)
        .auto_date_header(false);
    builder
}
