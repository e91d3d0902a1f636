//! Decisions about requests: an answer, a refusal, or what the answer needs.

use std::borrow::Cow;
use std::sync::Arc;

use hosting_client_addresses::ClientKey;
use hosting_core::{Connect, Disconnect, HashKey, Id, Idempotency, LobbyView, Lsn, PlayerCount, PlayerList};
use hosting_shard::Shard;

use crate::authorization::{
    Caller, Callers, Client, Credential, authorize_client, authorize_lobby, authorize_operator, authorize_state,
};
use crate::clock::wall_ms;
use crate::contract::Code;
use crate::decision::{Answer, Call, Decision, Need, Outcome, Reply};
use crate::description::describe;
use crate::error::{FieldProblem, ServiceError};
use crate::field_forms::lobby_id;
use crate::lobby_answers::{LobbyAnswers, Places};
use crate::lobby_list::LobbyListPage;
use crate::namespaces::Namespaces;
use crate::operation::Operation;
use crate::proto;
use crate::rate_limits::{ClientLimits, Exceeded};
use crate::regions::Region;
use crate::requests::{Body, Request};

const KM_PER_MILE: f64 = 1.609344;
const JSON: &[u8] = b"application/json";
/// Name of no encoding.
const IDENTITY: &[u8] = b"identity";
/// Part of an encoding that its error names.
const NAMED_BYTES_MAX: usize = 40;
const KEY_BYTES_MAX: usize = 255;

/// Reason why a request is not read.
pub(crate) enum Unread {
    Invalid(ServiceError),
    /// Only Python can decode it, or describe its problems.
    LeftToPython,
}

impl From<ServiceError> for Unread {
    fn from(error: ServiceError) -> Unread {
        Unread::Invalid(error)
    }
}

