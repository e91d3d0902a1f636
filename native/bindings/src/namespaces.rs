//! Namespaces and addresses as the rules of the matchmaker need them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use hosting_matchmaker::{GameMode, OwnerKind, PlayerPort, PortKind, PortOwner, ServiceToken};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::{IdBytes, KeyBytes};
use crate::leased_port::LeasedPort;

#[pyclass(frozen, module = "pyservice._native")]
pub struct PlayerAddresses(pub hosting_matchmaker::PlayerAddresses);

#[pymethods]
impl PlayerAddresses {
    #[new]
    fn new(job_domain: Option<String>, advertised: String, node: String, has_certificate: bool) -> PlayerAddresses {
        PlayerAddresses(hosting_matchmaker::PlayerAddresses { job_domain, advertised, node, has_certificate })
    }

    fn address_of(
        &self,
        port: &LeasedPort,
        lease_owner: IdBytes,
        region: &str,
        owner_kind: &str,
    ) -> (String, Option<u16>, Option<(u16, u16)>, bool) {
        let kind = if owner_kind == "server" { OwnerKind::Server } else { OwnerKind::Lobby };
        let owner = PortOwner { id: lease_owner.0, kind, region, node_host: &port.host };
        let address = self.0.address_of(&port.name, port.protocol, port.exposure, owner);
        match address.port {
            PlayerPort::Number(number) => (address.hostname, Some(number), None, address.is_tls),
            PlayerPort::Range(first, last) => (address.hostname, None, Some((first, last)), address.is_tls),
        }
    }
}

/// Attributes of the Python object that describes a game mode.
#[derive(FromPyObject)]
struct ModeArgument {
    name: String,
    max_players: u32,
    max_players_direct: u32,
    max_players_party: u32,
    is_find_enabled: bool,
    is_taggable: bool,
    is_listable: bool,
    is_max_players_dynamic: bool,
    regions: Option<HashSet<String>>,
    create_publicities: HashSet<String>,
    /// Each port with whether it is a range.
    port_ranges: HashMap<String, bool>,
}

/// SHA-256 of the token, its id, and its expiry in Unix ms.
type TokenArgument = (KeyBytes, IdBytes, Option<u64>);

#[pyclass(frozen, module = "pyservice._native")]
pub struct Namespace(Arc<hosting_matchmaker::Namespace>);

#[pymethods]
impl Namespace {
    #[new]
    #[pyo3(signature = (namespace, *, label, version, group, source_limit, needs_admission, modes, hosts,
        service_tokens, revoked))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of the Python contract")]
    fn new(
        namespace: IdBytes,
        label: String,
        version: IdBytes,
        group: IdBytes,
        source_limit: u32,
        needs_admission: bool,
        modes: Vec<ModeArgument>,
        hosts: Vec<String>,
        service_tokens: Vec<TokenArgument>,
        revoked: Vec<IdBytes>,
    ) -> Namespace {
        let port_kind = |(name, is_range)| (name, if is_range { PortKind::Range } else { PortKind::Number });
        let mode = |mode: ModeArgument| {
            let settings = GameMode {
                max_players: mode.max_players,
                max_players_direct: mode.max_players_direct,
                max_players_party: mode.max_players_party,
                is_find_enabled: mode.is_find_enabled,
                is_taggable: mode.is_taggable,
                is_listable: mode.is_listable,
                is_max_players_dynamic: mode.is_max_players_dynamic,
                regions: mode.regions,
                create_publicities: mode.create_publicities,
                ports: mode.port_ranges.into_iter().map(port_kind).collect(),
            };
            (mode.name, settings)
        };
        let token = |(sha256, token_id, expires_ms): TokenArgument| ServiceToken {
            sha256: sha256.0,
            token_id: token_id.0,
            expires_ms,
        };
        let mut namespace = hosting_matchmaker::Namespace {
            id: namespace.0,
            label,
            version: version.0,
            group: group.0,
            source_limit,
            needs_admission,
            modes: modes.into_iter().map(mode).collect(),
            hosts,
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
pub struct Namespaces(pub Arc<hosting_matchmaker::Namespaces>);

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

    fn of_host(&self, host: &str) -> Option<IdBytes> {
        self.0.of_host(host).map(|namespace| IdBytes(namespace.id))
    }

    fn of_service_token(&self, sha256: KeyBytes) -> Option<IdBytes> {
        self.0.service_token(&sha256.0).map(|(namespace, _)| IdBytes(namespace.id))
    }
}
