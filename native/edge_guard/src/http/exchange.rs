//! One request: whose it is, to which back end, and what comes back.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::{Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::upgrade::{OnUpgrade, Parts, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::body::{Answer, Exchange, Through};
use super::watched::Watched;
use super::{Front, heads};
use crate::address::Place;
use crate::asked::{Asked, Progress, Sender};
use crate::live::Live;
use crate::metrics::{Class, Kind, Problem};
use crate::worker::Open;
use crate::{proxy, reach, relay};

/// Answers a request, by its back end or with what is wrong.
pub async fn answer(front: &Arc<Front>, request: Request<Incoming>) -> Response<Answer> {
    let mut exchange = Exchange::begin(front);
    let counters = &front.worker.counters;
    let response = match pass_on(front, request, &mut exchange).await {
        Ok(response) => response.map(|body| Answer::from_back_end(body, exchange)),
        Err(problem) => {
            counters.problems.of(problem).one();
            tell(problem, exchange)
        }
    };
    counters.requests.of(class(response.status())).one();
    response
}

async fn pass_on(
    front: &Arc<Front>,
    mut request: Request<Incoming>,
    exchange: &mut Exchange,
) -> Result<Response<Incoming>, Problem> {
    let live = whose(front, &request)?;
    if exchange.is_beside_others && request.version() == Version::HTTP_2 {
        // It takes what a connection of HTTP/1.1 would take: counted alike, whoever asks in whichever way has the same.
        let client = front.worker.shared.client(front.peer);
        let permit = front.worker.shared.limits.admit(client, Some(&live.connections));
        exchange.permit = Some(permit.map_err(|_| Problem::Crowded)?);
    }
    let backend = live.backend().ok_or(Problem::NoBackend)?;
    let is_upgrade = heads::is_upgrade(&request);
    let trusted = front.is_proxied.then_some(&front.worker.shared.config.proxies[..]);
    heads::to_back_end(&mut request, &front.told, is_upgrade, trusted).ok_or(Problem::Request)?;
    let upgrade = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    if !request.body().is_end_stream() && !request.headers().contains_key(CONTENT_LENGTH) {
        // With a method that rarely has one a body of unknown length would not be sent otherwise.
        request.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let request = request.map(Asked::new);
    let progress = request.body().progress();
    let (mut response, sender) = ask(front, &live, &backend, request).await?;
    *response.version_mut() = Version::HTTP_11;
    match upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
        Some(of_client) => {
            heads::strip(response.headers_mut(), true);
            let of_backend = hyper::upgrade::on(&mut response);
            let tunnel = tunnel(front.clone(), of_client, of_backend);
            live.spawn(&front.worker.handle, tunnel);
        }
        // Whoever did not ask for another protocol does not speak it.
        None if response.status() == StatusCode::SWITCHING_PROTOCOLS => return Err(Problem::Unreachable),
        None => {
            heads::strip(response.headers_mut(), false);
            exchange.through(Through { is_own: live.says_client, route: live.number, backend, sender, progress });
        }
    }
    Ok(response)
}

fn whose(front: &Front, request: &Request<Incoming>) -> Result<Arc<Live>, Problem> {
    if let Some(route) = &front.route {
        return Ok(route.clone());
    }
    let host = heads::host(request.uri(), request.headers()).ok_or(Problem::Request)?;
    let hosts = front.worker.shared.hosts.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let found = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        hosts.find(front.is_tls, &host.to_ascii_lowercase())
    } else {
        hosts.find(front.is_tls, host)
    };
    found.cloned().ok_or(Problem::Host)
}

/// Sends a request, on a connection that waits or a new one.
///
/// A back end may close a connection just when it is used again. What it has not seen is sent over another; what it may
/// have seen only if that does no harm: a request without a body whose method is safe.
async fn ask(
    front: &Arc<Front>,
    live: &Arc<Live>,
    backend: &Place,
    mut request: Request<Asked>,
) -> Result<(Response<Incoming>, Sender), Problem> {
    loop {
        let waiting = front.take(live, backend);
        let is_reused = waiting.is_some();
        let mut sender = match waiting {
            Some(sender) => sender,
            None => connect(front, live, backend).await?,
        };
        let within = front.worker.shared.timeouts().connect;
        if !sender.is_ready() && !matches!(timeout(within, sender.ready()).await, Ok(Ok(()))) {
            if is_reused {
                continue;
            }
            return Err(Problem::Unreachable);
        }
        let again = if is_reused { copy_of(&request) } else { None };
        let progress = request.body().progress();
        match in_time(front, progress, sender.try_send_request(request)).await? {
            Ok(response) => return Ok((response, sender)),
            Err(mut error) => match error.take_message().filter(|_| is_reused).or(again) {
                Some(unsent) => request = unsent,
                None => return Err(Problem::Unreachable),
            },
        }
    }
}

/// Waits for an answer as long as there is hope: a player may take its time for a body of any size while pieces of it
/// come, and the back end has its time from the last piece on.
async fn in_time<T>(
    front: &Front,
    progress: Option<Arc<Progress>>,
    answer: impl Future<Output = T>,
) -> Result<T, Problem> {
    let timeouts = front.worker.shared.timeouts();
    let Some(progress) = progress else {
        return timeout(timeouts.response, answer).await.map_err(|_late| Problem::Late);
    };
    tokio::pin!(answer);
    let (mut frames, mut idle) = (0, Duration::ZERO);
    loop {
        if let Ok(answer) = timeout(timeouts.head, answer.as_mut()).await {
            return Ok(answer);
        }
        if progress.frames() != std::mem::replace(&mut frames, progress.frames()) {
            idle = Duration::ZERO;
            continue;
        }
        idle += timeouts.head;
        if progress.waits_for_player() && !progress.is_over() {
            return Err(Problem::Slow);
        }
        if idle >= timeouts.response {
            return Err(Problem::Late);
        }
    }
}

