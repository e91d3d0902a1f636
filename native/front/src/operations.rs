//! The operations of plain requests: bodies, commands and responses.

use std::borrow::Cow;
use std::io::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use hosting_core::{
    CommandOutcome, Connect, Context, CreationPolicy, Disconnect, Engine, Find, HashKey, Id, Join, Lsn, PlayerList,
    PlayerToken, Refusal, Reservation, Source, TokenProblem,
};
use hosting_shard::Shard;
use serde::{Deserialize, Deserializer};
use uuid::Uuid;

use crate::answers::Answers;
use crate::connection_budget::ClientKey;
use crate::namespaces::{Client, Namespaces};
use crate::placements::{LobbyAnswer, LobbyAnswers, Places};
use crate::plain_request::{Operation, PlainRequest};
use crate::rate_limits::ClientLimits;
use crate::ray_id::RayId;

const HOLD_MS_MAX: u64 = 600_000;
const PARTY_SIZE_MAX: u32 = 64;
const GAME_MODES_MAX: usize = 32;
const REGIONS_MAX: usize = 64;
const NO_SOURCE: Source = 0;
const NO_MESSAGE: &[u8] = b"{}";

// The bodies of requests. A field that is unknown, repeated, null or of another type makes a request not plain.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectedBody<'a> {
    #[serde(borrow)]
    player_token: Cow<'a, str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DisconnectedBody<'a> {
    #[serde(borrow)]
    player_token: Cow<'a, str>,
    #[serde(default, deserialize_with = "present")]
    hold_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeartbeatBody<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    player_tokens: Option<Vec<Cow<'a, str>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinBody<'a> {
    #[serde(borrow)]
    lobby_id: Cow<'a, str>,
    #[serde(default, deserialize_with = "present")]
    party_size: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    client_address: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FindBody<'a> {
    #[serde(borrow)]
    game_modes: Vec<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    regions: Option<Vec<Cow<'a, str>>>,
    #[serde(default, deserialize_with = "present")]
    party_size: Option<u32>,
    #[serde(borrow, default, deserialize_with = "present")]
    client_address: Option<Cow<'a, str>>,
    #[serde(rename = "prevent_auto_create_lobby", default, deserialize_with = "present")]
    _prevent_auto_create_lobby: Option<bool>,
}

fn read_body<'a, Body: Deserialize<'a>>(bytes: &'a [u8]) -> Option<Body> {
    // The parser also reads the fields of a body from an array.
    bytes.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(bytes).ok())?
}

/// Reads a value that may be missing, but not null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// The caller in the record of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    Lobby(Id),
    Namespace(Id),
}

/// An executed request. Its response may be sent when the event `wait` is durable.
pub struct Executed {
    pub caller: Caller,
    /// Number of the code in [`Answers::codes`].
    pub code: usize,
    pub wait: Lsn,
}

/// State that all threads of the front share.
pub struct Operations {
    pub shard: Arc<Shard>,
    pub hash: Arc<HashKey>,
    pub namespaces: Arc<Namespaces>,
    pub limits: ClientLimits,
    pub places: Places,
    pub answers: Answers,
    pub lobby_answers: LobbyAnswers,
}

impl Operations {
    /// Executes a request, and appends its response to `out`. Returns None before the engine has changed if the request
    /// is not plain.
    pub fn execute(
        &self,
        request: &PlainRequest<'_>,
        peer: IpAddr,
        ray_id: RayId,
        out: &mut Vec<u8>,
    ) -> Option<Executed> {
        match request.operation {
            Operation::Find => Some(self.find(request, peer)?.write(ray_id, out)),
            Operation::Join => Some(self.join(request, peer)?.write(ray_id, out)),
            Operation::Connected | Operation::Disconnected | Operation::Heartbeat => {
                let lobby = self.shard.keys().verify_lobby(request.token)?;
                let outcome = match request.operation {
                    Operation::Connected => self.connected(lobby, request.body)?,
                    Operation::Disconnected => self.disconnected(lobby, request.body)?,
                    _ => self.heartbeat(lobby, request.body)?,
                };
                let code = self.answers.number(&outcome.result);
                match outcome.result {
                    Ok(()) => write_ok(ray_id, NO_MESSAGE, out),
                    Err(_) => self.answers.write(code, ray_id, out),
                }
                Some(Executed { caller: Caller::Lobby(lobby), code, wait: outcome.wait })
            }
        }
    }