impl From<Unread> for Decision {
    fn from(unread: Unread) -> Decision {
        match unread {
            Unread::Invalid(error) => error.into(),
            Unread::LeftToPython => Decision::Needs(Need::InvalidRequest),
        }
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
    /// A client pays its rate limits once, before its body is decoded. It also pays for a request that needs something, so that
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
            let error = ServiceError::rate_limited(limit.slug(), wait_s);
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

    pub(crate) fn authorize(&self, call: &Call<'_>) -> Result<Caller, ServiceError> {
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

    /// Returns whether a token is a valid one of a game: of its players, its back ends or its developers.
    pub fn is_client_token(&self, token: &str) -> bool {
        let authorization = [b"Bearer ", token.as_bytes()].concat();
        let caller = self.caller(Callers::Clients, Some(&authorization), None, ClientKey::V4([0; 4]));
        matches!(caller, Ok(Caller::Client(_) | Caller::Development(_)))
    }

    fn admit(&self, caller: &Caller, operation: Operation) -> Result<(), Exceeded> {
        let client = match caller {
            Caller::Lobby(lobby) | Caller::LobbyOf { lobby, .. } => return self.limits.admit_lobby_server(&lobby.0),
            // All servers with one `dev_` token count as one.
            Caller::Development(client) if operation.callers() == Callers::LobbyServers => {
                return self.limits.admit_lobby_server(&client.identity());
            }
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

    /// Returns the request of a call and its idempotency.
    pub(crate) fn read(&self, call: &Call<'_>, identity: &[u8]) -> Result<(Request, Option<Idempotency>), Unread> {
        if matches!(call.body, Body::Json(_)) {
            check_body_form(call.media_type, call.content_encoding)?;
        }
        if let Some(key) = call.idempotency_key.filter(|_| !call.operation.is_read()) {
            check_key(key)?;
        }
        let Ok(mut request) = Request::read(call.operation, call.body) else {
            return Err(describe(call.operation, call.body).map_or(Unread::LeftToPython, Unread::Invalid));
        };
        let Some(key) = call.idempotency_key.filter(|_| call.operation.uses_key()) else {
            return Ok((request, None));
        };
        let message = match call.body {
            Body::Checked(message) => Cow::Borrowed(message),
            _ => request.canonical_bytes().into(),
        };
        // An unusual encoding has unknown fields or repeats fields. Python keeps unknown fields, and hashes them too.
        if matches!(call.body, Body::Proto(received) if received.len() != message.len()) {
            return Err(Unread::LeftToPython);
        }
        Ok((request, Some(self.hash.idempotency(identity, key, call.operation.slug(), &message))))
    }

    fn answer_lobby(&self, lobby: Id, call: &Call<'_>) -> Result<Decision, Unread> {
        let (request, idempotency) = self.read(call, &lobby.0)?;
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
            Request::Ready(_) => {
                // Players get the address of a ready lobby.
                let needs_ports =
                    |view: LobbyView| !view.is_ready && view.own.is_some_and(|own| !own.leased.ports.is_empty());
                if !call.progress.are_ports_served && self.shard.engine().lobby(lobby).is_some_and(needs_ports) {
                    return Ok(Decision::Needs(Need::ServedPorts));
                }
                self.shard.execute(|engine, context| {
                    engine.set_wall_clock(wall_ms());
                    engine.ready(context, lobby)
                })
            }
            Request::Closed(request) => {
                let is_closed = request.is_closed();
                self.shard.execute(|engine, context| engine.set_closed(context, lobby, is_closed))
            }
            Request::SetState(request) => {
                self.shard.execute(|engine, context| engine.set_state(context, lobby, &request.state))
            }
            _ => unreachable!("a lobby server does not call this operation"),
        }))
    }

    fn answer_client(&self, client: &Client, call: &Call<'_>) -> Result<Decision, Unread> {
        let (request, idempotency) = self.read(call, &client.identity())?;
        Ok(match request {
            Request::Find(request) => self.find(client, &request, idempotency, call)?,
            Request::Join(request) => self.join(client, &request, idempotency, &call.progress)?,
            Request::List(request) => {
                answered(0, Reply::Lobbies(Box::new(self.list(client, &request, call.coordinates))))
            }
            Request::Regions(_) => {
                let regions = self.region_infos(call.coordinates);
                answered(0, Reply::Regions(proto::ListRegionsResponse { regions }))
            }
            Request::Statistics(_) => answered(0, Reply::Statistics(self.statistics(client))),
            _ => unreachable!("a client does not call this operation"),
        })
    }

    /// Returns the state of a lobby in one of the namespaces. `speaker` is the lobby of the server that reads it. That lobby
    /// must be live, and the call counts as its heartbeat.
    fn state(&self, call: &Call<'_>, namespaces: &[Id], speaker: Option<Id>) -> Result<Decision, Unread> {
        let (Request::GetState(request), _) = self.read(call, &[])? else { unreachable!("the call reads a state") };
        let lobby = lobby_id(&request.lobby_id).expect("a valid request has the id of a lobby");
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
}

pub(crate) fn answered(wait: Lsn, reply: Reply) -> Decision {
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

/// Checks the media type and the encoding of a JSON body.
pub fn check_body_form(media_type: Option<&[u8]>, content_encoding: Option<&[u8]>) -> Result<(), ServiceError> {
    let is_json = media_type.is_none_or(|media_type| {
        let name = media_type.split(|byte| *byte == b';').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(JSON)
    });
    let encoding = content_encoding.map(<[u8]>::trim_ascii).filter(|name| !name.eq_ignore_ascii_case(IDENTITY));
    match (encoding, is_json) {
        (None, true) => Ok(()),
        (None, false) => Err(Code::MediaTypeUnsupported.into()),
        (Some(name), _) => {
            let name = String::from_utf8_lossy(&name[..name.len().min(NAMED_BYTES_MAX)]);
            let detail = format!("The body has Content-Encoding: {name}. Send it without an encoding.");
            Err(ServiceError::from(Code::MediaTypeUnsupported).with_detail(detail))
        }
    }
}

/// Checks the form of an idempotency key.
pub fn check_key(key: &[u8]) -> Result<(), ServiceError> {
    // Without an early end, the check takes many bytes at once.
    let is_valid =
        (1..=KEY_BYTES_MAX).contains(&key.len()) && key.iter().fold(true, |all, byte| all & byte.is_ascii_graphic());
    if is_valid {
        return Ok(());
    }
    let reason = format!("must be 1 to {KEY_BYTES_MAX} visible ASCII characters");
    let problem = FieldProblem::new(&["idempotency-key"], "invalid", Some(&reason));
    Err(ServiceError::from(Code::HeaderInvalid).with_problem(problem))
}

#[cfg(test)]
mod tests;
