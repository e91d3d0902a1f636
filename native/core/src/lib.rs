//! Lobbies, slots and player tokens as a deterministic state machine.
//!
//! The entry point is [`Engine`]: commands in, [`Answer`]s out, events for the journal. There is no clock, no
//! randomness and no I/O in this crate: service time and fresh ids are arguments, so a run is a function of its inputs
//! and recovery is the same [`Engine::apply`] that serves live commands.

pub mod command;
pub mod engine;
pub mod error;
pub mod event;
pub mod hash;
pub mod outbox;
pub mod token;

mod base64url;
mod channel;
mod codec;
mod deadline;
mod find;
mod hold;
mod idempotency;
mod lease;
mod ledger;
mod lobbies;
mod lobby;
mod mock;
mod ports;
mod slot;
mod source;
mod standing;
mod supply;
mod symbol;
mod time;
mod uses;
mod wanted;

pub use command::*;
pub use engine::{Engine, EngineConfig};
pub use error::Refusal;
pub use event::ApplyError;
pub use hash::HashKey;
pub use outbox::{About, Attendance, Ended, FACTS_KEPT, Fact, Facts, What};
pub use token::{KeyRing, KeyRingError};
