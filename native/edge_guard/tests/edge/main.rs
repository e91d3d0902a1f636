//! Edge-guard as a process: real sockets, real signals, and a small server that speaks the real protocol in the place
//! of the data plane.

#![allow(clippy::unwrap_used)]

mod datagrams;
mod everywhere;
mod gone;
mod guard;
mod handover;
mod hosts;
mod http;
mod http2;
mod limits;
mod patience;
mod plain_http;
mod routes;
mod servers;
mod sockets;
mod source;
mod streams;
mod tls;
mod wire;
