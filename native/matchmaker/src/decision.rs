//! A request as its transport received it, and the decision about it.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use hosting_core::{CommandOutcome, CreationPolicy, HoldId, Id, Idempotency, Lsn};
use prost::Message as _;

use crate::authorization::{Client, Subject};
use crate::error::ServiceError;
use crate::lobby_answers::LobbyAnswer;
use crate::lobby_list::LobbyListPage;
use crate::operation::Operation;
use crate::proto;
use crate::rate_limits::Limit;
use crate::requests::Body;

const NO_FIELDS: &[u8] = b"{}";
const NULL: &[u8] = b"null";

/// A request, as its transport received it.
pub struct Call<'a> {
    pub operation: Operation,
    pub authorization: Option<&'a [u8]>,
    pub origin: Option<&'a [u8]>,
    pub idempotency_key: Option<&'a [u8]>,
    /// Media type of a JSON body.
    pub media_type: Option<&'a [u8]>,
    /// Encoding of a JSON body, such as gzip.
    pub content_encoding: Option<&'a [u8]>,
    /// Latitude and longitude of the client in degrees, if a trusted proxy names them.
    pub coordinates: Option<(f64, f64)>,
    /// Address behind trusted proxies.
    pub client: IpAddr,
    pub body: Body<'a>,
    pub progress: Progress<'a>,
}

/// Progress of a request since an earlier decision about it.
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
    StartingLobby,
    /// Ports of the lobby that edge-guard serves.
    ServedPorts,
    /// The check of a `cloud_` token by the control plane.
    CloudToken,
    /// The mock response of a `dev_` token.
    MockResponse,
    /// The description of an invalid request, or the decoding of one with an unusual form.
    InvalidRequest,
}

impl Need {
    pub const ALL: [Need; 7] = [
        Need::Admission,
        Need::NewLobby,
        Need::StartingLobby,
        Need::ServedPorts,
        Need::CloudToken,
        Need::MockResponse,
        Need::InvalidRequest,
    ];

    /// Name of the need in metrics.
    pub fn slug(self) -> &'static str {
        match self {
            Need::Admission => "admission",
            Need::NewLobby => "new_lobby",
            Need::StartingLobby => "starting_lobby",
            Need::ServedPorts => "served_ports",
            Need::CloudToken => "cloud_token",
            Need::MockResponse => "mock_response",
            Need::InvalidRequest => "invalid_request",
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
    pub(crate) fn of_command(outcome: CommandOutcome<()>) -> Decision {
        match outcome.result {
            Ok(()) => Decision::Answered(Answer { wait: outcome.wait, reply: Reply::Empty }),
            Err(refusal) => Decision::Refused { error: Box::new(ServiceError::from(&refusal)), wait: outcome.wait },
        }
    }
}

impl From<ServiceError> for Decision {
    fn from(error: ServiceError) -> Decision {
        Decision::Refused { error: Box::new(error), wait: 0 }
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
