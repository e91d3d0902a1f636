//! Authorization: credentials become a caller, or an error. See docs/reference/tokens.md#authorization.

use std::sync::Arc;

use hosting_core::{Id, KeyRing};
use sha2::{Digest, Sha256};

use crate::bearer_token::{BearerProblem, kind_of, token_of};
use crate::clock::wall_ms;
use crate::contract::Code;
use crate::error::ServiceError;
use crate::namespaces::{Namespace, Namespaces};
use hosting_client_addresses::ClientKey;

/// Sender of a request after its authorization.
pub enum Caller {
    Lobby(Id),
    Client(Client),
    /// A lobby server that reads a state, with the namespace of its lobby. None: the lobby has ended.
    LobbyOf {
        lobby: Id,
        namespace: Option<Id>,
    },
    /// The holder of a `dev_` token. It gets mock responses.
    Development(Client),
    /// The holder of a `cloud_` token, which only the control plane checks.
    Cloud,
}

impl Caller {
    /// Returns the caller in the record of a request, or None for one that only the control plane knows.
    pub fn subject(&self) -> Option<Subject> {
        match self {
            Caller::Lobby(lobby) | Caller::LobbyOf { lobby, .. } => Some(Subject::Lobby(*lobby)),
            Caller::Client(client) | Caller::Development(client) => Some(Subject::Namespace(client.namespace.id)),
            Caller::Cloud => None,
        }
    }
}

/// Callers of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    /// Game clients and back ends.
    Clients,
    LobbyServers,
    /// Lobby servers, back ends and developers.
    StateReaders,
    /// Back ends and developers.
    Operators,
}

/// The caller in the record of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    Lobby(Id),
    Namespace(Id),
}

/// A game client, or a game back end.
pub struct Client {
    pub namespace: Arc<Namespace>,
    pub credential: Credential,
    pub address: ClientKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Credential {
    Public,
    /// A service token (`env_`) with this id. Its holder acts for players.
    Service(Id),
    /// A development token (`dev_`) with this id.
    Development(Id),
    /// No token: the `Origin` header gave access.
    Origin,
}

impl Client {
    /// Returns true for a caller with a service token, which acts for players.
    pub fn is_back_end(&self) -> bool {
        matches!(self.credential, Credential::Service(_))
    }

