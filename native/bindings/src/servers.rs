//! Commands for processes: lobbies that the service starts, port leases, and routes for edge-guard.

use std::sync::Arc;

use hosting_core as core;
use hosting_core::{
    Attach, BindPorts, HashKey, Id, LeaseRequest, PortExposure, PortRequest, Presence, Protocol, Publicity,
    SessionCounting,
};
use hosting_matchmaker::wall_ms;
use hosting_shard::Shard;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::{self, IdBytes, Sequence, resolve_lsn, resolve_outcome};
use crate::leased_port::{LeasedPort, PROTOCOLS};

/// Requested port: name, protocol, kind ("number", "host" or "range"), first and last number of a range,
/// `sends_proxy_header`, and counting of sessions.
///
/// The counting is "uncounted", "compared", "counted" or "required".
type PortArgument = (String, String, String, u16, u16, bool, String);
type BackendArgument = (String, String, u16);

fn protocol_of(word: &str) -> PyResult<Protocol> {
    let known = PROTOCOLS.iter().find(|(name, _)| *name == word);
    known.map(|(_, protocol)| *protocol).ok_or_else(|| PyValueError::new_err(format!("no protocol {word:?}")))
}

fn port_requests(arguments: &[PortArgument]) -> PyResult<Vec<PortRequest<'_>>> {
    let mut ports = Vec::with_capacity(arguments.len());
    for (name, protocol, kind, first, last, sends_proxy_header, counting) in arguments {
        let exposure = match kind.as_str() {
            "number" => PortExposure::Number(0),
            "host" => PortExposure::Host,
            "range" => PortExposure::Range(*first, *last),
            _ => return Err(PyValueError::new_err(format!("a port is not exposure by {kind:?}"))),
        };
        let counting = match counting.as_str() {
            "uncounted" => SessionCounting::Uncounted,
            "compared" => SessionCounting::Compared,
            "counted" => SessionCounting::Counted,
            "required" => SessionCounting::Required,
            _ => return Err(PyValueError::new_err(format!("sessions are not {counting:?}"))),
        };
        let protocol = protocol_of(protocol)?;
        ports.push(PortRequest { name, protocol, exposure, sends_proxy_header: *sends_proxy_header, counting });
    }
    Ok(ports)
}

/// Template of a lobby that the service starts. The engine assigns the id and the ports.
#[pyclass(frozen, module = "pyservice._native")]
pub struct LobbyTemplate {
    mode: String,
    region: String,
    ports: Vec<PortArgument>,
    tags: Vec<(String, String)>,
    limits: (u32, u32, u32),
    player_token_ttl_ms: u64,
    heartbeat_timeout_ms: u64,
    heartbeat_grace_ms: u64,
    is_join_enabled: bool,
    is_public: bool,
    lobby_config: Option<Vec<u8>>,
    lobby_count_max: u32,
    trial_ms: Option<u64>,
}

#[pymethods]
impl LobbyTemplate {
    #[new]
    #[pyo3(signature = (mode, region, ports, *, tags = None, max_players, player_token_ttl_ms, heartbeat_timeout_ms,
        heartbeat_grace_ms, is_join_enabled, is_public = true, lobby_config = None, lobby_count_max,
        trial_ms = None))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn new(
        mode: String,
        region: String,
        ports: Vec<PortArgument>,
        tags: Option<Vec<(String, String)>>,
        max_players: (u32, u32, u32),
        player_token_ttl_ms: u64,
        heartbeat_timeout_ms: u64,
        heartbeat_grace_ms: u64,
        is_join_enabled: bool,
        is_public: bool,
        lobby_config: Option<Vec<u8>>,
        lobby_count_max: u32,
        trial_ms: Option<u64>,
    ) -> PyResult<LobbyTemplate> {
        port_requests(&ports)?;
        let mut tags = tags.unwrap_or_default();
        tags.sort_unstable();
        Ok(LobbyTemplate {
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
            trial_ms,
        })
    }
}

