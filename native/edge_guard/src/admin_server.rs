//! Administration server: HTTP over a Unix socket that only the user of edge-guard may use.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue, UPGRADE};
use http::{Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, prometheus_text};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::UnboundedSender;

use crate::connection_workers::ConnectionWorkers;
use crate::metrics::{self, MetricsEncoder, ThreadCounters};
use crate::route_controller::{AdminCommand, EdgeStatus};
use crate::traffic::PAGE_OWNERS;
use crate::udp::UdpThreads;

#[derive(Debug)]
pub struct AdminServer {
    pub status: Arc<Mutex<EdgeStatus>>,
    pub commands: UnboundedSender<AdminCommand>,
    pub workers: ConnectionWorkers,
    pub datagrams: Arc<UdpThreads>,
    pub counters: Arc<ThreadCounters>,
    pub listeners: [(&'static str, Option<SocketAddr>); 2],
}

#[derive(Debug)]
pub struct AdminSocket {
    pub listener: UnixListener,
    temporary_path: PathBuf,
    path: PathBuf,
}

pub fn bind(folder: &Path) -> io::Result<AdminSocket> {
    let temporary_path = folder.join("admin.sock.new");
    if let Err(error) = std::fs::remove_file(&temporary_path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(&temporary_path)?;
    let socket = AdminSocket { listener, temporary_path, path: folder.join("admin.sock") };
    std::fs::set_permissions(&socket.temporary_path, PermissionsExt::from_mode(0o600))
        .inspect_err(|_| socket.discard())?;
    Ok(socket)
}

impl AdminSocket {
    /// Moves the administration socket to its final path, and replaces the socket of an older process.
    pub fn put(&self) -> io::Result<()> {
        std::fs::rename(&self.temporary_path, &self.path)
    }

    pub fn discard(&self) {
        let _ = std::fs::remove_file(&self.temporary_path);
    }
}

impl AdminServer {
    pub async fn serve(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(self.clone().serve_connection(stream));
                }
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(100)).await,
            }
        }
    }

    async fn serve_connection(self: Arc<Self>, stream: UnixStream) {
        let service = service_fn(move |request| {
            let admin = self.clone();
            async move { Ok::<_, Infallible>(admin.handle_request(request)) }
        });
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
    }

    fn handle_request(self: &Arc<Self>, request: Request<Incoming>) -> Response<TextBody> {
        match (request.method(), request.uri().path()) {
            (&Method::GET, "/livez") => respond(StatusCode::OK, "ok\n".to_owned()),
            (&Method::GET, "/readyz") => self.ready(request.uri().query() == Some("verbose")),
            (&Method::GET, "/metrics") => {
                let mut response = respond(StatusCode::OK, metrics::text_of(self.clone()));
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(prometheus_text::CONTENT_TYPE));
                response
            }
            (&Method::GET, "/traffic") => self.traffic(request.uri().query().unwrap_or_default()),
            (&Method::GET, "/sessions") => self.sessions(request.uri().query().unwrap_or_default()),
            (&Method::POST, "/stop") => self.command(AdminCommand::Stop),
            (&Method::POST, "/drain") => self.command(AdminCommand::Drain),
            (&Method::POST, "/handover") => self.hand_over(request),
            (_, "/livez" | "/readyz" | "/metrics" | "/traffic" | "/sessions" | "/stop" | "/drain" | "/handover") => {
                respond(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n".to_owned())
            }
            _ => respond(StatusCode::NOT_FOUND, "not found\n".to_owned()),
        }
    }

    fn command(&self, command: AdminCommand) -> Response<TextBody> {
        let _ = self.commands.send(command);
        respond(StatusCode::ACCEPTED, "accepted\n".to_owned())
    }

    fn hand_over(&self, mut request: Request<Incoming>) -> Response<TextBody> {
        if request.headers().get(UPGRADE).is_none_or(|upgrade| upgrade != "hosting-handover") {
            return respond(StatusCode::UPGRADE_REQUIRED, "Upgrade: hosting-handover\n".to_owned());
        }
        let upgraded = hyper::upgrade::on(&mut request);
        let commands = self.commands.clone();
        tokio::spawn(async move {
            let Ok(upgraded) = upgraded.await else { return };
            let Ok(parts) = upgraded.downcast::<TokioIo<UnixStream>>() else { return };
            if let Ok(stream) = parts.io.into_inner().into_std() {
                let _ = commands.send(AdminCommand::HandOver(stream));
            }
        });
        let mut response = respond(StatusCode::SWITCHING_PROTOCOLS, String::new());
        response.headers_mut().insert(UPGRADE, HeaderValue::from_static("hosting-handover"));
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
        response
    }

    fn status(&self) -> EdgeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ready(&self, is_verbose: bool) -> Response<TextBody> {
        let status = self.status();
        let is_ready = status.is_started && !status.is_leaving;
        let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        if !is_verbose {
            return respond(code, if is_ready { "ready\n" } else { "not ready\n" }.to_owned());
        }
        let [(http, at_http), (https, at_https)] = self.listeners;
        let status_json = serde_json::json!({
            "is_ready": is_ready,
            "is_leaving": status.is_leaving,
            "is_connected": status.is_connected,
            "is_kept": status.is_saved,
            "epoch": status.epoch,
            "version": status.version,
            "routes_listening": status.counts.listening,
            "routes_refused": status.counts.refused,
            "descriptors": status.descriptors,
            "datagram_sessions_max": status.datagram_sessions,
            "pid": std::process::id(),
            http: at_http,
            https: at_https,
        });
        respond(code, format!("{status_json}\n"))
    }

    /// Returns the traffic of the owners after the one in the query (`after=ID`), or of the first owners.
    fn traffic(&self, query: &str) -> Response<TextBody> {
        let Some(worker) = self.workers.iter().next() else { return respond(StatusCode::OK, String::new()) };
        let page = worker.shared.traffic.page(query.strip_prefix("after=").unwrap_or_default(), PAGE_OWNERS);
        let text = serde_json::to_string(&page).unwrap_or_default();
        respond(StatusCode::OK, text + "\n")
    }

    /// Returns the sessions of the owners in the query (`owners=ID,ID`).
    fn sessions(&self, query: &str) -> Response<TextBody> {
        let Some(worker) = self.workers.iter().next() else { return respond(StatusCode::OK, String::new()) };
        let owners = query.strip_prefix("owners=").unwrap_or_default();
        let report = worker.shared.traffic.sessions(owners.split(','));
        let text = serde_json::to_string(&report).unwrap_or_default();
        respond(StatusCode::OK, text + "\n")
    }
}

