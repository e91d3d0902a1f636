//! Decisions about requests: an answer, a refusal, or what the answer needs.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use hosting_core::{
    Admission, ChannelId, CommandOutcome, Connect, Context, CreationPolicy, Disconnect, Engine, Find, HashKey, HoldId,
    Id, Idempotency, ImmediatePlacement, Join, LobbyView, Lsn, PlayerCount, PlayerList, Refusal, Reservation, Source,
};
use hosting_shard::Shard;
use prost::Message as _;

use crate::authorization::{
    Caller, Callers, Client, Credential, Subject, authorize_client, authorize_lobby, authorize_operator,
    authorize_state,
};
use crate::contract::Code;
use crate::criteria::{AttachCriteria, Candidates, CreateCriteria, attach_region, candidates, create_target};
use crate::description::describe;
use crate::error::{FieldProblem, ServiceError};
use crate::field_forms::{ip_address, lobby_id};
use crate::lobby_list::LobbyListPage;
use crate::namespaces::{Namespace, Namespaces};
use crate::operation::Operation;
use crate::placements::{LobbyAnswer, LobbyAnswers, Places};
use crate::proto;
use crate::rate_limits::{ClientLimits, Exceeded, Limit};
use crate::regions::Region;
pub use crate::requests::Body;
use crate::requests::Request;
use hosting_client_addresses::ClientKey;

const NO_SOURCE: Source = 0;
/// Any other value than `NO_SOURCE`, whose players are not limited.
const ANY_SOURCE: Source = 1;
const NO_FIELDS: &[u8] = b"{}";
const NULL: &[u8] = b"null";
const KM_PER_MILE: f64 = 1.609344;
const JSON: &[u8] = b"application/json";
const KEY_BYTES_MAX: usize = 255;

/// A request, as its transport received it.
pub struct Call<'a> {
    pub operation: Operation,
    pub authorization: Option<&'a [u8]>,
    pub origin: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a [u8]>,
    /// Media type of a JSON body.
    pub media_type: Option<&'a [u8]>,
    /// Latitude and longitude of the client in degrees, if a trusted proxy names them.
    pub coordinates: Option<(f64, f64)>,
    /// Address behind trusted proxies.
    pub client: IpAddr,
    pub body: Body<'a>,
    pub progress: Progress<'a>,
}

/// What has been done for a request since an earlier decision about it.
#[derive(Default)]
pub struct Progress<'a> {
    /// The request has paid its rate limits.
    pub is_paid: bool,
    /// Captcha and verification have passed, with these game modes of a find.
    pub admitted_modes: Option<&'a [String]>,
    /// edge-guard serves the ports of the lobby.
    pub are_ports_served: bool,
    /// The request may wait for a starting lobby, or for a new one by this policy.
    pub creation: Option<CreationPolicy<'a>>,
}

/// Outcome of a request.
pub struct Outcome {
    /// None: the request has no valid credentials.
    pub subject: Option<Subject>,
    pub decision: Decision,
    /// The rate limit that refuses the request.
    pub exceeded: Option<Limit>,
}

pub enum Decision {
    /// The response may be sent when the event `wait` is durable.
    Answered(Answer),
    /// The error may be sent when the event `wait` is durable.
    Refused { error: Box<ServiceError>, wait: Lsn },
    /// The engine has not changed.
    Needs(Need),
    /// The request waits for a starting lobby, because [`Progress::creation`] allows it.
    Held(Held),
}

/// Wait of a request for a starting lobby.
pub struct Held {
    pub hold: HoldId,
    pub lobby: Option<Id>,
}

/// Event or check that a decision has to wait for. Python waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The check of a captcha, or of the game's verification server.
    Admission,
    /// A new lobby.
    NewLobby,
    /// A starting lobby that becomes ready.
    ReadyLobby,
    /// Ports of the lobby that edge-guard serves.
    ServedPorts,
    /// The check of a `cloud_` token by the control plane.
    CloudToken,
    /// The mock response of a `dev_` token.
    MockResponse,
    /// The description of an invalid body, path or query.
    Description,
}

impl Need {
    pub const ALL: [Need; 7] = [
        Need::Admission,
        Need::NewLobby,
        Need::ReadyLobby,
        Need::ServedPorts,
        Need::CloudToken,
        Need::MockResponse,
        Need::Description,
    ];

