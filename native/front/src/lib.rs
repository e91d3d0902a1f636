//! The front: an HTTP and gRPC server in front of the API.
//!
//! Start with [`Front::start`]. The front answers a request of the matchmaker if its rules decide at once, and passes any other
//! request on to Python.

#![allow(missing_docs)] // an internal crate: documented where a name does not say it

mod front;
mod shutdown;
mod thread_context;

mod grpc {
    pub mod answering;
    pub mod call;
    pub mod call_head;
    pub mod compression;
    pub mod grpc_context;
    pub mod grpc_server;
    pub mod health;
    pub mod message;
    pub mod methods;
    pub mod passed_call;
    pub mod passed_response;
    pub mod reply;
    pub mod upstream;
}

mod certificates {
    pub mod acme;
    pub mod server_certificate;
}

mod connections {
    pub mod client_address;
    pub mod client_stream;
    pub mod connection;
    pub mod deadline;
    pub mod http2_connection;
    pub mod hyper_connection;
    pub mod socket_owner;
    pub mod timeouts;
}

/// Parts of requests over both transports.
mod requests {
    pub mod bearer_header;
    pub mod internal_headers;
    pub mod ray_id;
    pub mod request_form;
    pub mod routes;
    pub mod trace_context;
}

mod responses {
    pub mod answer_body;
    pub mod cors;
    pub mod decider;
    pub mod durable_waiters;
    pub mod error_response;
    pub mod problems;
}

/// Requests that the front reads without hyper.
mod plain_requests {
    mod matchmaker_call;
    pub mod plain_connection;
    pub mod plain_request;
}

/// Requests that hyper reads, and their way to Python.
mod passing {
    pub mod exchange;
    pub mod http_plane;
    pub mod passed_request;
    pub mod passing_options;
    pub mod process_state;
    pub mod upstream;
}

mod long_polls {
    pub mod parked_request;
    pub mod repeats;
    pub mod watches;
}

mod limits {
    pub mod body_budget;
    pub mod connection_budget;
    pub mod failed_authentications;
    pub mod permit_queue;
    pub mod permits;
}

mod measurements {
    pub mod code_number;
    pub mod measurer;
    pub mod pass_reason;
    pub mod record_allowance;
    pub mod request_measurement;
}

pub use certificates::acme::{Acme, AcmeOptions, Notice};
pub use certificates::server_certificate::ServerCertificate;
pub use connections::client_address::{ClientAddresses, Peer, coordinates};
pub use connections::client_stream::acked_bytes;
pub use connections::timeouts::Timeouts;
pub use front::{Front, FrontOptions};
pub use grpc::grpc_context::{GrpcLimits, GrpcOptions};
pub use grpc::health::Health;
pub use grpc::methods::MethodOptions;
pub use limits::body_budget::BodyBudget;
pub use limits::connection_budget::{Admission, ConnectionBudget};
pub use limits::failed_authentications::FailedAuthentications;
pub use long_polls::watches::Changes;
pub use measurements::code_number::names as code_names;
pub use measurements::measurer::{Measurements, OperationCounts, RequestRecord};
pub use measurements::pass_reason::PassReason;
pub use passing::passing_options::{PassingOptions, RequestLimits};
pub use plain_requests::plain_request::{PlainRequest, Received};
pub use requests::routes::{ByPlane, Plane, RouteOptions, Routes};
pub use requests::trace_context::trace;
pub use responses::cors::Cors;
pub use responses::problems::Problem;
