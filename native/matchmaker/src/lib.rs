//! Rules of the matchmaker. Each decision about a request stands here once, whatever its transport.
//!
//! [`Matchmaker::answer`] takes a request as its transport received it: credentials, headers and body. It returns an
//! answer, a refusal, or what the answer needs that has to be waited for: a [`Need`].

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod authorization;
mod bearer_token;
mod clock;
pub mod contract;
mod criteria;
mod decision;
mod description;
mod error;
mod field_forms;
mod json_fields;
mod left_to_python;
mod lobby_answers;
mod lobby_list;
mod matchmaker;
mod namespaces;
mod operation;
mod placing;
mod player_addresses;
pub mod proto;
mod rate_limits;
mod regions;
mod request_rules;
mod requests;

pub use authorization::{Caller, Callers, Client, Credential, Subject, accepted_token};
pub use bearer_token::{BearerProblem, PUBLIC_TOKEN, token_of};
pub use clock::{monotonic_s, wall_ms};
pub use contract::Code;
pub use criteria::{AttachCriteria, CreateCriteria, attach_region, check_mode, create_target};
pub use decision::{Answer, Call, Decision, Held, Need, Outcome, PlacementRequest, Progress, Reply};
pub use description::rules_of_proto;
pub use error::{FieldProblem, ServiceError, reason_word};
pub use hosting_client_addresses::ClientKey;
pub use lobby_answers::{LobbyAnswer, LobbyAnswers, Places};
pub use lobby_list::LobbyListPage;
pub use matchmaker::{Matchmaker, check_body_form, check_key};
pub use namespaces::{GameMode, Namespace, Namespaces, PortKind, ServiceToken};
pub use operation::Operation;
pub use player_addresses::{OwnerKind, PlayerAddress, PlayerAddresses, PlayerPort, PortOwner};
pub use rate_limits::{Buckets, ClientLimits, Limit, OperationLimits};
pub use regions::{Region, Regions};
pub use request_rules::{Finding, MATCHED_LENGTH};
pub use requests::Body;
