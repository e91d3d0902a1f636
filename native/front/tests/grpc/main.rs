//! Tests of gRPC through the whole front.
//!
//! Each has a listener on a free port, a shard with a journal, and two servers in place of the Python processes.
//!
//! No test sleeps.
#![allow(clippy::unwrap_used)]

mod answering;
#[path = "../front/certificates.rs"]
mod certificates;
mod client;
mod failed_authentications;
mod limits;
#[path = "../front/namespace.rs"]
#[allow(dead_code)]
mod namespace;
#[path = "../front/paced_reader.rs"]
mod paced_reader;
mod passing;
#[path = "../front/problem_names.rs"]
mod problem_names;
mod proxies;
#[path = "../front/proxy_headers.rs"]
mod proxy_headers;
mod python;
#[path = "../front/raw_http2.rs"]
#[allow(dead_code)]
mod raw_http2;
#[path = "../front/shard.rs"]
#[allow(dead_code)]
mod shard;
mod slow_clients;
#[path = "../front/socket_process.rs"]
mod socket_process;
mod stopping;
mod threads;
mod tls;
mod world;
