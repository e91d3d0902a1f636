//! Errors of requests: a code of the contract with the details of one request, and its forms in HTTP and gRPC.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hosting_core::{EndReason, Refusal};
use prost::Message;
use serde::{Serialize, Serializer};

use crate::contract::{Code, ERRORS, ErrorRow, WORDS};

type Text = Cow<'static, str>;

const TYPE_PREFIX: &str = "urn:hosting:problem:";
const DOMAIN: &str = "hosting";
const TYPE_URL_PREFIX: &str = "type.googleapis.com/google.rpc.";
/// Details travel in a header, and clients accept 8 KiB of headers by default.
const GRPC_PROBLEMS_BYTES_MAX: usize = 4096;
/// Tag and length of a problem in its message.
const GRPC_PROBLEM_FRAME_BYTES: usize = 3;
/// `metadata.limit` of an error about too many mock players.
const MOCK_PLAYER_LIMIT: &str = "mock_players";

impl Code {
    pub fn row(self) -> &'static ErrorRow {
        &ERRORS[self as usize]
    }

    pub fn slug(self) -> &'static str {
        self.row().slug
    }

    pub fn of_slug(slug: &str) -> Option<Code> {
        ERRORS.iter().find(|row| row.slug == slug).map(|row| row.code)
    }

    /// Returns the code of a refusal of the engine.
    fn of_refusal(refusal: &Refusal) -> Code {
        match refusal {
            Refusal::StorageFull => Code::StorageFull,
            Refusal::IdempotencyKeyReused => Code::IdempotencyKeyReused,
            Refusal::LobbyNotFound => Code::MatchmakerLobbyNotFound,
            Refusal::LobbyStopped => Code::MatchmakerLobbyStopped,
            Refusal::LobbyFull => Code::MatchmakerLobbyFull,
            Refusal::LobbyClosed => Code::MatchmakerLobbyClosed,
            Refusal::LobbyUnreachable => Code::MatchmakerLobbyUnreachable,
            Refusal::LobbyDraining => Code::MatchmakerLobbyDraining,
            Refusal::NoAvailableLobbies => Code::MatchmakerNoAvailableLobbies,
            Refusal::TooManyLobbies => Code::MatchmakerTooManyLobbies,
            Refusal::LobbyStartFailed(..) => Code::MatchmakerLobbyStartFailed,
            Refusal::PortsExhausted => Code::PortsExhausted,
            Refusal::CapacityExhausted => Code::CapacityExhausted,
            Refusal::LeaseNotFound => Code::ServerNotFound,
            Refusal::LeaseInUse => Code::InUse,
            Refusal::PortsNotBound => Code::Overloaded,
            Refusal::JoinDisabled => Code::MatchmakerJoinDisabled,
            Refusal::TooManyPlayersFromSource => Code::MatchmakerTooManyPlayersFromSource,
            Refusal::PartyTooLarge(_) | Refusal::TokenInListInvalid(_) => Code::BodyInvalid,
            Refusal::PlayerTokenInvalid => Code::PlayerTokenInvalid,
            Refusal::PlayerTokenWrongLobby => Code::PlayerTokenWrongLobby,
            Refusal::PlayerTokenConsumed => Code::PlayerTokenConsumed,
            Refusal::PlayerTokenExpired => Code::PlayerTokenExpired,
            Refusal::TooManyMockPlayers { .. } => Code::RateLimited,
            Refusal::PlayerRemoved => Code::PlayerRemoved,
            Refusal::LobbyTokenExpired => Code::TokenExpired,
        }
    }
}

/// One problem of the input. The path names the field, and ends with a problem word such as `too-long`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FieldProblem {
    path: Vec<Text>,
    message: String,
    /// Number of problems that this one stands for. 0: it is one of a field.
    #[serde(skip)]
    omitted_count: usize,
}

/// Returns the standard text of a problem word.
pub fn standard_reason(word: &str) -> &'static str {
    WORDS.iter().find(|(known, _)| *known == word).map_or("", |(_, text)| *text)
}

impl FieldProblem {
    /// `reason` replaces the standard text of the word.
    pub fn new(location: &[&str], word: &'static str, reason: Option<&str>) -> FieldProblem {
        let standard = standard_reason(word);
        let path = location.iter().map(|name| Cow::Owned((*name).to_owned())).chain([word.into()]).collect();
        let name = Some(location.join(".")).filter(|name| !name.is_empty());
        let name = name.as_deref().unwrap_or("the body");
        FieldProblem { path, message: format!("{name} {}", reason.unwrap_or(standard)), omitted_count: 0 }
    }

