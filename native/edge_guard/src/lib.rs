//! Port proxy: forwards players to game servers, and survives restarts of the rest of the service.
//!
//! Edge-guard owns the public sockets. The data plane decides the routes, and edge-guard saves the last routes on disk.
//! Start reading at `route_set` (the routes and their rules), `route_controller` (receives them), `route_listeners` (binds
//! sockets). Then read `tcp`, `http` and `udp` (forward traffic), and `handover` (replaces the process). In this list, a module
//! may only use modules of lower lines:
//!
//! ```text
//! entrypoint
//! lifecycle
//! startup | process_context
//! admin_server
//! route_controller | session_reporter
//! route_client
//! route_listeners
//! http | tcp | predecessor
//! handover
//! listener
//! connection_workers
//! udp | relay | backend_connect | backend_pool | tls
//! host_routes | connection_limits
//! live_route
//! traffic | player_sessions
//! route_set | metrics | proxy_protocol | request_body
//! config
//! address | wire | certificate_authority
//! operator_log | folder_lock | data_plane_contact
//! ```

mod address;
mod admin_server;
mod backend_connect;
mod backend_pool;
pub mod certificate_authority;
mod client_sessions;
mod config;
mod connection_limits;
mod connection_workers;
mod data_plane_contact;
pub mod entrypoint;
mod folder_lock;
mod handover;
mod host_routes;
mod http;
mod lifecycle;
mod listener;
mod live_route;
mod metrics;
mod operator_log;
mod player_sessions;
mod predecessor;
mod process_context;
mod proxy_protocol;
mod relay;
mod request_body;
mod route_client;
mod route_controller;
mod route_listeners;
mod route_set;
mod session_reporter;
mod startup;
mod tcp;
mod tls;
mod traffic;
mod udp;
pub mod wire;
