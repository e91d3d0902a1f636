//! Measurements of engine, journal, servers and edge-guard. One process measures one thing and prints one JSON object.
//!
//! `bench/run.py` repeats the runs, compares them with baselines and checks the limits. [`hall`] is the engine state of
//! the measurements [`cycles`], [`finds`], [`growth`] and [`leases`]. [`transitions`] and [`recovery`] add a journal,
//! [`transports`] and [`passing`] are network load. The baselines are [`naive`] and [`raw_log`].

#![allow(missing_docs)] // internal crate of the measuring programs

pub mod chance;
pub mod cycles;
pub mod figures;
pub mod finds;
pub mod flags;
pub mod growth;
pub mod hall;
pub mod host;
pub mod latency;
pub mod leases;
pub mod measured_shard;
pub mod naive;
pub mod passing;
pub mod raw_log;
pub mod recovery;
pub mod transitions;
pub mod transports;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub fn wrong(what: impl std::fmt::Display) -> Failure {
    what.to_string().into()
}

/// Prints the result or the error of a measurement. Rejects debug builds.
pub fn report(name: &str, measured: Result<figures::Figures, Failure>) -> std::process::ExitCode {
    if cfg!(debug_assertions) {
        eprintln!("{name}: build with --release to measure");
        return std::process::ExitCode::FAILURE;
    }
    match measured {
        Ok(figures) => {
            println!("{figures}");
            std::process::ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{name}: {failure}");
            std::process::ExitCode::FAILURE
        }
    }
}
