//! Decisions that reserve slots: find and join, and the checks that they share with create and attach.

use std::sync::Arc;

use hosting_client_addresses::ClientKey;
use hosting_core::{
    Admission, ChannelId, CommandOutcome, Context, CreationPolicy, Engine, Find, HoldId, Id, Idempotency,
    ImmediatePlacement, Join, Lsn, Refusal, Reservation, Source,
};

use crate::authorization::{Caller, Client};
use crate::clock::wall_ms;
use crate::contract::Code;
use crate::criteria::{Candidates, candidates};
use crate::decision::{Call, Decision, Held, Need, PlacementRequest, Progress, Reply};
use crate::error::{FieldProblem, ServiceError};
use crate::field_forms::{ip_address, lobby_id};
use crate::lobby_answers::LobbyAnswer;
use crate::matchmaker::{Matchmaker, Unread, answered};
use crate::proto;
use crate::requests::Request;

const NO_SOURCE: Source = 0;
/// Any other value than `NO_SOURCE`. Players of `NO_SOURCE` are not limited.
const ANY_SOURCE: Source = 1;

/// Kind of the problem that nothing listens on a port of a game server.
const NOTHING_LISTENS: &str = "nothing-listens";

impl Matchmaker {
    pub(crate) fn find(
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
            Some(admitted) => retain_admitted(&mut modes, admitted),
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

    pub(crate) fn join(
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
            // The engine checks the limit of a source after all others but the free slots. At a limit of 0, a new join that may
            // succeed fails there and reserves no slot.
            (join.source, join.source_limit) = (ANY_SOURCE, 0);
            return Ok(match self.execute_join(&join, progress) {
                Decision::Refused { error, .. } if error.code == Code::MatchmakerTooManyPlayersFromSource => {
                    Decision::Needs(Need::Admission)
                }
                repeated_or_impossible => repeated_or_impossible,
            });
        }
        Ok(match self.execute_join(&join, progress) {
            Decision::Refused { error, wait } if error.code == Code::MatchmakerLobbyUnreachable => {
                let error = Box::new(self.explain_unreachable(*error, client, join.lobby, &request.lobby_id));
                Decision::Refused { error, wait }
            }
            other => other,
        })
    }

    /// Adds why players do not reach a lobby. Only back ends get addresses and ports of game servers.
    fn explain_unreachable(&self, error: ServiceError, client: &Client, lobby: Id, lobby_id: &str) -> ServiceError {
        let error = error.with_metadata("lobby_id", lobby_id.to_owned()).with_metadata("kind", NOTHING_LISTENS);
        if !client.is_back_end() {
            return error;
        }
        match self.shard.engine().unreachable_problem(lobby) {
            Some(problem) => error.with_metadata("problem", problem.to_owned()),
            None => error,
        }
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
        let (mut request, idempotency) = match self.read(call, &client.identity()) {
            Ok(read) => read,
            Err(Unread::Invalid(error)) => return Err(error),
            Err(Unread::LeftToPython) => return Err(Code::BodyInvalid.into()),
        };
        let Candidates { mut modes, regions } = match &request {
            Request::Find(find) => candidates(&client.namespace, &self.places.regions, find, call.coordinates)?,
            _ => Candidates { modes: Vec::new(), regions: Vec::new() },
        };
        if let Some(admitted) = call.progress.admitted_modes {
            retain_admitted(&mut modes, admitted);
        }
        let (modes, regions) = (owned(&modes), owned(&regions));
        let message = request.canonical_bytes();
        Ok(PlacementRequest { client, message, idempotency, modes, regions })
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
        self.source(client.namespace.id, client.is_back_end(), client.address, player)
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
            ImmediatePlacement::LobbyStarting => Decision::Needs(Need::StartingLobby),
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
    /// of the engine.
    fn lobby_answer(&self, lobby: Id) -> Result<Arc<LobbyAnswer>, Lsn> {
        if let Some(answer) = self.lobby_answers.get(lobby) {
            return Ok(answer);
        }
        let Some(view) = self.shard.engine().lobby(lobby) else { return Err(self.shard.engine().last_lsn()) };
        Ok(self.lobby_answers.add(lobby, LobbyAnswer::new(&self.places, &view)))
    }
}

/// Keeps the modes for which the player has passed captcha and verification.
fn retain_admitted(modes: &mut Vec<&str>, admitted: &[String]) {
    modes.retain(|mode| admitted.iter().any(|name| name == mode));
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn client_address(word: &'static str, reason: Option<&str>) -> ServiceError {
    ServiceError::from(Code::BodyInvalid).with_problem(FieldProblem::new(&["client_address"], word, reason))
}
