//! One HTTP exchange: selects the route, sends the request to its backend, and returns the response.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hosting_client_addresses::Speech;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderValue, TRANSFER_ENCODING, UPGRADE,
};
use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::{OnUpgrade, Parts, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::backend_stream::BackendStream;
use super::connection_activity::TrackedStream;
use super::headers::{self, HEADERS_MAX};
use super::player_connection::{BackendConnection, PlayerConnection};
use super::response_body::{Exchange, ResponseBody};
use crate::address::BackendAddress;
use crate::client_sessions::ClientSession;
use crate::connection_limits::{Destination, Scope, scopes};
use crate::connection_workers::OpenTunnel;
use crate::live_route::LiveRoute;
use crate::metrics::{Direction, RequestProblem, StatusClass};
use crate::player_sessions::PlayerSession;
use crate::relay::{RelayCounters, RelayLimits};
use crate::request_body::{BackendSender, BodyProgress, RequestBody};
use crate::traffic::Traffic;
use crate::{backend_connect, proxy_protocol, relay};

/// Limit of the bytes of a response header.
const RESPONSE_HEAD_BYTES_MAX: usize = 64 * 1024;

pub async fn handle_request(
    player: &Arc<PlayerConnection>,
    request: Request<Incoming>,
    mut exchange: Exchange,
) -> Response<ResponseBody> {
    let counters = &player.worker.counters;
    // A player that waits for a 100 response does not send the body after another response.
    let is_sending = !request.headers().contains_key(EXPECT);
    let discard_within = if is_sending { player.worker.shared.timeouts().head } else { Duration::ZERO };
    let request = request.map(|body| RequestBody::new(body, discard_within));
    let response = match forward(player, request, &mut exchange).await {
        Ok(response) => response.map(|body| ResponseBody::from_backend(body, exchange)),
        Err(problem) => {
            counters.problems.with_label(problem).increment();
            problem_response(problem, exchange)
        }
    };
    counters.requests.with_label(class(response.status())).increment();
    response
}

async fn forward(
    player: &Arc<PlayerConnection>,
    mut request: Request<RequestBody>,
    exchange: &mut Exchange,
) -> Result<Response<Incoming>, RequestProblem> {
    let live = find_route(player, &request)?;
    if exchange.is_concurrent && request.version() == Version::HTTP_2 {
        // Each concurrent HTTP/2 request counts as the connection that it would be in HTTP/1.1.
        let client = player.worker.shared.client(player.peer);
        let permit = player.worker.shared.limits.admit(scopes(client, Destination::Game(live.number)));
        let permit = permit.map_err(|_| RequestProblem::TooManyRequests)?;
        permit.record(Speech::Spoken);
        exchange.permit = Some(permit);
    }
    if !live.is_reserved {
        player.open.permit().count_in([Scope::Games]).map_err(|_| RequestProblem::TooManyRequests)?;
    }
    let backend = live.backend().ok_or(RequestProblem::NoBackend)?;
    let is_upgrade = headers::is_upgrade(&request);
    let trusted = player.is_proxied.then_some(&player.worker.shared.config.proxies[..]);
    headers::add_forwarding_headers(&mut request, &player.forwarded, is_upgrade, trusted)
        .ok_or(RequestProblem::Request)?;
    let session = if is_upgrade { admit_player(&live, &request).await? } else { None };
    let upgrade = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    if !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH) {
        // Otherwise hyper sends no body of unknown length with methods that rarely have one.
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let progress = request.body().progress();
    let (mut response, sender) = send_request(player, &live, &backend, request).await?;
    let counted = (!live.is_reserved).then(|| ClientSession::open(&live.traffic.sessions, player.peer.ip()));
    *response.version_mut() = Version::HTTP_11;
    match upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
        Some(of_client) => {
            headers::strip(response.headers_mut(), true);
            let of_backend = hyper::upgrade::on(&mut response);
            let tunnel = tunnel((player.clone(), session), live.traffic.clone(), of_client, of_backend);
            live.spawn(&player.worker.handle, async move {
                let _counted = counted;
                tunnel.await;
            });
        }
        // The player did not request an upgrade.
        None if response.status() == StatusCode::SWITCHING_PROTOCOLS => return Err(RequestProblem::Unreachable),
        None => {
            headers::strip(response.headers_mut(), false);
            exchange.session = counted;
            exchange.set_backend_connection(BackendConnection {
                is_dedicated: live.sends_proxy_header,
                route: live.number,
                backend,
                sender,
                progress,
            });
        }
    }
    Ok(response)
}

/// Counts the session of an upgrade at a port that counts players. Plain requests do not count.
async fn admit_player(
    live: &LiveRoute,
    request: &Request<RequestBody>,
) -> Result<Option<PlayerSession>, RequestProblem> {
    let Some(players) = &live.players else { return Ok(None) };
    let client = headers::client(request.headers()).ok_or(RequestProblem::Request)?;
    players.admit(client).await.ok_or(RequestProblem::NoSlot)
}

