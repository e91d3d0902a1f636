//! Execution of plain requests by the engine.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use hosting_core::{
    CommandOutcome, Connect, Context, CreationPolicy, Disconnect, Engine, Find, HashKey, Id, Join, Lsn, PlayerList,
    PlayerToken, Refusal, Reservation, Source, TokenProblem,
};
use hosting_shard::Shard;
use uuid::Uuid;

use crate::answers::Answers;
use crate::codes::Codes;
use crate::connection_budget::ClientKey;
use crate::hot_request::{
    ConnectedRequest, DisconnectedRequest, FindRequest, HeartbeatRequest, HotRequest, JoinRequest,
};
use crate::namespaces::{Client, Namespaces};
use crate::placements::{LobbyAnswer, LobbyAnswers, Places};
use crate::rate_limits::ClientLimits;

const HOLD_MS_MAX: u64 = 600_000;
const PARTY_SIZE_MAX: u32 = 64;
const GAME_MODES_MAX: usize = 32;
const REGIONS_MAX: usize = 64;
const NO_SOURCE: Source = 0;

/// Operation that the front can execute itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Connected,
    Disconnected,
    Heartbeat,
    Join,
    Find,
}

impl Operation {
    pub const ALL: [Operation; 5] =
        [Operation::Connected, Operation::Disconnected, Operation::Heartbeat, Operation::Join, Operation::Find];

    /// Name of the operation in metrics.
    pub fn slug(self) -> &'static str {
        match self {
            Operation::Connected => "connected",
            Operation::Disconnected => "disconnected",
            Operation::Heartbeat => "heartbeat",
            Operation::Join => "join",
            Operation::Find => "find",
        }
    }

    /// Returns whether a successful response says more than that the request was executed.
    pub fn has_content(self) -> bool {
        matches!(self, Operation::Join | Operation::Find)
    }
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
    /// Number of the code in [`Codes::names`].
    pub code: usize,
    pub wait: Lsn,
    pub reply: Reply,
}

/// Content of a response.
pub enum Reply {
    Empty,
    Placed(Placement),
    /// The code is that of a refusal.
    Refused,
}

/// Slots that find or join reserved.
pub struct Placement {
    pub lobby: Arc<LobbyAnswer>,
    /// One token for each player, the caller's first.
    pub tokens: Vec<String>,
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
    /// Executes a request of the holder of `token`. Returns None before the engine has changed if the request is not plain.
    ///
    /// `client` is the address behind trusted proxies.
    pub fn execute(&self, request: &HotRequest<'_>, token: &str, client: IpAddr) -> Option<Executed> {
        let (lobby, outcome) = match request {
            HotRequest::Find(find) => return self.find(find, token, client),
            HotRequest::Join(join) => return self.join(join, token, client),
            HotRequest::Connected(connected) => self.of_lobby(token, |lobby| self.connected(lobby, connected))?,
            HotRequest::Disconnected(gone) => self.of_lobby(token, |lobby| self.disconnected(lobby, gone))?,
            HotRequest::Heartbeat(heartbeat) => self.of_lobby(token, |lobby| self.heartbeat(lobby, heartbeat))?,
        };
        let code = Codes::of_engine(&outcome.result);
        let reply = if outcome.result.is_ok() { Reply::Empty } else { Reply::Refused };
        Some(Executed { caller: Caller::Lobby(lobby), code, wait: outcome.wait, reply })
    }

    fn of_lobby(
        &self,
        token: &str,
        run: impl FnOnce(Id) -> Option<CommandOutcome<()>>,
    ) -> Option<(Id, CommandOutcome<()>)> {
        let lobby = self.shard.keys().verify_lobby(token)?;
        Some((lobby, run(lobby)?))
    }

    fn connected(&self, lobby: Id, request: &ConnectedRequest<'_>) -> Option<CommandOutcome<()>> {
        let connect = Connect { lobby, player: self.verified_player(&request.player_token)?, idempotency: None };
        Some(self.shard.execute(|engine, context| engine.connected(context, &connect)))
    }

    fn disconnected(&self, lobby: Id, request: &DisconnectedRequest<'_>) -> Option<CommandOutcome<()>> {
        if request.hold_ms.is_some_and(|hold_ms| hold_ms > HOLD_MS_MAX) {
            return None;
        }
        let player = self.verified_player(&request.player_token)?;
        let disconnect = Disconnect { lobby, player, hold_ms: request.hold_ms, idempotency: None };
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
    fn heartbeat(&self, lobby: Id, request: &HeartbeatRequest<'_>) -> Option<CommandOutcome<()>> {
        let tokens: Option<Vec<&str>> =
            request.player_tokens.as_ref().map(|tokens| tokens.iter().map(|token| &**token).collect());
        let players = tokens.map(|tokens| PlayerList::verify(&self.shard.keys(), &tokens));
        let outcome = self.shard.execute(|engine, context| engine.heartbeat(context, lobby, players.as_ref()));
        let is_list_refused = matches!(outcome.result, Err(Refusal::TokenInListInvalid(_)));
        (!is_list_refused).then_some(outcome)
    }

    fn join(&self, request: &JoinRequest<'_>, token: &str, client: IpAddr) -> Option<Executed> {
        let lobby = lobby_id(&request.lobby_id)?;
        let party_size = party_size(request.party_size)?;
        let player = self.player(token, client, request.client_address.as_deref())?;
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

    fn find(&self, request: &FindRequest<'_>, token: &str, client: IpAddr) -> Option<Executed> {
        let party_size = party_size(request.party_size)?;
        let modes = distinct(&request.game_modes, GAME_MODES_MAX)?;
        let regions = self.regions(request.regions.as_deref().unwrap_or_default())?;
        let player = self.player(token, client, request.client_address.as_deref())?;
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

    /// Returns whether a token is a valid one of a game's players or of its back ends.
    pub fn is_client(&self, token: &str) -> bool {
        self.namespaces.client(&self.shard.keys(), token).is_some()
    }

    /// Returns None if the request needs more than its token, or is over a rate limit.
    fn player(&self, token: &str, peer: IpAddr, address: Option<&str>) -> Option<Player> {
        let client = self.namespaces.client(&self.shard.keys(), token)?;
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
    ) -> Option<Executed> {
        let identity = player.client.identity();
        let (identity, peer) = (identity.as_ref().map(<[u8; 32]>::as_slice), player.peer.as_bytes());
        let group = &player.client.namespace.group.0;
        if !self.limits.admit(identity, peer, group) {
            return None;
        }
        let placed = self.shard.run(|engine, context| {
            let (reservation, wait) = reserve(engine, context)?;
            let known = self.lobby_answers.get(reservation.lobby);
            let lobby = known.map_or_else(|| engine.lobby(reservation.lobby).map(Err), |answer| Some(Ok(answer)))?;
            Some((lobby, reservation.tokens, wait))
        });
        let Some((lobby, tokens, wait)) = placed else {
            // Python counts the request.
            self.limits.put_back(identity, peer, group);
            return None;
        };
        // Written without the engine's lock.
        let lobby = lobby.unwrap_or_else(|view| self.lobby_answers.add(view.id, LobbyAnswer::new(&self.places, &view)));
        let reply = Reply::Placed(Placement { lobby, tokens });
        Some(Executed { caller: Caller::Namespace(player.client.namespace.id), code: 0, wait, reply })
    }
}

struct Player {
    client: Client,
    /// Address that rate limits count.
    peer: ClientKey,
    source: Source,
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