    fn connected(&self, lobby: Id, body: &[u8]) -> Option<CommandOutcome<()>> {
        let body: ConnectedBody<'_> = read_body(body)?;
        let connect = Connect { lobby, player: self.verified_player(&body.player_token)?, idempotency: None };
        Some(self.shard.execute(|engine, context| engine.connected(context, &connect)))
    }

    fn disconnected(&self, lobby: Id, body: &[u8]) -> Option<CommandOutcome<()>> {
        let body: DisconnectedBody<'_> = read_body(body)?;
        if body.hold_ms.is_some_and(|hold_ms| hold_ms > HOLD_MS_MAX) {
            return None;
        }
        let player = self.verified_player(&body.player_token)?;
        let disconnect = Disconnect { lobby, player, hold_ms: body.hold_ms, idempotency: None };
        Some(self.shard.execute(|engine, context| engine.disconnected(context, &disconnect)))
    }

    /// Returns None for a text in another form, because Python describes its problem. Returns Some(None) for a token that no
    /// key signed.
    fn verified_player(&self, token: &str) -> Option<Option<PlayerToken>> {
        match self.shard.keys().check_player(token) {
            Ok(player) => Some(Some(player)),
            Err(TokenProblem::Forged) => Some(None),
            Err(TokenProblem::Malformed) => None,
        }
    }

    /// Returns None for a list with a wrong token, because the response names the token.
    fn heartbeat(&self, lobby: Id, body: &[u8]) -> Option<CommandOutcome<()>> {
        let body: HeartbeatBody<'_> = read_body(body)?;
        let tokens: Option<Vec<&str>> =
            body.player_tokens.as_ref().map(|tokens| tokens.iter().map(|token| &**token).collect());
        let players = tokens.map(|tokens| PlayerList::verify(&self.shard.keys(), &tokens));
        let outcome = self.shard.execute(|engine, context| engine.heartbeat(context, lobby, players.as_ref()));
        let is_list_refused = matches!(outcome.result, Err(Refusal::TokenInListInvalid(_)));
        (!is_list_refused).then_some(outcome)
    }

    fn join(&self, request: &PlainRequest<'_>, peer: IpAddr) -> Option<Placed> {
        let body: JoinBody<'_> = read_body(request.body)?;
        let lobby = lobby_id(&body.lobby_id)?;
        let party_size = party_size(body.party_size)?;
        let player = self.player(request, peer, body.client_address.as_deref())?;
        let namespace = &player.client.namespace;
        let join = Join {
            namespace: namespace.id,
            lobby,
            party_size,
            rejoin_token: None,
            source: player.source,
            source_limit: namespace.source_limit,
            idempotency: None,
            channels: &[],
        };
        self.place(&player, |engine, context| engine.join_ready(context, &join))
    }

    fn find(&self, request: &PlainRequest<'_>, peer: IpAddr) -> Option<Placed> {
        let body: FindBody<'_> = read_body(request.body)?;
        let party_size = party_size(body.party_size)?;
        let modes = distinct(&body.game_modes, GAME_MODES_MAX)?;
        let regions = self.regions(body.regions.as_deref().unwrap_or_default())?;
        let player = self.player(request, peer, body.client_address.as_deref())?;
        let namespace = &player.client.namespace;
        let allows = |mode: &&str| {
            namespace.modes.get(*mode).is_some_and(|mode| {
                mode.is_find_enabled
                    && party_size <= mode.max_players
                    && regions.iter().any(|region| mode.allows_region(region))
            })
        };
        if modes.is_empty() || !modes.iter().all(allows) {
            return None;
        }
        let find = Find {
            namespace: namespace.id,
            version: namespace.version,
            modes: &modes,
            regions: &regions,
            tags: &[],
            party_size,
            source: player.source,
            source_limit: namespace.source_limit,
            idempotency: None,
            channels: &[],
            creation: CreationPolicy::Prevented,
        };
        self.place(&player, |engine, context| engine.find_ready(context, &find))
    }

