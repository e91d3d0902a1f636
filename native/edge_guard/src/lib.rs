//! Port proxy: leads players to game servers, and outlives the rest of the service.
//!
//! Owns public sockets and nothing else: where they lead is the data plane's to say, and what was said last is kept on
//! disk. Read in this order: [`config`] (what it is told), `routes` (the set and its rules), `control` (asks, follows,
//! keeps), `table` (routes to sockets), `stream`, `http` and `datagram` (what is done with those who come), `handover`
//! (giving it all to a newer process). An upper one of these lines may name a lower one:
//!
//! ```text
//! run
//! life
//! begin | parts
//! admin
//! control
//! follow
//! table
//! http | stream | predecessor
//! handover
//! inherited
//! listener
//! worker
//! datagram | relay | reach | pool | tls
//! hosts | limits
//! live
//! routes | metrics | proxy | asked
//! config
//! address | wire | turns
//! log | folder
//! ```

mod address;
mod admin_server;
mod backend_connect;
mod backend_pool;
pub mod certificate_authority;
pub mod config;
mod connection_limits;
pub mod entrypoint;
mod folder_lock;
mod handover;
mod host_table;
mod http;
mod inherited;
mod lifecycle;
mod listener;
mod live_route;
mod metrics;
mod operator_log;
mod predecessor;
mod process_context;
mod proxy_protocol;
mod relay;
mod request_body;
mod route_client;
mod route_controller;
mod route_set;
mod route_table;
mod scheduling;
mod startup;
mod tcp;
mod tls;
mod udp;
pub mod wire;
mod worker;