    /// Name of the need in metrics.
    pub fn slug(self) -> &'static str {
        match self {
            Need::Admission => "admission",
            Need::NewLobby => "new_lobby",
            Need::ReadyLobby => "starting_lobby",
            Need::ServedPorts => "served_ports",
            Need::CloudToken => "cloud_token",
            Need::MockResponse => "mock_response",
            Need::Description => "invalid_request",
        }
    }

    /// Returns whether the request has paid its rate limits.
    pub fn is_paid(self) -> bool {
        self != Need::CloudToken
    }
}

pub struct Answer {
    pub wait: Lsn,
    pub reply: Reply,
}

/// Content of a response.
pub enum Reply {
    Empty,
    /// A lobby with reserved slots, and one token for each player, the caller's first.
    Placed {
        lobby: Arc<LobbyAnswer>,
        tokens: Vec<String>,
    },
    /// JSON text of a lobby's state, or an empty one.
    State(Vec<u8>),
    Regions(proto::ListRegionsResponse),
    Statistics(proto::GetPlayerStatisticsResponse),
    /// A page of the lobby list, which is not read yet.
    Lobbies(Box<LobbyListPage>),
}

impl Reply {
    /// Returns the content as JSON.
    pub fn json(&self) -> Cow<'_, [u8]> {
        match self {
            Reply::Empty => NO_FIELDS.into(),
            Reply::Placed { lobby, tokens } => lobby.json(tokens).into(),
            Reply::State(state) if state.is_empty() => NULL.into(),
            Reply::State(state) => state.into(),
            Reply::Regions(regions) => serde_json::to_vec(regions).expect("a message is JSON").into(),
            Reply::Statistics(statistics) => serde_json::to_vec(statistics).expect("a message is JSON").into(),
            Reply::Lobbies(page) => page.json().into(),
        }
    }

    /// Appends the content as a protobuf message.
    pub fn write_proto(&self, message: &mut Vec<u8>) {
        match self {
            Reply::Empty => {}
            Reply::Placed { lobby, tokens } => lobby.write_proto(tokens, message),
            Reply::State(state) => {
                proto::GetLobbyStateResponse { state: state.clone() }.encode(message).expect("a vector grows");
            }
            Reply::Regions(regions) => regions.encode(message).expect("a vector grows"),
            Reply::Statistics(statistics) => statistics.encode(message).expect("a vector grows"),
            Reply::Lobbies(page) => message.extend(page.proto()),
        }
    }
}

impl Decision {
    fn refused(error: impl Into<ServiceError>) -> Decision {
        Decision::Refused { error: Box::new(error.into()), wait: 0 }
    }

    fn of_command(outcome: CommandOutcome<()>) -> Decision {
        match outcome.result {
            Ok(()) => Decision::Answered(Answer { wait: outcome.wait, reply: Reply::Empty }),
            Err(refusal) => Decision::Refused { error: Box::new(ServiceError::from(&refusal)), wait: outcome.wait },
        }
    }
}

impl From<ServiceError> for Decision {
    fn from(error: ServiceError) -> Decision {
        Decision::refused(error)
    }
}

/// The rules, and the state that they read.
pub struct Matchmaker {
    pub shard: Arc<Shard>,
    pub hash: Arc<HashKey>,
    pub namespaces: Arc<Namespaces>,
    pub limits: ClientLimits,
    pub places: Places,
    pub lobby_answers: LobbyAnswers,
}

impl Matchmaker {
    /// Decides about a request. Its checks are in the documented order: credentials, rate limits, headers, body, operation.
    ///
    /// A client pays its rate limits once, before its body is read. It also pays for a request that needs something, so that
    /// no request reaches a captcha provider or starts a lobby without having paid.
    pub fn answer(&self, call: &Call<'_>) -> Outcome {
        let caller = match self.authorize(call) {
            Ok(caller) => caller,
            Err(error) => return Outcome { subject: None, decision: error.into(), exceeded: None },
        };
        let subject = caller.subject();
        if !call.progress.is_paid
            && let Err(Exceeded { limit, wait_s }) = self.admit(&caller, call.operation)
        {
            let error = rate_limited(limit.slug(), wait_s);
            return Outcome { subject, decision: error.into(), exceeded: Some(limit) };
        }
        let decision = match &caller {
            Caller::Development(_) => Ok(Decision::Needs(Need::MockResponse)),
            Caller::Cloud => Ok(Decision::Needs(Need::CloudToken)),
            Caller::Lobby(lobby) => self.answer_lobby(*lobby, call),
            Caller::LobbyOf { lobby, namespace } => self.state(call, namespace.as_slice(), Some(*lobby)),
            Caller::Client(client) if call.operation == Operation::GetState => {
                self.state(call, &[client.namespace.id], None)
            }
            Caller::Client(client) => self.answer_client(client, call),
        };
        Outcome { subject, decision: decision.unwrap_or_else(Decision::from), exceeded: None }
    }

