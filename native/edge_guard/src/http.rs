//! HTTP/1.1 and HTTP/2 connections of players, plain or over TLS. A port or a host name selects the route.

mod backend_stream;
mod connection_activity;
mod exchange;
mod headers;
mod player_connection;
mod response_body;

use std::convert::Infallible;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};

use crate::backend_pool::DedicatedConnection;
use crate::connection_limits::Destination;
use crate::connection_workers::{ConnectionWorker, OpenConnection};
use crate::listener::{ConnectionHandler, prepare};
use crate::live_route::LiveRoute;
use crate::metrics::{ConnectionKind, ConnectionRefusal};
use connection_activity::{TimeoutCheck, TrackedStream};
use player_connection::PlayerConnection;
use response_body::Exchange;

const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n";

const READ_BUFFER_BYTES: usize = 64 * 1024;

const HTTP2_STREAMS_MAX: u32 = 100;
/// Budget of request bytes that one HTTP/2 connection buffers for slow backends. The windows of all streams share it.
const HTTP2_CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// Window of one stream. A stream with a slow backend leaves half of the budget to the others.
const HTTP2_STREAM_WINDOW_BYTES: u32 = 128 * 1024;
/// Maximum bytes of a response that one HTTP/2 stream buffers for a slow reader.
const HTTP2_SEND_BUFFER_BYTES: usize = 16 * 1024;

#[derive(Debug)]
pub struct HttpHandler {
    pub live: Arc<LiveRoute>,
    pub by_host: bool,
}

impl ConnectionHandler for HttpHandler {
    fn serve(&self, client: TcpStream, peer: SocketAddr, worker: &Arc<ConnectionWorker>) {
        let kind = if self.live.is_tls { ConnectionKind::Https } else { ConnectionKind::Http };
        let destination = if self.by_host { Destination::Hosts } else { Destination::Game(self.live.number) };
        OpenConnection::admit(worker, kind, worker.shared.client(peer), destination, &self.live, |open| {
            let route = (!self.by_host).then(|| self.live.clone());
            let worker = worker.clone();
            AcceptedConnection { worker, route, is_tls: self.live.is_tls, peer, open }.serve(client)
        });
    }
}

/// Reports whether a connection begins with the preface of HTTP/2, which may arrive in parts.
async fn begins_with_http2(client: &tokio::net::TcpStream) -> std::io::Result<bool> {
    let mut begin = [0; HTTP2_PREFACE.len()];
    loop {
        let available = client.peek(&mut begin).await?;
        if available == 0 || begin[..available] != HTTP2_PREFACE[..available] {
            return Ok(false);
        }
        if available == HTTP2_PREFACE.len() {
            return Ok(true);
        }
        // A peek would return at once.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct AcceptedConnection {
    worker: Arc<ConnectionWorker>,
    route: Option<Arc<LiveRoute>>,
    is_tls: bool,
    peer: SocketAddr,
    open: Arc<OpenConnection>,
}

impl AcceptedConnection {
    async fn serve(mut self, client: TcpStream) -> Result<(), ConnectionRefusal> {
        let worker = self.worker.clone();
        let timeouts = worker.shared.timeouts();
        let Ok(client) = prepare(client) else { return Ok(()) };
        let Ok(mut local) = client.local_addr() else { return Ok(()) };
        if let Some(named) = self.open.read_proxy_header(&client, self.peer).await? {
            (self.peer, local) = (named.client, named.server);
        }
        self.open.wait_first_byte(&client).await?;
        // A client that is named in a PROXY header may only name others if it is a trusted proxy itself.
        let is_proxied = worker.shared.is_trusted(self.peer);
        if !self.is_tls {
            let Ok(Ok(is_http2)) = timeout(timeouts.head, begins_with_http2(&client)).await else { return Ok(()) };
            run(self.into_player_connection(local, is_proxied), client, is_http2).await;
            return Ok(());
        }
        let accepting = worker.shared.certificates.http().accept(client);
        let Ok(Ok(client)) = timeout(timeouts.handshake, accepting).await else {
            return Err(ConnectionRefusal::Handshake);
        };
        let is_http2 = client.get_ref().1.alpn_protocol() == Some(b"h2");
        run(self.into_player_connection(local, is_proxied), client, is_http2).await;
        Ok(())
    }

    fn into_player_connection(self, local: SocketAddr, is_proxied: bool) -> Arc<PlayerConnection> {
        Arc::new(PlayerConnection {
            forwarded: headers::ForwardedHeaders::new(self.peer, local, self.is_tls),
            worker: self.worker,
            route: self.route,
            is_tls: self.is_tls,
            peer: self.peer,
            local,
            is_proxied,
            tracker: Arc::default(),
            dedicated: DedicatedConnection::default(),
            open: self.open,
        })
    }
}

async fn run<S>(player: Arc<PlayerConnection>, client: S, is_http2: bool)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let half_close = (!is_http2).then(|| player.worker.shared.timeouts().half_close);
    let io = TokioIo::new(TrackedStream::new(client, player.tracker.clone(), half_close));
    let head_bytes = player.worker.shared.config.limits.head_bytes;
    let of_requests = player.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let player = of_requests.clone();
        // Before the first poll, because hyper may read on before.
        let exchange = Exchange::start(&player);
        async move { Ok::<_, Infallible>(exchange::handle_request(&player, request, exchange).await) }
    });
    if is_http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .max_concurrent_streams(HTTP2_STREAMS_MAX)
            .initial_connection_window_size(HTTP2_CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(HTTP2_STREAM_WINDOW_BYTES)
            .max_header_list_size(u32::try_from(head_bytes).unwrap_or(u32::MAX))
            .max_send_buf_size(HTTP2_SEND_BUFFER_BYTES);
        let connection = builder.serve_connection(io, service);
        tokio::pin!(connection);
        serve_until_timeout(connection, &player, |connection| connection.graceful_shutdown()).await;
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        // With `half_close`, hyper would not notice that a player leaves while a response is pending.
        builder
            .max_header_size(head_bytes)
            .max_buf_size(head_bytes.max(READ_BUFFER_BYTES))
            .max_headers(headers::HEADERS_MAX)
            .preserve_header_case(true)
            .title_case_headers(true)
            .half_close(false);
        let connection = builder.serve_connection(io, service).with_upgrades();
        tokio::pin!(connection);
        serve_until_timeout(connection, &player, |connection| connection.graceful_shutdown()).await;
    }
}

async fn serve_until_timeout<C: Future>(
    mut connection: std::pin::Pin<&mut C>,
    player: &PlayerConnection,
    shut_down_gracefully: impl Fn(std::pin::Pin<&mut C>),
) {
    let shared = &player.worker.shared;
    let timeouts = shared.timeouts();
    let mut leaving = shared.leave_signal.subscribe();
    let first = Instant::now() + timeouts.head.min(timeouts.keep_alive);
    let timer = tokio::time::sleep_until(first);
    tokio::pin!(timer);
    let process_leaving = leaving.wait_for(|is_leaving| *is_leaving);
    tokio::pin!(process_leaving);
    let mut is_leaving = false;
    loop {
        tokio::select! {
            biased;
            _ = connection.as_mut() => return,
            () = timer.as_mut() => match player.tracker.check_timeouts(&shared.timeouts()) {
                TimeoutCheck::Expired => return,
                TimeoutCheck::CheckAgainAt(when) => {
                    player.dedicated.sweep();
                    timer.as_mut().reset(when + Duration::from_millis(1));
                }
            },
            _ = process_leaving.as_mut(), if !is_leaving => {
                is_leaving = true;
                shut_down_gracefully(connection.as_mut());
            }
        }
    }
}