    /// Returns the key under which the idempotency keys of the caller are stored: the namespace with a token id or a client
    /// address.
    pub fn identity(&self) -> Vec<u8> {
        let own = match &self.credential {
            Credential::Service(token) | Credential::Development(token) => &token.0[..],
            Credential::Public | Credential::Origin => self.address.as_bytes(),
        };
        [&self.namespace.id.0[..], own].concat()
    }
}

impl From<BearerProblem> for ServiceError {
    fn from(problem: BearerProblem) -> ServiceError {
        match problem {
            BearerProblem::Missing => Code::TokenMissing.into(),
            BearerProblem::Malformed => Code::TokenInvalid.into(),
            BearerProblem::OtherScheme => {
                ServiceError::from(Code::TokenInvalid).with_detail("Send Authorization: Bearer <token>.")
            }
        }
    }
}

/// Authorizes a matchmaker client by its token. Without a token, the host of its origin must belong to a namespace.
pub fn authorize_client(
    namespaces: &Namespaces,
    keys: &KeyRing,
    authorization: Option<&[u8]>,
    origin: Option<&[u8]>,
    address: ClientKey,
) -> Result<Caller, ServiceError> {
    let client = |namespace, credential| Caller::Client(Client { namespace, credential, address });
    let token = match token_of(authorization) {
        Ok(token) => token,
        Err(BearerProblem::Missing) => {
            let namespace = origin.and_then(host_of_origin).and_then(|host| namespaces.of_host(&host));
            return namespace.map(|namespace| client(namespace, Credential::Origin)).ok_or(Code::TokenMissing.into());
        }
        Err(problem) => return Err(problem.into()),
    };
    match kind_of(token) {
        "pub" => public(namespaces, keys, token).map(|namespace| client(namespace, Credential::Public)),
        "env" => service(namespaces, token, address).map(Caller::Client),
        "dev" => development(namespaces, keys, token, address),
        kind => Err(forbidden(kind, "pub_, env_ or dev_")),
    }
}

/// Authorizes a lobby server by its `lobby_` token, or by a `dev_` token.
pub fn authorize_lobby(
    namespaces: &Namespaces,
    keys: &KeyRing,
    authorization: Option<&[u8]>,
    address: ClientKey,
) -> Result<Caller, ServiceError> {
    let token = token_of(authorization)?;
    match kind_of(token) {
        "lobby" => keys.verify_lobby(token).map(Caller::Lobby).ok_or(Code::TokenInvalid.into()),
        "dev" => development(namespaces, keys, token, address),
        kind => Err(forbidden(kind, "the lobby's lobby_ or dev_")),
    }
}

/// Authorizes a call that reads the state of a lobby.
///
/// It has an `env_` or `cloud_` token, or the `lobby_` token of a lobby in the same namespace.
pub fn authorize_state(
    namespaces: &Namespaces,
    keys: &KeyRing,
    authorization: Option<&[u8]>,
    address: ClientKey,
    namespace_of_lobby: impl FnOnce(Id) -> Option<Id>,
) -> Result<Caller, ServiceError> {
    let token = token_of(authorization)?;
    match kind_of(token) {
        "lobby" => {
            let lobby = keys.verify_lobby(token).ok_or(Code::TokenInvalid)?;
            Ok(Caller::LobbyOf { lobby, namespace: namespace_of_lobby(lobby) })
        }
        "env" => service(namespaces, token, address).map(Caller::Client),
        "cloud" => Ok(Caller::Cloud),
        kind => Err(forbidden(kind, "lobby_, env_ or cloud_")),
    }
}

/// Authorizes a back end by its `env_` token, or a developer by a `cloud_` token.
pub fn authorize_operator(
    namespaces: &Namespaces,
    authorization: Option<&[u8]>,
    address: ClientKey,
) -> Result<Caller, ServiceError> {
    let (token, kind) = accepted_token(authorization, &["env", "cloud"])?;
    if kind == "env" { service(namespaces, token, address).map(Caller::Client) } else { Ok(Caller::Cloud) }
}

fn public(namespaces: &Namespaces, keys: &KeyRing, token: &str) -> Result<Arc<Namespace>, ServiceError> {
    let claims = keys.verify_public(token).and_then(|(id, token)| Some((namespaces.get(id)?, token)));
    // A namespace outside of the stored configuration has no tokens.
    let (namespace, token) = claims.ok_or(Code::TokenInvalid)?;
    check_validity(&namespace, token, None)?;
    Ok(namespace)
}

fn service(namespaces: &Namespaces, token: &str, address: ClientKey) -> Result<Client, ServiceError> {
    // A comparison of hashes does not leak the secret through its duration.
    let sha256: [u8; 32] = Sha256::digest(token).into();
    let (namespace, token) = namespaces.service_token(&sha256).ok_or(Code::TokenInvalid)?;
    check_validity(&namespace, token.token_id, token.expires_ms)?;
    Ok(Client { namespace, credential: Credential::Service(token.token_id), address })
}

fn development(
    namespaces: &Namespaces,
    keys: &KeyRing,
    token: &str,
    address: ClientKey,
) -> Result<Caller, ServiceError> {
    let claims = keys.verify_development(token);
    let claims = claims.and_then(|(id, token, expires_ms)| Some((namespaces.get(id)?, token, expires_ms)));
    let (namespace, token, expires_ms) = claims.ok_or(Code::TokenInvalid)?;
    check_validity(&namespace, token, Some(expires_ms))?;
    Ok(Caller::Development(Client { namespace, credential: Credential::Development(token), address }))
}

fn check_validity(namespace: &Namespace, token: Id, expires_ms: Option<u64>) -> Result<(), ServiceError> {
    if namespace.is_token_revoked(token) {
        return Err(Code::TokenRevoked.into());
    }
    if expires_ms.is_some_and(|end| end <= wall_ms()) { Err(Code::TokenExpired.into()) } else { Ok(()) }
}

/// Returns the token of one of these kinds in an `authorization` header, and its kind.
pub fn accepted_token<'a>(
    authorization: Option<&'a [u8]>,
    accepted_kinds: &[&str],
) -> Result<(&'a str, &'a str), ServiceError> {
    let token = token_of(authorization)?;
    let kind = kind_of(token);
    if accepted_kinds.contains(&kind) {
        return Ok((token, kind));
    }
    let prefixes: Vec<String> = accepted_kinds.iter().map(|kind| format!("{kind}_")).collect();
    Err(forbidden(kind, &prefixes.join(" or ")))
}

fn forbidden(kind: &str, accepted_kinds: &str) -> ServiceError {
    let detail = format!("This operation takes {accepted_kinds} tokens, not a {kind}_ token.");
    ServiceError::from(Code::Forbidden).with_detail(detail)
}

/// Returns the host of an http or https origin in lower case, or None for other origins such as `null`.
fn host_of_origin(origin: &[u8]) -> Option<String> {
    let origin = std::str::from_utf8(origin.trim_ascii()).ok()?;
    let (scheme, rest) = origin.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let host_and_port = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host_and_port.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']')?.0,
        None => host_and_port.split(':').next()?,
    };
    let host = host.to_lowercase();
    (!host.is_empty()).then(|| host.trim_end_matches('.').to_owned())
}

#[cfg(test)]
mod tests;