    fn authorize(&self, call: &Call<'_>) -> Result<Caller, ServiceError> {
        let address = ClientKey::of(call.client);
        self.caller(call.operation.callers(), call.authorization, call.origin, address)
    }

    /// Authorizes a call by its credentials.
    pub fn caller(
        &self,
        callers: Callers,
        authorization: Option<&[u8]>,
        origin: Option<&[u8]>,
        address: ClientKey,
    ) -> Result<Caller, ServiceError> {
        let (namespaces, keys) = (&*self.namespaces, &*self.shard.keys());
        match callers {
            Callers::Clients => authorize_client(namespaces, keys, authorization, origin, address),
            Callers::LobbyServers => authorize_lobby(namespaces, keys, authorization, address),
            Callers::StateReaders => authorize_state(namespaces, keys, authorization, address, |lobby| {
                self.shard.engine().lobby(lobby).map(|lobby| lobby.namespace)
            }),
            Callers::Operators => authorize_operator(namespaces, authorization, address),
        }
    }

    /// Returns whether a token is a valid one of a game's players or of its back ends.
    pub fn is_client_token(&self, token: &str) -> bool {
        let authorization = [b"Bearer ", token.as_bytes()].concat();
        let caller = self.caller(Callers::Clients, Some(&authorization), None, ClientKey::V4([0; 4]));
        matches!(caller, Ok(Caller::Client(_)))
    }

    fn admit(&self, caller: &Caller, operation: Operation) -> Result<(), Exceeded> {
        let client = match caller {
            Caller::Lobby(lobby) | Caller::LobbyOf { lobby, .. } => return self.limits.admit_lobby(&lobby.0),
            Caller::Client(client) | Caller::Development(client) => client,
            Caller::Cloud => return Ok(()),
        };
        if operation.callers() != Callers::Clients {
            return Ok(());
        }
        let token = match client.credential {
            Credential::Service(_) => Some(client.identity()),
            Credential::Public | Credential::Development(_) | Credential::Origin => None,
        };
        self.limits.admit(token.as_deref(), client.address.as_bytes(), &client.namespace.group.0)
    }

    /// Returns the request of a call and its idempotency, or `None` if only Python can describe what is wrong with it.
    fn read(&self, call: &Call<'_>, identity: &[u8]) -> Result<Option<(Request, Option<Idempotency>)>, ServiceError> {
        if matches!(call.body, Body::Json(_)) {
            check_media_type(call.media_type)?;
        }
        if let Some(key) = call.idempotency_key.filter(|_| !call.operation.is_read()) {
            check_key(key)?;
        }
        let Ok(mut request) = Request::read(call.operation, call.body) else {
            return describe(call.operation, call.body).map_or(Ok(None), Err);
        };
        let Some(key) = call.idempotency_key.filter(|_| call.operation.uses_key()) else {
            return Ok(Some((request, None)));
        };
        let message = match call.body {
            Body::Checked(message) => Cow::Borrowed(message),
            _ => request.canonical_bytes().into(),
        };
        // An unusual encoding has unknown fields or repeats fields. Python keeps unknown fields, and hashes them too.
        if matches!(call.body, Body::Proto(received) if received.len() != message.len()) {
            return Ok(None);
        }
        Ok(Some((request, Some(self.hash.idempotency(identity, key, call.operation.slug(), &message)))))
    }

