//! Classes of the front: its start and stop, the changes that wake parked requests, and its measurements.

use std::collections::HashMap;
use std::net::TcpListener;
use std::num::NonZero;
use std::os::fd::RawFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use hosting_front::{
    BodyBudget, ByPlane, Changes, ClientAddresses, ConnectionBudget as Budget, Cors, FailedAuthentications,
    Front as RunningFront, FrontOptions, OperationCounts, PassReason, PassingOptions, Plane, RequestLimits,
    RequestRecord, RouteOptions, Routes, Timeouts, code_names,
};
use hosting_matchmaker::{Limit, Subject};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::clients::parse_networks;
use crate::convert::{IdBytes, copied};
use crate::grpc_front::GrpcArgument;
use crate::matchmaker::Matchmaker;
use crate::public_certificate::PublicCertificate;
use crate::rate_limits::Buckets;

const THREADS_MAX: NonZero<usize> = NonZero::new(8).expect("8 is not 0");
/// Limit on the memory of parked requests.
const PARKED_BYTES_MAX: usize = 256 << 20;

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontRecord {
    ray_id: String,
    parent_span_id: Option<String>,
    operation: String,
    lobby: Option<IdBytes>,
    namespace: Option<IdBytes>,
    code: String,
    started_s_ago: f64,
    executed_s_ago: f64,
    ended_s_ago: f64,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontCounts {
    operation: String,
    codes: HashMap<String, u64>,
    durations: Vec<u64>,
    duration_sum_s: f64,
    /// Number of requests that were passed on to Python, by reason.
    passed: HashMap<&'static str, u64>,
    /// Number of requests that a rate limit refused, by limit.
    rate_limited: HashMap<&'static str, u64>,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontMeasurements {
    counts: Vec<Py<FrontCounts>>,
    records: Vec<Py<FrontRecord>>,
    grpc_counts: Vec<Py<FrontCounts>>,
    grpc_records: Vec<Py<FrontRecord>>,
    dropped_records: u64,
    limited_failures: u64,
    grpc_limited_failures: u64,
    in_flight: usize,
    grpc_in_flight: usize,
    parked: usize,
    body_bytes: usize,
    grpc_body_bytes: usize,
}

fn record(names: &PassingOptions, now: Instant, record: &RequestRecord) -> FrontRecord {
    let ago = |moment: Instant| (now - moment).as_secs_f64();
    let (lobby, namespace) = match record.caller {
        Some(Subject::Lobby(lobby)) => (Some(IdBytes(lobby)), None),
        Some(Subject::Namespace(namespace)) => (None, Some(IdBytes(namespace))),
        None => (None, None),
    };
    let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    FrontRecord {
        ray_id: text(&record.ray_id.digits()),
        parent_span_id: record.trace.map(|trace| text(&trace.parent_span)),
        operation: names.routes.slugs()[record.operation].clone(),
        lobby,
        namespace,
        code: code_names().nth(record.code).unwrap_or_default().to_owned(),
        started_s_ago: ago(record.started),
        executed_s_ago: ago(record.executed),
        ended_s_ago: ago(record.ended),
    }
}

fn counts_of(operation: &str, counted: OperationCounts) -> FrontCounts {
    let codes = code_names().map(str::to_owned).zip(counted.codes);
    FrontCounts {
        operation: operation.to_owned(),
        codes: codes.filter(|(_, count)| *count > 0).collect(),
        durations: counted.durations,
        duration_sum_s: counted.duration_sum.as_secs_f64(),
        passed: counts_by(PassReason::all().map(PassReason::slug), counted.passed),
        rate_limited: counts_by(Limit::ALL.map(Limit::slug), counted.rate_limited),
    }
}

fn counts_by(
    names: impl IntoIterator<Item = &'static str>,
    counts: impl IntoIterator<Item = u64>,
) -> HashMap<&'static str, u64> {
    names.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
}

/// HTTP method, path template, slug, whether the control plane serves it, largest body, and whether it needs a token.
type RouteArgument = (String, String, String, bool, usize, bool);
/// Attributes of the Python object that describes how the front passes requests on.
#[derive(FromPyObject)]
struct PassingArgument {
    routes: Vec<RouteArgument>,
    cors_origins: Vec<String>,
    data_socket: PathBuf,
    control_socket: PathBuf,
    answer_timeout_ms: u64,
    data_requests_max: usize,
    control_requests_max: usize,
    url_bytes_max: usize,
    headers_bytes_max: usize,
    body_bytes_max: usize,
    bodies_bytes_max: usize,
    unread_answers_bytes_max: usize,
    failed_authentications: Py<Buckets>,
}