impl LobbyTemplate {
    /// Calls `run` with the template as a `core::LobbyTemplate`, which contains a new random lobby id.
    pub fn with<R>(
        &self,
        shard_number: u16,
        namespace: Id,
        version: Id,
        run: impl FnOnce(&core::LobbyTemplate<'_>) -> R,
    ) -> PyResult<R> {
        let tags: Vec<_> = self.tags.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let lobby = Attach {
            id: convert::random_lobby_id(shard_number)?,
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
            create_ts_ms: wall_ms(),
            lobby_count_max: self.lobby_count_max,
            idempotency: None,
        };
        Ok(run(&core::LobbyTemplate {
            lobby,
            publicity: if self.is_public { Publicity::Public } else { Publicity::Private },
            lobby_config: self.lobby_config.as_deref(),
            ports: &port_requests(&self.ports)?,
            random: convert::random_u64()?,
            trial_ms: self.trial_ms,
        }))
    }
}

/// Whether a request may create a lobby. `Possible` contains the template of that lobby.
#[derive(FromPyObject)]
pub enum Creation {
    Possible(Py<LobbyTemplate>),
    /// Creation is not possible. Contains the maximum number of lobbies in the namespace.
    Impossible(u32),
}

impl Creation {
    /// Calls `run` with the value as a `core::CreationPolicy`. `None` becomes `Prevented`.
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
            Some(Creation::Possible(template)) => template
                .get()
                .with(shard_number, namespace, version, |template| run(core::CreationPolicy::Possible(template))),
        }
    }
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct Route {
    lease_owner: IdBytes,
    is_server: bool,
    region: String,
    port: Py<LeasedPort>,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct RouteChanges {
    lsn: u64,
    is_complete: bool,
    changed: Vec<Py<Route>>,
    removed: Vec<IdBytes>,
}

/// Counts and empty lobbies of one namespace, version, mode and region.
#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct IdleLobbyGroup {
    namespace: IdBytes,
    version: IdBytes,
    mode: String,
    region: String,
    starting: u32,
    live: u32,
    failed: u32,
    empty: Vec<Py<EmptyLobby>>,
}

#[pyclass(frozen, get_all, module = "pyservice._native")]
pub struct EmptyLobby {
    lobby: IdBytes,
    empty_ms: u64,
    was_used: bool,
    is_findable: bool,
    is_ours: bool,
}

impl IdleLobbyGroup {
    fn of(py: Python<'_>, group: core::IdleLobbyGroup) -> PyResult<IdleLobbyGroup> {
        let empty = |one: core::EmptyLobby| {
            let core::EmptyLobby { lobby, empty_ms, was_used, is_findable, is_ours } = one;
            Py::new(py, EmptyLobby { lobby: IdBytes(lobby), empty_ms, was_used, is_findable, is_ours })
        };
        Ok(IdleLobbyGroup {
            namespace: IdBytes(group.namespace),
            version: IdBytes(group.version),
            mode: group.mode,
            region: group.region,
            starting: group.starting,
            live: group.live,
            failed: group.failed,
            empty: group.empty.into_iter().map(empty).collect::<PyResult<_>>()?,
        })
    }
}

#[pyclass(frozen, name = "Servers", module = "pyservice._native")]
pub struct ProcessCommands {
    pub shard: Arc<Shard>,
    pub shard_number: u16,
    pub hash: Arc<HashKey>,
}

#[pymethods]
impl ProcessCommands {
    fn start_idle(&self, namespace: IdBytes, version: IdBytes, template: &LobbyTemplate) -> PyResult<(IdBytes, u64)> {
        let answer = template.with(self.shard_number, namespace.0, version.0, |template| {
            self.shard.execute(|engine, context| engine.start_idle(context, template))
        })?;
        resolve_outcome(answer).map(|(lobby, wait)| (IdBytes(lobby), wait))
    }

