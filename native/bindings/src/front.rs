//! Classes of the front: its start and stop, the connections that Python gets, and its measurements.

use std::collections::HashMap;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hosting_front::{
    AnswerTemplate, Answers, Caller, ClientAddresses, ClientKey, ClientLimits, ConnectionBudget as Budget,
    Front as RunningFront, FrontOptions, GameMode, HandedOver, LobbyAnswers, Operation, OperationCounts, Operations,
    OwnerKind, Places, PlayerPort, RequestRecord, ServiceToken, Timeouts,
};
use ipnet::IpNet;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{IdBytes, KeyBytes};
use crate::engine::Engine;
use crate::servers::LeasedPort;

fn client_key(bytes: &[u8]) -> PyResult<ClientKey> {
    ClientKey::from_bytes(bytes).ok_or_else(|| PyValueError::new_err("a client has 4 or 8 bytes"))
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct ConnectionBudget(Arc<Budget>);

#[pymethods]
impl ConnectionBudget {
    #[new]
    fn new(most: Option<usize>) -> ConnectionBudget {
        ConnectionBudget(Arc::new(Budget::new(most.unwrap_or(usize::MAX))))
    }

    fn enter(&self, client: Option<&[u8]>) -> PyResult<bool> {
        Ok(self.0.enter(client.map(client_key).transpose()?))
    }

    fn introduce(&self, client: &[u8]) -> PyResult<bool> {
        Ok(self.0.introduce(client_key(client)?))
    }

    fn leave(&self, client: Option<&[u8]>) -> PyResult<()> {
        self.0.leave(client.map(client_key).transpose()?);
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

/// Descriptor of a connection, its unread bytes, and the client that it counts for.
type Connection = (RawFd, Py<PyBytes>, Option<Py<PyBytes>>);

fn connection(py: Python<'_>, handed_over: HandedOver) -> Connection {
    let HandedOver { stream, unread, admission } = handed_over;
    let client = admission.and_then(hosting_front::Admission::hand_over);
    let client = client.map(|client| PyBytes::new(py, client.as_bytes()).unbind());
    (stream.into_raw_fd(), PyBytes::new(py, &unread).unbind(), client)
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Buckets(Arc<hosting_front::Buckets>);

#[pymethods]
impl Buckets {
    #[new]
    fn new(per_second: f64, burst: u32, max_keys: usize) -> Buckets {
        Buckets(Arc::new(hosting_front::Buckets::new(per_second, burst, max_keys)))
    }

    fn change(&self, per_second: f64, burst: u32) {
        self.0.change(per_second, burst);
    }

    fn take(&self, key: &[u8], now: f64) -> f64 {
        self.0.take(key, now)
    }

    fn put_back(&self, key: &[u8]) {
        self.0.put_back(key);
    }

    fn __len__(&self) -> usize {
        self.0.count()
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct PlayerAddresses(hosting_front::PlayerAddresses);

#[pymethods]
impl PlayerAddresses {
    #[new]
    fn new(job_domain: Option<String>, advertised: String, node: String, has_certificate: bool) -> PlayerAddresses {
        PlayerAddresses(hosting_front::PlayerAddresses { job_domain, advertised, node, has_certificate })
    }

    fn address_of(
        &self,
        port: &LeasedPort,
        lease_owner: IdBytes,
        region: &str,
        owner_kind: &str,
    ) -> (String, Option<u16>, Option<(u16, u16)>, bool) {
        let kind = if owner_kind == "server" { OwnerKind::Server } else { OwnerKind::Lobby };
        let address = self.0.address_of(&port.name, port.protocol, port.exposure, lease_owner.0, region, kind);
        match address.port {
            PlayerPort::Number(number) => (address.hostname, Some(number), None, address.is_tls),
            PlayerPort::Range(first, last) => (address.hostname, None, Some((first, last)), address.is_tls),
        }
    }
}

/// Name, largest party, whether find is enabled, and the regions or None for all.
type ModeArgument = (String, u32, bool, Option<Vec<String>>);
/// SHA-256 of the token, its id, and its expiry in Unix ms.
type TokenArgument = (KeyBytes, IdBytes, Option<u64>);

#[pyclass(frozen, module = "pyservice._native")]
pub struct Namespace(Arc<hosting_front::Namespace>);

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (namespace, *, version, group, source_limit, needs_admission, modes, service_tokens, revoked))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn new(
        namespace: IdBytes,
        version: IdBytes,
        group: IdBytes,
        source_limit: u32,
        needs_admission: bool,
        modes: Vec<ModeArgument>,
        service_tokens: Vec<TokenArgument>,
        revoked: Vec<IdBytes>,
    ) -> Namespace {
        let mode =
            |(name, max_players, is_find_enabled, regions)| (name, GameMode { max_players, is_find_enabled, regions });
        let token = |(sha256, token_id, expires_ms): TokenArgument| ServiceToken {
            sha256: sha256.0,
            token_id: token_id.0,
            expires_ms,
        };
        let mut namespace = hosting_front::Namespace {
            id: namespace.0,
            version: version.0,
            group: group.0,
            source_limit,
            needs_admission,
            modes: modes.into_iter().map(mode).collect(),
            service_tokens: service_tokens.into_iter().map(token).collect(),
            revoked: revoked.into_iter().map(|id| id.0).collect(),
        };
        namespace.sort_revoked();
        Namespace(Arc::new(namespace))
    }

    fn service_token_hashes(&self, py: Python<'_>) -> Vec<Py<PyBytes>> {
        self.0.service_tokens.iter().map(|token| PyBytes::new(py, &token.sha256).unbind()).collect()
    }
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Namespaces(Arc<hosting_front::Namespaces>);

#[pymethods]
impl Namespaces {
    #[new]
    fn new() -> Namespaces {
        Namespaces(Arc::default())
    }

    fn put(&self, namespace: &Namespace) {
        self.0.put(namespace.0.clone());
    }

    fn remove(&self, namespace: IdBytes) {
        self.0.remove(namespace.0);
    }

    fn is_revoked(&self, namespace: IdBytes, token_id: IdBytes) -> bool {
        self.0.is_revoked(namespace.0, token_id.0)
    }

    fn service_token(&self, sha256: KeyBytes) -> Option<(IdBytes, IdBytes, Option<u64>)> {
        let (namespace, token) = self.0.service_token(&sha256.0)?;
        Some((IdBytes(namespace.id), IdBytes(token.token_id), token.expires_ms))
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontRecord {
    ray_id: String,
    operation: &'static str,
    lobby: Option<IdBytes>,
    namespace: Option<IdBytes>,
    code: &'static str,
    started_s_ago: f64,
    executed_s_ago: f64,
    ended_s_ago: f64,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontCounts {
    operation: &'static str,
    codes: HashMap<&'static str, u64>,
    durations: Vec<u64>,
    duration_sum_s: f64,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct FrontMeasurements {
    counts: Vec<Py<FrontCounts>>,
    records: Vec<Py<FrontRecord>>,
    dropped_records: u64,
    in_flight: usize,
}

fn record(codes: &[&'static str], now: Instant, record: &RequestRecord) -> FrontRecord {
    let ago = |moment: Instant| (now - moment).as_secs_f64();
    let (lobby, namespace) = match record.caller {
        Caller::Lobby(lobby) => (Some(IdBytes(lobby)), None),
        Caller::Namespace(namespace) => (None, Some(IdBytes(namespace))),
    };
    FrontRecord {
        ray_id: String::from_utf8_lossy(&record.ray_id.digits()).into_owned(),
        operation: record.operation.slug(),
        lobby,
        namespace,
        code: codes[record.code],
        started_s_ago: ago(record.started),
        executed_s_ago: ago(record.executed),
        ended_s_ago: ago(record.ended),
    }
}

fn counts_of(codes: &[&'static str], operation: Operation, counted: OperationCounts) -> FrontCounts {
    FrontCounts {
        operation: operation.slug(),
        codes: codes.iter().copied().zip(counted.codes).filter(|(_, count)| *count > 0).collect(),
        durations: counted.durations,
        duration_sum_s: counted.duration_sum.as_secs_f64(),
    }
}

/// Buckets of tokens, of addresses of token holders, of addresses of other clients, and of groups.
type ClientLimitsArgument<'a> = (PyRef<'a, Buckets>, PyRef<'a, Buckets>, PyRef<'a, Buckets>, PyRef<'a, Buckets>);

fn answers(refusals: HashMap<String, Vec<Vec<u8>>>) -> PyResult<Answers> {
    let templates = refusals.into_iter().map(|(code, parts)| (code, AnswerTemplate::new(parts))).collect();
    Answers::new(templates).map_err(|code| PyValueError::new_err(format!("{code} has no response")))
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Front(RunningFront);

#[pymethods]
impl Front {
    #[staticmethod]
    #[pyo3(signature = (engine, listener_fd, budget, namespaces, refusals, *, client_limits, regions, addresses,
        duration_bounds_s, trusted_proxies, has_proxy_headers,
        game_servers, receive_timeout_ms, keep_alive_timeout_ms, request_bytes_max))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn start(
        engine: &Engine,
        listener_fd: RawFd,
        budget: &ConnectionBudget,
        namespaces: &Namespaces,
        refusals: HashMap<String, Vec<Vec<u8>>>,
        client_limits: ClientLimitsArgument<'_>,
        regions: Vec<(String, String)>,
        addresses: &PlayerAddresses,
        duration_bounds_s: Vec<f64>,
        trusted_proxies: Vec<String>,
        has_proxy_headers: bool,
        game_servers: Vec<(u32, u32)>,
        receive_timeout_ms: u64,
        keep_alive_timeout_ms: u64,
        request_bytes_max: usize,
    ) -> PyResult<Front> {
        // SAFETY: the caller keeps its descriptor open during this call.
        let listener = unsafe { BorrowedFd::borrow_raw(listener_fd) }.try_clone_to_owned()?;
        let proxies = trusted_proxies.iter().map(|network| network.parse::<IpNet>()).collect::<Result<_, _>>();
        let (tokens, token_addresses, client_addresses, groups) = client_limits;
        let operations = Operations {
            shard: engine.shard.clone(),
            hash: engine.hash.clone(),
            namespaces: namespaces.0.clone(),
            limits: ClientLimits {
                tokens: tokens.0.clone(),
                token_addresses: token_addresses.0.clone(),
                client_addresses: client_addresses.0.clone(),
                groups: groups.0.clone(),
            },
            places: Places {
                regions: regions.iter().map(|(id, _)| id.clone()).collect(),
                region_names: regions.into_iter().collect(),
                addresses: addresses.0.clone(),
            },
            answers: answers(refusals)?,
            lobby_answers: LobbyAnswers::default(),
        };
        let options = FrontOptions {
            listener: TcpListener::from(listener),
            budget: budget.0.clone(),
            operations,
            duration_bounds: duration_bounds_s.into_iter().map(Duration::from_secs_f64).collect(),
            addresses: ClientAddresses {
                proxies: proxies.map_err(|error| PyValueError::new_err(error.to_string()))?,
                has_proxy_headers,
                game_servers: game_servers.into_iter().map(|(first, last)| first..=last).collect(),
            },
            timeouts: Timeouts {
                receive: Duration::from_millis(receive_timeout_ms),
                keep_alive: Duration::from_millis(keep_alive_timeout_ms),
            },
            request_bytes_max,
        };
        Ok(Front(RunningFront::start(options)?))
    }

    fn signal_fd(&self) -> RawFd {
        self.0.handed_over().signal().as_raw_fd()
    }

    fn take_connections(&self, py: Python<'_>) -> Vec<Connection> {
        self.0.handed_over().take().into_iter().map(|one| connection(py, one)).collect()
    }

    fn take_measurements(&self, py: Python<'_>) -> PyResult<FrontMeasurements> {
        let (codes, measured) = self.0.take_measurements();
        let now = Instant::now();
        let records = measured.records.iter().map(|one| Py::new(py, record(codes, now, one)));
        let counts = Operation::ALL.into_iter().zip(measured.operations);
        let counts = counts.map(|(operation, counted)| Py::new(py, counts_of(codes, operation, counted)));
        Ok(FrontMeasurements {
            counts: counts.collect::<PyResult<_>>()?,
            records: records.collect::<PyResult<_>>()?,
            dropped_records: measured.dropped_records,
            in_flight: measured.in_flight,
        })
    }

    fn stop(&self, py: Python<'_>, grace_ms: u64) {
        py.detach(|| self.0.stop(Duration::from_millis(grace_ms)));
    }
}