impl PassingArgument {
    fn into_options(self) -> PyResult<PassingOptions> {
        let largest = self.routes.iter().map(|route| route.4).max().unwrap_or_default();
        let route = |(method, template, slug, is_control, body_bytes_max, needs_token): RouteArgument| {
            let plane = if is_control { Plane::Control } else { Plane::Data };
            RouteOptions { method, template, slug, plane, body_bytes_max, needs_token }
        };
        Ok(PassingOptions {
            routes: Routes::new(self.routes.into_iter().map(route)).map_err(PyValueError::new_err)?,
            cors: Cors::new(self.cors_origins),
            data_socket: self.data_socket,
            control_socket: self.control_socket,
            answer_timeout: Duration::from_millis(self.answer_timeout_ms),
            requests_max: ByPlane { data: self.data_requests_max, control: self.control_requests_max },
            limits: RequestLimits {
                url_bytes_max: self.url_bytes_max,
                headers_bytes_max: self.headers_bytes_max,
                body_bytes_max: self.body_bytes_max,
            },
            bodies: BodyBudget::new(self.bodies_bytes_max, largest),
            answers: BodyBudget::new(self.unread_answers_bytes_max, largest),
            failed_authentications: FailedAuthentications::new(self.failed_authentications.get().0.clone()),
            parked: Arc::default(),
            parked_bytes: BodyBudget::without_reserve(PARKED_BYTES_MAX),
        })
    }
}

/// Returns one thread for each core of the process, up to a limit: game servers need cores too.
fn thread_count() -> NonZero<usize> {
    available_parallelism().unwrap_or(NonZero::<usize>::MIN).min(THREADS_MAX)
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Front(RunningFront);

#[pymethods]
impl Front {
    #[staticmethod]
    #[pyo3(signature = (matchmaker, listener_fd, edge_listener_fd, *, passing, connections_max, duration_bounds_s, records_per_second, trusted_proxies, edge_proxies, has_proxy_headers, game_servers,
        receive_timeout_ms, keep_alive_timeout_ms, grpc, certificate))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn start(
        matchmaker: &Matchmaker,
        listener_fd: RawFd,
        edge_listener_fd: Option<RawFd>,
        passing: PassingArgument,
        connections_max: Option<usize>,
        duration_bounds_s: Vec<f64>,
        records_per_second: u32,
        trusted_proxies: Vec<String>,
        edge_proxies: Vec<String>,
        has_proxy_headers: bool,
        game_servers: Vec<(u32, u32)>,
        receive_timeout_ms: u64,
        keep_alive_timeout_ms: u64,
        grpc: Option<GrpcArgument>,
        certificate: Option<&PublicCertificate>,
    ) -> PyResult<Front> {
        let passing = passing.into_options()?;
        let grpc = grpc.map(|grpc| grpc.into_options(passing.bodies.clone())).transpose()?;
        let options = FrontOptions {
            threads: thread_count(),
            listener: TcpListener::from(copied(listener_fd)?),
            edge_listener: edge_listener_fd.map(copied).transpose()?.map(UnixListener::from),
            budget: Arc::new(Budget::new(connections_max.unwrap_or(usize::MAX))),
            matchmaker: matchmaker.inner.clone(),
            duration_bounds: duration_bounds_s.into_iter().map(Duration::from_secs_f64).collect(),
            records_per_second,
            addresses: ClientAddresses {
                proxies: parse_networks(&trusted_proxies)?,
                edge_proxies: parse_networks(&edge_proxies)?,
                has_proxy_headers,
                game_servers: game_servers.into_iter().map(|(first, last)| first..=last).collect(),
            },
            timeouts: Timeouts::new(
                Duration::from_millis(receive_timeout_ms),
                Duration::from_millis(keep_alive_timeout_ms),
            ),
            passing,
            grpc,
            certificate: certificate.map(|certificate| certificate.certificate.clone()),
        };
        Ok(Front(RunningFront::start(options)?))
    }

    fn take_changes(
        &self,
        is_control: bool,
        run: String,
        sequence: u64,
        topics: Vec<(String, u64)>,
        is_complete: bool,
    ) {
        let plane = if is_control { Plane::Control } else { Plane::Data };
        self.0.take_changes(plane, Changes { run, sequence, topics, is_complete });
    }

    fn take_measurements(&self, py: Python<'_>) -> PyResult<FrontMeasurements> {
        let (names, measured) = self.0.take_measurements();
        let over_grpc = self.0.take_grpc_measurements();
        let grpc_body_bytes = names.bodies.held_bytes_of_calls();
        let now = Instant::now();
        let records = |records: &[RequestRecord]| {
            records.iter().map(|one| Py::new(py, record(names, now, one))).collect::<PyResult<_>>()
        };
        let counts = |operations: Vec<OperationCounts>| {
            let counts = names.routes.slugs().iter().zip(operations);
            let counts = counts.filter(|(_, counted)| counted.codes.iter().any(|count| *count > 0));
            counts.map(|(operation, counted)| Py::new(py, counts_of(operation, counted))).collect::<PyResult<_>>()
        };
        Ok(FrontMeasurements {
            records: records(&measured.records)?,
            counts: counts(measured.operations)?,
            grpc_records: records(&over_grpc.records)?,
            grpc_counts: counts(over_grpc.operations)?,
            dropped_records: measured.dropped_records + over_grpc.dropped_records,
            limited_failures: measured.limited_failures,
            grpc_limited_failures: over_grpc.limited_failures,
            in_flight: measured.in_flight,
            grpc_in_flight: over_grpc.in_flight,
            parked: names.parked.load(Ordering::Relaxed),
            body_bytes: names.bodies.held_bytes().saturating_sub(grpc_body_bytes),
            grpc_body_bytes,
        })
    }

    fn set_serving(&self, is_serving: bool) {
        self.0.set_serving(is_serving);
    }

    fn stop(&self, py: Python<'_>, grace_ms: u64) {
        py.detach(|| self.0.stop(Duration::from_millis(grace_ms)));
    }
}