    fn stop(&self, lobby: IdBytes, only_if_idle: bool) -> PyResult<(bool, u64)> {
        resolve_outcome(self.shard.execute(|engine, context| engine.stop(context, lobby.0, only_if_idle)))
    }

    #[pyo3(signature = (lobby, exit_code = None))]
    fn exited(&self, lobby: IdBytes, exit_code: Option<i32>) -> PyResult<(bool, u64)> {
        resolve_outcome(self.shard.execute(|engine, context| engine.process_exited(context, lobby.0, exit_code)))
    }

    fn ready(&self, lobby: IdBytes) -> PyResult<u64> {
        resolve_lsn(self.shard.execute(|engine, context| engine.ready(context, lobby.0)))
    }

    /// Connects and frees the slots of a lobby. `sessions` has the keys of client addresses and their sessions, and `count`
    /// the number of players by a query.
    #[pyo3(signature = (lobby, sessions, may_free, count = None))]
    fn match_presence(
        &self,
        lobby: IdBytes,
        sessions: Vec<(Vec<u8>, u32)>,
        may_free: bool,
        count: Option<u32>,
    ) -> PyResult<(Vec<bool>, u64)> {
        let answer = self.shard.execute(|engine, context| {
            let namespace = engine.namespace_of_lobby(lobby.0).unwrap_or_default();
            let source = |(client, sessions): &(Vec<u8>, u32)| (self.hash.source(namespace, client), *sessions);
            let sessions: Vec<_> = sessions.iter().map(source).collect();
            engine.match_presence(context, &Presence { lobby: lobby.0, sessions: &sessions, count, may_free })
        });
        resolve_outcome(answer)
    }

    fn lobby_token(&self, lobby: IdBytes) -> Option<String> {
        self.shard.engine().lobby_token(lobby.0)
    }

    fn wanted_since(&self, after: u64) -> (u64, bool, Vec<(IdBytes, bool)>, Vec<IdBytes>) {
        let desired = self.shard.engine().desired_lobbies_since(after);
        let lobbies = desired.lobbies.iter().map(|one| (IdBytes(one.lobby), one.is_stopping));
        let removed = desired.removed.into_iter().map(IdBytes);
        (desired.sequence, desired.is_complete, lobbies.collect(), removed.collect())
    }

    fn set_unreachable(&self, lobbies: Vec<(IdBytes, String)>) -> PyResult<u64> {
        let lobbies = lobbies.into_iter().map(|(lobby, problem)| (lobby.0, problem)).collect();
        resolve_lsn(self.shard.execute(|engine, context| engine.set_unreachable(context, lobbies)))
    }

    fn take_touched(&self, py: Python<'_>) -> PyResult<Vec<IdleLobbyGroup>> {
        let groups = self.shard.engine().take_changed_idle_groups();
        groups.into_iter().map(|group| IdleLobbyGroup::of(py, group)).collect()
    }

    fn idle_lobby_groups(&self, py: Python<'_>, namespace: IdBytes) -> PyResult<Vec<IdleLobbyGroup>> {
        let groups = self.shard.engine().idle_groups(namespace.0);
        groups.into_iter().map(|group| IdleLobbyGroup::of(py, group)).collect()
    }

    fn starts_of_version(&self, py: Python<'_>, namespace: IdBytes, version: IdBytes) -> bool {
        py.detach(|| self.shard.engine().has_starting_lobbies(namespace.0, version.0))
    }

    fn lobbies_of_version(&self, py: Python<'_>, namespace: IdBytes, version: IdBytes) -> Vec<IdBytes> {
        let lobbies = py.detach(|| self.shard.engine().lobbies_of_version(namespace.0, version.0));
        lobbies.into_iter().map(IdBytes).collect()
    }