    pub fn path(&self) -> &[Text] {
        &self.path
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    pub fn omitted(count: usize) -> FieldProblem {
        let message = format!("and {count} more problems");
        FieldProblem { path: vec!["too-many".into()], message, omitted_count: count }
    }

    /// Returns a problem that Python has described.
    pub fn described(path: Vec<String>, message: String) -> FieldProblem {
        FieldProblem { path: path.into_iter().map(Cow::Owned).collect(), message, omitted_count: 0 }
    }
}

/// Error response to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceError {
    pub code: Code,
    /// None: the sentence of the code.
    detail: Option<Text>,
    problems: Vec<FieldProblem>,
    metadata: Vec<(Text, Text)>,
    retry_after_s: Option<u32>,
}

impl From<Code> for ServiceError {
    fn from(code: Code) -> ServiceError {
        ServiceError { code, detail: None, problems: Vec::new(), metadata: Vec::new(), retry_after_s: None }
    }
}

impl From<&Refusal> for ServiceError {
    fn from(refusal: &Refusal) -> ServiceError {
        let error = ServiceError::from(Code::of_refusal(refusal));
        match refusal {
            Refusal::LobbyStartFailed(reason, exit_code) => {
                let error = error.with_metadata("reason", reason_word(*reason));
                match exit_code {
                    Some(exit_code) => error.with_metadata("exit_code", exit_code.to_string()),
                    None => error,
                }
            }
            Refusal::PartyTooLarge(limit) => {
                let reason = format!("must be at most {limit}");
                error.with_problem(FieldProblem::new(&["party_size"], "too-high", Some(&reason)))
            }
            Refusal::LeaseInUse => {
                error.with_detail("Players may know the ports of this lobby or server at another node.")
            }
            Refusal::PortsNotBound => error.with_detail("No node has the ports of the lobby yet; call ready again."),
            Refusal::TooManyMockPlayers { retry_after_ms } => {
                ServiceError::rate_limited(MOCK_PLAYER_LIMIT, *retry_after_ms as f64 / 1000.0)
            }
            Refusal::TokenInListInvalid(indexes) => indexes.iter().fold(error, |error, index| {
                error.with_problem(FieldProblem::new(&["player_tokens", &index.to_string()], "invalid", None))
            }),
            _ => error,
        }
    }
}

/// Returns the name of an end reason in the metadata of errors and in labels of metrics.
pub fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Exited => "exited",
        EndReason::StartTimeout => "start_timeout",
        EndReason::Silent => "silent",
        EndReason::Removed => "removed",
        EndReason::Stopped => "stopped",
    }
}

impl ServiceError {
    /// Returns the error of a request that a rate limit refuses.
    pub fn rate_limited(limit: impl Into<Text>, wait_s: f64) -> ServiceError {
        ServiceError::from(Code::RateLimited).with_metadata("limit", limit).with_retry_after(wait_s)
    }

    pub fn with_detail(mut self, detail: impl Into<Text>) -> ServiceError {
        self.detail = Some(detail.into());
        self
    }

    pub fn with_problem(mut self, problem: FieldProblem) -> ServiceError {
        self.problems.push(problem);
        self
    }

    pub fn with_metadata(mut self, name: impl Into<Text>, value: impl Into<Text>) -> ServiceError {
        self.metadata.push((name.into(), value.into()));
        self
    }

    /// The wait is rounded up to whole seconds, at least one.
    pub fn with_retry_after(mut self, wait_s: f64) -> ServiceError {
        self.retry_after_s = Some(wait_s.ceil().max(1.0) as u32);
        self
    }

    pub fn detail(&self) -> &str {
        self.detail.as_deref().unwrap_or(self.code.row().detail)
    }