    /// Returns the first region if the request names none, and None if it names an unknown region.
    fn regions<'a>(&'a self, requested: &'a [Cow<'_, str>]) -> Option<Vec<&'a str>> {
        let known = &self.places.regions;
        if requested.is_empty() {
            return known.first().map(|region| vec![&**region]);
        }
        let regions = distinct(requested, REGIONS_MAX)?;
        regions.iter().all(|region| known.iter().any(|one| one == region)).then_some(regions)
    }

    /// Returns None if the request needs more than its token, or is over a rate limit.
    fn player(&self, request: &PlainRequest<'_>, peer: IpAddr, address: Option<&str>) -> Option<Player> {
        let client = self.namespaces.client(&self.shard.keys(), request.token)?;
        if client.namespace.needs_admission {
            return None;
        }
        let peer = ClientKey::of(peer);
        let source_address = match (client.service_token, address) {
            (Some(_), None) => None,
            (Some(_), Some(text)) => Some(ClientKey::of(ip_address(text)?)),
            (None, None) => Some(peer),
            (None, Some(_)) => return None,
        };
        let source =
            source_address.map_or(NO_SOURCE, |address| self.hash.source(client.namespace.id, address.as_bytes()));
        Some(Player { client, peer, source })
    }

    /// Returns None if a rate limit refuses, or if the engine does not reserve slots at once.
    fn place(
        &self,
        player: &Player,
        reserve: impl FnOnce(&mut Engine, &mut Context<'_>) -> Option<(Reservation, Lsn)>,
    ) -> Option<Placed> {
        let identity = player.client.identity();
        let (identity, peer) = (identity.as_ref().map(<[u8; 32]>::as_slice), player.peer.as_bytes());
        let group = &player.client.namespace.group.0;
        if !self.limits.admit(identity, peer, group) {
            return None;
        }
        let placed = self.shard.run(|engine, context| {
            let (reservation, wait) = reserve(engine, context)?;
            let answer = self.lobby_answers.get(reservation.lobby).or_else(|| {
                let answer = Arc::new(LobbyAnswer::new(&self.places, &engine.lobby(reservation.lobby)?));
                self.lobby_answers.put(reservation.lobby, answer.clone());
                Some(answer)
            })?;
            Some(Placed { namespace: player.client.namespace.id, reservation, wait, answer })
        });
        if placed.is_none() {
            // Python counts the request.
            self.limits.put_back(identity, peer, group);
        }
        placed
    }
}

struct Player {
    client: Client,
    /// Address that rate limits count.
    peer: ClientKey,
    source: Source,
}

struct Placed {
    namespace: Id,
    reservation: Reservation,
    wait: Lsn,
    answer: Arc<LobbyAnswer>,
}

impl Placed {
    fn write(&self, ray_id: RayId, out: &mut Vec<u8>) -> Executed {
        let mut body = Vec::new();
        self.answer.write(&self.reservation.tokens, &mut body);
        write_ok(ray_id, &body, out);
        Executed { caller: Caller::Namespace(self.namespace), code: 0, wait: self.wait }
    }
}

fn write_ok(ray_id: RayId, body: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nx-ray-id: ");
    out.extend_from_slice(&ray_id.digits());
    // Writing to a Vec cannot fail.
    let _ = write!(out, "\r\ncontent-length: {}\r\n\r\n", body.len());
    out.extend_from_slice(body);
}

fn lobby_id(text: &str) -> Option<Id> {
    let id = Uuid::try_parse(text).ok()?;
    // Other spellings of an id are refused.
    (id.as_hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(Id(id.into_bytes()))
}

fn party_size(requested: Option<u32>) -> Option<u32> {
    Some(requested.unwrap_or(1)).filter(|size| (1..=PARTY_SIZE_MAX).contains(size))
}

/// Returns None for a repeated entry, or for more entries than `most`.
fn distinct<'a>(names: &'a [Cow<'_, str>], most: usize) -> Option<Vec<&'a str>> {
    let mut distinct: Vec<&str> = Vec::with_capacity(names.len());
    for name in names {
        if distinct.contains(&&**name) || distinct.len() == most {
            return None;
        }
        distinct.push(name);
    }
    Some(distinct)
}

/// Reads an address in its usual spelling.
fn ip_address(text: &str) -> Option<IpAddr> {
    text.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')).then(|| text.parse().ok())?
}
