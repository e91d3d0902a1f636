//! The front: an HTTP and gRPC server in front of the API.
//!
//! Start with [`Front::start`]. The front answers a request of the matchmaker if its rules decide at once, and passes any other
//! request on to Python.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod acme;
mod answer_body;
mod bearer_header;
mod body_budget;
mod client_address;
mod client_stream;
mod code_number;
mod connection;
mod connection_budget;
mod cors;
mod deadline;
mod decisions;
mod durable_waiters;
mod error_response;
mod failed_authentications;
mod front;
mod grpc;
mod http2_connection;
mod hyper_connection;
mod internal_headers;
mod measurements;
mod measuring;
mod parked_request;
mod pass_reason;
mod passed_request;
mod passing;
mod permits;
mod plain_connection;
mod plain_request;
mod problems;
mod process_state;
mod ray_id;
mod repeats;
mod request_form;
mod routes;
mod socket_owner;
mod tls;
mod trace_context;
mod upstream;
mod watches;

pub use acme::{Acme, AcmeOptions, Notice};
pub use body_budget::BodyBudget;
pub use client_address::{ClientAddresses, Peer};
pub use client_stream::acked_bytes;
pub use code_number::names as code_names;
pub use connection_budget::{Admission, ConnectionBudget};
pub use cors::Cors;
pub use failed_authentications::FailedAuthentications;
pub use front::{Front, FrontOptions, Timeouts};
pub use grpc::{GrpcLimits, GrpcOptions, Health, MethodOptions};
pub use measurements::{Measurements, OperationCounts, RequestRecord};
pub use pass_reason::PassReason;
pub use passing::{PassingOptions, RequestLimits};
pub use plain_request::{PlainRequest, Received};
pub use problems::Problem;
pub use routes::{ByPlane, Plane, RouteOptions, Routes};
pub use tls::ServerCertificate;
pub use trace_context::trace;
pub use watches::Changes;
