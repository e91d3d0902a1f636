//! Measurements of engine, journal, doors and edge-guard. One run measures one thing in a process of its own and prints
//! one JSON object; who runs it how often, beside which baseline, and what must be reached is `bench/run.py`'s matter.
//!
//! Read in this order: [`hall`] (lobbies to measure with), one module per measurement ([`cycles`], [`finds`],
//! [`growth`], [`leases`], [`transitions`], [`recovery`], [`doors`], [`passing`]), their baselines ([`naive`], [`raw_log`]), and what
//! all of them use ([`chance`], [`figures`], [`host`], [`flags`], [`latency`]).

pub mod chance;
pub mod cycles;
pub mod doors;
pub mod figures;
pub mod finds;
pub mod flags;
pub mod growth;
pub mod hall;
pub mod host;
pub mod latency;
pub mod leases;
pub mod naive;
pub mod passing;
pub mod raw_log;
pub mod recovery;
pub mod shard;
pub mod transitions;

/// Why a measurement gives no figure.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Ends a measurement whose answer is not the expected one.
pub fn wrong(what: impl std::fmt::Display) -> Failure {
    what.to_string().into()
}

/// Prints what a measurement gave, or why it gave nothing. Debug builds measure nothing.
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
