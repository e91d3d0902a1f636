//! Stardust: players fly over a torus and gather stars, 20 times a second, over UDP. A server that the hosting service
//! starts, and a bot that plays on it.
//!
//! The server has two threads. `game` owns the socket, the seats and the world, and never waits for anybody; `calls`
//! owns the connection to the hosting service. Between them are a bounded queue of orders and the decisions that come
//! back. What is pure (no clock, no socket) has its rules in one place: `protocol`, `world`, `seats`, `lobby`.

pub mod bot;
pub mod calls;
pub mod find;
pub mod game;
pub mod http;
pub mod json;
pub mod lobby;
pub mod protocol;
pub mod report;
pub mod seats;
pub mod settings;
pub mod system;
pub mod world;
