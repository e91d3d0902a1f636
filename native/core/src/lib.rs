//! Lobbies, slots and player tokens as a deterministic state machine.
//!
//! The entry point is [`Engine`]: commands in, [`CommandOutcome`]s out, events for the journal. This crate has no clock, no
//! randomness and no I/O. Service time and fresh ids are arguments. Recovery applies events in the same way as
//! live commands.

pub mod command;
pub mod engine;
pub mod fact_outbox;
pub mod journal_event;
pub mod keyed_hash;
pub mod refusal;
pub mod token;

mod base64url;
mod change_feed;
mod codec;
mod desired_lobbies;
mod event_channels;
mod find_index;
mod idempotency_table;
mod idle_lobbies;
mod lease_definition;
mod lobby;
mod lobby_table;
mod mock_tokens;
mod name_interner;
mod node_ports;
mod port_leases;
mod port_pool;
mod service_time;
mod slot;
mod slot_holds;
mod slot_ledger;
mod slot_use;
mod source_captcha_passes;
mod source_slot_counts;
mod timer_wheel;

pub use codec::ApplyError;
pub use command::*;
pub use engine::change_marks::ChangeMarks;
pub use engine::heartbeat::PlayerList;
pub use engine::slot_reservation::MAX_PARTY_SIZE;
pub use engine::suspect_slots::LobbySessions;
pub use engine::{Engine, EngineConfig};
pub use fact_outbox::{Fact, Facts, LobbyAttendance, LobbyDetails, LobbyEnd, LobbyFactKind, MAX_STORED_FACTS};
pub use keyed_hash::HashKey;
pub use port_leases::LOCAL_NODE;
pub use refusal::Refusal;
pub use token::{KeyRing, KeyRingError, PlayerToken, TokenProblem};