fn find_route(player: &PlayerConnection, request: &Request<RequestBody>) -> Result<Arc<LiveRoute>, RequestProblem> {
    if let Some(route) = &player.route {
        return Ok(route.clone());
    }
    let host = headers::host(request.uri(), request.headers()).ok_or(RequestProblem::Request)?;
    let hosts = player.worker.shared.hosts.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let route = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        hosts.find(player.is_tls, &host.to_ascii_lowercase())
    } else {
        hosts.find(player.is_tls, host)
    };
    route.cloned().ok_or(RequestProblem::Host)
}

/// Sends a request over an idle or a new backend connection.
///
/// A backend can close an idle connection while the request is being sent. A request that was not sent is then retried.
/// A request that the backend may have received is retried only if it has no body and a safe method.
async fn send_request(
    player: &Arc<PlayerConnection>,
    live: &Arc<LiveRoute>,
    backend: &BackendAddress,
    mut request: Request<RequestBody>,
) -> Result<(Response<Incoming>, BackendSender), RequestProblem> {
    loop {
        let waiting = player.take_idle(live, backend);
        let is_reused = waiting.is_some();
        let mut sender = match waiting {
            Some(sender) => sender,
            None => connect(player, live, backend).await?,
        };
        let within = player.worker.shared.timeouts().connect;
        if !sender.is_ready() && !matches!(timeout(within, sender.ready()).await, Ok(Ok(()))) {
            if is_reused {
                continue;
            }
            return Err(RequestProblem::Unreachable);
        }
        let retry = if is_reused { copy_request(&request) } else { None };
        let progress = request.body().progress();
        match wait_for_response(player, progress, sender.try_send_request(request)).await? {
            Ok(response) => return Ok((response, sender)),
            Err(mut error) => match error.take_message().filter(|_| is_reused).or(retry) {
                Some(unsent) => request = unsent,
                None if error.error().is_parse_too_large() => return Err(RequestProblem::ResponseHeaders),
                None => return Err(RequestProblem::Unreachable),
            },
        }
    }
}

/// Waits for the response. Each chunk of the request body restarts the timeout, so that a player can send a body of any
/// size.
async fn wait_for_response<T>(
    player: &PlayerConnection,
    progress: Option<Arc<BodyProgress>>,
    response: impl Future<Output = T>,
) -> Result<T, RequestProblem> {
    let timeouts = player.worker.shared.timeouts();
    let Some(progress) = progress else {
        return timeout(timeouts.response, response).await.map_err(|_elapsed| RequestProblem::Late);
    };
    tokio::pin!(response);
    let (mut frames, mut idle) = (0, Duration::ZERO);
    loop {
        if let Ok(response) = timeout(timeouts.head, response.as_mut()).await {
            return Ok(response);
        }
        if progress.frames() != std::mem::replace(&mut frames, progress.frames()) {
            idle = Duration::ZERO;
            continue;
        }
        idle += timeouts.head;
        if progress.is_waiting_for_player() && !progress.is_over() {
            return Err(RequestProblem::Slow);
        }
        if idle >= timeouts.response {
            return Err(RequestProblem::Late);
        }
    }
}

fn copy_request(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.method().is_safe() || !request.body().is_end_stream() || request.headers().contains_key(UPGRADE) {
        return None;
    }
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    // They have the case of the header names.
    *copy.extensions_mut() = request.extensions().clone();
    Some(copy)
}

async fn connect(
    player: &Arc<PlayerConnection>,
    live: &Arc<LiveRoute>,
    backend: &BackendAddress,
) -> Result<BackendSender, RequestProblem> {
    let within = player.worker.shared.timeouts().connect;
    match backend {
        BackendAddress::Port(address) => {
            handshake(player, live, backend_connect::connect(*address, within).await).await
        }
        BackendAddress::Socket(path) => {
            handshake(player, live, backend_connect::connect_unix(path, within).await).await
        }
    }
}

