//! Edge-guard as a process: real sockets and signals, and a small server of the real protocol instead of the data
//! plane.

#![allow(clippy::unwrap_used)]

mod backends;
mod client_address;
mod data_plane_silence;
mod early_response;
mod edge_process;
mod handover;
mod header_names;
mod host_routing;
mod http;
mod http2;
mod http_client;
mod limits;
mod player_leaves;
mod player_sessions;
mod proxy_header;
mod proxy_header_udp;
mod route_source;
mod routes;
mod tcp;
mod tls;
mod traffic;
mod udp;
mod unix_backends;
mod wait;
mod wildcard_bind;
mod wire;