    pub fn problems(&self) -> &[FieldProblem] {
        &self.problems
    }

    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        self.metadata.iter().map(|(name, value)| (&**name, &**value))
    }

    pub fn retry_after_s(&self) -> Option<u32> {
        self.retry_after_s.or(self.code.row().retry_after_s)
    }

    /// Returns the body of the HTTP response: a `hosting.v1.Problem`, which extends RFC 9457.
    pub fn problem_json(&self, ray_id: &str) -> Vec<u8> {
        let row = self.code.row();
        let problem = Problem {
            problem_type: format!("{TYPE_PREFIX}{}", row.slug.to_ascii_lowercase().replace('_', "-")),
            title: row.title,
            status: row.http_status,
            detail: self.detail(),
            code: row.slug,
            message: self.detail(),
            ray_id,
            metadata: &self.metadata,
            errors: &self.problems,
        };
        serde_json::to_vec(&problem).expect("a problem has only text keys")
    }

    /// Returns the `google.rpc.Status` of the gRPC response.
    pub fn grpc_status(&self) -> Vec<u8> {
        let row = self.code.row();
        let metadata = self.metadata().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut details =
            vec![packed("ErrorInfo", &ErrorInfo { reason: row.slug.to_owned(), domain: DOMAIN.to_owned(), metadata })];
        if !self.problems.is_empty() {
            details.push(packed("BadRequest", &BadRequest { field_violations: violations(&self.problems) }));
        }
        if let Some(seconds) = self.retry_after_s() {
            let retry_delay = Some(Duration { seconds: seconds.into() });
            details.push(packed("RetryInfo", &RetryInfo { retry_delay }));
        }
        Status { code: row.grpc_status, message: self.detail().to_owned(), details }.encode_to_vec()
    }
}

/// Returns the first problems that fit into the metadata of a response. A last entry counts the others.
fn violations(problems: &[FieldProblem]) -> Vec<FieldViolation> {
    let mut room = GRPC_PROBLEMS_BYTES_MAX;
    let mut shown = Vec::new();
    for (index, problem) in problems.iter().enumerate() {
        let violation = FieldViolation::from(problem);
        let size = violation.encoded_len() + GRPC_PROBLEM_FRAME_BYTES;
        if size > room {
            let count = problems[index..].iter().map(|problem| problem.omitted_count.max(1)).sum();
            shown.push(FieldViolation::from(&FieldProblem::omitted(count)));
            break;
        }
        room -= size;
        shown.push(violation);
    }
    shown
}

#[derive(Serialize)]
struct Problem<'a> {
    #[serde(rename = "type")]
    problem_type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    message: &'a str,
    ray_id: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty", serialize_with = "as_object")]
    metadata: &'a [(Text, Text)],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    errors: &'a [FieldProblem],
}

fn as_object<S: Serializer>(pairs: &&[(Text, Text)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

// Messages of google.rpc.

#[derive(Message)]
struct Status {
    #[prost(int32, tag = 1)]
    code: i32,
    #[prost(string, tag = 2)]
    message: String,
    #[prost(message, repeated, tag = 3)]
    details: Vec<Any>,
}

#[derive(Message)]
struct Any {
    #[prost(string, tag = 1)]
    type_url: String,
    #[prost(bytes = "vec", tag = 2)]
    value: Vec<u8>,
}

#[derive(Message)]
struct ErrorInfo {
    #[prost(string, tag = 1)]
    reason: String,
    #[prost(string, tag = 2)]
    domain: String,
    #[prost(btree_map = "string, string", tag = 3)]
    metadata: BTreeMap<String, String>,
}

#[derive(Message)]
struct BadRequest {
    #[prost(message, repeated, tag = 1)]
    field_violations: Vec<FieldViolation>,
}

#[derive(Message)]
struct FieldViolation {
    #[prost(string, tag = 1)]
    field: String,
    #[prost(string, tag = 2)]
    description: String,
    #[prost(string, tag = 3)]
    reason: String,
}

#[derive(Message)]
struct RetryInfo {
    #[prost(message, optional, tag = 1)]
    retry_delay: Option<Duration>,
}

#[derive(Message)]
struct Duration {
    #[prost(int64, tag = 1)]
    seconds: i64,
}

impl From<&FieldProblem> for FieldViolation {
    fn from(problem: &FieldProblem) -> FieldViolation {
        let (word, location) = problem.path.split_last().expect("a path ends with a word");
        FieldViolation {
            field: location.join("."),
            description: problem.message.clone(),
            reason: word.to_uppercase().replace('-', "_"),
        }
    }
}

fn packed(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("{TYPE_URL_PREFIX}{name}"), value: message.encode_to_vec() }
}

#[cfg(test)]
mod tests;
