//! The front: an HTTP server in front of the API. It answers plain requests itself, and hands all other connections over
//! to Python.
//!
//! Start with [`Front::start`]. A request is plain if nothing but the engine is needed for its answer, and if nothing
//! about it is unusual. The front hands over a connection before the engine sees a request that is not plain. So each
//! rule about requests is written once.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod answers;
mod client_address;
mod connection;
mod connection_budget;
mod durable_waiters;
mod front;
mod handed_over;
mod measurements;
mod namespaces;
mod operations;
mod placements;
mod plain_request;
mod player_addresses;
mod rate_limits;
mod ray_id;
mod socket_owner;

pub use answers::{AnswerTemplate, Answers};
pub use client_address::{ClientAddresses, Peer};
pub use connection_budget::{Admission, ClientKey, ConnectionBudget};
pub use front::{Front, FrontOptions, Timeouts};
pub use handed_over::{HandedOver, HandedOverQueue};
pub use measurements::{Measurements, OperationCounts, RequestRecord};
pub use namespaces::{GameMode, Namespace, Namespaces, ServiceToken};
pub use operations::{Caller, Operations};
pub use placements::{LobbyAnswers, Places};
pub use plain_request::{Operation, PlainRequest, Received};
pub use player_addresses::{OwnerKind, PlayerAddress, PlayerAddresses, PlayerPort};
pub use rate_limits::{Buckets, ClientLimits};
