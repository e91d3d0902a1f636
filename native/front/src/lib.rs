//! The front: an HTTP and gRPC server in front of the API. It answers plain requests itself, and passes all others on to Python.
//!
//! Start with [`Front::start`]. A request is plain if nothing but the engine is needed for its answer, and if nothing
//! about it is unusual. The front passes any other request on before the engine sees it. So each rule about requests is
//! written once.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod acme;
mod answer_body;
mod answers;
mod bearer_token;
mod body_budget;
mod client_address;
mod client_stream;
mod codes;
mod connection;
mod connection_budget;
mod cors;
mod durable_waiters;
mod error_response;
mod failed_authentications;
mod front;
mod grpc;
mod hot_request;
mod http2_connection;
mod hyper_connection;
mod internal_headers;
mod measurements;
mod measuring;
mod namespaces;
mod operations;
mod parked_request;
mod passed_request;
mod passing;
mod permits;
mod placements;
mod plain_connection;
mod plain_request;
mod player_addresses;
mod problems;
mod process_state;
pub mod proto;
mod rate_limits;
mod ray_id;
mod repeats;
mod routes;
mod socket_owner;
mod tls;
mod trace_context;
mod upstream;
mod watches;

pub use acme::{Acme, AcmeOptions, Notice};
pub use answers::Answers;
pub use body_budget::BodyBudget;
pub use client_address::{ClientAddresses, Peer};
pub use client_stream::acked_bytes;
pub use codes::Codes;
pub use connection_budget::{Admission, ClientKey, ConnectionBudget};
pub use cors::Cors;
pub use error_response::ErrorTemplate;
pub use failed_authentications::FailedAuthentications;
pub use front::{Front, FrontOptions, Timeouts};
pub use grpc::{GrpcLimits, GrpcOptions, MethodOptions};
pub use measurements::{Measurements, OperationCounts, RequestRecord};
pub use namespaces::{GameMode, Namespace, Namespaces, ServiceToken};
pub use operations::{Caller, Operation, Operations};
pub use passing::{PassingOptions, RequestLimits};
pub use placements::{LobbyAnswers, Places};
pub use plain_request::{PlainRequest, Received};
pub use player_addresses::{OwnerKind, PlayerAddress, PlayerAddresses, PlayerPort};
pub use problems::{Problem, Problems};
pub use rate_limits::{Buckets, ClientLimits};
pub use routes::{ByPlane, Plane, RouteOptions, Routes};
pub use tls::ServerCertificate;
pub use watches::Changes;