    fn answer_lobby(&self, lobby: Id, call: &Call<'_>) -> Result<Decision, ServiceError> {
        let (request, idempotency) = match self.read(call, &lobby.0)? {
            Some((request, idempotency)) => (request, idempotency),
            None => return Ok(Decision::Needs(Need::Description)),
        };
        Ok(Decision::of_command(match request {
            Request::Connected(request) => {
                let player = self.shard.keys().verify_player(&request.player_token);
                let connect = Connect { lobby, player, idempotency };
                self.shard.execute(|engine, context| engine.connected(context, &connect))
            }
            Request::Disconnected(request) => {
                let player = self.shard.keys().verify_player(&request.player_token);
                let hold_ms = request.hold_ms.map(u64::from);
                let disconnect = Disconnect { lobby, player, hold_ms, idempotency };
                self.shard.execute(|engine, context| engine.disconnected(context, &disconnect))
            }
            Request::Heartbeat(request) => {
                let tokens = request.player_tokens.as_ref().map(|list| {
                    let tokens: Vec<&str> = list.tokens.iter().map(String::as_str).collect();
                    PlayerList::verify(&self.shard.keys(), &tokens)
                });
                self.shard.execute(|engine, context| engine.heartbeat(context, lobby, tokens.as_ref()))
            }
            Request::Ready => {
                // Players get the address of a ready lobby.
                let needs_ports = |view: LobbyView| !view.is_ready && view.own.is_some_and(|own| !own.ports.is_empty());
                if !call.progress.are_ports_served && self.shard.engine().lobby(lobby).is_some_and(needs_ports) {
                    return Ok(Decision::Needs(Need::ServedPorts));
                }
                self.shard.execute(|engine, context| {
                    engine.set_wall_clock(wall_ms());
                    engine.ready(context, lobby)
                })
            }
            Request::Closed { is_closed } => {
                self.shard.execute(|engine, context| engine.set_closed(context, lobby, is_closed))
            }
            Request::SetState(state) => self.shard.execute(|engine, context| engine.set_state(context, lobby, &state)),
            _ => unreachable!("a lobby server does not call this operation"),
        }))
    }

    fn answer_client(&self, client: &Client, call: &Call<'_>) -> Result<Decision, ServiceError> {
        match self.read(call, &client.identity())? {
            None => Ok(Decision::Needs(Need::Description)),
            Some((Request::Find(request), idempotency)) => self.find(client, &request, idempotency, call),
            Some((Request::Join(request), idempotency)) => self.join(client, &request, idempotency, &call.progress),
            Some((Request::List(request), _)) => {
                Ok(answered(0, Reply::Lobbies(Box::new(self.list(client, &request, call.coordinates)))))
            }
            Some((Request::Regions, _)) => {
                let regions = self.region_infos(call.coordinates);
                Ok(answered(0, Reply::Regions(proto::ListRegionsResponse { regions })))
            }
            Some((Request::Statistics, _)) => Ok(answered(0, Reply::Statistics(self.statistics(client)))),
            Some(_) => unreachable!("a client does not call this operation"),
        }
    }

    /// Returns the state of a lobby in one of the namespaces. `speaker` is the lobby of the server that reads it. That lobby
    /// must be live, and the call counts as its heartbeat.
    fn state(&self, call: &Call<'_>, namespaces: &[Id], speaker: Option<Id>) -> Result<Decision, ServiceError> {
        let lobby = match self.read(call, &[])? {
            Some((Request::GetState(lobby), _)) => lobby,
            _ => return Ok(Decision::Needs(Need::Description)),
        };
        let outcome = self.shard.execute(|engine, context| engine.state(context, namespaces, lobby, speaker));
        Ok(match outcome.result {
            Ok(state) => answered(outcome.wait, Reply::State(state.unwrap_or_default())),
            Err(refusal) => Decision::Refused { error: Box::new(ServiceError::from(&refusal)), wait: outcome.wait },
        })
    }

    fn list(
        &self,
        client: &Client,
        request: &proto::ListLobbiesRequest,
        coordinates: Option<(f64, f64)>,
    ) -> LobbyListPage {
        let namespace = &client.namespace;
        let listable = namespace.modes.iter().filter(|(_, mode)| mode.is_listable).map(|(name, _)| name.clone());
        let regions = self.region_infos(coordinates);
        LobbyListPage::new(namespace.id, namespace.version, listable.collect(), regions, request)
    }

    fn region_infos(&self, coordinates: Option<(f64, f64)>) -> Vec<proto::RegionInfo> {
        self.places.regions.nearest_first(coordinates).into_iter().map(region_info).collect()
    }

