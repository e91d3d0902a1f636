//! Tests of the whole front: a listener on a free port, a shard with a journal, and clients.
//!
//! No test sleeps. A test that expects no answer first makes the front handle other requests.
#![allow(clippy::unwrap_used)]

mod answering;
mod budgets;
mod certificates;
mod client;
mod cors;
mod durability;
mod failed_authentications;
mod http2;
mod limits;
mod matchmaker_calls;
mod namespace;
mod paced_reader;
mod parked_connections;
mod parking;
mod passing;
mod problem_names;
mod proxies;
mod proxy_headers;
mod python;
#[allow(dead_code)]
mod raw_http2;
mod shard;
mod shared_answers;
mod sizes;
mod slow_clients;
mod socket_process;
mod stopping;
mod threads;
mod tls;
mod upstream;
mod usual_clients;
mod world;

mod fuzz {
    mod client_frames;
    mod corpus;
    mod grpc_check;
    mod http_check;
    mod request_model;
    mod response_reader;
    mod server_frames;
}

mod grpc {
    mod answering;
    pub mod client;
    mod failed_authentications;
    mod limits;
    mod passing;
    mod proxies;
    pub mod python;
    mod slow_clients;
    mod stopping;
    mod threads;
    mod tls;
    pub mod world;
}
