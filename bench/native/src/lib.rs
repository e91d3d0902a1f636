//! Measurements of engine, journal, servers and edge-guard. One process measures one thing and prints one JSON object.
//!
//! `bench/run.py` repeats the runs, compares them with baselines and checks the limits. [`engine_fixture`] is the
//! engine state of the measurements [`cycles`], [`find_cost`], [`memory_growth`], [`outage_hold`] and [`port_lease_cost`].
//! [`transitions`] and [`recovery`] add a journal, [`server_load`] and [`proxy_load`] are network load. The baselines are
//! [`naive_engine`] and [`raw_log`].

#![allow(missing_docs)] // internal crate of the measuring programs

pub mod cycles;
pub mod engine_fixture;
pub mod find_cost;
pub mod flags;
pub mod host_measurements;
pub mod latency;
pub mod measured_shard;
pub mod measurement;
pub mod memory_growth;
pub mod naive_engine;
pub mod outage_hold;
pub mod port_lease_cost;
pub mod proxy_load;
pub mod raw_log;
pub mod recovery;
pub mod seeded_random;
pub mod server_load;
pub mod soak;
pub mod transitions;
pub mod two_syncs;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub fn failure(message: impl std::fmt::Display) -> Failure {
    message.to_string().into()
}

/// Prints the result or the error of a measurement. Rejects debug builds.
pub fn report(name: &str, result: Result<measurement::Measurement, Failure>) -> std::process::ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("{name}: build with --release to measure");
        return std::process::ExitCode::FAILURE;
    }
    match result {
        Ok(figures) => {
            println!("{figures}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