    fn statistics(&self, client: &Client) -> proto::GetPlayerStatisticsResponse {
        let mut statistics = proto::GetPlayerStatisticsResponse::default();
        for name in client.namespace.modes.keys() {
            statistics.game_modes.entry(name.clone()).or_default();
        }
        let counts = self.shard.engine().player_counts(client.namespace.id);
        for PlayerCount { mode, region, player_count } in counts {
            statistics.player_count += player_count;
            let of_mode = statistics.game_modes.entry(mode).or_default();
            of_mode.player_count += player_count;
            of_mode.regions.entry(region).or_default().player_count += player_count;
        }
        statistics
    }

    fn find(
        &self,
        client: &Client,
        request: &proto::FindLobbyRequest,
        idempotency: Option<Idempotency>,
        call: &Call<'_>,
    ) -> Result<Decision, ServiceError> {
        let (namespace, progress) = (&client.namespace, &call.progress);
        let source = self.source_of(client, request.client_address.as_deref())?;
        let Candidates { mut modes, regions } =
            match candidates(namespace, &self.places.regions, request, call.coordinates) {
                Ok(candidates) => candidates,
                // A repeated request gets its first response, even if the configuration has changed.
                Err(error) => return self.recall(idempotency.as_ref(), progress).ok_or(error),
            };
        match progress.admitted_modes {
            Some(admitted) => modes.retain(|mode| admitted.iter().any(|name| name == mode)),
            None if namespace.needs_admission => {
                return Ok(self.recall(idempotency.as_ref(), progress).unwrap_or(Decision::Needs(Need::Admission)));
            }
            None => {}
        }
        let tags: Vec<(&str, &str)> = request.tags.iter().map(|(name, value)| (&**name, &**value)).collect();
        let channels = self.channels(&request.event_channels);
        let creation = match (request.prevent_auto_create_lobby, progress.creation.clone()) {
            (Some(true), _) => CreationPolicy::Prevented,
            (_, Some(creation)) => creation,
            // Python knows whether the service can start a lobby, and its template.
            (_, None) => CreationPolicy::Impossible { lobby_count_max: 0 },
        };
        let find = Find {
            namespace: namespace.id,
            version: namespace.version,
            modes: &modes,
            regions: &regions,
            tags: &tags,
            party_size: request.party_size.unwrap_or(1),
            source,
            source_limit: namespace.source_limit,
            idempotency,
            channels: &channels,
            creation,
        };
        Ok(match progress.creation {
            Some(_) => self.place_or_hold(&channels, |engine, context| engine.find(context, &find)),
            None => self.place(&channels, |engine, context| engine.find_now(context, &find)),
        })
    }

    fn join(
        &self,
        client: &Client,
        request: &proto::JoinLobbyRequest,
        idempotency: Option<Idempotency>,
        progress: &Progress<'_>,
    ) -> Result<Decision, ServiceError> {
        let namespace = &client.namespace;
        let source = self.source_of(client, request.client_address.as_deref())?;
        let channels = self.channels(&request.event_channels);
        let mut join = Join {
            namespace: namespace.id,
            lobby: lobby_id(&request.lobby_id).expect("a valid request has the id of a lobby"),
            party_size: request.party_size.unwrap_or(1),
            rejoin_token: request.rejoin_token.as_deref(),
            source,
            source_limit: namespace.source_limit,
            idempotency,
            channels: &channels,
        };
        if namespace.needs_admission && progress.admitted_modes.is_none() {
            // The engine checks the limit of a source last. A new join therefore passes all other checks, fails at a limit
            // of 0 and reserves no slot.
            (join.source, join.source_limit) = (ANY_SOURCE, 0);
            return Ok(match self.execute_join(&join, progress) {
                Decision::Refused { error, .. } if error.code == Code::MatchmakerTooManyPlayersFromSource => {
                    Decision::Needs(Need::Admission)
                }
                repeated_or_impossible => repeated_or_impossible,
            });
        }
        Ok(self.execute_join(&join, progress))
    }

    fn execute_join(&self, join: &Join<'_>, progress: &Progress<'_>) -> Decision {
        match progress.creation {
            Some(_) => self.place_or_hold(join.channels, |engine, context| engine.join(context, join)),
            None => self.place(join.channels, |engine, context| engine.join_now(context, join)),
        }
    }

