//! `Servers` class: lobbies that the service starts, port leases, and routes for edge-guard.

use std::sync::Arc;

use hosting_core as core;
use hosting_core::{Attach, Id, LeaseRequest, PortExposure, PortRequest, Protocol, Publicity};
use hosting_shard::Shard;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::{convert, facts};

/// Requested port: name, protocol, kind ("number", "host" or "range"), and first and last number of a range.
type PortWish = (String, String, String, u16, u16);
type BackendArgument = (String, String, u16);
type WantedRow<'py> = (Bound<'py, PyBytes>, bool);

const PROTOCOLS: [(&str, Protocol); 5] = [
    ("http", Protocol::Http),
    ("https", Protocol::Https),
    ("tcp", Protocol::Tcp),
    ("tcp_tls", Protocol::TcpTls),
    ("udp", Protocol::Udp),
];

fn protocol_of(word: &str) -> PyResult<Protocol> {
    let known = PROTOCOLS.iter().find(|(name, _)| *name == word);
    known.map(|(_, protocol)| *protocol).ok_or_else(|| PyValueError::new_err(format!("no protocol {word:?}")))
}

fn protocol_word(protocol: Protocol) -> &'static str {
    PROTOCOLS.iter().find(|(_, known)| *known == protocol).map_or("", |(name, _)| name)
}

fn port_wishes(wishes: &[PortWish]) -> PyResult<Vec<PortRequest<'_>>> {
    let mut ports = Vec::with_capacity(wishes.len());
    for (name, protocol, kind, first, last) in wishes {
        let exposure = match kind.as_str() {
            "number" => PortExposure::Number(0),
            "host" => PortExposure::Host,
            "range" => PortExposure::Range(*first, *last),
            _ => return Err(PyValueError::new_err(format!("a port is not exposure by {kind:?}"))),
        };
        ports.push(PortRequest { name, protocol: protocol_of(protocol)?, exposure });
    }
    Ok(ports)
}

/// Template of a lobby that the service starts. The engine assigns the id and the ports.
#[pyclass(frozen, module = "pyservice._native")]
pub struct Make {
    mode: String,
    region: String,
    ports: Vec<PortWish>,
    tags: Vec<(String, String)>,
    limits: (u32, u32, u32),
    player_token_ttl_ms: u64,
    heartbeat_timeout_ms: u64,
    heartbeat_grace_ms: u64,
    is_join_enabled: bool,
    is_public: bool,
    lobby_config: Option<Vec<u8>>,
    lobby_count_max: u32,
}

#[pymethods]
impl Make {
    #[new]
    #[pyo3(signature = (mode, region, ports, *, tags = None, max_players, player_token_ttl_ms, heartbeat_timeout_ms,
        heartbeat_grace_ms, is_join_enabled, is_public = true, lobby_config = None, lobby_count_max))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn new(
        mode: String,
        region: String,
        ports: Vec<PortWish>,
        tags: Option<Vec<(String, String)>>,
        max_players: (u32, u32, u32),
        player_token_ttl_ms: u64,
        heartbeat_timeout_ms: u64,
        heartbeat_grace_ms: u64,
        is_join_enabled: bool,
        is_public: bool,
        lobby_config: Option<Vec<u8>>,
        lobby_count_max: u32,
    ) -> PyResult<Make> {
        port_wishes(&ports)?;
        let mut tags = tags.unwrap_or_default();
        tags.sort_unstable();
        Ok(Make {
            mode,
            region,
            ports,
            tags,
            limits: max_players,
            player_token_ttl_ms,
            heartbeat_timeout_ms,
            heartbeat_grace_ms,
            is_join_enabled,
            is_public,
            lobby_config,
            lobby_count_max,
        })
    }
}