async fn handshake<S>(
    player: &Arc<PlayerConnection>,
    live: &Arc<LiveRoute>,
    stream: std::io::Result<S>,
) -> Result<BackendSender, RequestProblem>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = stream.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => RequestProblem::Late,
        _ => RequestProblem::Unreachable,
    })?;
    if live.sends_proxy_header {
        let header = proxy_protocol::encode_header(player.peer, player.local, proxy_protocol::Protocol::Stream);
        stream.write_all(&header).await.map_err(|_| RequestProblem::Unreachable)?;
    }
    let (sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(RESPONSE_HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .preserve_header_case(true)
        .title_case_headers(true)
        .handshake(TokioIo::new(BackendStream::new(stream, live.traffic.clone())))
        .await
        .map_err(|_| RequestProblem::Unreachable)?;
    live.spawn(&player.worker.handle, async move {
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

async fn tunnel(
    (player, _session): (Arc<PlayerConnection>, Option<PlayerSession>),
    traffic: Arc<Traffic>,
    of_client: OnUpgrade,
    of_backend: OnUpgrade,
) {
    let (Ok(client), Ok(backend)) = (of_client.await, of_backend.await) else { return };
    let _open = OpenTunnel::new(&player.worker);
    let counters = RelayCounters { thread: &player.worker.counters, owner: &traffic };
    let _ = match (player.is_tls, backend.downcast::<TokioIo<BackendStream<TcpStream>>>()) {
        (true, Ok(backend)) => {
            relay_upgraded_streams::<TlsStream<TcpStream>, _>(&player, counters, client, backend).await
        }
        (false, Ok(backend)) => relay_upgraded_sockets(&player, counters, client, backend).await,
        (is_tls, Err(backend)) => {
            let Ok(backend) = backend.downcast::<TokioIo<BackendStream<UnixStream>>>() else { return };
            if is_tls {
                relay_upgraded_streams::<TlsStream<TcpStream>, _>(&player, counters, client, backend).await
            } else {
                relay_upgraded_streams::<TcpStream, _>(&player, counters, client, backend).await
            }
        }
    };
}

async fn relay_upgraded_sockets(
    player: &PlayerConnection,
    counters: RelayCounters<'_>,
    client: Upgraded,
    backend: Parts<TokioIo<BackendStream<TcpStream>>>,
) -> std::io::Result<()> {
    let (mut client, mut backend) = into_streams::<TcpStream, _>(counters.owner, client, backend).await?;
    relay::relay_sockets(
        &mut client,
        &mut backend,
        RelayLimits::idle(player.worker.shared.timeouts().stream_idle),
        counters,
    )
    .await
}

async fn relay_upgraded_streams<C, B>(
    player: &PlayerConnection,
    counters: RelayCounters<'_>,
    client: Upgraded,
    backend: Parts<TokioIo<BackendStream<B>>>,
) -> std::io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut client, mut backend) = into_streams::<C, _>(counters.owner, client, backend).await?;
    relay::relay_streams(
        &mut client,
        &mut backend,
        RelayLimits::idle(player.worker.shared.timeouts().stream_idle),
        counters,
    )
    .await
}

/// Returns the raw streams of client and backend after an upgrade. First forwards the bytes that were read ahead.
async fn into_streams<C, B>(
    traffic: &Traffic,
    client: Upgraded,
    backend: Parts<TokioIo<BackendStream<B>>>,
) -> std::io::Result<(C, B)>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let of_client = client.downcast::<TokioIo<TrackedStream<C>>>().map_err(|_| std::io::ErrorKind::Unsupported)?;
    let (mut client, mut to_backend) = (of_client.io.into_inner().into_inner(), backend.io.into_inner().into_inner());
    send_first(&mut to_backend, &of_client.read_buf).await?;
    // The bytes of the backend were counted when they were read.
    traffic.add_bytes(Direction::In, of_client.read_buf.len() as u64);
    send_first(&mut client, &backend.read_buf).await?;
    Ok((client, to_backend))
}

async fn send_first(to: &mut (impl AsyncWrite + Unpin), bytes: &Bytes) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    to.write_all(bytes).await?;
    to.flush().await
}

fn class(status: StatusCode) -> StatusClass {
    match status.as_u16() / 100 {
        1 => StatusClass::Upgraded,
        2 => StatusClass::Success,
        3 => StatusClass::Redirect,
        4 => StatusClass::Client,
        _ => StatusClass::Server,
    }
}

fn problem_response(problem: RequestProblem, exchange: Exchange) -> Response<ResponseBody> {
    let (status, code, detail) = match problem {
        RequestProblem::Host => (404, "NOT_FOUND", "No server has this host name."),
        RequestProblem::NoBackend => (502, "SERVER_NOT_THERE", "The server is not running yet, or not any more."),
        RequestProblem::Unreachable => (502, "SERVER_UNREACHABLE", "The server refused or broke the connection."),
        RequestProblem::ResponseHeaders => (
            502,
            "SERVER_HEADERS_TOO_LARGE",
            "The server's response has more than 1,000 headers, or more than 64 KiB of them.",
        ),
        RequestProblem::Late => (504, "SERVER_LATE", "The server does not answer in time."),
        RequestProblem::Slow => (408, "REQUEST_TIMEOUT", "The body of the request comes too slowly."),
        RequestProblem::TooManyRequests => {
            (503, "OVERLOADED", "Too many requests of this client or for this server are under way; try again.")
        }
        RequestProblem::NoSlot => (
            403,
            "PLAYER_WITHOUT_SLOT",
            "No reservation of this lobby is for the address of this player: find or join the lobby first.",
        ),
        RequestProblem::Request => {
            (400, "REQUEST_INVALID", "The request needs a host and a method that can be forwarded.")
        }
    };
    let text = format!(
        concat!(
            r#"{{"type":"about:blank","title":"{code}","status":{status},"#,
            r#""detail":"{detail}","code":"{code}","message":"{detail}"}}"#
        ),
        code = code,
        status = status,
        detail = detail
    );
    let mut response = Response::new(ResponseBody::from_text(Bytes::from(text), exchange));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    // A web page of the game reads the error. It has nothing that another page must not see.
    response.headers_mut().insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    response
}