    /// Returns what Python needs to know about a find or join that needs something.
    ///
    /// Returns an error if the credentials have become invalid since, or the configuration allows no mode of a find any
    /// more.
    pub fn placement(&self, call: &Call<'_>) -> Result<PlacementRequest, ServiceError> {
        let Caller::Client(client) = self.authorize(call)? else { return Err(Code::TokenInvalid.into()) };
        let (mut request, idempotency) = self.read(call, &client.identity())?.ok_or(Code::BodyInvalid)?;
        let Candidates { modes, regions } = match &request {
            Request::Find(find) => candidates(&client.namespace, &self.places.regions, find, call.coordinates)?,
            _ => Candidates { modes: Vec::new(), regions: Vec::new() },
        };
        let (modes, regions) = (owned(&modes), owned(&regions));
        let message = request.canonical_bytes();
        Ok(PlacementRequest { client, message, idempotency, modes, regions })
    }

    /// Returns the region and the publicity of a new lobby.
    pub fn create_target(
        &self,
        namespace: &Namespace,
        request: &CreateCriteria<'_>,
    ) -> Result<(String, String), ServiceError> {
        create_target(namespace, &self.places.regions, request)
    }

    /// Returns the region of a server that becomes a lobby.
    pub fn attach_region(&self, namespace: &Namespace, request: &AttachCriteria<'_>) -> Result<String, ServiceError> {
        attach_region(namespace, &self.places.regions, request)
    }

    /// Returns a hash of the player's address. The number of players with the same hash is limited.
    ///
    /// A back end sends the address of its player in the request. For other callers, `client` is the address.
    pub fn source(
        &self,
        namespace: Id,
        is_back_end: bool,
        client: ClientKey,
        player: Option<&str>,
    ) -> Result<Source, ServiceError> {
        let key = match (is_back_end, player.map(ip_address)) {
            (true, None) => return Ok(NO_SOURCE),
            (true, Some(Some(address))) => ClientKey::of(address),
            (true, Some(None)) => return Err(client_address("invalid", None)),
            (false, Some(_)) => return Err(client_address("not-allowed", Some("is for env_ tokens only"))),
            (false, None) => client,
        };
        Ok(self.hash.source(namespace, key.as_bytes()))
    }

    fn source_of(&self, client: &Client, player: Option<&str>) -> Result<Source, ServiceError> {
        let is_back_end = matches!(client.credential, Credential::Service(_));
        self.source(client.namespace.id, is_back_end, client.address, player)
    }

    fn channels(&self, secrets: &[String]) -> Vec<ChannelId> {
        secrets.iter().map(|secret| self.hash.channel(secret.as_bytes())).collect()
    }

    /// Returns the stored response of a request, or None for a new request.
    fn recall(&self, idempotency: Option<&Idempotency>, progress: &Progress<'_>) -> Option<Decision> {
        let idempotency = idempotency?;
        let mut is_known = false;
        let decision = match progress.creation {
            Some(_) => self.place_or_hold(&[], |engine, context| {
                let recalled = engine.recall_admission(context, idempotency);
                is_known = !matches!(recalled.result, Ok(None));
                CommandOutcome {
                    result: recalled.result.map(|known| known.unwrap_or(Admission::Hold(HoldId(0)))),
                    wait: recalled.wait,
                }
            }),
            None => self.place(&[], |engine, context| {
                let recalled = engine.recall_now(context, idempotency);
                is_known = recalled.is_some();
                recalled.unwrap_or(ImmediatePlacement::LobbyNeeded)
            }),
        };
        is_known.then_some(decision)
    }

    fn place(
        &self,
        channels: &[ChannelId],
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> ImmediatePlacement,
    ) -> Decision {
        let placement = self.shard.run(|engine, context| {
            if !channels.is_empty() {
                engine.set_wall_clock(wall_ms());
            }
            command(engine, context)
        });
        match placement {
            ImmediatePlacement::Done(CommandOutcome { result, wait }) => self.placed(result, wait),
            ImmediatePlacement::LobbyStarting => Decision::Needs(Need::ReadyLobby),
            ImmediatePlacement::LobbyNeeded => Decision::Needs(Need::NewLobby),
        }
    }