    fn lease(
        &self,
        lease_owner: IdBytes,
        namespace: IdBytes,
        region: &str,
        ports: Vec<PortArgument>,
    ) -> PyResult<(Sequence<LeasedPort>, u64)> {
        let (lease_owner, namespace, random) = (lease_owner.0, namespace.0, convert::random_u64()?);
        let request = LeaseRequest { owner: lease_owner, namespace, region, ports: &port_requests(&ports)?, random };
        let (leased, wait) =
            resolve_outcome(self.shard.execute(|engine, context| engine.lease_ports(context, &request)))?;
        Ok((Sequence(LeasedPort::all(&leased)), wait))
    }

    fn bind_ports(&self, lease_owner: IdBytes, node: &str, host: &str) -> PyResult<(Sequence<LeasedPort>, u64)> {
        if node.is_empty() {
            return Err(PyValueError::new_err("a node has a name"));
        }
        let request = BindPorts { owner: lease_owner.0, node, host, random: convert::random_u64()? };
        let (leased, wait) =
            resolve_outcome(self.shard.execute(|engine, context| engine.bind_ports(context, &request)))?;
        Ok((Sequence(LeasedPort::all(&leased)), wait))
    }

    fn set_backends(&self, lease_owner: IdBytes, backends: Vec<BackendArgument>) -> PyResult<u64> {
        let backends: Vec<_> =
            backends.iter().map(|(name, address, port)| (name.as_str(), address.as_str(), *port)).collect();
        resolve_lsn(self.shard.execute(|engine, context| engine.set_backends(context, lease_owner.0, &backends)))
    }

    fn end_lease(&self, lease_owner: IdBytes) -> PyResult<(bool, u64)> {
        resolve_outcome(self.shard.execute(|engine, context| engine.end_lease(context, lease_owner.0)))
    }

    fn replace_port(&self, lease_owner: IdBytes, name: &str, refused: u16) -> PyResult<(Option<u16>, u64)> {
        let random = convert::random_u64()?;
        resolve_outcome(
            self.shard.execute(|engine, context| engine.replace_port(context, lease_owner.0, name, refused, random)),
        )
    }

    #[pyo3(signature = (lease_owner, node = ""))]
    fn ports_returned(&self, lease_owner: IdBytes, node: &str) -> PyResult<(bool, u64)> {
        resolve_outcome(self.shard.execute(|engine, context| engine.return_ports(context, lease_owner.0, node)))
    }

    fn return_ports_of_node(&self, node: &str) -> PyResult<u64> {
        resolve_lsn(self.shard.execute(|engine, context| engine.return_ports_of_node(context, node)))
    }

    fn nodes(&self) -> Vec<String> {
        self.shard.engine().port_nodes().into_iter().map(str::to_owned).collect()
    }

    fn nodes_changed_since(&self, after: u64) -> (u64, Vec<String>) {
        let durable = self.shard.durable();
        let engine = self.shard.engine();
        let (lsn, nodes) = engine.nodes_changed_since(after, durable);
        (lsn, nodes.into_iter().map(str::to_owned).collect())
    }

    #[pyo3(signature = (after, node = ""))]
    fn routes_since(&self, py: Python<'_>, after: u64, node: &str) -> PyResult<RouteChanges> {
        let durable = self.shard.durable();
        let routes = self.shard.engine().routes_since(node, after, durable);
        let route = |route: core::Route| {
            let port = Py::new(py, LeasedPort::new(&route.port, &route.node))?;
            let (lease_owner, is_server) = (IdBytes(route.owner), route.is_server);
            Py::new(py, Route { lease_owner, is_server, region: route.region.into(), port })
        };
        Ok(RouteChanges {
            lsn: routes.lsn,
            is_complete: routes.is_complete,
            changed: routes.changed.into_iter().map(route).collect::<PyResult<_>>()?,
            removed: routes.removed.into_iter().map(IdBytes).collect(),
        })
    }

    fn leased_servers(&self) -> Vec<IdBytes> {
        self.shard.engine().leased_servers().into_iter().map(IdBytes).collect()
    }
}