fn copy_of(request: &Request<Asked>) -> Option<Request<Asked>> {
    if !request.method().is_safe() || !request.body().is_end_stream() || request.headers().contains_key(UPGRADE) {
        return None;
    }
    let mut copy = Request::new(Asked::Nothing);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

async fn connect(front: &Arc<Front>, live: &Arc<Live>, backend: &Place) -> Result<Sender, Problem> {
    let within = front.worker.shared.timeouts().connect;
    match backend {
        Place::Port(address) => speak(front, live, reach::connect(*address, within).await).await,
        Place::Socket(path) => speak(front, live, reach::connect_socket(path, within).await).await,
    }
}

async fn speak<S>(front: &Arc<Front>, live: &Arc<Live>, stream: std::io::Result<S>) -> Result<Sender, Problem>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut stream = stream.map_err(|error| match error.kind() {
        std::io::ErrorKind::TimedOut => Problem::Late,
        _ => Problem::Unreachable,
    })?;
    if live.says_client {
        let header = proxy::header(front.peer, front.local);
        stream.write_all(&header).await.map_err(|_| Problem::Unreachable)?;
    }
    let (sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_buf_size(64 * 1024)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|_| Problem::Unreachable)?;
    live.spawn(&front.worker.handle, async move {
        let _ = connection.with_upgrades().await;
    });
    Ok(sender)
}

/// Passes bytes of an upgraded connection until one side ends.
async fn tunnel(front: Arc<Front>, of_client: OnUpgrade, of_backend: OnUpgrade) {
    let (Ok(client), Ok(backend)) = (of_client.await, of_backend.await) else { return };
    let _open = Open::new(&front.worker, Kind::WebSocket, None);
    // How it ended is nobody's business any more: both sides are closed.
    let _ = match (front.is_tls, backend.downcast::<TokioIo<TcpStream>>()) {
        (true, Ok(backend)) => through::<TlsStream<TcpStream>, _>(&front, client, backend).await,
        (false, Ok(backend)) => between_sockets(&front, client, backend).await,
        (is_tls, Err(backend)) => {
            let Ok(backend) = backend.downcast::<TokioIo<UnixStream>>() else { return };
            if is_tls {
                through::<TlsStream<TcpStream>, _>(&front, client, backend).await
            } else {
                through::<TcpStream, _>(&front, client, backend).await
            }
        }
    };
}

async fn between_sockets(front: &Front, client: Upgraded, backend: Parts<TokioIo<TcpStream>>) -> std::io::Result<()> {
    let (mut client, mut backend) = begin::<TcpStream, _>(client, backend).await?;
    relay::sockets(&mut client, &mut backend, front.worker.shared.timeouts().stream_idle, &front.worker.counters).await
}

async fn through<C, B>(front: &Front, client: Upgraded, backend: Parts<TokioIo<B>>) -> std::io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut client, mut backend) = begin::<C, _>(client, backend).await?;
    relay::streams(&mut client, &mut backend, front.worker.shared.timeouts().stream_idle, &front.worker.counters).await
}

/// The streams themselves, each of which was given what the other had said already.
async fn begin<C, B>(client: Upgraded, backend: Parts<TokioIo<B>>) -> std::io::Result<(C, B)>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let of_client = client.downcast::<TokioIo<Watched<C>>>().map_err(|_| std::io::ErrorKind::Unsupported)?;
    let (mut client, mut to_backend) = (of_client.io.into_inner().into_inner(), backend.io.into_inner());
    send_first(&mut to_backend, &of_client.read_buf).await?;
    send_first(&mut client, &backend.read_buf).await?;
    Ok((client, to_backend))
}

/// What came together with the head is the first to go.
async fn send_first(to: &mut (impl AsyncWrite + Unpin), bytes: &Bytes) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    to.write_all(bytes).await?;
    to.flush().await
}

fn class(status: StatusCode) -> Class {
    match status.as_u16() / 100 {
        1 => Class::Upgraded,
        2 => Class::Success,
        3 => Class::Redirect,
        4 => Class::Client,
        _ => Class::Server,
    }
}

fn tell(problem: Problem, exchange: Exchange) -> Response<Answer> {
    let (status, code, detail) = match problem {
        Problem::Host => (404, "NOT_FOUND", "No server has this host name."),
        Problem::NoBackend => (502, "SERVER_NOT_THERE", "The server is not running yet, or not any more."),
        Problem::Unreachable => (502, "SERVER_UNREACHABLE", "The server does not take the connection, or broke it."),
        Problem::Late => (504, "SERVER_LATE", "The server does not answer in time."),
        Problem::Slow => (408, "REQUEST_TIMEOUT", "The body of the request comes too slowly."),
        Problem::Crowded => {
            (503, "OVERLOADED", "Too many requests of this client or for this server are under way; try again.")
        }
        Problem::Request => (400, "REQUEST_INVALID", "The request needs a host and a method that can be passed on."),
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
    let mut response = Response::new(Answer::own(Bytes::from(text), exchange));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}