impl Make {
    /// Calls `run` with the template as a core type and with a new lobby id.
    pub fn with<R>(
        &self,
        shard_number: u16,
        namespace: Id,
        version: Id,
        run: impl FnOnce(&core::LobbyTemplate<'_>) -> R,
    ) -> PyResult<R> {
        let tags: Vec<_> = self.tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let lobby = Attach {
            id: convert::fresh_lobby_id(shard_number)?,
            namespace,
            version,
            mode: &self.mode,
            region: &self.region,
            tags: &tags,
            max_players: self.limits.0,
            max_players_direct: self.limits.1,
            max_players_party: self.limits.2,
            player_token_ttl_ms: self.player_token_ttl_ms,
            heartbeat_timeout_ms: self.heartbeat_timeout_ms,
            heartbeat_grace_ms: self.heartbeat_grace_ms,
            is_join_enabled: self.is_join_enabled,
            ports: &[],
            create_ts_ms: facts::wall_ms(),
            lobby_count_max: self.lobby_count_max,
            idempotency: None,
        };
        Ok(run(&core::LobbyTemplate {
            lobby,
            publicity: if self.is_public { Publicity::Public } else { Publicity::Private },
            lobby_config: self.lobby_config.as_deref(),
            ports: &port_wishes(&self.ports)?,
            random: convert::random()?,
        }))
    }
}

/// Template of the lobby that find or create may create.
#[derive(FromPyObject)]
pub enum Creation {
    Possible(Py<Make>),
    /// Creation is not possible. Contains `lobby_count_max`.
    Impossible(u32),
}

impl Creation {
    /// Calls `run` with the core type of this value.
    pub fn with<R>(
        this: Option<&Creation>,
        shard_number: u16,
        namespace: Id,
        version: Id,
        run: impl FnOnce(core::CreationPolicy<'_>) -> R,
    ) -> PyResult<R> {
        match this {
            None => Ok(run(core::CreationPolicy::Prevented)),
            Some(Creation::Impossible(lobby_count_max)) => {
                Ok(run(core::CreationPolicy::Impossible { lobby_count_max: *lobby_count_max }))
            }
            Some(Creation::Possible(make)) => {
                make.get().with(shard_number, namespace, version, |make| run(core::CreationPolicy::Possible(make)))
            }
        }
    }
}

/// A leased port of a lobby or server.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct LeasedPort {
    name: String,
    protocol: &'static str,
    /// Public port number. 0 means that players use a host name or a port range.
    number: u16,
    range: Option<(u16, u16)>,
    backend: Option<(String, u16)>,
}

impl LeasedPort {
    pub fn of(port: &core::LeasedPort) -> LeasedPort {
        let (number, range) = match port.exposure {
            PortExposure::Number(number) => (number, None),
            PortExposure::Host => (0, None),
            PortExposure::Range(first, last) => (0, Some((first, last))),
        };
        LeasedPort {
            name: port.name.to_string(),
            protocol: protocol_word(port.protocol),
            number,
            range,
            backend: port.backend.as_ref().map(|backend| (backend.address.to_string(), backend.port)),
        }
    }
}

/// Route of one player address to its backend.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Route {
    owner: Py<PyBytes>,
    is_server: bool,
    region: String,
    port: Py<LeasedPort>,
}

/// Durable route changes.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Routes {
    version: u64,
    is_complete: bool,
    changed: Vec<Py<Route>>,
    removed: Vec<Py<PyBytes>>,
}

/// Lobbies of one namespace, version, mode and region.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct SupplyGroup {
    namespace: Py<PyBytes>,
    version: Py<PyBytes>,
    mode: String,
    region: String,
    starting: u32,
    live: u32,
    failed: u32,
    empty: Vec<Py<EmptyLobby>>,
}

/// A ready lobby without players.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct EmptyLobby {
    lobby: Py<PyBytes>,
    empty_ms: u64,
    was_used: bool,
    is_findable: bool,
    is_ours: bool,
}

fn group_of(py: Python<'_>, group: core::IdleLobbyGroup) -> PyResult<SupplyGroup> {
    let empty = |one: core::EmptyLobby| {
        let lobby = PyBytes::new(py, &one.lobby.0).unbind();
        let core::EmptyLobby { empty_ms, was_used, is_findable, is_ours, .. } = one;
        Py::new(py, EmptyLobby { lobby, empty_ms, was_used, is_findable, is_ours })
    };
    Ok(SupplyGroup {
        namespace: PyBytes::new(py, &group.namespace.0).unbind(),
        version: PyBytes::new(py, &group.version.0).unbind(),
        mode: group.mode,
        region: group.region,
        starting: group.starting,
        live: group.live,
        failed: group.failed,
        empty: group.empty.into_iter().map(empty).collect::<PyResult<_>>()?,
    })
}

/// Commands for processes and ports, on the engine that created this object.
#[pyclass(frozen, module = "pyservice._native")]
pub struct Servers {
    pub shard: Arc<Shard>,
    pub shard_number: u16,
}

