//! Runs of real programs under a real keeper, observed through the run folder alone.

/// Prints a message about a test that this machine cannot run. The test still passes.
macro_rules! skipped {
    ($($context:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "SKIPPED {}", format_args!($($context)*));
    }};
}

mod build_sandbox;
mod container;
mod disk_failures;
mod isolation;
mod killed_start;
mod launcher;
mod lifecycle;
mod limits;
mod run_fixture;
mod scratch;
mod start;
mod stop;
mod surroundings;
mod system_calls;
