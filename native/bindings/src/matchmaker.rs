//! `Matchmaker` class: decisions about requests, for the Python servers.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use hosting_core::{HoldId, Id, Reservation};
use hosting_matchmaker::{
    AttachCriteria, Body, Call, Callers, Client, ClientLimits, CreateCriteria, Credential, Held, LobbyAnswer,
    LobbyAnswers, Operation, Places, PlayerAddress, PlayerPort, Progress, Region, Regions, Subject, attach_region,
    create_target,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::PyBytes;

use crate::clients::client_key;
use crate::convert::{IdBytes, IdempotencyBytes, Placed};
use crate::engine::Engine;
use crate::errors::{raised, service_error};
use crate::namespaces::{Namespaces, PlayerAddresses};
use crate::rate_limits::Buckets;
use crate::servers::Creation;

/// Requests with longer bodies are decided without the GIL.
const LARGE_BYTES: usize = 64 << 10;

/// Buckets of tokens, of addresses of token holders, of addresses of other clients, of groups, and of lobbies.
type ClientLimitsArgument<'a> =
    (PyRef<'a, Buckets>, PyRef<'a, Buckets>, PyRef<'a, Buckets>, PyRef<'a, Buckets>, PyRef<'a, Buckets>);
/// Id, display name of the provider, display name, latitude and longitude.
type RegionArgument = (String, String, String, f64, f64);

fn limits((tokens, token_addresses, client_addresses, groups, lobbies): &ClientLimitsArgument<'_>) -> ClientLimits {
    ClientLimits {
        tokens: tokens.0.clone(),
        token_addresses: token_addresses.0.clone(),
        client_addresses: client_addresses.0.clone(),
        groups: groups.0.clone(),
        lobbies: lobbies.0.clone(),
    }
}

fn region((id, provider_display_name, display_name, latitude, longitude): RegionArgument) -> Region {
    Region { id, provider_display_name, display_name, coordinates: (latitude, longitude) }
}

/// Attributes of `pyservice.calls.Call`.
#[derive(FromPyObject)]
struct CallArgument {
    authorization: Option<PyBackedStr>,
    origin: Option<PyBackedStr>,
    idempotency_key: Option<PyBackedStr>,
    coords: Option<(f64, f64)>,
    client: IpAddr,
}

/// Attributes of `pyservice.calls.EncodedRequest`.
#[derive(FromPyObject)]
struct RequestArgument {
    operation: PyBackedStr,
    call: CallArgument,
    form: PyBackedStr,
    body: PyBackedBytes,
    path: PyBackedStr,
    query: PyBackedStr,
    media_type: Option<PyBackedBytes>,
    content_encoding: Option<PyBackedBytes>,
    is_paid: bool,
    admitted_modes: Option<Vec<String>>,
    are_ports_served: bool,
}

impl RequestArgument {
    fn call(&self) -> PyResult<Call<'_>> {
        Ok(Call {
            operation: native_operation(&self.operation)?,
            authorization: self.call.authorization.as_ref().map(|text| text.as_bytes()),
            origin: self.call.origin.as_ref().map(|text| text.as_bytes()),
            idempotency_key: self.call.idempotency_key.as_ref().map(|text| text.as_bytes()),
            media_type: self.media_type.as_deref(),
            content_encoding: self.content_encoding.as_deref(),
            coordinates: self.call.coords,
            client: self.call.client,
            body: match &*self.form {
                "json" => Body::Json(&self.body),
                "proto" => Body::Proto(&self.body),
                "checked" => Body::Checked(&self.body),
                "other" => Body::Other,
                _ => Body::Target { path: &self.path, query: &self.query },
            },
            progress: Progress {
                is_paid: self.is_paid,
                admitted_modes: self.admitted_modes.as_deref(),
                are_ports_served: self.are_ports_served,
                creation: None,
            },
        })
    }
}

fn native_operation(slug: &str) -> PyResult<Operation> {
    Operation::of_slug(slug).ok_or_else(|| PyValueError::new_err(format!("the operation {slug} is not native")))
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Reply(hosting_matchmaker::Reply);

#[pymethods]
impl Reply {
    fn json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let json = py.detach(|| self.0.json());
        PyBytes::new(py, &json)
    }

    fn proto<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let mut message = Vec::new();
        py.detach(|| self.0.write_proto(&mut message));
        PyBytes::new(py, &message)
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Decision {
    need: Option<&'static str>,
    error: Option<Py<PyAny>>,
    reply: Option<Py<Reply>>,
    wait: u64,
    hold: u64,
    lobby: Option<IdBytes>,
    namespace: Option<IdBytes>,
}

impl Decision {
    fn of(py: Python<'_>, decision: hosting_matchmaker::Decision) -> PyResult<Decision> {
        use hosting_matchmaker::Decision as Native;
        let mut result =
            Decision { need: None, error: None, reply: None, wait: 0, hold: 0, lobby: None, namespace: None };
        match decision {
            Native::Answered(answer) => {
                result.wait = answer.wait;
                result.reply = Some(Py::new(py, Reply(answer.reply))?);
            }
            Native::Refused { error, wait } => {
                result.wait = wait;
                result.error = Some(service_error(py, &error)?.unbind());
            }
            Native::Needs(need) => result.need = Some(need.slug()),
            Native::Held(Held { hold: HoldId(hold), lobby }) => {
                (result.hold, result.lobby) = (hold, lobby.map(IdBytes));
            }
        }
        Ok(result)
    }

    fn of_outcome(py: Python<'_>, outcome: hosting_matchmaker::Outcome) -> PyResult<Decision> {
        let mut result = Decision::of(py, outcome.decision)?;
        match outcome.subject {
            Some(Subject::Namespace(namespace)) => result.namespace = Some(IdBytes(namespace)),
            Some(Subject::Lobby(lobby)) => result.lobby = Some(IdBytes(lobby)),
            None => {}
        }
        Ok(result)
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Caller {
    kind: &'static str,
    namespace: Option<IdBytes>,
    lobby: Option<IdBytes>,
    identity: Vec<u8>,
    group: Option<IdBytes>,
}

impl From<&hosting_matchmaker::Caller> for Caller {
    fn from(caller: &hosting_matchmaker::Caller) -> Caller {
        use hosting_matchmaker::Caller as Native;
        let of_lobby = |lobby: Id, namespace: Option<Id>| Caller {
            kind: "lobby",
            namespace: namespace.map(IdBytes),
            lobby: Some(IdBytes(lobby)),
            identity: lobby.0.to_vec(),
            group: None,
        };
        match caller {
            Native::Lobby(lobby) => of_lobby(*lobby, None),
            Native::LobbyOf { lobby, namespace } => of_lobby(*lobby, *namespace),
            Native::Client(client) | Native::Development(client) => Caller {
                kind: kind(client),
                namespace: Some(IdBytes(client.namespace.id)),
                lobby: None,
                identity: client.identity(),
                group: Some(IdBytes(client.namespace.group)),
            },
            Native::Cloud => Caller { kind: "cloud", namespace: None, lobby: None, identity: Vec::new(), group: None },
        }
    }
}

fn kind(client: &Client) -> &'static str {
    match client.credential {
        Credential::Public => "pub",
        Credential::Service(_) => "env",
        Credential::Development(_) => "dev",
        Credential::Origin => "tokenless",
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct PlacementRequest {
    namespace: IdBytes,
    /// Whether a back end calls for the player.
    is_of_back_end: bool,
    message: Vec<u8>,
    idempotency: Option<IdempotencyBytes>,
    modes: Vec<String>,
    regions: Vec<String>,
}

#[pyclass(frozen, module = "pyservice._native")]
pub struct Matchmaker {
    pub inner: Arc<hosting_matchmaker::Matchmaker>,
    shard_number: u16,
}

#[pymethods]
impl Matchmaker {
    #[new]
    fn new(
        engine: &Engine,
        namespaces: &Namespaces,
        regions: Vec<RegionArgument>,
        addresses: &PlayerAddresses,
        client_limits: ClientLimitsArgument<'_>,
    ) -> Matchmaker {
        let inner = hosting_matchmaker::Matchmaker {
            shard: engine.shard.clone(),
            hash: engine.hash.clone(),
            namespaces: namespaces.0.clone(),
            limits: limits(&client_limits),
            places: Places {
                regions: Regions::new(regions.into_iter().map(region).collect()),
                addresses: addresses.0.clone(),
            },
            lobby_answers: LobbyAnswers::default(),
        };
        Matchmaker { inner: Arc::new(inner), shard_number: engine.shard_number }
    }

    fn decide(&self, py: Python<'_>, request: RequestArgument) -> PyResult<Decision> {
        let call = request.call()?;
        let mut outcome = if request.body.len() > LARGE_BYTES {
            py.detach(|| self.inner.answer(&call))
        } else {
            self.inner.answer(&call)
        };
        if let hosting_matchmaker::Decision::Answered(answer) = &mut outcome.decision
            && let hosting_matchmaker::Reply::Lobbies(page) = &mut answer.reply
        {
            py.detach(|| while !page.read_part(&self.inner.shard) {});
        }
        Decision::of_outcome(py, outcome)
    }

    #[pyo3(signature = (request, new_lobby = None))]
    fn place(
        &self,
        py: Python<'_>,
        request: RequestArgument,
        new_lobby: Option<(IdBytes, IdBytes, Creation)>,
    ) -> PyResult<Decision> {
        let (namespace, version, creation) = match &new_lobby {
            Some((namespace, version, creation)) => (namespace.0, version.0, Some(creation)),
            None => (Id::default(), Id::default(), None),
        };
        Creation::with(creation, self.shard_number, namespace, version, |creation| {
            let mut call = request.call()?;
            call.progress.creation = Some(creation);
            Decision::of_outcome(py, self.inner.answer(&call))
        })?
    }

    fn placement(&self, py: Python<'_>, request: RequestArgument) -> PyResult<PlacementRequest> {
        let placement = self.inner.placement(&request.call()?).map_err(|error| raised(py, &error))?;
        Ok(PlacementRequest {
            namespace: IdBytes(placement.client.namespace.id),
            is_of_back_end: matches!(placement.client.credential, Credential::Service(_)),
            message: placement.message,
            idempotency: placement.idempotency.map(IdempotencyBytes),
            modes: placement.modes,
            regions: placement.regions,
        })
    }

    fn placed(&self, py: Python<'_>, placed: &Placed) -> PyResult<Decision> {
        let reservation = Reservation { lobby: placed.lobby.0, tokens: placed.tokens.clone() };
        Decision::of(py, self.inner.placed(Ok(reservation), placed.wait))
    }

    /// Returns the response for players of a lobby, or None if the lobby has ended.
    fn reply(&self, lobby: IdBytes, tokens: Vec<String>) -> Option<Reply> {
        match self.inner.placed(Ok(Reservation { lobby: lobby.0, tokens }), 0) {
            hosting_matchmaker::Decision::Answered(answer) => Some(Reply(answer.reply)),
            _ => None,
        }
    }

    fn source(
        &self,
        py: Python<'_>,
        namespace: IdBytes,
        is_back_end: bool,
        client: &[u8],
        player: Option<&str>,
    ) -> PyResult<u64> {
        let source = self.inner.source(namespace.0, is_back_end, client_key(client)?, player);
        source.map_err(|error| raised(py, &error))
    }

    #[pyo3(signature = (namespace, mode, region, publicity, *, has_tags, max_players, party_size, coords))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn create_target(
        &self,
        py: Python<'_>,
        namespace: IdBytes,
        mode: &str,
        region: Option<&str>,
        publicity: Option<&str>,
        has_tags: bool,
        max_players: Option<u32>,
        party_size: u32,
        coords: Option<(f64, f64)>,
    ) -> PyResult<(String, String)> {
        let criteria =
            CreateCriteria { mode, region, publicity, has_tags, max_players, party_size, coordinates: coords };
        let target = create_target(&*self.namespace(namespace)?, &self.inner.places.regions, &criteria);
        target.map_err(|error| raised(py, &error))
    }

    fn attach_region(
        &self,
        py: Python<'_>,
        namespace: IdBytes,
        mode: &str,
        region: Option<&str>,
        has_tags: bool,
        ports: Vec<String>,
    ) -> PyResult<String> {
        let ports: BTreeSet<&str> = ports.iter().map(String::as_str).collect();
        let criteria = AttachCriteria { mode, region, has_tags, ports };
        let region = attach_region(&*self.namespace(namespace)?, &self.inner.places.regions, &criteria);
        region.map_err(|error| raised(py, &error))
    }

    fn check_mode(&self, py: Python<'_>, namespace: IdBytes, mode: &str) -> PyResult<()> {
        hosting_matchmaker::check_mode(&*self.namespace(namespace)?, mode).map_err(|error| raised(py, &error))
    }

    fn caller(
        &self,
        py: Python<'_>,
        operation: &str,
        authorization: Option<&str>,
        origin: Option<&str>,
        address: &[u8],
    ) -> PyResult<Caller> {
        let callers = Operation::callers_of(operation).ok_or_else(|| PyValueError::new_err("not of the matchmaker"))?;
        let (authorization, origin) = (authorization.map(str::as_bytes), origin.map(str::as_bytes));
        let caller = self.inner.caller(callers, authorization, origin, client_key(address)?);
        caller.map(|caller| Caller::from(&caller)).map_err(|error| raised(py, &error))
    }
}

impl Matchmaker {
    fn namespace(&self, id: IdBytes) -> PyResult<Arc<hosting_matchmaker::Namespace>> {
        self.inner.namespaces.get(id.0).ok_or_else(|| PyValueError::new_err("the namespace is not known"))
    }
}

/// Returns the token of an `authorization` header, and its kind. Raises TOKEN_MISSING, TOKEN_INVALID, FORBIDDEN.
#[pyfunction]
pub fn bearer_token(
    py: Python<'_>,
    authorization: Option<&str>,
    accepted_kinds: Vec<String>,
) -> PyResult<(String, String)> {
    let kinds: Vec<&str> = accepted_kinds.iter().map(String::as_str).collect();
    let token = hosting_matchmaker::accepted_token(authorization.map(str::as_bytes), &kinds);
    let (token, kind) = token.map_err(|error| raised(py, &error))?;
    Ok((token.to_owned(), kind.to_owned()))
}

/// Returns the callers of an operation of the matchmaker, or None for another one.
#[pyfunction]
pub fn callers_of(operation: &str) -> Option<&'static str> {
    Operation::callers_of(operation).map(|callers| match callers {
        Callers::Clients => "clients",
        Callers::LobbyServers => "lobby_servers",
        Callers::StateReaders => "state_readers",
        Callers::Operators => "operators",
    })
}

/// Number of a port, or first and last number of a range.
#[derive(FromPyObject)]
pub enum PortNumbers {
    Number(u16),
    Range((u16, u16)),
}

/// Returns the encoded response to the find, join or create of a `dev_` token.
#[pyfunction]
pub fn mock_placement<'py>(
    py: Python<'py>,
    region: (String, String),
    hostname: &str,
    ports: Vec<(String, PortNumbers, bool)>,
    tokens: Vec<String>,
) -> Bound<'py, PyBytes> {
    let address = |(name, numbers, is_tls)| {
        let port = match numbers {
            PortNumbers::Number(number) => PlayerPort::Number(number),
            PortNumbers::Range((first, last)) => PlayerPort::Range(first, last),
        };
        (name, PlayerAddress { hostname: hostname.to_owned(), port, is_tls })
    };
    let mut message = Vec::new();
    LobbyAnswer::of_mock(region, ports.into_iter().map(address).collect()).write_proto(&tokens, &mut message);
    PyBytes::new(py, &message)
}

/// Raises MEDIA_TYPE_UNSUPPORTED for a body that is not JSON, or that has an encoding.
#[pyfunction]
pub fn check_body_form(py: Python<'_>, media_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> PyResult<()> {
    hosting_matchmaker::check_body_form(media_type, content_encoding).map_err(|error| raised(py, &error))
}

/// Raises HEADER_INVALID for an invalid idempotency key.
#[pyfunction]
pub fn check_idempotency_key(py: Python<'_>, key: &str) -> PyResult<()> {
    hosting_matchmaker::check_key(key.as_bytes()).map_err(|error| raised(py, &error))
}

/// Location, word and reason of a problem.
type FindingTuple = (Vec<Cow<'static, str>>, &'static str, Cow<'static, str>);

/// Returns the problems of the encoded message of a native operation.
#[pyfunction]
pub fn broken_rules(operation: &str, message: &[u8]) -> PyResult<Vec<FindingTuple>> {
    let findings = hosting_matchmaker::rules_of_proto(native_operation(operation)?, message)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(findings.into_iter().map(|finding| (finding.location, finding.word, finding.reason)).collect())
}