#[pymethods]
impl Servers {
    fn start_idle<'py>(
        &self,
        py: Python<'py>,
        namespace: &[u8],
        version: &[u8],
        make: &Make,
    ) -> PyResult<(Bound<'py, PyBytes>, u64)> {
        let (namespace, version) = (convert::id(namespace)?, convert::id(version)?);
        let answer = make.with(self.shard_number, namespace, version, |make| {
            self.shard.ask(|engine, context| engine.start_idle(context, make))
        })?;
        let (lobby, wait) = convert::settled(py, answer)?;
        Ok((PyBytes::new(py, &lobby.0), wait))
    }

    fn stop(&self, py: Python<'_>, lobby: &[u8], only_if_idle: bool) -> PyResult<(bool, u64)> {
        let lobby = convert::id(lobby)?;
        convert::settled(py, self.shard.ask(|engine, context| engine.stop(context, lobby, only_if_idle)))
    }

    #[pyo3(signature = (lobby, exit_code = None))]
    fn exited(&self, py: Python<'_>, lobby: &[u8], exit_code: Option<i32>) -> PyResult<(bool, u64)> {
        let lobby = convert::id(lobby)?;
        convert::settled(py, self.shard.ask(|engine, context| engine.process_exited(context, lobby, exit_code)))
    }

    fn lobby_token(&self, lobby: &[u8]) -> PyResult<Option<String>> {
        let lobby = convert::id(lobby)?;
        Ok(self.shard.engine().lobby_token(lobby))
    }

    fn wanted_since<'py>(
        &self,
        py: Python<'py>,
        after: u64,
    ) -> (u64, bool, Vec<WantedRow<'py>>, Vec<Bound<'py, PyBytes>>) {
        let wanted = self.shard.engine().desired_lobbies_since(after);
        let lobbies = wanted.lobbies.iter().map(|one| (PyBytes::new(py, &one.lobby.0), one.is_stopping));
        let gone = wanted.gone.iter().map(|lobby| PyBytes::new(py, &lobby.0));
        (wanted.sequence, wanted.is_complete, lobbies.collect(), gone.collect())
    }

    fn take_touched(&self, py: Python<'_>) -> PyResult<Vec<SupplyGroup>> {
        let groups = self.shard.engine().take_changed_idle_groups();
        groups.into_iter().map(|group| group_of(py, group)).collect()
    }

    fn supply_groups(&self, py: Python<'_>, namespace: &[u8]) -> PyResult<Vec<SupplyGroup>> {
        let groups = self.shard.engine().idle_groups(convert::id(namespace)?);
        groups.into_iter().map(|group| group_of(py, group)).collect()
    }

    fn starts_of_version(&self, py: Python<'_>, namespace: &[u8], version: &[u8]) -> PyResult<bool> {
        let (namespace, version) = (convert::id(namespace)?, convert::id(version)?);
        Ok(py.detach(|| self.shard.engine().has_starting_lobbies(namespace, version)))
    }

    fn lobbies_of_version<'py>(
        &self,
        py: Python<'py>,
        namespace: &[u8],
        version: &[u8],
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let (namespace, version) = (convert::id(namespace)?, convert::id(version)?);
        let lobbies = py.detach(|| self.shard.engine().lobbies_of_version(namespace, version));
        Ok(lobbies.iter().map(|lobby| PyBytes::new(py, &lobby.0)).collect())
    }

    fn lease<'py>(
        &self,
        py: Python<'py>,
        owner: &[u8],
        namespace: &[u8],
        region: &str,
        ports: Vec<PortWish>,
    ) -> PyResult<(Bound<'py, PyTuple>, u64)> {
        let (owner, namespace, random) = (convert::id(owner)?, convert::id(namespace)?, convert::random()?);
        let wish = LeaseRequest { owner, namespace, region, ports: &port_wishes(&ports)?, random };
        let (leased, wait) =
            convert::settled(py, self.shard.ask(|engine, context| engine.lease_ports(context, &wish)))?;
        Ok((PyTuple::new(py, leased.iter().map(LeasedPort::of))?, wait))
    }

    fn set_backends(&self, py: Python<'_>, owner: &[u8], backends: Vec<BackendArgument>) -> PyResult<u64> {
        let owner = convert::id(owner)?;
        let backends: Vec<_> =
            backends.iter().map(|(name, address, port)| (name.as_str(), address.as_str(), *port)).collect();
        let answer = self.shard.ask(|engine, context| engine.set_backends(context, owner, &backends));
        convert::settled(py, answer).map(|done| done.1)
    }

    fn end_lease(&self, py: Python<'_>, owner: &[u8]) -> PyResult<(bool, u64)> {
        let owner = convert::id(owner)?;
        convert::settled(py, self.shard.ask(|engine, context| engine.end_lease(context, owner)))
    }

    fn replace_port(&self, py: Python<'_>, owner: &[u8], name: &str, refused: u16) -> PyResult<(Option<u16>, u64)> {
        let (owner, random) = (convert::id(owner)?, convert::random()?);
        let answer = self.shard.ask(|engine, context| engine.replace_port(context, owner, name, refused, random));
        convert::settled(py, answer)
    }

    fn ports_returned(&self, py: Python<'_>, owner: &[u8]) -> PyResult<(bool, u64)> {
        let owner = convert::id(owner)?;
        convert::settled(py, self.shard.ask(|engine, context| engine.return_ports(context, owner)))
    }

    fn routes_since(&self, py: Python<'_>, after: u64) -> PyResult<Routes> {
        let durable = self.shard.durable();
        let routes = self.shard.engine().routes_since(after, durable);
        let route = |route: &core::Route| {
            let port = Py::new(py, LeasedPort::of(&route.port))?;
            let owner = PyBytes::new(py, &route.owner.0).unbind();
            Py::new(py, Route { owner, is_server: route.is_server, region: route.region.to_string(), port })
        };
        Ok(Routes {
            version: routes.version,
            is_complete: routes.is_complete,
            changed: routes.changed.iter().map(route).collect::<PyResult<_>>()?,
            removed: routes.removed.iter().map(|owner| PyBytes::new(py, &owner.0).unbind()).collect(),
        })
    }

    fn leased_servers<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.shard.engine().leased_servers().iter().map(|owner| PyBytes::new(py, &owner.0)).collect()
    }
}
