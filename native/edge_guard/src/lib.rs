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
mod admin;
mod asked;
pub mod authority;
mod begin;
pub mod config;
mod control;
mod datagram;
mod folder;
mod follow;
mod handover;
mod hosts;
mod http;
mod inherited;
mod life;
mod limits;
mod listener;
mod live;
mod log;
mod metrics;
mod parts;
mod pool;
mod predecessor;
mod proxy;
mod reach;
mod relay;
mod routes;
pub mod run;
mod stream;
mod table;
mod tls;
mod turns;
pub mod wire;
mod worker;
