//! Tests of the engine through its public interface: rules, and random sequences against models.

#![allow(clippy::unwrap_used)]

mod bounded_work;
mod capacity;
mod captcha_and_mock_players;
mod change_marks;
mod durability;
mod event_channels;
mod format_stability;
mod idempotency;
mod idle_lobbies;
mod immediate_placements;
mod lobby_creation;
mod lobby_facts;
mod lobby_lifecycle;
mod lobby_versions;
mod namespace_reuse;
mod node_leases;
mod node_leases_against_lists;
mod player_presence;
mod player_tokens;
mod port_leases;
mod port_leases_against_lists;
mod random;
mod records_against_lists;
mod reference_model;
mod suspect_slots;
mod test_engine;
mod trials;