    fn place_or_hold(
        &self,
        channels: &[ChannelId],
        command: impl FnOnce(&mut Engine, &mut Context<'_>) -> CommandOutcome<Admission>,
    ) -> Decision {
        let mut lobby = None;
        let CommandOutcome { result, wait } = self.shard.execute(|engine, context| {
            if !channels.is_empty() {
                engine.set_wall_clock(wall_ms());
            }
            let outcome = command(engine, context);
            if let Ok(Admission::Hold(hold)) = outcome.result {
                lobby = engine.lobby_of_hold(hold);
            }
            outcome
        });
        match result {
            Ok(Admission::Hold(hold)) => Decision::Held(Held { hold, lobby }),
            Ok(Admission::Reserved(reservation)) => self.placed(Ok(reservation), wait),
            Err(refusal) => self.placed(Err(refusal), wait),
        }
    }

    /// Returns the decision about a request that has reserved slots, or was refused.
    pub fn placed(&self, result: Result<Reservation, Refusal>, wait: Lsn) -> Decision {
        let reservation = match result {
            Ok(reservation) => reservation,
            Err(refusal) => return Decision::Refused { error: Box::new(ServiceError::from(&refusal)), wait },
        };
        match self.lobby_answer(reservation.lobby) {
            Ok(lobby) => answered(wait, Reply::Placed { lobby, tokens: reservation.tokens }),
            // The lobby ended before this response. The error follows once that end is durable.
            Err(end) => Decision::Refused { error: Box::new(Code::MatchmakerLobbyStopped.into()), wait: wait.max(end) },
        }
    }

    /// Returns the parts of a response that are equal for all players of a lobby. If the lobby has ended, returns the last event
    /// of the engine. The cache is changed without the engine's lock.
    fn lobby_answer(&self, lobby: Id) -> Result<Arc<LobbyAnswer>, Lsn> {
        if let Some(answer) = self.lobby_answers.get(lobby) {
            return Ok(answer);
        }
        let engine = self.shard.engine();
        let view = engine.lobby(lobby).ok_or_else(|| engine.last_lsn())?;
        drop(engine);
        Ok(self.lobby_answers.add(lobby, LobbyAnswer::new(&self.places, &view)))
    }
}

/// A valid find or join.
pub struct PlacementRequest {
    pub client: Client,
    /// The message in its canonical encoding.
    pub message: Vec<u8>,
    pub idempotency: Option<Idempotency>,
    /// Game modes and regions that a find may use.
    pub modes: Vec<String>,
    pub regions: Vec<String>,
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the error of a request that a rate limit refuses.
fn rate_limited(limit: &'static str, wait_s: f64) -> ServiceError {
    ServiceError::from(Code::RateLimited).with_retry_after(wait_s).with_metadata("limit", limit)
}

fn answered(wait: Lsn, reply: Reply) -> Decision {
    Decision::Answered(Answer { wait, reply })
}

fn region_info((region, kilometers): (&Region, f64)) -> proto::RegionInfo {
    let (latitude, longitude) = region.coordinates;
    proto::RegionInfo {
        region_id: region.id.clone(),
        provider_display_name: region.provider_display_name.clone(),
        region_display_name: region.display_name.clone(),
        datacenter_coord: Some(proto::Coordinates { latitude, longitude }),
        datacenter_distance_from_client: Some(proto::Distance { kilometers, miles: kilometers / KM_PER_MILE }),
    }
}

fn client_address(word: &'static str, reason: Option<&str>) -> ServiceError {
    ServiceError::from(Code::BodyInvalid).with_problem(FieldProblem::new(&["client_address"], word, reason))
}

/// Checks the media type of a JSON body.
pub fn check_media_type(media_type: Option<&[u8]>) -> Result<(), ServiceError> {
    let is_json = media_type.is_none_or(|media_type| {
        let name = media_type.split(|byte| *byte == b';').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(JSON)
    });
    if is_json { Ok(()) } else { Err(Code::MediaTypeUnsupported.into()) }
}

/// Checks the form of an idempotency key.
pub fn check_key(key: &[u8]) -> Result<(), ServiceError> {
    let is_valid = (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(u8::is_ascii_graphic);
    if is_valid {
        return Ok(());
    }
    let reason = format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters");
    let problem = FieldProblem::new(&["idempotency-key"], "invalid", Some(&reason));
    Err(ServiceError::from(Code::HeaderInvalid).with_problem(problem))
}

fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