impl Collector for AdminServer {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = self.status();
        let mut metrics = MetricsEncoder::new(encoder);
        let routes = [("listening", status.counts.listening), ("refused", status.counts.refused)];
        metrics.gauges("routes", "Routes by state.", "state", routes)?;
        metrics.gauge("routes_epoch", "Epoch of the routes.", status.epoch)?;
        metrics.gauge("routes_version", "Version of the routes.", status.version)?;
        let is_saved = u32::from(status.is_saved);
        metrics.gauge("routes_kept", "Whether the routes on disk are those in memory.", is_saved)?;
        metrics.gauge("source_connected", "Whether the data plane answers.", u32::from(status.is_connected))?;
        let shared = self.workers.iter().next().map(|worker| &worker.shared);
        let ends = shared.map_or_else(BTreeMap::new, |shared| shared.certificates.ends());
        metrics.gauges(
            "certificate_end_timestamp_seconds",
            "End of the validity of each certificate.",
            "server_name",
            ends.iter().map(|(name, end_s)| (name.as_str(), *end_s)),
        )?;
        let silent = shared.map_or(0, |shared| shared.limits.silent_count());
        metrics.gauge("connections_silent", "Open connections without a byte in either direction.", silent)?;
        metrics.gauge("descriptors_max", "Limit of descriptors.", status.descriptors)?;
        metrics.gauge("datagram_sessions_max", "Limit of UDP sessions.", status.datagram_sessions)?;
        let mut all: Vec<&ThreadCounters> = vec![&self.counters];
        all.extend(self.workers.iter().map(|worker| &worker.counters));
        all.extend(self.datagrams.counters().map(|counters| &**counters));
        metrics.thread_counters(&all)
    }
}

fn respond(status: StatusCode, text: String) -> Response<TextBody> {
    let mut response = Response::new(TextBody(Some(Bytes::from(text)).filter(|text| !text.is_empty())));
    *response.status_mut() = status;
    response
}

struct TextBody(Option<Bytes>);

impl Body for TextBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.take().map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |text| text.len() as u64))
    }
}
